"""A job is released when the steps of its pre-run have passed, and cancelled if the rehearsal fails. Real Slurm."""

from __future__ import annotations

import json
import pwd
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from realslurm import USERS, Lab
from waiting import wait_until

ALICE = USERS[0]
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]

# All GPUs of a node, so that the job and its pre-run are on different nodes.
SCRIPT = (
    f"#!/bin/bash\n#SBATCH --nodes=1 --gres=gpu:8 --cpus-per-task=1 --mem=500 --time=5\n{sys.executable} train.py\n"
)
# The stand-in for torch is enough to count steps. `mark` is a directory outside of the overlay. The job waits in its
# first epoch; the pre-run ends that epoch early, and waits in its validation until the job runs.
TRAIN = """
import os, sys, time
sys.path.insert(0, {library!r})
from torch.optim import Optimizer
mark, rehearses = {mark!r}, "SLURMWRAP_PRERUN" in os.environ
def wait_for(name):
    while not os.path.exists(os.path.join(mark, name)):
        time.sleep(0.05)
if not rehearses:
    open(os.path.join(mark, "job"), "w").close()
optimizer = Optimizer()
for epoch in range(3):
    for batch in range(1000):
        optimizer.step()
        if not rehearses and batch == 5:
            wait_for("go")
    wait_for("job")
    {validation}
print("finished")
"""
OPTIMIZER = """
hooks = []
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
class Optimizer:
    def step(self, closure=None):
        for hook in hooks:
            hook(self, (), {})
"""


@pytest.fixture
def home(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A new directory of alice; its subdirectory of the same name in /tmp is where jobs leave marks."""
    lab.clear()
    name = re.sub(r"\W", "_", request.node.name)[:40] + f"_{time.monotonic_ns()}"
    path = Path(pwd.getpwnam(ALICE).pw_dir) / name
    lab.run(["mkdir", "-p", str(path / "lib" / "torch" / "optim"), f"/tmp/{name}"], user=ALICE)
    for file, text in (("__init__.py", ""), ("optim/__init__.py", "from .optimizer import Optimizer\n")):
        (path / "lib" / "torch" / file).write_text(text)
    (path / "lib" / "torch" / "optim" / "optimizer.py").write_text(OPTIMIZER)
    (path / "job.sh").write_text(SCRIPT)
    yield path
    lab.clear()
    lab.run(["rm", "-rf", f"/tmp/{name}"], user=ALICE)


def submit(lab: Lab, home: Path, validation: str, *words: str) -> dict[str, Any]:
    text = TRAIN.format(library=str(home / "lib"), mark=f"/tmp/{home.name}", validation=validation)
    (home / "train.py").write_text(text)
    environ = {"XDG_STATE_HOME": str(home / ".state")}
    done = lab.run(["gsub", "--json", *words, "job.sh"], user=ALICE, cwd=home, env=environ)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def show(lab: Lab, job: int) -> str:
    return lab.run(["scontrol", "show", "job", "-o", str(job)]).stdout


def test_an_error_in_the_validation_cancels_the_job_that_runs_already(lab: Lab, home: Path) -> None:
    sent = submit(lab, home, "print(acuracy)")
    job = sent["job_id"]
    lab.wait_job(job, {"CANCELLED"})
    assert Path(f"/tmp/{home.name}/job").exists()
    record = show(lab, job)
    assert re.search(r"train\.py:\d+: NameError: name 'acuracy' is not defined \(after 3 optimizer steps\)", record)
    output = home / f"slurm-{job}.out"
    wait_until(lambda: "while it ran" in output.read_text(), "the job's output names the reason")
    page = lab.slurmwrap("why", str(job), user=ALICE, env={"XDG_STATE_HOME": str(home / ".state")}).stdout
    assert "acuracy" in page


def test_a_sound_job_starts_after_the_steps_and_is_left_alone(lab: Lab, home: Path) -> None:
    sent = submit(lab, home, "open('result', 'a').write('x')")
    job, trial = sent["job_id"], sent["prerun"]["job_id"]
    lab.wait_job(trial, {"COMPLETED"})
    assert show(lab, job).count("JobState=RUNNING") == 1
    assert not (home / "result").exists()
    lab.run(["touch", f"/tmp/{home.name}/go"], user=ALICE)
    lab.wait_job(job, {"COMPLETED"})
    environ = {"XDG_STATE_HOME": str(home / ".state")}
    shown = lab.slurmwrap("prerun", "show", str(trial), user=ALICE, env=environ).stdout
    assert "then the script ran to its end with shortened epochs" in " ".join(shown.split())


def test_an_error_of_a_file_does_not_cancel_the_job_that_runs_already(lab: Lab, home: Path) -> None:
    sent = submit(lab, home, "open('missing/result' if rehearses else '/dev/null', 'a')")
    job, trial = sent["job_id"], sent["prerun"]["job_id"]
    lab.wait_job(trial, {"COMPLETED"})
    assert show(lab, job).count("JobState=RUNNING") == 1
    lab.run(["touch", f"/tmp/{home.name}/go"], user=ALICE)
    lab.wait_job(job, {"COMPLETED"})


def test_a_job_waits_for_the_whole_pre_run_as_a_gate(lab: Lab, home: Path) -> None:
    sent = submit(lab, home, "pass", "--prerun=gate")
    job, trial = sent["job_id"], sent["prerun"]["job_id"]
    directory = home / ".state" / "slurmwrap" / "prerun"
    marks = lambda: list(directory.glob("*/steps/rehearsal"))  # noqa: E731
    wait_until(marks, "the pre-run rehearses")
    assert "JobState=PENDING" in show(lab, job)
    # The pre-run's validation waits for the job, which would otherwise be there only after it.
    lab.run(["touch", f"/tmp/{home.name}/job", f"/tmp/{home.name}/go"], user=ALICE)
    lab.wait_job(trial, {"COMPLETED"})
    lab.wait_job(job, {"COMPLETED"})
