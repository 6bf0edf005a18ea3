"""The input files of a pending job are read completely, and a broken one stops it without a GPU. On a real Slurm."""

from __future__ import annotations

import gzip
import json
import os
import pwd
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from realslurm import USERS, Lab
from waiting import wait_for

ALICE = USERS[0]
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]

FILES, BROKEN = 12, 9
JOB = """\
#!/bin/bash
#SBATCH --nodes=8 --gres=gpu:8 --cpus-per-task=1 --mem=500 --time=5
python3 train.py
"""
TRAIN = """\
import glob, gzip, sys
try:
    from slurmwrap_step import step
except ImportError:
    def step(): pass
for path in sorted(glob.glob("data/*.jsonl.gz")):
    with gzip.open(path) as stream:
        print(path, len(stream.read()), flush=True)
    step()
"""
TOLERANT = TRAIN.replace(
    "    with gzip.open(path) as stream:\n        print(path, len(stream.read()), flush=True)\n",
    "    try:\n        print(path, len(gzip.open(path).read()), flush=True)\n    except Exception:\n        continue\n",
)


@pytest.fixture
def home(lab: Lab) -> Path:
    """A new directory of alice with a program and sound data that is a day old."""
    lab.run(["scancel", f"--user={ALICE}"])
    path = Path(pwd.getpwnam(ALICE).pw_dir) / f"inputs_{time.monotonic_ns()}"
    lab.run(["mkdir", "-p", str(path / "data")], user=ALICE)
    write_program(path, TRAIN)
    for number in range(FILES):
        rows = "".join(f'{{"n": {number}, "text": "{row:08d}"}}\n' for row in range(20_000))
        write_data(path / "data" / f"part-{number}.jsonl.gz", gzip.compress(rows.encode()))
    return path


def write_program(home: Path, text: str) -> None:
    # A new fingerprint, so that no earlier pre-run passed it.
    (home / "train.py").write_text(f"{text}# {time.monotonic_ns()}\n")
    (home / "job.sh").write_text(JOB)


def write_data(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    os.utime(path, (time.time() - 86400,) * 2)


def truncate(home: Path, number: int) -> Path:
    path = home / "data" / f"part-{number}.jsonl.gz"
    write_data(path, path.read_bytes()[:5000])
    return path


@pytest.fixture
def full(lab: Lab) -> Iterator[int]:
    """A job on one GPU, so that a job of all GPUs has to wait. Returns its id."""
    wrap = ["sbatch", "--parsable", "--gres=gpu:1", "--mem=100", "--time=60", "--output=/dev/null", "--wrap=sleep 3000"]
    job = int(lab.run(wrap, user=ALICE).stdout)
    lab.wait_job(job, {"RUNNING"}, timeout=60)
    yield job
    lab.run(["scancel", str(job)])


def submit(lab: Lab, home: Path, **environ: str) -> int:
    environ |= {"XDG_STATE_HOME": str(home / ".in")}
    done = lab.run(["gsub", "job.sh"], user=ALICE, cwd=home, env=environ)
    found = re.search(r"job (\d+) (?:waits for|keeps its place) .*, job (\d+)", done.stderr)
    assert found, done.stderr
    return int(found[1])


def run_slurmwrap(lab: Lab, home: Path, *words: str) -> str:
    done = lab.slurmwrap(*words, user=ALICE, cwd=home, env={"XDG_STATE_HOME": str(home / ".in")})
    return done.stdout + done.stderr


def find_result(home: Path, job: int) -> dict[str, object] | None:
    """The result of the check of this job's inputs; None if there is none."""
    for path in (home / ".in" / "slurmwrap" / "prerun").glob("*/inputs.json"):
        if json.loads((path.parent / "spec.json").read_text())["real_job"] == str(job):
            found: dict[str, object] = json.loads(path.read_text())
            return found
    return None


def wait_for_result(home: Path, job: int) -> dict[str, object]:
    found = wait_for(lambda: find_result(home, job), bool, timeout=120)
    assert found
    return found


def read_state(lab: Lab, job: int) -> str:
    return lab.run(["squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}"]).stdout.strip()


def test_a_truncated_file_that_the_pre_run_never_opened_stops_the_pending_job(lab: Lab, home: Path, full: int) -> None:
    broken = truncate(home, BROKEN)
    job = submit(lab, home)
    lab.wait_job(job, {"CANCELLED"}, timeout=120)
    result = wait_for_result(home, job)
    assert [fault["path"] for fault in result["faults"]] == [str(broken)]  # type: ignore[attr-defined]
    why = run_slurmwrap(lab, home, "why", str(job))
    fault = f"data/part-{BROKEN}.jsonl.gz is truncated: the gzip stream does not end (at byte 5,000)"
    assert fault in " ".join(why.split())
    assert "replace the file" in why
    notice = (home / f"slurm-{job}.out").read_text()
    assert "cancelled by the pre-run" in notice


def test_a_sound_job_waits_for_nothing_and_its_files_are_read_once(lab: Lab, home: Path, full: int) -> None:
    job = submit(lab, home)
    result = wait_for_result(home, job)
    assert (result["read"], result["known"], result["faults"], result["complete"]) == (FILES, 0, [], True)
    assert read_state(lab, job) == "PENDING"
    write_program(home, TRAIN)
    second = submit(lab, home)
    again = wait_for_result(home, second)
    assert (again["read"], again["known"], again["bytes"]) == (0, FILES, 0)
    lab.run(["scancel", str(full), str(second)])
    lab.wait_job(job, {"COMPLETED"}, timeout=120)


def test_a_program_that_goes_on_after_a_broken_file_is_only_told(lab: Lab, home: Path, full: int) -> None:
    truncate(home, BROKEN)
    write_program(home, TOLERANT)
    job = submit(lab, home)
    assert len(wait_for_result(home, job)["faults"]) == 1  # type: ignore[arg-type]
    assert read_state(lab, job) == "PENDING"
    shown = lab.run(["scontrol", "show", "job", str(job)]).stdout
    assert f"broken input file: data/part-{BROKEN}.jsonl.gz" in shown
    assert "the program seems to go on after a broken file: train.py:" in shown


def test_nothing_is_read_for_a_job_that_has_started_and_with_all_it_is_reported(lab: Lab, home: Path) -> None:
    truncate(home, BROKEN)
    job = submit(lab, home)
    lab.wait_job(job, {"FAILED", "COMPLETED"}, timeout=120)
    waiting = ["squeue", "--noheader", "--name=job.sh.inputs,job.sh.prerun", f"--user={ALICE}"]
    assert wait_for(lambda: lab.run(waiting).stdout, lambda text: not text, timeout=120) == ""
    assert find_result(home, job) is None
    write_program(home, TRAIN)
    second = submit(lab, home, SLURMWRAP_PRERUN_INPUTS="all")
    assert len(wait_for_result(home, second)["faults"]) == 1  # type: ignore[arg-type]
