"""-M across two real clusters of one slurmdbd: the other one is asked, as squeue -M does (`make accounting`)."""

from __future__ import annotations

import json
import pwd
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from realslurm import USERS, Lab, need_accounting, restart_controller, restart_munged, started
from waiting import wait_for

from slurmwrap.lab.lab_directories import LabDirectories

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(600)]
ALICE, _ = USERS


@pytest.fixture(scope="module")
def labs(lab_scratch: Path) -> Iterator[tuple[Lab, Lab]]:
    """The clusters east, which runs slurmdbd, and west, which reports to it. They have one MUNGE key and one home."""
    need_accounting()
    options = ("--no-hooks", "--no-reconcile", "--nodes", "1", "--gpus", "1", "--switches", "1")
    with (
        started(lab_scratch / "e", *options, "--cluster", "east", "--accounting") as east,
        started(lab_scratch / "w", *options, "--cluster", "west") as west,
    ):
        _join(east, west)
        yield east, west
        shutil.rmtree(_state(), ignore_errors=True)


def _join(east: Lab, west: Lab) -> None:
    """Lets the cluster west report to the slurmdbd of east, with its MUNGE key."""
    here, there = LabDirectories(east.dir), LabDirectories(west.dir)
    for command in (("add", "cluster", "west"), ("add", "account", "lab", "cluster=west"),
                    ("add", "user", ALICE, "account=lab", "cluster=west")):  # fmt: skip
        done = east.run(["sacctmgr", "-i", *command])
        assert done.returncode == 0 or "Nothing" in done.stdout, done.stdout + done.stderr
    there.munge_key.write_bytes(here.munge_key.read_bytes())
    restart_munged(west)
    accounting = "\n".join(re.findall(r"(?m)^Accounting.*$", here.slurm_conf.read_text()))
    accounting = accounting.replace(str(here.munge_socket), str(there.munge_socket))
    conf = re.sub(r"(?m)^Accounting.*\n", "", there.slurm_conf.read_text())
    there.slurm_conf.write_text(f"{conf.rstrip()}\n{accounting}\n")
    restart_controller(west)
    shown = wait_for(
        lambda: east.run(["sacctmgr", "-nP", "show", "cluster", "format=Cluster,ControlPort"]).stdout,
        lambda text: bool(re.search(r"(?m)^west\|[1-9]", text)),
        60,
    )
    assert re.search(r"(?m)^west\|[1-9]", shown), shown
    idle = wait_for(lambda: west.run(["sinfo", "-h", "-o", "%T"]).stdout.split(), lambda now: now == ["idle"], 60)
    assert idle == ["idle"]


def _state() -> str:
    return f"{pwd.getpwnam(ALICE).pw_dir}/one-slurmdbd"


def _run(lab: Lab, module: str, *words: str) -> CompletedProcess[str]:
    environ = {"SLURMWRAP_CONFIG": "/var/tmp/absent.toml", "XDG_STATE_HOME": _state()}
    return lab.run([sys.executable, "-m", module, *words], ALICE, env=environ)


def _slurmwrap(lab: Lab, *words: str) -> CompletedProcess[str]:
    return _run(lab, "slurmwrap.cli.slurmwrap", *words)


def _gsub(lab: Lab, *words: str) -> str:
    done = _run(lab, "slurmwrap.gsub.gsub_main", "--prerun=off", *words)
    assert done.returncode == 0, done.stderr
    return re.split(r"\s+", done.stdout)[3]


def test_a_job_of_the_other_cluster_is_submitted_shown_and_explained(labs: tuple[Lab, Lab]) -> None:
    east, west = labs
    job = _gsub(east, "-M", "west", "-G1", "-J", "far", "--hold", "--wrap", "sleep 300")
    assert west.run(["squeue", "-h", "-j", job, "-o", "%j %u"]).stdout.split() == ["far", ALICE]
    told = _slurmwrap(east, "why", job, "-M", "west")
    assert "Slurm says: PENDING (JobHeldUser)." in told.stdout, told.stderr
    west.run(["scontrol", "release", job])
    west.wait_job(int(job), ("RUNNING",))
    assert "Slurm says: RUNNING." in _slurmwrap(east, "why", job, "-M", "west").stdout
    shown = _slurmwrap(east, "jobs", "show", job, "-M", "west", "--json")
    assert json.loads(shown.stdout)["cluster"] == "west", shown.stdout + shown.stderr
    used = _slurmwrap(east, "job", job, "-M", "west")
    assert used.returncode == 0, used.stdout + used.stderr
    done = _slurmwrap(east, "cancel", job, "-M", "west")
    assert done.stderr.splitlines()[-1] == f"slurmwrap: Any other job: scancel -M west {job}"
    east.run(["scancel", "-M", "west", job], ALICE)
    west.wait_job(int(job), ("CANCELLED",))


def test_the_ids_of_two_clusters_are_told_apart(labs: tuple[Lab, Lab]) -> None:
    east, west = labs
    here = _gsub(east, "-G1", "-J", "near", "--hold", "--wrap", "true")
    there = _gsub(west, "-G1", "-J", "far", "--hold", "--wrap", "true")
    for lab in labs:
        for cluster, job in (("east", here), ("west", there)):
            told = _slurmwrap(lab, "why", job, "-M", cluster)
            assert "Slurm says: PENDING (JobHeldUser)." in told.stdout, (cluster, told.stderr)
    unknown = _slurmwrap(east, "why", here, "-M", "wets")
    assert unknown.returncode == 2
    assert "did you mean west?" in unknown.stderr
    east.run(["scancel", here])
    west.run(["scancel", there])
