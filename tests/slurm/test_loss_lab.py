"""The losses of running jobs on a real Slurm: recorded on the nodes, predicted and compared by `slurmwrap watch`."""

from __future__ import annotations

import json
import pwd
import sys
from pathlib import Path
from typing import Any

import pytest
from realslurm import USERS, Lab
from waiting import wait_for

ALICE = USERS[0]
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]
# A sweep without torch that records its losses as the counter does. Task 1 settles at 1.0, task 2 at 3.0.
WORK = """\
import math, os, time
import slurmwrap_step
counter = slurmwrap_step._layer("slurmwrap_counter").counter
module = slurmwrap_step._layer("slurmwrap_losses")
module.WRITTEN_EVERY_S = 0.1
losses = module.get(counter)
level = 2.0 * int(os.environ["SLURM_ARRAY_TASK_ID"]) - 1.0
for step in range(1, 2001):
    counter.ready()
    losses.objective, losses.parts = level + 3 * math.exp(-step / 80) + 0.01 * math.sin(step * 7.7), 1
    slurmwrap_step.step()
    if step % 10 == 0:
        print("step %d/2000 loss %.3f" % (step, level), flush=True)
    time.sleep(0.02)
"""


def test_watch_predicts_the_final_loss_and_names_the_dominated_task(lab: Lab) -> None:
    work = Path(pwd.getpwnam(ALICE).pw_dir) / "sweep"
    lab.run(["mkdir", "-p", work], ALICE)
    lab.run(["tee", work / "work.py"], ALICE, stdin=WORK)
    script = f"#!/bin/bash\n#SBATCH --gres=gpu:1 --mem=100 --array=1-2\n#GSUB --count-steps\n{sys.executable} work.py\n"
    lab.run(["tee", work / "job.sh"], ALICE, stdin=script)
    done = lab.run(["gsub", "--prerun=off", "job.sh"], ALICE, work)
    assert done.returncode == 0, done.stderr
    job = done.stdout.split()[-1]

    def look(address: str) -> dict[str, Any]:
        shown = lab.slurmwrap("watch", address, "--once", "--json", user=ALICE).stdout
        found: dict[str, Any] = json.loads(shown or "{}")
        return found

    array = wait_for(lambda: look(job), lambda found: bool(found.get("dominated")), timeout=60, pause=0.5)
    (dominated,) = array["dominated"]
    assert (dominated["name"], dominated["best"]) == (f"{job}_2", f"{job}_1")
    task = look(f"{job}_1")
    assert task["loss"]["taken"] > 0 and task["loss"]["prediction"]["final"] == pytest.approx(1.0, abs=0.2)
    lab.run(["scancel", job], ALICE)
