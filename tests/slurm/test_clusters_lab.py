"""Jobs of two real clusters with one home: -M tells them apart, whichever Slurm answers on this host."""

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
from realslurm import USERS, Lab, started

pytestmark = pytest.mark.lab
ALICE, _ = USERS


@pytest.fixture(scope="module")
def labs(lab_scratch: Path) -> Iterator[tuple[Lab, Lab]]:
    """The clusters east and west, with job 1 of alice in each."""
    options = ("--nodes", "1", "--gpus", "1", "--switches", "1")
    with (
        started(lab_scratch / "e", *options, "--cluster", "east") as east,
        started(lab_scratch / "w", *options, "--cluster", "west") as west,
        east.without_hooks(),
        west.without_hooks(),
    ):
        for lab, code in ((east, 3), (west, 4)):
            _gsub(lab, f"echo in {code}; exit {code}")
            lab.wait_job(1, ("FAILED",))
            # Each cluster's own reconcile diagnoses its own jobs.
            assert _slurmwrap(lab, "history").returncode == 0
        yield east, west
        shutil.rmtree(_state(), ignore_errors=True)


def _state() -> str:
    return f"{pwd.getpwnam(ALICE).pw_dir}/two-clusters"


def _environ() -> dict[str, str]:
    return {"SLURMWRAP_CONFIG": "/var/tmp/absent.toml", "XDG_STATE_HOME": _state()}


def _gsub(lab: Lab, command: str, *words: str) -> str:
    argv = [sys.executable, "-m", "slurmwrap.gsub.gsub_main", "--prerun=off", "-G1", "-J", "job", *words]
    done = lab.run([*argv, "--wrap", command], ALICE, env=_environ())
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def _slurmwrap(lab: Lab, *words: str) -> CompletedProcess[str]:
    return lab.slurmwrap(*words, user=ALICE, env=_environ())


def _exit_code_of(lab: Lab, *words: str) -> tuple[str, int]:
    done = _slurmwrap(lab, "why", "1", "--json", *words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found["cluster"], found["attempts"][-1]["exit_code"]


def test_a_job_id_is_that_of_the_named_cluster_on_either_host(labs: tuple[Lab, Lab]) -> None:
    for lab, own in zip(labs, (("east", 3), ("west", 4)), strict=True):
        assert _exit_code_of(lab) == own
        assert _exit_code_of(lab, "-M", "east") == ("east", 3)
        assert _exit_code_of(lab, "--cluster=WEST") == ("west", 4)


def test_lists_show_the_cluster_where_there_are_several(labs: tuple[Lab, Lab]) -> None:
    east, west = labs
    both = _slurmwrap(east, "history").stdout.splitlines()
    assert both[0].split()[:3] == ["job", "cluster", "name"]
    assert {tuple(line.split()[:2]) for line in both[1:3]} == {("1", "east"), ("1", "west")}
    one = _slurmwrap(east, "history", "-M", "west").stdout.splitlines()
    assert one[0].split()[:2] == ["job", "name"]
    # 0.0 for a run of no whole second, else 0.00.
    assert re.fullmatch(r"1 run, 1 failed \(100 %\), 0\.00? GPU-hours, 0\.00? of them in failed runs\.", one[-1])
    rows = json.loads(_slurmwrap(west, "jobs", "list", "--json", "-M", "all").stdout)["rows"]
    assert {(row["job"], row["cluster"]) for row in rows} == {("1", "east"), ("1", "west")}
    assert "cluster" in _slurmwrap(west, "jobs", "list").stdout.splitlines()[0].split()
    report = json.loads(_slurmwrap(west, "report", "--json", "-M", "east").stdout)
    assert report["clusters"] == ["east"]
    assert json.loads(_slurmwrap(west, "report", "--json").stdout)["clusters"] == ["east", "west"]


def test_an_unknown_cluster_is_an_error_with_the_nearest_name(labs: tuple[Lab, Lab]) -> None:
    east, _ = labs
    for command in (("why", "1"), ("history",), ("jobs", "list"), ("jobs", "show", "1"), ("report",), ("job", "1")):
        done = _slurmwrap(east, *command, "-M", "wets")
        assert done.returncode == 2, done.stderr
        assert "no cluster 'wets' is known" in done.stderr
        assert "did you mean west? known: east, west" in done.stderr
    assert "one job is of one cluster" in _slurmwrap(east, "why", "1", "-M", "all").stderr


def test_the_present_state_of_a_job_of_the_other_cluster_is_unknown_without_slurmdbd(labs: tuple[Lab, Lab]) -> None:
    east, west = labs
    job = _gsub(west, "true", "--hold")
    here, there = (_slurmwrap(lab, "why", job, "-M", "west") for lab in (west, east))
    west.run(["scancel", job])
    assert "Slurm says: PENDING (JobHeldUser)." in here.stdout
    assert "Slurm says" not in there.stdout
    assert there.stderr.splitlines() == [
        "slurmwrap: the Slurm of cluster west does not answer here: the job's present state is unknown"
    ]
