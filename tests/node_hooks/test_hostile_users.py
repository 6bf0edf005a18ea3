"""Attacks by users through their files, job names and the kernel log: no other user, node or shell is reached."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hook_site import Site, add_gpu, append, epilog_facts, give, only, run_hooks
from waiting import wait_until

LINE = "NVRM: Xid (PCI:0000:05:00): 79, pid=7, name=python, GPU has fallen off the bus."
NASTY = "$(touch {0})`touch {0}`;touch {0}\n|touch {0} & \"'\\"


@pytest.mark.parametrize(
    "name",
    [
        "SLURM_JOB_NAME",
        "SLURM_JOB_USER",
        "SLURM_JOB_PARTITION",
        "SLURM_JOB_ACCOUNT",
        "SLURM_JOB_WORK_DIR",
        "SLURM_JOB_STDOUT",
        "SLURM_JOB_STDERR",
        "SLURM_NODELIST",
        "SLURM_JOB_NODELIST",
        "SLURM_JOB_GPUS",
        "SLURM_JOB_EXIT_CODE2",
        "SLURM_JOB_COMMENT",
        "SLURMD_NODENAME",
        "SLURM_CLUSTER_NAME",
    ],
)
def test_shell_code_in_a_variable_is_not_executed(site: Site, name: str) -> None:
    mark = site.root / "pwned"
    run_hooks(site, **{name: NASTY.format(mark), "IFS": "4", "ENV": str(mark), "BASH_ENV": str(mark)})
    assert not mark.exists()
    assert len(site.recorded()) == 1


def test_a_job_name_with_a_command_is_recorded_and_not_executed(site: Site) -> None:
    site.epilog_slurmctld(SLURM_JOB_NAME="$(reboot)")
    assert only(site.recorded()).facts["name"] == "$(reboot)"


# The user's output


def test_a_forged_kernel_line_in_the_output_is_no_kernel_evidence(site: Site) -> None:
    add_gpu(site, 0, "0000:05:00.0")
    append(site.kernel_log, "before")
    site.prolog()
    site.arrived()
    give(site.work / "41.out", f"{LINE}\nslurmstepd: error: *** JOB 41 ON n0 CANCELLED\n")
    found = epilog_facts(site, SLURM_JOB_NAME=LINE, SLURM_JOB_COMMENT=LINE)
    assert found["kernel"] == []
    assert "gpu" not in found and not (site.state / "gpu.fallen").exists()
    assert found["logs"][0]["text"].startswith(LINE)


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="/dev/kmsg cannot be read here")
def test_a_line_that_a_program_writes_to_dev_kmsg_is_no_kernel_evidence(site: Site) -> None:
    """Whole hooks read /dev/kmsg. Daemons of root may write there; the kernel gives such lines another facility."""
    site.setting("kernel_log", "/dev/kmsg")
    add_gpu(site, 0, "0000:05:00.0")
    site.prolog()
    (prolog,) = site.arrived()
    Path("/dev/kmsg").write_text(f"{LINE} slurmwrap test\n")
    found = epilog_facts(site)
    assert prolog.facts["kernel_mark"]["seq"] >= 0
    assert found["kernel_source"] == "/dev/kmsg" and "kernel_error" not in found
    assert not any("slurmwrap test" in line["text"] for line in found["kernel"])
    assert not (site.state / "gpu.fallen").exists()


def test_escape_sequences_and_invalid_utf_8_are_sent_as_text(site: Site) -> None:
    path = site.work / "41.out"
    path.write_bytes(b"\x1b]0;title\x07\x1b[2J\xff\xfe\xc3\x28 \x00 \xed\xa0\x80 end\r\n")
    os.chown(path, 65534, 65534)
    (log,) = epilog_facts(site)["logs"]
    assert log["text"] == "\x1b]0;title\x07\x1b[2J\ufffd\ufffd\ufffd( \x00 \ufffd\ufffd\ufffd end\r\n"
    assert json.loads(json.dumps(log)) == log


def test_a_file_that_grows_while_it_is_read_gives_one_bounded_tail(site: Site) -> None:
    path = give(site.work / "41.out", "start\n")
    writer = subprocess.Popen(["/bin/sh", "-c", f"exec yes 'a line of the job' >>'{path}'"])
    try:
        wait_until(lambda: path.stat().st_size > 1 << 20, "a long file")
        (log,) = epilog_facts(site)["logs"]
        assert log["truncated"] and len(log["text"]) <= 65536
        assert set(log["text"].splitlines()[:-1]) == {"a line of the job"}
    finally:
        writer.kill()
        writer.wait()


def test_a_path_with_newlines_and_quotes_is_reported_unchanged(site: Site) -> None:
    name = "a\nb 'c' \"d\" $(reboot) \udcff"
    give(site.work / name, "text\n")
    found = epilog_facts(site, SLURM_JOB_STDOUT=f"{site.work}/{name}", SLURM_JOB_STDERR="/dev/null")
    text = os.fsencode(name).decode("utf-8", "replace")
    assert found["logs"] == [{"name": f"{site.work}/{text}", "text": "text\n", "truncated": False}]


def read_all_records(site: Site) -> str:
    """All content of the spool, the node's state and the controller's directory, decoded."""
    found = [str(getattr(one, "facts", one)) for one in site.arrived() + site.recorded()]
    kept = [path.read_text(errors="replace") for path in site.root.glob("state/**/*") if path.is_file()]
    return "\n".join(found + kept)


def secret_by_pattern(site: Site, secret: Path) -> dict[str, str]:
    return {"SLURM_JOB_STDOUT": str(secret), "SLURM_JOB_STDERR": "/etc/shadow"}


def secret_by_link(site: Site, secret: Path) -> dict[str, str]:
    (site.work / "41.out").symlink_to(secret)
    (site.work / "41_0.err").symlink_to(secret)
    return {}


def secret_by_hard_link(site: Site, secret: Path) -> dict[str, str]:
    secret.chmod(0o644)
    (site.work / "41.out").hardlink_to(secret)
    return {}


def secret_by_directory(site: Site, secret: Path) -> dict[str, str]:
    (site.work / "way").symlink_to(secret.parent)
    return {"SLURM_JOB_STDOUT": f"{site.work}/way/{secret.name}"}


def secret_by_expression(site: Site, secret: Path) -> dict[str, str]:
    return {"SLURM_JOB_STDOUT": f"{secret.parent}/%x"}


def secret_by_proc(site: Site, secret: Path) -> dict[str, str]:
    return {"SLURM_JOB_STDOUT": "/proc/self/environ", "SLURM_JOB_STDERR": "/proc/self/fd/0"}


def secret_as_another_user(site: Site, secret: Path) -> dict[str, str]:
    give(site.work / "41.out", "SECRET of nobody\n").chmod(0o644)
    return {"SLURM_JOB_UID": "12345", "SLURM_JOB_GID": "12345", "SLURM_JOB_USER": "another"}


@pytest.mark.parametrize(
    "trick",
    [
        secret_by_pattern,
        secret_by_link,
        secret_by_hard_link,
        secret_by_directory,
        secret_by_expression,
        secret_by_proc,
        secret_as_another_user,
    ],
)
def test_no_content_of_another_users_file_is_recorded(
    site: Site, trick: Callable[[Site, Path], dict[str, str]]
) -> None:
    secret = site.root / "secret"
    secret.write_text("SECRET root:$6$abc\n")
    secret.chmod(0o600)
    site.prolog()
    run_hooks(site, **trick(site, secret))
    shadow = Path("/etc/shadow").read_text().splitlines()[0]
    held = read_all_records(site)
    assert "SECRET" not in held and shadow not in held and "LD_LIBRARY_PATH" not in held
    assert "log_error" in held


# The environment of the hooks


def test_python_path_spank_and_slurm_variables_load_no_code_into_a_hook(site: Site) -> None:
    """slurmd passes on variables that a job's plugins set as SPANK_*. The others are here in case it passes more."""
    mark, home = site.root / "pwned", site.root / "home"
    packages = home / "lib"
    packages.mkdir(parents=True)
    for name in ("sitecustomize", "usercustomize", "json", "os", "runpy", "zipimport", "node_hooks", "slurmwrap"):
        (packages / f"{name}.py").write_text(f"open({str(mark)!r}, 'w')\n")
    for name in ("munge", "python", "python3", "sh", "sleep", "kill", "printf", "scontrol"):
        (packages / name).write_text(f"#!/bin/sh\n: >{mark}\n")
        (packages / name).chmod(0o755)
    evil = {
        name: str(packages)
        for name in ("PYTHONPATH", "PYTHONUSERBASE", "PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR", "PYTHONPLATLIBDIR")
    }
    evil |= {"PYTHONHOME": "/nonexistent", "PYTHONINSPECT": "1", "PYTHONSTARTUP": str(packages / "json.py")}
    evil |= {"PYTHONBREAKPOINT": "json.loads", "PYTHONWARNINGS": "error", "PYTHONOPTIMIZE": "2", "PYTHONUTF8": "x"}
    evil |= {"PYTHONIOENCODING": "rot13", "PYTHONMALLOC": "x", "PYTHONDEVMODE": "1", "PYTHONDUMPREFS": "1"}
    evil |= {f"SPANK_{name}": value for name, value in evil.items()}
    evil |= {"SPANK_LD_PRELOAD": str(packages / "evil.so"), "SPANK_SLURM_JOB_ID": "99", "SPANK_SLURM_JOB_UID": "0"}
    evil |= {"SLURM_CONF": str(packages / "slurm.conf"), "SLURM_SPANK_X": "$(reboot)", "ENV": str(packages / "sh")}
    run_hooks(site, **evil)
    assert not mark.exists()
    found = [(one.context.value, one.job_id) for one in site.arrived() if hasattr(one, "context")]
    assert sorted(found) == [("epilog", 41), ("prolog", 41)]
    assert only(site.recorded()).facts["uid"] == 65534


def open_for_all(site: Site) -> None:
    site.state.chmod(0o777)


def give_to_a_user(site: Site) -> None:
    os.chown(site.state, 65534, 65534)


@pytest.mark.parametrize("plant", [open_for_all, give_to_a_user])
def test_no_message_of_a_hook_is_written_through_a_planted_link(site: Site, plant: Callable[[Site], None]) -> None:
    """An administrator chose a state directory that a user could make or write, and Python does not start."""
    precious = site.root / "precious"
    precious.write_text("root's")
    site.state.mkdir(parents=True)
    (site.state / "failed").symlink_to(precious)
    plant(site)
    site.edit(site.files.prolog, "python=", "python=/nonexistent")
    site.prolog()
    assert precious.read_text() == "root's"
