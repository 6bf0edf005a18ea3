"""An array beyond MaxArraySize on a real Slurm: every index runs once, why, watch and history show one array."""

from __future__ import annotations

import pwd
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from realslurm import USERS, Lab, restart_controller, started
from test_own_retries_lab import GSUB, why
from waiting import wait_until

from slurmwrap.lab.lab_directories import LabDirectories
from slurmwrap.slurm.response_cache import find_cache_folder

ALICE = USERS[0]
pytestmark = pytest.mark.lab
SCRIPT = """#!/bin/bash
#SBATCH --array=0-24%8 --gres=gpu:1 --output=%A_%a.out -c1
echo "$SLURM_ARRAY_TASK_ID|$SLURM_ARRAY_TASK_COUNT|$SLURM_ARRAY_TASK_MAX|$SLURM_ARRAY_JOB_ID|$1" >> seen
srun true || exit 9
[ $SLURM_ARRAY_TASK_ID != 17 ] || [ -e fixed ] || python3 -c 'import absent_module' || exit 1
echo "index $SLURM_ARRAY_TASK_ID"
"""


@pytest.fixture
def nothing(lab: Lab) -> dict[str, str]:
    """The environment of a user without any configuration of slurmwrap, with the state of this lab alone."""
    state = f"{pwd.getpwnam(ALICE).pw_dir}/parts-{lab.cluster}"
    return {"SLURMWRAP_CONFIG": "/var/tmp/absent.toml", "XDG_STATE_HOME": state}


@pytest.fixture(scope="module")
def lab(lab_scratch: Path) -> Iterator[Lab]:
    """A lab of its own, in which Slurm takes the indices 0 to 10."""
    with started(lab_scratch / "small-arrays") as running, running.without_hooks():
        conf = LabDirectories(running.dir).slurm_conf
        conf.write_text(f"{conf.read_text()}\nMaxArraySize=11\n")
        restart_controller(running)
        shown = ["scontrol", "show", "config"]
        wait_until(lambda: "= 11\n" in running.run(shown).stdout, "the controller is up")
        states = ["sinfo", "-h", "-o", "%T"]
        wait_until(lambda: set(running.run(states).stdout.split()) == {"idle"}, "the nodes have answered")
        # What an earlier gsub kept of this lab has the old limit.
        shutil.rmtree(find_cache_folder({}, pwd.getpwnam(ALICE).pw_uid), ignore_errors=True)
        yield running


def test_an_array_in_three_parts_is_one_array_for_its_user(
    lab: Lab, nothing: dict[str, str], lab_scratch: Path
) -> None:
    folder = lab_scratch / "parts"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    (folder / "sweep.sbatch").write_text(SCRIPT)
    plain = lab.run(["sbatch", "sweep.sbatch"], ALICE, cwd=folder)
    assert "Invalid job array specification" in plain.stderr
    done = lab.run([*GSUB, "sweep.sbatch", "a b;$HOME"], ALICE, env=nothing, cwd=folder)
    assert done.returncode == 0, done.stderr
    jobs = [line.split()[-1] for line in done.stdout.splitlines()]
    job = jobs[0]
    assert len(jobs) == 3
    assert f"indices 0-10 in job {job}, 11-21 in job {jobs[1]}, 22-24 in job {jobs[2]}" in done.stderr
    limits = [lab.run(["scontrol", "show", "job", one, "-o"]).stdout for one in jobs]
    assert all(f"ArrayTaskThrottle={limit}" in text for limit, text in zip((3, 3, 2), limits, strict=True))
    lab.wait_job(f"{jobs[1]}_6", ("FAILED",))  # index 17
    wait_until(lambda: len(list(folder.glob(f"{job}_*.out"))) == 25, "all tasks have started")
    for one in jobs:
        wait_until(lambda one=one: not lab.run(["squeue", "-h", "-j", one]).stdout, "the part ends")
    seen = sorted((folder / "seen").read_text().splitlines())
    assert seen == sorted(f"{index}|25|24|{job}|a b;$HOME" for index in range(25))
    for index in set(range(25)) - {17}:
        assert (folder / f"{job}_{index}.out").read_text() == f"index {index}\n"
    # Only the task that failed keeps the output of the wrapper.
    assert [path.name for path in folder.glob("*.pack.out")] == [f"slurm-{jobs[1]}_6.pack.out"]
    for address in (f"{job}_17", f"{jobs[1]}_6"):
        (run,) = why(lab, nothing, address)["attempts"]
        assert (run["address"], run["state"], run["diagnosis"]["category"]) == (f"{job}_17", "FAILED", "import_error")
    for address in (job, jobs[2]):
        runs = why(lab, nothing, address)["attempts"]
        assert sorted(run["address"] for run in runs) == sorted(f"{job}_{index}" for index in range(25))
    watched = lab.slurmwrap("watch", job, "--once", user=ALICE, env=nothing).stdout
    assert f"members 24 completed, 1 failed ({job}_17): slurmwrap why {job}_17" in watched
    listed = lab.slurmwrap("history", "--all", "--each", user=ALICE, env=nothing).stdout
    assert f"{job}_17 " in listed
    assert not any(f"{one}_" in listed for one in jobs[1:])
    (folder / "fixed").touch()
    (folder / "seen").unlink()
    again = lab.run([*GSUB[:3], "--again", jobs[2]], ALICE, env=nothing, cwd="/")
    assert again.returncode == 0, again.stderr
    assert "1 task again, 17 (24 completed: left out)" in again.stderr
    new = again.stdout.split()[-1]
    # Slurm's index of the only task counts from 0.
    assert lab.wait_job(f"{new}_0") == "COMPLETED"
    assert (folder / "seen").read_text() == f"17|1|17|{new}|a b;$HOME\n"
    assert (folder / f"{new}_17.out").read_text() == "index 17\n"


@pytest.mark.parametrize("body, state", [('python3 -c "1 / 0"', "CANCELLED"), ('python3 -c "print(1)"', "COMPLETED")])
def test_one_pre_run_decides_about_all_parts(
    lab: Lab, nothing: dict[str, str], lab_scratch: Path, body: str, state: str
) -> None:
    folder = lab_scratch / f"parts-{state}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    (folder / "sweep.sbatch").write_text(f"#!/bin/bash\n#SBATCH --gres=gpu:2 --array=0-12 --output=%a.out\n{body}\n")
    done = lab.run([*GSUB[:3], "--prerun=auto", "sweep.sbatch"], ALICE, env=nothing, cwd=folder)
    assert done.returncode == 0, done.stderr
    first, second = (line.split()[-1] for line in done.stdout.splitlines())
    assert (lab.wait_job(f"{first}_0", (state,)), lab.wait_job(f"{second}_1", (state,))) == (state, state)
    preruns = {why(lab, nothing, one)["submission"]["prerun_job_id"] for one in (first, second)}
    assert len(preruns) == 1
