"""gsub --stop-when on a real Slurm: the job gets its own signal, or is cancelled, and is not run again."""

from __future__ import annotations

import pwd
import sys
from pathlib import Path

import pytest
from realslurm import USERS, Lab
from site_records import reconcile_until_judged, runs, site_rows

ALICE = USERS[0]
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]
FINAL = {"COMPLETED", "FAILED", "CANCELLED"}
# A training without torch that records its losses as the counter does: they become NaN.
WORK = """\
import time
import slurmwrap_step
counter = slurmwrap_step._layer("slurmwrap_counter").counter
module = slurmwrap_step._layer("slurmwrap_losses")
module.WRITTEN_EVERY_S = 0.1
losses = module.get(counter)
for step in range(1, 1_000_000):
    counter.ready()
    losses.objective, losses.parts = 3.0 / step if step < 20 else float("nan"), 1
    slurmwrap_step.step()
    time.sleep(0.02)
"""
# The script ends with 0 when the signal comes, as one does that has saved its state.
SAVES = "trap 'echo it saves; kill $!; exit 0' USR1"


def test_a_diverged_job_gets_its_signal_or_is_cancelled(lab: Lab) -> None:
    work = Path(pwd.getpwnam(ALICE).pw_dir) / "diverged"
    lab.run(["mkdir", "-p", work], ALICE)
    lab.run(["tee", work / "work.py"], ALICE, stdin=WORK)
    jobs = {}
    for name, options in (("signal", "#SBATCH --signal=B:USR1@30"), ("cancel", "")):
        script = (
            f"#!/bin/bash\n#SBATCH --gres=gpu:1 --mem=100 --requeue\n{options}\n#GSUB --stop-when=diverged --retry\n"
        )
        script += f"{SAVES}\n{sys.executable} work.py &\nwait\n"
        lab.run(["tee", work / f"{name}.sh"], ALICE, stdin=script)
        done = lab.run(["gsub", "--prerun=off", f"{name}.sh"], ALICE, work)
        assert done.returncode == 0, done.stderr
        jobs[name] = done.stdout.split()[-1]
    reconcile_until_judged(lab, *jobs.values())
    assert {name: run["state"] for name, job in jobs.items() for run in runs(lab, job)} == {
        "signal": "COMPLETED", "cancel": "CANCELLED",
    }  # fmt: skip
    assert "it saves" in (work / f"slurm-{jobs['signal']}.out").read_text()
    commands = {"signal": "scancel --signal=USR1 --batch", "cancel": "scancel"}
    for name, job in jobs.items():
        page = " ".join(lab.slurmwrap("why", job).stdout.split())
        assert f"done: {commands[name]} {job} stopped at your --stop-when=diverged: its last " in page
        # While it waited, other rules may have changed its request.
        of_stop = "SELECT mode, error FROM actions WHERE job_id = ? AND rule = 'stop' AND done_at > 0"
        assert site_rows(lab, of_stop, int(job)) == [{"mode": "act", "error": ""}]
