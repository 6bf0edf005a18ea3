"""`gsub --pack` on a real Slurm: the array that its pre-run folds, and faults while members run.

Each member writes a line at its start and one at its end, so that a lost one and one that ran twice are seen.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from realslurm import USERS, Lab, cut_power, restart_controller, started
from test_own_retries_lab import GSUB, why
from waiting import wait_for, wait_until

ALICE = USERS[0]
pytestmark = pytest.mark.lab
MEMBER = """#!/bin/bash
#SBATCH --gres=gpu:1 --output=%a.out -c1
echo "start $SLURM_ARRAY_TASK_ID" >> lines
while ! [ -e go ] && ! [ -e go.$SLURM_ARRAY_TASK_ID ]; do sleep 0.1; done
echo "end $SLURM_ARRAY_TASK_ID" >> lines
"""
# Steps that only sleep: members side by side are as many times as fast as one.
TRAINING = """\
import os, time
import slurmwrap_step
index = os.environ["SLURM_ARRAY_TASK_ID"]
print("start", index, file=open("lines", "a"))
for step in range(10**9):
    time.sleep(0.02)
    slurmwrap_step.step()
    if os.path.exists("go"):
        break
print("end", index, file=open("lines", "a"))
"""


@pytest.fixture(scope="module")
def lab(lab_scratch: Path) -> Iterator[Lab]:
    """A lab of its own: one of its nodes is lost."""
    with started(lab_scratch / "faults", "--nodes", "3", "--gpus", "2") as running, running.without_hooks():
        yield running


@pytest.fixture
def nothing(lab: Lab) -> dict[str, str]:
    """The environment of a user without any configuration of slurmwrap, with the state of one test alone."""
    state = f"{pwd.getpwnam(ALICE).pw_dir}/pack-{lab.cluster}-{os.urandom(4).hex()}"
    return {"SLURMWRAP_CONFIG": "/var/tmp/absent.toml", "XDG_STATE_HOME": state}


def make_folder(lab_scratch: Path, name: str, script: str = MEMBER) -> Path:
    folder = lab_scratch / name
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    (folder / "sweep.sbatch").write_text(script)
    return folder


def submit(lab: Lab, env: dict[str, str], folder: Path, *words: str) -> tuple[str, str]:
    """Returns the job id and the messages."""
    done = lab.run([*GSUB[:3], "--mem=100", "--requeue", *words, "sweep.sbatch"], ALICE, env=env, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1], done.stderr


def read_lines(folder: Path) -> list[str]:
    path = folder / "lines"
    return sorted(path.read_text().split("\n")[:-1]) if path.exists() else []


def make_lines(word: str, members: range) -> list[str]:
    return sorted(f"{word} {member}" for member in members)


def find_state(lab: Lab, env: dict[str, str], member: str) -> str:
    """The state of a member; "" if it has not ended."""
    return next((run["state"] for run in why(lab, env, member)["attempts"]), "")


def find_member_pids(folder: Path) -> list[int]:
    """The scripts of members that run in `folder`, and their wrappers."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def test_the_pre_run_measures_members_and_folds_the_waiting_array(
    lab: Lab, nothing: dict[str, str], lab_scratch: Path
) -> None:
    script = "#!/bin/bash\n#SBATCH --gres=gpu:1 --output=%a.out -c1 --array=0-4\nexec python3 train.py\n"
    folder = make_folder(lab_scratch, "pack-auto", script)
    (folder / "train.py").write_text(TRAINING)
    env = {**nothing, "SLURMWRAP_PACK_MEASURE_S": "1", "SLURMWRAP_PRERUN_REHEARSE_S": "0"}
    env["SLURMWRAP_PACK_SEPARATE_GAIN"] = "16"  # more than four members reach
    env["SLURMWRAP_PACK_SEPARATE_S"] = "10"
    job, said = submit(lab, env, folder, "--pack")
    assert "its pre-run measures how many of the 5 members share a GPU" in said
    wait_until(lambda: len(read_lines(folder)) == 5, "all members run", 150)
    assert read_lines(folder) == make_lines("start", range(5))
    # Five tasks, of which two run four members and one.
    lab.wait_job(f"{job}_1")
    assert lab.states(f"{job}_0") == ["RUNNING"]
    (pack,) = (Path(nothing["XDG_STATE_HOME"]) / "slurmwrap" / "pack").iterdir()
    assert json.loads((pack / "spec.json").read_text())["members"] == 4
    assert (why(lab, nothing, f"{job}_3")["attempts"][0]["address"]) == f"{job}_3"
    # Three of the four members wait, since they are not 16 times as fast together.
    watched = wait_for(
        lambda: lab.slurmwrap("watch", f"{job}_0", "--once", user=ALICE, env=nothing).stdout,
        lambda shown: "3 paused" in shown,
        90,
    )
    assert "members 3 paused, 1 running" in watched
    (folder / "go").touch()
    lab.wait_job(job, timeout=120)
    assert read_lines(folder) == make_lines("end", range(5)) + make_lines("start", range(5))
    again = lab.run([*GSUB[:3], "--pack", "--dry-run", "sweep.sbatch"], ALICE, env=env, cwd=folder)
    assert "5 members in 2 array tasks, 4 on each GPU (measured: 4 together are" in again.stdout


def test_the_member_that_takes_too_much_memory_is_ended_and_the_other_goes_on(
    lab: Lab, nothing: dict[str, str], lab_scratch: Path
) -> None:
    use = "exec python3 -c 'import time; b = b\"x\" * (130 << 20); time.sleep(600)'"
    script = MEMBER.replace("while", f"[ $SLURM_ARRAY_TASK_ID = 0 ] && {use}\nwhile")
    folder = make_folder(lab_scratch, "pack-memory", script)
    # The two share 200 MiB, and the mark is at 120.
    env = {**nothing, "SLURMWRAP_PACK_MEMORY_NEAR": "0.6"}
    job, _ = submit(lab, env, folder, "--prerun=off", "--pack=2", "--array=0-1")
    wait_until(lambda: find_state(lab, nothing, f"{job}_0") == "OUT_OF_MEMORY", "it is ended")
    (run,) = why(lab, nothing, f"{job}_0")["attempts"]
    assert run["diagnosis"]["category"] == "cpu_oom"
    assert "this member was ended. Memory: it used 1" in (folder / "0.out").read_text()
    (folder / "go").touch()
    lab.wait_job(f"{job}_0", ("FAILED",))
    assert "end 1" in read_lines(folder)


def test_no_member_is_lost_or_runs_twice_when_slurmctld_is_killed_and_a_node_is_lost(
    lab: Lab, nothing: dict[str, str], lab_scratch: Path
) -> None:
    folder = make_folder(lab_scratch, "pack-node")
    job, _ = submit(lab, nothing, folder, "--prerun=off", "--pack=4", "--array=0-3")
    wait_until(lambda: read_lines(folder) == make_lines("start", range(4)), "all members run")
    (folder / "go.0").touch()
    wait_until(lambda: "end 0" in read_lines(folder), "one of them ends")
    wait_until(lambda: find_state(lab, nothing, f"{job}_0") == "COMPLETED", "it is recorded")
    # slurmctld writes its jobs to its disk some seconds after the last change of one.
    saved, since = lab.dir / "slurmctld" / "state" / "job_state", time.time()
    assert lab.run(["scontrol", "update", f"JobId={job}_0", "Comment=changed"]).returncode == 0
    wait_until(lambda: saved.stat().st_mtime > since, "it is saved")
    restart_controller(lab, signal.SIGKILL)
    wait_until(lambda: lab.states(f"{job}_0") == ["RUNNING"], "the new slurmctld knows the job")
    assert read_lines(folder) == sorted([*make_lines("start", range(4)), "end 0"])
    node = lab.run(["squeue", "-h", "-o", "%N", "-j", f"{job}_0"]).stdout.strip()
    cut_power(lab, node)
    for pid in find_member_pids(folder):
        # The kernel may have ended it with the wrapper.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    lab.wait_job(f"{job}_0", ("PENDING",))
    # Slurm lets a requeued job wait for two minutes.
    lab.run(["scontrol", "update", f"JobId={job}_0", "StartTime=now"])
    (folder / "go").touch()
    assert lab.wait_job(f"{job}_0") == "COMPLETED"
    starts = [*make_lines("start", range(4)), *make_lines("start", range(1, 4))]
    assert read_lines(folder) == sorted([*starts, *make_lines("end", range(4))])
