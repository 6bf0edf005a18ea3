"""A job that finds no free GPUs keeps its place in the queue, whatever becomes of its pre-run. On a real Slurm."""

from __future__ import annotations

import json
import pwd
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from realslurm import USERS, Lab
from waiting import wait_for

from slurmwrap.slurm.response_cache import find_cache_folder

ALICE, BOB = USERS[:2]
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]

HEAD = "#!/bin/bash\n#SBATCH --nodes=1 --gres=gpu:8 --cpus-per-task=1 --mem=500 --time=5\n"
BROKEN = "import time\nopen('/nonexistent/data.bin')\n"
SLEEP = "#!/bin/bash\nsleep 600\n"


@pytest.fixture
def home(lab: Lab, request: pytest.FixtureRequest) -> Path:
    """A new directory of alice, with job.sh, which starts train.py."""
    name = re.sub(r"\W", "_", request.node.name)[:60] + f"_{time.monotonic_ns()}"
    path = Path(pwd.getpwnam(ALICE).pw_dir) / name
    lab.run(["mkdir", "-p", str(path)], user=ALICE)
    (path / "job.sh").write_text(f"{HEAD}{sys.executable} train.py\n")
    (path / "train.py").write_text(BROKEN)
    return path


@pytest.fixture
def fillers(lab: Lab) -> Iterator[list[str]]:
    """Jobs that hold all GPUs: one per node; that of the first node is two jobs with 7 GPUs and 1."""
    lab.clear()
    options = ("-c1", "--mem=100", "--time=60", "--output=/dev/null")
    shares = [("n0", 1), ("n0", 7), *((f"n{at}", 8) for at in range(1, 8))]
    jobs = [lab.submit("-w", node, f"--gres=gpu:{n}", *options, user=BOB, script=SLEEP) for node, n in shares]
    for job in jobs:
        lab.wait_job(job, {"RUNNING"})
    # An answer of Slurm that an earlier gsub kept would still show free GPUs.
    shutil.rmtree(find_cache_folder({}, pwd.getpwnam(ALICE).pw_uid), ignore_errors=True)
    yield jobs
    lab.clear()


def submit(lab: Lab, home: Path, *words: str, **variables: str) -> dict[str, Any]:
    """What `gsub --json` prints."""
    environ = {"XDG_STATE_HOME": str(home / ".state"), **variables}
    done = lab.run(["gsub", "--json", *words, "job.sh"], user=ALICE, cwd=home, env=environ)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def read_field(lab: Lab, job: int, name: str) -> str:
    shown = lab.run(["scontrol", "show", "job", "-o", str(job)]).stdout
    return re.findall(rf"\b{name}=(\S*)", shown)[0]


def test_a_job_on_a_full_cluster_is_eligible_and_goes_before_later_jobs(
    lab: Lab, home: Path, fillers: list[str]
) -> None:
    sent = submit(lab, home)
    job = sent["job_id"]
    assert sent["prerun"]["keeps_place"]
    assert read_field(lab, job, "EligibleTime") == read_field(lab, job, "SubmitTime")
    options = ("--gres=gpu:1", "-c1", "--mem=100", "--time=1", "--output=/dev/null")
    later = [lab.submit(*options, user=BOB, script=SLEEP) for _ in range(8)]
    lab.run(["scancel", *fillers[:2]])
    lab.wait_job(job, {"RUNNING", "COMPLETING", "COMPLETED", "FAILED"})
    started = [one for one in later if read_field(lab, int(one), "JobState") == "RUNNING"]
    assert started == [] or read_field(lab, job, "StartTime") <= min(
        read_field(lab, int(o), "StartTime") for o in started
    )


def test_a_pre_run_in_a_gap_cancels_the_job_that_waits_for_its_gpus(lab: Lab, home: Path, fillers: list[str]) -> None:
    sent = submit(lab, home)
    lab.run(["scancel", fillers[0]])  # one GPU: not enough for the job
    lab.wait_job(sent["job_id"], {"CANCELLED"})
    assert read_field(lab, sent["job_id"], "StartTime") in ("Unknown", read_field(lab, sent["job_id"], "EndTime"))


def test_a_pre_run_in_a_gap_that_passes_leaves_the_jobs_age_alone(lab: Lab, home: Path, fillers: list[str]) -> None:
    (home / "train.py").write_text("print('done')\n")
    sent = submit(lab, home)
    job, trial = sent["job_id"], sent["prerun"]["job_id"]
    # Slurm sets AccrueTime when it first considers the job.
    wait_for(lambda: read_field(lab, job, "AccrueTime"), lambda at: at != "Unknown", 30)
    before = read_field(lab, job, "EligibleTime"), read_field(lab, job, "AccrueTime")
    lab.run(["scancel", fillers[0]])
    lab.wait_job(trial, {"COMPLETED"})
    assert (read_field(lab, job, "EligibleTime"), read_field(lab, job, "AccrueTime")) == before
    assert read_field(lab, job, "JobState") == "PENDING"


def test_gate_holds_the_job_of_a_full_cluster_too(lab: Lab, home: Path, fillers: list[str]) -> None:
    del fillers
    sent = submit(lab, home, "--prerun=gate")
    assert not sent["prerun"]["keeps_place"]
    wait_for(lambda: read_field(lab, sent["job_id"], "Reason"), lambda reason: reason == "BeginTime", 30)
    assert read_field(lab, sent["job_id"], "Reason") == "BeginTime"


def test_the_expected_value_is_explained_on_a_real_cluster(lab: Lab, home: Path) -> None:
    """With the defaults of a site; a lab gives every job a pre-run."""
    site = {"SLURMWRAP_PRERUN_SELECT": "value", "SLURMWRAP_PRERUN_MIN_GPUS": "2"}
    short = submit(lab, home, "--hold", **site)
    long = submit(lab, home, "--hold", "--time=1-0", **site)
    lab.run(["scancel", f"--user={ALICE}"])
    assert (short["prerun"]["mode"], short["prerun"]["job_id"]) == ("off", None)
    assert short["prerun"]["reason"].startswith("it would cost more than it saves")
    assert not short["prerun"]["estimate"]["worthwhile"]
    assert long["prerun"]["mode"] == "auto"
    assert long["prerun"]["estimate"]["run_source"] == "time limit"
