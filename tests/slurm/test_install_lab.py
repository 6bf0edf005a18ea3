"""`slurmwrap hooks` on a real Slurm that already has hooks: both run, and uninstall restores every byte."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from images import seen
from realslurm import USERS, Lab, command_environment, started
from waiting import wait_for, wait_until

from slurmwrap.install.compose_hooks import MANY_SINCE
from slurmwrap.install.hook_versions import SAME, list_node_hooks, read_checksum, select_newest
from slurmwrap.lab import daemons, machine
from slurmwrap.lab.lab_directories import LabDirectories
from slurmwrap.lab.render_slurm_conf import parse_release
from slurmwrap.package_files import shipped
from slurmwrap.store.spool_reader import SealedSpool

pytestmark = pytest.mark.lab
ALICE = USERS[0]
NODES = ("n0", "n1")
# planned: a job of the installation waits for the node
USABLE_STATES = frozenset({"idle", "mixed", "allocated", "completing", "planned"})
# The hooks of the site write their own name and the job id.
SCRIPT = '#!/bin/sh\necho "$0 $SLURM_JOB_ID" >>{ran}\n'


@dataclass(frozen=True)
class Site:
    """A lab whose slurm.conf names hooks that slurmwrap did not install."""

    lab: Lab
    own: Path  # the hooks of the site
    base: Path  # where slurmwrap installs its hooks

    @property
    def options(self) -> list[str]:
        layout = LabDirectories(self.lab.dir)
        return [
            f"--shared={self.base}/shared", f"--directory={self.base}/hooks", f"--state-dir={self.base}/state",
            f"--node-state-dir={layout.node('%n')}/state", f"--unit-dir={self.base}/units", *self.manifest,
            f"--kernel-log=file:{layout.kernel_log('%n')}", f"--nvidia-proc={layout.node('%n')}/nvidia",
            f"--config={self.base}/config/config.toml",
        ]  # fmt: skip

    @property
    def manifest(self) -> list[str]:
        return [f"--manifest={self.base}/manifest/m.json"]

    def hooks(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.lab.slurmwrap("hooks", *arguments, timeout=400)

    def run_a_job(self) -> str:
        job = self.lab.submit("--mem=50", "--output=/dev/null", user=ALICE, script="#!/bin/sh\ntrue\n")
        self.lab.wait_job(job)
        return job

    def ran(self, job: str) -> list[str]:
        """Names of the hooks of the site that ran for a job."""
        lines = (self.own / "ran").read_text().splitlines()
        return sorted(Path(line.split()[0]).name for line in lines if line.split()[1] == job)

    def digest(self) -> dict[str, tuple[int, int, int, str]]:
        """All files that an installation could change."""
        places = {"etc": LabDirectories(self.lab.dir).etc, "own": self.own, "base": self.base}
        found = {f"{name}/{key}": one for name, place in places.items() for key, one in seen(place).items()}
        return {name: one for name, one in found.items() if name != "own/ran"}


@pytest.fixture(scope="module")
def site(lab_scratch: Path) -> Iterator[Site]:
    options = ("--no-hooks", "--slurm-user", "slurm", "--nodes", "2", "--gpus", "1")
    with started(lab_scratch / "lab-install", *options, slurm_user="slurm") as lab:
        found = Site(lab=lab, own=lab.dir / "own", base=lab.dir / "base")
        (found.own / "epilog.d").mkdir(parents=True)
        found.base.mkdir()
        (found.base / "units").mkdir()
        (found.own / "ran").touch()
        (found.own / "ran").chmod(0o666)
        for name in ("prolog.sh", "ended.sh", "epilog.d/50-clean"):
            (found.own / name).write_text(SCRIPT.format(ran=found.own / "ran"))
            (found.own / name).chmod(0o755)
        conf = LabDirectories(lab.dir).slurm_conf
        lines = f"Prolog={found.own}/prolog.sh\nEpilog={found.own}/epilog.d/*\nEpilogSlurmctld={found.own}/ended.sh"
        conf.write_text(conf.read_text() + lines)
        restart_controller(lab)
        yield found


def restart_controller(lab: Lab) -> None:
    """Slurm 22.05 runs an EpilogSlurmctld only if it was set when slurmctld started."""
    layout = LabDirectories(lab.dir)
    (pid,) = [one["pid"] for one in json.loads(layout.state_file.read_text())["daemons"] if one["name"] == "slurmctld"]
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: daemons.started_at(pid), lambda started: not started, 60)
    argv = [machine.program("slurmctld"), "-D", "-f", str(layout.slurm_conf)]
    _, process = daemons.start("slurmctld", argv, layout, user=lab.slurm_user)
    process.returncode = 0  # it keeps running without this Popen object
    wait_for(lambda: lab.run(["scontrol", "ping"]).stdout, lambda output: "is UP" in output, 60)
    lab.run(["scontrol", "reconfigure"])


def get_prolog_setting(site: Site) -> str:
    """The Prolog setting after the installation: since 24.11 both Prologs, before 24.11 one script that runs both."""
    many = parse_release(site.lab.run(["scontrol", "--version"]).stdout) >= MANY_SINCE
    return f"{site.base}/hooks/prolog,{site.own}/prolog.sh" if many else f"{site.base}/hooks/prolog_site"


def assert_no_node_is_drained(lab: Lab) -> None:
    """A node with a failed hook would be drained. A node that reads slurm.conf again may not respond for a moment."""
    states = wait_for(
        lambda: set(lab.run(["sinfo", "-h", "-N", "-o", "%T"]).stdout.split()), USABLE_STATES.issuperset, 60
    )
    assert states <= USABLE_STATES


def test_installed_hooks_run_with_the_sites_own_and_uninstall_restores_every_file(site: Site) -> None:
    before = site.digest()
    assert site.ran(site.run_a_job()) == ["50-clean", "ended.sh", "prolog.sh"]

    planned = site.hooks("plan", "--json", *site.options)
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["conflicts"] == []
    assert site.digest() == before  # a plan writes nothing

    done = site.hooks("install", *site.options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "observations of Prolog, Epilog and EpilogSlurmctld were accepted" in done.stderr
    assert site.ran(site.run_a_job()) == ["50-clean", "ended.sh", "prolog.sh"]
    assert read_hook_states(site) == {"n0": SAME}

    checked = site.hooks("check", "--json", "--no-systemd", *site.manifest)
    states = {one["what"]: one["state"] for one in json.loads(checked.stdout)["checks"]}
    assert {states[what] for what in ("installation", "files", "slurm.conf", "directories", "slurmctld")} == {"ok"}

    again = site.hooks("install", "--no-test", *site.options)
    assert "All of it is in place already." in again.stdout

    # slurm.conf is restored without a reconfigure: the files stay as long as slurmctld uses the hooks
    taken = site.hooks("uninstall", "--purge", "--no-reconfigure", *site.manifest)
    assert taken.returncode == 1
    assert f"Prolog={get_prolog_setting(site)} in force: no file was removed" in taken.stderr
    assert site.ran(site.run_a_job()) == ["50-clean", "ended.sh", "prolog.sh"]

    taken = site.hooks("uninstall", "--purge", *site.manifest)
    assert taken.returncode == 0, taken.stderr
    assert site.digest() == before, taken.stderr
    assert site.ran(site.run_a_job()) == ["50-clean", "ended.sh", "prolog.sh"]
    assert_no_node_is_drained(site.lab)


def read_hook_states(site: Site) -> dict[str, str]:
    """The state of the hooks of n0, computed as `slurmwrap doctor` does."""
    shared = site.base / "shared" / "spool"
    socket = str(LabDirectories(site.lab.dir).munge_socket)
    spool = SealedSpool(shared, socket, lambda: dict.fromkeys(NODES, "127.0.0.1"), {0}, site.lab.cluster)
    newest = select_newest(one.item for one in spool.collect() if not hasattr(one.item, "reason"))
    states = {one.node: one.state for one in list_node_hooks(NODES, newest, read_checksum(site.base / "hooks"))}
    return {node: states[node] for node in newest if node == "n0"}


@pytest.mark.slow  # tests/install/test_image.py kills the installation at every change
def test_after_a_killed_install_jobs_run_and_install_and_uninstall_work(site: Site) -> None:
    before, conf = site.digest(), LabDirectories(site.lab.dir).slurm_conf
    original = conf.read_bytes()
    ways = (
        ("it began", (site.base / "manifest" / "m.json").exists),
        ("the hooks lie there", (site.base / "hooks" / "epilog_slurmctld").exists),
        ("slurm.conf has its lines", lambda: conf.read_bytes() != original),
    )
    for what, reached in ways:
        process = subprocess.Popen(
            [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "hooks", "install", "--no-test", *site.options],
            env={**command_environment(None), **site.lab.env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            wait_until(reached, what)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert site.ran(site.run_a_job()) == ["50-clean", "ended.sh", "prolog.sh"]
    assert_no_node_is_drained(site.lab)
    done = site.hooks("install", "--no-test", *site.options)
    assert done.returncode == 0, done.stdout + done.stderr
    taken = site.hooks("uninstall", "--purge", *site.manifest)
    assert taken.returncode == 0, taken.stderr
    assert site.digest() == before, taken.stderr


def test_slurm_conf_is_unchanged_if_a_node_cannot_get_the_files(site: Site) -> None:
    conf = LabDirectories(site.lab.dir).slurm_conf
    before = conf.read_bytes()
    site.lab.run(["scontrol", "update", "nodename=n1", "state=drain", "reason=a person"])
    try:
        done = site.hooks("install", "--no-test", *site.options)
        assert done.returncode == 1
        assert "not on every node: n1: it is drained or in no partition: no job can start there" in done.stderr
        assert conf.read_bytes() == before
    finally:
        site.lab.run(["scontrol", "update", "nodename=n1", "state=resume"])
        site.hooks("uninstall", "--purge", *site.manifest)


@pytest.fixture
def own_copy(site: Site) -> Iterator[Path]:
    """n1 has its own slurm.conf: a copy of the lab's slurm.conf, mounted over it in the mount namespace of n1 only."""
    layout, own = LabDirectories(site.lab.dir), site.lab.dir / "etc-of-n1"
    (pid,) = [one["pid"] for one in json.loads(layout.state_file.read_text())["daemons"] if one["name"] == "n1"]
    if Path(f"/proc/{pid}/ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink():
        pytest.skip("the lab's nodes have no mount namespace of their own here")
    shutil.copytree(layout.etc, own)
    within = ["nsenter", f"--target={pid}", "--mount", "--root"]  # a chroot is not the root of the namespace
    subprocess.run([*within, "mount", "--bind", str(own), str(layout.etc)], check=True)
    yield own / "slurm.conf"
    subprocess.run([*within, "umount", "--lazy", str(layout.etc)], check=True)
    shutil.rmtree(own)
    site.lab.run(["scontrol", "reconfigure"])


@pytest.mark.slow
def test_a_node_with_its_own_slurm_conf_is_named_and_keeps_the_hooks_it_uses(site: Site, own_copy: Path) -> None:
    before, conf = site.digest(), LabDirectories(site.lab.dir).slurm_conf
    done = site.hooks("install", "--test-node=n0", *site.options)
    assert done.returncode == 0, done.stdout + done.stderr
    message = "its slurmd reads a slurm.conf of its own, which"
    assert (
        f"no hook of slurmwrap runs on n1: {message} does not have the new lines. Copy slurm.conf there" in done.stderr
    )
    assert "1 nodes read the new lines" in done.stderr
    checked = site.hooks("check", "--json", "--no-systemd", "--nodes=all", "--patience=600", *site.manifest)
    checks = [(one["state"], one["text"]) for one in json.loads(checked.stdout)["checks"] if one["what"] == "nodes"]
    assert checks == [("ok", "n0: read the lines"), ("fail", f"n1: {message} does not have the new lines")]

    own_copy.write_bytes(conf.read_bytes())
    site.lab.run(["scontrol", "reconfigure"])
    checked = site.hooks("check", "--json", "--no-systemd", "--nodes=n[0-1]", "--patience=600", *site.manifest)
    checks = [(one["state"], one["text"]) for one in json.loads(checked.stdout)["checks"] if one["what"] == "nodes"]
    assert checks == [("ok", "n[0-1]: read the lines")]

    taken = site.hooks("uninstall", "--purge", *site.manifest)  # n1's copy still names the hooks
    assert taken.returncode == 1, taken.stderr
    assert "n1: a slurm.conf of its own names the hooks: nothing was removed on this machine" in taken.stderr
    assert site.lab.run(["srun", "-w", "n1", "--mem=50", "true"], user=ALICE).returncode == 0
    assert_no_node_is_drained(site.lab)

    own_copy.write_bytes(conf.read_bytes())
    site.lab.run(["scontrol", "reconfigure"])
    taken = site.hooks("uninstall", "--purge", *site.manifest)
    assert taken.returncode == 0, taken.stderr
    assert site.digest() == before, taken.stderr


@pytest.fixture
def filtered(site: Site) -> Iterator[Site]:
    """The site with the cli_filter and without hooks of slurmwrap."""
    conf, plugin = LabDirectories(site.lab.dir).slurm_conf, LabDirectories(site.lab.dir).etc / "cli_filter.lua"
    before = conf.read_bytes()
    conf.write_bytes(before + b"\nCliFilterPlugins=lua\n")
    shutil.copyfile(shipped("hooks") / "cli_filter.lua", plugin)
    yield site
    conf.write_bytes(before)
    plugin.unlink()


GSUB = f"{sys.executable} -m slurmwrap.gsub.gsub_main --prerun=off"


HINTED = {
    "sbatch --gres=gpu:1": True,
    "sbatch --gpus=1": True,
    "sbatch": False,
    "SLURMWRAP_HINT=off sbatch --gres=gpu:1": False,
    f"{GSUB} --gres=gpu:1": False,
}


def test_sbatch_with_gpus_at_a_terminal_prints_a_hint_to_gsub(filtered: Site) -> None:
    if not shutil.which("script"):
        pytest.skip("util-linux' script is not installed")
    hinted = {}
    for line in HINTED:
        command = f"{line} --hold --mem=50 --output=/dev/null --wrap true"
        done = filtered.lab.run(["script", "-qec", command, "/dev/null"], user=ALICE)
        assert done.returncode == 0 and "Submitted batch job" in done.stdout, done.stdout
        hinted[line] = "without a trial: `gsub` takes the same options" in done.stdout
    filtered.lab.clear(ALICE)
    assert hinted == HINTED


def test_sbatch_without_a_terminal_prints_no_hint(filtered: Site) -> None:
    words = ("--hold", "--gres=gpu:1", "--mem=50", "--output=/dev/null", "--wrap", "true")
    done = filtered.lab.run(["setsid", "sbatch", *words], user=ALICE)
    filtered.lab.clear(ALICE)
    assert (done.returncode, done.stderr) == (0, "")
