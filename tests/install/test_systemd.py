"""`slurmwrap hooks` with systemd: the Debian package, Debian's Slurm and slurmwrap's running units (make systemd).

The tests of one suite share a booted system and depend on each other in the order of this file.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from booted import Booted, CannotBootError, boot, wait_until

ROOT = Path(__file__).resolve().parents[2]
RECONCILER = "slurmwrap-reconcile.service"
ENABLED = [RECONCILER, "slurmwrap-report.timer", "slurmwrap-watchdog.timer"]
STATE = "/var/lib/slurmwrap"
CGROUP_CONF = {"bookworm": "CgroupPlugin=cgroup/v1\n", "trixie": "CgroupPlugin=disabled\n"}
BROKEN = '#!/bin/sh\npython3 -c "import nothing_of_that_name"\n'
SMTP_SERVER = """
import socketserver, sys
class Hear(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(b"220 here\\r\\n")
        text = False
        for line in self.rfile:
            with open("/srv/mail", "ab") as kept: kept.write(line)
            word = line.upper().split()[:1]
            if text: text = line != b".\\r\\n"; answer = b"" if text else b"250 ok\\r\\n"
            elif word == [b"DATA"]: text, answer = True, b"354 go on\\r\\n"
            elif word == [b"QUIT"]: self.wfile.write(b"221 bye\\r\\n"); return
            else: answer = b"250 ok\\r\\n"
            self.wfile.write(answer)
socketserver.TCPServer(("127.0.0.1", 25), Hear).serve_forever()
"""
QUICK_TIMER = "[Timer]\nOnActiveSec=\nOnUnitActiveSec=\nOnActiveSec=1\nOnUnitActiveSec=3\nAccuracySec=100ms\n"
# Lists everything that an installation could change, without files that systemd and Slurm themselves write.
LIST_FILES = r"""
find /etc /usr/local /srv /shared /var/lib -xdev \( -path /var/lib/slurm -o -path /var/lib/systemd/random-seed \
  -o -path '/var/lib/systemd/timers/stamp-[!s]*' -o -path '/var/lib/systemd/timers' -prune -a -false \) -prune -o \
  -printf '%p %m %U %G %l\n' 2>/dev/null | sort
find /etc /usr/local /srv -xdev -type f -exec sha256sum {} + | sort
"""

pytestmark = [pytest.mark.packages, pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def package() -> Path:
    """The Debian package of this checkout."""
    for what in ("wheel", "deb"):
        done = subprocess.run([ROOT / ".ci" / "package", what], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    (found,) = (ROOT / "build" / "dist").glob("*.deb")
    return found


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def site(request: pytest.FixtureRequest, package: Path) -> Iterator[Booted]:
    """A controller that is also the only node, with slurmwrap's package, before `slurmwrap hooks install`."""
    try:
        system = boot(request.param)
    except CannotBootError as error:
        pytest.skip(str(error))
    try:
        system.start_slurm(CGROUP_CONF[request.param])
        system.copy(package, "/root/slurmwrap.deb")
        system.out("dpkg", "-i", "/root/slurmwrap.deb")
        system.out("useradd", "-m", "-s", "/bin/sh", "ada")
        yield system
    finally:
        system.stop()


BEFORE: dict[int, str] = {}  # leader -> output of LIST_FILES before anything was installed


def show_property(site: Booted, unit: str, name: str) -> str:
    return site.out("systemctl", "show", "-P", name, unit).strip()


def read_journal(site: Booted, unit: str, *options: str) -> list[dict[str, Any]]:
    output = site.out("journalctl", "-u", unit, "-o", "json", "--no-pager", *options)
    return [json.loads(line) for line in output.splitlines()]


def read_check_states(site: Booted, *argv: str) -> dict[str, str]:
    """The states of the checks in the `--json` output of a command: name -> state."""
    checks = json.loads(site.run(*argv, "--json").stdout)["checks"]
    return {one.get("what", one.get("name")): one["state"] for one in checks}


def test_the_units_are_active_after_installation(site: Booted) -> None:
    BEFORE[site.leader] = site.out("sh", "-c", LIST_FILES)
    done = site.run("slurmwrap", "hooks", "install", "--yes", "--shared", "/shared/slurmwrap")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"started {', '.join(ENABLED)}" in done.stderr
    if "restart slurmctld once" in done.stderr:  # before 23.11
        site.out("systemctl", "restart", "slurmctld")
        wait_until(lambda: site.run("sinfo", "-h", "-o", "%T").stdout.strip() == "idle", "slurmctld is back")
    done = site.run("slurmwrap", "hooks", "install", "--yes")
    assert "observations of Prolog, Epilog and EpilogSlurmctld were accepted" in done.stderr
    assert [show_property(site, unit, "ActiveState") for unit in ENABLED] == ["active"] * 3
    assert [show_property(site, unit, "UnitFileState") for unit in ENABLED] == ["enabled"] * 3
    assert show_property(site, RECONCILER, "User") == "slurm"
    assert set(read_check_states(site, "slurmwrap", "hooks", "check").values()) == {"ok"}
    assert json.loads(site.out("slurmwrap", "hooks", "plan", "--json"))["other_controllers"] == ["slurmwrap-backup"]


def test_the_diagnosis_of_a_failed_job_is_in_the_journal_with_fields(site: Booted) -> None:
    site.write("/home/ada/broken.sh", BROKEN, mode=0o755)
    output = site.out("runuser", "-u", "ada", "--", "sh", "-c", "cd ~ && sbatch --parsable --gpus=1 broken.sh")
    job = output.strip()
    wait_until(lambda: read_journal(site, RECONCILER, f"SLURM_JOB_ID={job}") != [], f"job {job} is judged")
    (line,) = read_journal(site, RECONCILER, f"SLURM_JOB_ID={job}", "SLURMWRAP_EVENT=judged")
    names = (
        "SLURM_JOB_USER",
        "SLURM_JOB_STATE",
        "SLURMWRAP_CATEGORY",
        "PRIORITY",
        "SYSLOG_IDENTIFIER",
        "_CAP_EFFECTIVE",
    )
    assert [line[name] for name in names] == ["ada", "FAILED", "import_error", "6", "slurmwrap", "0"]
    why = site.out("runuser", "-u", "ada", "--", "slurmwrap", "why", job)
    assert "> ModuleNotFoundError: No module named 'nothing_of_that_name'" in why


def test_a_killed_reconciler_is_restarted(site: Booted) -> None:
    before = show_property(site, RECONCILER, "MainPID")
    site.out("kill", "-9", before)
    wait_until(lambda: show_property(site, RECONCILER, "MainPID") not in ("0", before), "another one was started")
    assert (show_property(site, RECONCILER, "NRestarts"), show_property(site, RECONCILER, "ActiveState")) == (
        "1",
        "active",
    )


def test_the_report_runs_and_its_timer_is_scheduled(site: Booted) -> None:
    assert "05:30:00" in show_property(site, "slurmwrap-report.timer", "NextElapseUSecRealtime")
    site.out("systemctl", "start", "slurmwrap-report")
    assert {"index.html", "last", "latest.html"} <= set(site.out("ls", f"{STATE}/reports").split())
    assert "slurmwrap-report.timer" in site.out("systemctl", "list-timers", "--no-pager")


def test_the_watchdog_reports_nothing_while_no_service_is_overdue(site: Booted) -> None:
    site.out("systemctl", "start", "slurmwrap-watchdog")
    assert show_property(site, "slurmwrap-watchdog.service", "Result") == "success"
    assert read_journal(site, "slurmwrap-watchdog", "-p", "err") == []


def test_doctor_reports_no_failure(site: Booted) -> None:
    wait_until(lambda: read_check_states(site, "slurmwrap", "doctor")["reconciler"] == "ok", "the reconciler passed")
    found = read_check_states(site, "slurmwrap", "doctor")
    assert "fail" not in found.values(), found
    checks = ("hooks", "hooks on nodes", "spool", "published", "reconciler", "units", "night report", "log")
    assert {name: found[name] for name in checks} == dict.fromkeys(checks, "ok")


def test_the_reconciler_works_while_a_backup_is_the_controller(site: Booted) -> None:
    """A second slurmctld runs with its own host name and address, on the same disk."""
    program = "hostname slurmwrap-backup && mount -t tmpfs tmpfs /run/of-slurmctld && exec slurmctld -D"
    site.out("systemd-run", "--unit=backup", "--collect", "unshare", "--uts", "--mount", "sh", "-c", program)
    wait_until(lambda: site.run("scontrol", "ping").stdout.count("is UP") == 2, "both controllers answer")
    site.out("systemctl", "stop", "slurmctld")
    site.run("scontrol", "takeover")
    wait_until(lambda: site.run("sinfo", "-h", "-o", "%T").stdout.strip() == "idle", "the backup is the controller")
    output = site.out("runuser", "-u", "ada", "--", "sh", "-c", "cd ~ && sbatch --parsable --gpus=1 broken.sh")
    wait_until(lambda: read_journal(site, RECONCILER, f"SLURM_JOB_ID={output.strip()}") != [], "its job is judged")
    site.out("systemctl", "start", "slurmctld")
    wait_until(lambda: site.run("scontrol", "ping").stdout.count("is UP") == 2, "the primary is back")
    site.out("systemctl", "stop", "backup")
    wait_until(lambda: site.run("sinfo", "-h", "-o", "%T").stdout.strip() == "idle", "the primary is the controller")


def test_a_newly_configured_directory_is_writable_after_reinstallation(site: Booted) -> None:
    site.write("/srv/hear.py", SMTP_SERVER)
    site.out("systemd-run", "--unit=hear", "--collect", "python3", "/srv/hear.py")
    site.out("install", "-d", "-o", "slurm", "/srv/reports")
    config = site.out("cat", "/etc/slurmwrap/config.toml")
    more = '[report]\ndirectory = "/srv/reports"\nto = "ops@example.org"\n[mail]\nserver = "127.0.0.1"\n'
    site.write("/etc/slurmwrap/config.toml", config + more)
    assert site.run("systemctl", "start", "slurmwrap-report").returncode == 1
    assert read_check_states(site, "slurmwrap", "hooks", "check")["systemd"] == "warn"
    before = show_property(site, RECONCILER, "MainPID")
    site.out("slurmwrap", "hooks", "install", "--yes", "--no-test")
    assert show_property(site, RECONCILER, "MainPID") != before  # restarted, with the new configuration and release
    site.out("systemctl", "start", "slurmwrap-report")
    assert "latest.html" in site.out("ls", "/srv/reports")
    assert read_check_states(site, "slurmwrap", "hooks", "check")["systemd"] == "ok"


@pytest.mark.parametrize(("option", "capabilities"), [("--become-users", 0xC0), ("--no-become-users", 0)])
def test_the_reconciler_may_become_users_only_with_become_users(option: str, capabilities: int, site: Booted) -> None:
    """CAP_SETGID and CAP_SETUID are bits 6 and 7."""
    site.out("slurmwrap", "hooks", "install", "--yes", "--no-test", option)
    status = site.out("cat", f"/proc/{show_property(site, RECONCILER, 'MainPID')}/status").splitlines()
    found = dict(line.split(":", 1) for line in status)
    assert [int(found[name], 16) for name in ("CapEff", "CapBnd", "CapAmb")] == [capabilities] * 3
    wait_until(lambda: read_check_states(site, "slurmwrap", "doctor")["reconciler"] == "ok", "the reconciler passed")


def test_the_watchdog_reports_overdue_services_and_keeps_running(site: Booted) -> None:
    site.out("systemctl", "stop", RECONCILER)
    site.out("touch", "-d", "1 hour ago", f"{STATE}/heartbeat")
    site.write("/srv/reports/last", "1000000000\n")
    site.write("/run/systemd/system/slurmwrap-watchdog.timer.d/quick.conf", QUICK_TIMER)
    site.out("systemctl", "daemon-reload")
    site.out("systemctl", "restart", "slurmwrap-watchdog.timer")
    wait_until(lambda: len(read_journal(site, "slurmwrap-watchdog", "SLURMWRAP_LATE=report")) > 1, "it looked twice")
    late = read_journal(site, "slurmwrap-watchdog", "-p", "err", "SLURMWRAP_LATE=reconciler")[0]
    assert (late["MESSAGE"], late["PRIORITY"]) == ("no pass of the reconciler for 60 minutes", "3")
    site.out("systemctl", "stop", "slurmwrap-watchdog.timer")
    assert site.run("systemctl", "start", "slurmwrap-watchdog").returncode == 1
    assert show_property(site, "slurmwrap-watchdog.service", "ExecMainStatus") == "2"
    kept = [json.loads(line)["what"] for line in site.out("cat", f"{STATE}/watchdog.late").splitlines()]
    assert kept == ["reconciler", "report"]
    assert (
        site.out("grep", "-c", "^Subject: slurmwrap: late", "/srv/mail") == "1\n"
    )  # only one mail for two overdue passes
    assert read_check_states(site, "slurmwrap", "hooks", "check")["systemd"] == "fail"


def test_uninstalling_leaves_no_trace(site: Booted) -> None:
    site.out("rm", "-r", "/run/systemd/system/slurmwrap-watchdog.timer.d")
    site.out("systemctl", "stop", "hear")
    site.out("slurmwrap", "hooks", "uninstall", "--purge")
    site.out(
        "rm", "-r", "/etc/slurmwrap", "/srv/hear.py", "/srv/mail", "/srv/reports"
    )  # made by these tests or changed by the site
    assert site.out("sh", "-c", LIST_FILES) == BEFORE[site.leader]
    assert site.run("systemctl", "list-units", "--all", "--no-legend", "slurmwrap*").stdout == ""
    assert site.run("systemctl", "is-system-running").stdout == "running\n"
    assert site.out("runuser", "-u", "ada", "--", "srun", "--gpus=1", "echo", "runs") == "runs\n"
