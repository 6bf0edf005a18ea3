"""`slurmwrap hooks` on a real Slurm that has hooks of its own already: both run, and taking back leaves every byte."""

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
WELL = frozenset(
    {"idle", "mixed", "allocated", "completing", "planned"}
)  # planned: a job of the installation waits for the node
# The sites' own hooks say their name and the job's.
SCRIPT = '#!/bin/sh\necho "$0 $SLURM_JOB_ID" >>{ran}\n'


@dataclass(frozen=True)
class Site:
    """A lab whose slurm.conf names hooks that are not ours."""

    lab: Lab
    own: Path  # the site's
    base: Path  # where ours go

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
        """Names of the site's own hooks that ran for a job."""
        lines = (self.own / "ran").read_text().splitlines()
        return sorted(Path(line.split()[0]).name for line in lines if line.split()[1] == job)

    def digest(self) -> dict[str, tuple[int, int, int, str]]:
        """Everything that installation could touch."""
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
    """22.05 runs an EpilogSlurmctld only if one was set when slurmctld started."""
    layout = LabDirectories(lab.dir)
    (pid,) = [one["pid"] for one in json.loads(layout.state_file.read_text())["daemons"] if one["name"] == "slurmctld"]
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: daemons.started_at(pid), lambda started: not started, 60)
    argv = [machine.program("slurmctld"), "-D", "-f", str(layout.slurm_conf)]
    _, process = daemons.start("slurmctld", argv, layout, user=lab.slurm_user)
    process.returncode = 0  # it lives on without us
    wait_for(lambda: lab.run(["scontrol", "ping"]).stdout, lambda said: "is UP" in said, 60)
    lab.run(["scontrol", "reconfigure"])


def prolog_of(site: Site) -> str:
    """What slurmctld has in force once ours is installed beside the site's: both since 24.11, before one script."""
    many = parse_release(site.lab.run(["scontrol", "--version"]).stdout) >= MANY_SINCE
    return f"{site.base}/hooks/prolog,{site.own}/prolog.sh" if many else f"{site.base}/hooks/prolog_site"


def no_node_was_drained(lab: Lab) -> None:
    """As it would be whose hook failed; one that reads slurm.conf again may not answer for a moment."""
    states = wait_for(lambda: set(lab.run(["sinfo", "-h", "-N", "-o", "%T"]).stdout.split()), WELL.issuperset, 60)
    assert states <= WELL


def test_installed_beside_the_sites_hooks_both_run_and_taken_back_nothing_is_left(site: Site) -> None:
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
    assert same_on(site) == {"n0": SAME}

    checked = site.hooks("check", "--json", "--no-systemd", *site.manifest)
    told = {one["what"]: one["state"] for one in json.loads(checked.stdout)["checks"]}
    assert {told[what] for what in ("installation", "files", "slurm.conf", "directories", "slurmctld")} == {"ok"}

    again = site.hooks("install", "--no-test", *site.options)
    assert "All of it is in place already." in again.stdout

    # slurm.conf is restored, and Slurm is not told: the files stay as long as slurmctld names the hooks
    taken = site.hooks("uninstall", "--purge", "--no-reconfigure", *site.manifest)
    assert taken.returncode == 1
    assert f"Prolog={prolog_of(site)} in force: no file was removed" in taken.stderr
    assert site.ran(site.run_a_job()) == ["50-clean", "ended.sh", "prolog.sh"]

    taken = site.hooks("uninstall", "--purge", *site.manifest)
    assert taken.returncode == 0, taken.stderr
    assert site.digest() == before, taken.stderr
    assert site.ran(site.run_a_job()) == ["50-clean", "ended.sh", "prolog.sh"]
    no_node_was_drained(site.lab)


def same_on(site: Site) -> dict[str, str]:
    """As `slurmwrap doctor` sees the nodes' hooks."""
    shared = site.base / "shared" / "spool"
    socket = str(LabDirectories(site.lab.dir).munge_socket)
    spool = SealedSpool(shared, socket, lambda: dict.fromkeys(NODES, "127.0.0.1"), {0}, site.lab.cluster)
    told = select_newest(one.item for one in spool.collect() if not hasattr(one.item, "reason"))
    states = {one.node: one.state for one in list_node_hooks(NODES, told, read_checksum(site.base / "hooks"))}
    return {node: states[node] for node in told if node == "n0"}


@pytest.mark.slow  # tests/install/test_image.py kills it at every change
def test_killed_on_its_way_jobs_run_on_and_it_goes_on_or_back(site: Site) -> None:
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
    no_node_was_drained(site.lab)
    done = site.hooks("install", "--no-test", *site.options)
    assert done.returncode == 0, done.stdout + done.stderr
    taken = site.hooks("uninstall", "--purge", *site.manifest)
    assert taken.returncode == 0, taken.stderr
    assert site.digest() == before, taken.stderr


def test_a_node_that_cannot_get_the_files_leaves_slurm_conf_untouched(site: Site) -> None:
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
    """n1's slurmd has a slurm.conf of its own: a copy of the lab's, mounted over it in n1's namespace alone."""
    layout, own = LabDirectories(site.lab.dir), site.lab.dir / "etc-of-n1"
    (pid,) = [one["pid"] for one in json.loads(layout.state_file.read_text())["daemons"] if one["name"] == "n1"]
    if Path(f"/proc/{pid}/ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink():
        pytest.skip("the lab's nodes have no mount namespace of their own here")
    shutil.copytree(layout.etc, own)
    within = ["nsenter", f"--target={pid}", "--mount", "--root"]  # a chroot is not the namespace's own root
    subprocess.run([*within, "mount", "--bind", str(own), str(layout.etc)], check=True)
    yield own / "slurm.conf"
    subprocess.run([*within, "umount", "--lazy", str(layout.etc)], check=True)
    shutil.rmtree(own)
    site.lab.run(["scontrol", "reconfigure"])


@pytest.mark.slow
def test_a_node_with_a_slurm_conf_of_its_own_is_named_and_never_loses_what_it_still_runs(
    site: Site, own_copy: Path
) -> None:
    before, conf = site.digest(), LabDirectories(site.lab.dir).slurm_conf
    done = site.hooks("install", "--test-node=n0", *site.options)
    assert done.returncode == 0, done.stdout + done.stderr
    own = "its slurmd reads a slurm.conf of its own, which"
    assert f"no hook of slurmwrap runs on n1: {own} does not have the new lines. Copy slurm.conf there" in done.stderr
    assert "1 nodes read the new lines" in done.stderr
    checked = site.hooks("check", "--json", "--no-systemd", "--nodes=all", "--patience=600", *site.manifest)
    told = [(one["state"], one["text"]) for one in json.loads(checked.stdout)["checks"] if one["what"] == "nodes"]
    assert told == [("ok", "n0: read the lines"), ("fail", f"n1: {own} does not have the new lines")]

    own_copy.write_bytes(conf.read_bytes())
    site.lab.run(["scontrol", "reconfigure"])
    checked = site.hooks("check", "--json", "--no-systemd", "--nodes=n[0-1]", "--patience=600", *site.manifest)
    told = [(one["state"], one["text"]) for one in json.loads(checked.stdout)["checks"] if one["what"] == "nodes"]
    assert told == [("ok", "n[0-1]: read the lines")]

    taken = site.hooks("uninstall", "--purge", *site.manifest)  # n1's copy names the hooks as before
    assert taken.returncode == 1, taken.stderr
    assert "n1: a slurm.conf of its own names the hooks: nothing was removed on this machine" in taken.stderr
    assert site.lab.run(["srun", "-w", "n1", "--mem=50", "true"], user=ALICE).returncode == 0
    no_node_was_drained(site.lab)

    own_copy.write_bytes(conf.read_bytes())
    site.lab.run(["scontrol", "reconfigure"])
    taken = site.hooks("uninstall", "--purge", *site.manifest)
    assert taken.returncode == 0, taken.stderr
    assert site.digest() == before, taken.stderr


@pytest.fixture
def filtered(site: Site) -> Iterator[Site]:
    """With the cli_filter, and no hook."""
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


def test_who_types_plain_sbatch_for_gpus_is_told_of_gsub(filtered: Site) -> None:
    if not shutil.which("script"):
        pytest.skip("util-linux' script is not installed")
    told = {}
    for line in HINTED:
        command = f"{line} --hold --mem=50 --output=/dev/null --wrap true"
        done = filtered.lab.run(["script", "-qec", command, "/dev/null"], user=ALICE)
        assert done.returncode == 0 and "Submitted batch job" in done.stdout, done.stdout
        told[line] = "without a trial: `gsub` takes the same options" in done.stdout
    filtered.lab.clear(ALICE)
    assert told == HINTED


def test_a_script_without_a_terminal_is_told_nothing(filtered: Site) -> None:
    words = ("--hold", "--gres=gpu:1", "--mem=50", "--output=/dev/null", "--wrap", "true")
    done = filtered.lab.run(["setsid", "sbatch", *words], user=ALICE)
    filtered.lab.clear(ALICE)
    assert (done.returncode, done.stderr) == (0, "")
