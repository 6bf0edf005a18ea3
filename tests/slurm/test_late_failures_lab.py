"""Failures that a pre-run of three steps does not find, on a real Slurm: hidden exit codes, late errors, timeouts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from realslurm import USERS, Lab, run_as
from waiting import wait_until

pytestmark = pytest.mark.lab
ALICE = USERS[0]
STEPS = 'for step in range(120):\n    print(f"step {step} loss {1 / (step + 1):.4f}", flush=True)\n'
FILES = {
    "crash.py": STEPS + "def forward(x):\n    return x.shpae\nforward([])\n",
    "late.py": STEPS + "if step > 9:\n    print(args)\n",
    "nan.py": STEPS.replace("{1 / (step + 1):.4f}", "{0.5 if step < 99 else float('nan')}"),
    "sound.py": "import traceback\ntry:\n    int('x')\nexcept ValueError:\n    traceback.print_exc()\n" + STEPS,
    "steps.py": "import slurmwrap_step\nfor _ in range(20):\n    slurmwrap_step.step()\n",
}
HEADER = "#!/bin/bash\n#SBATCH --gres=gpu:1 --mem=200 --output=%x-%j.out\n"
BODIES = {
    "crash": "python3 crash.py 2>&1 | tee train.log\necho done\n",
    "late": "python3 late.py\n",
    "nan": "python3 nan.py\n",
    "sound": "python3 sound.py\necho done\n",
    "steps": f"{sys.executable} steps.py\n",
}


@pytest.fixture(scope="module")
def work(lab: Lab) -> Path:
    """A directory of alice with the programs and a batch script for each of them."""
    folder = Path(run_as(ALICE, ["sh", "-c", "echo $HOME"]).stdout.strip()) / "late"
    run_as(ALICE, ["mkdir", "-p", folder])
    for name, text in FILES.items():
        run_as(ALICE, ["tee", folder / name], stdin=text)
    for name, body in BODIES.items():
        run_as(ALICE, ["tee", folder / f"{name}.sbatch"], stdin=HEADER + body)
    return folder


def gsub(lab: Lab, work: Path, *words: str) -> tuple[str, str]:
    """(stdout, stderr)."""
    done = lab.run([sys.executable, "-m", "slurmwrap.gsub.gsub_main", *words], ALICE, work)
    return done.stdout.strip(), done.stderr


def read_why(lab: Lab, job: str) -> str:
    return " ".join(lab.slurmwrap("why", job, user=ALICE).stdout.split())


def test_completed_runs_with_errors_and_late_failures_are_explained(lab: Lab, work: Path) -> None:
    answers = {name: gsub(lab, work, f"{name}.sbatch") for name in ("crash", "late", "nan", "sound")}
    jobs = {name: out.rpartition(" ")[2] for name, (out, _) in answers.items()}
    for name, job in jobs.items():
        lab.wait_job(job, ("FAILED",) if name == "late" else ("COMPLETED",))
    lab.reconcile_once()
    assert "crash.sbatch:3: the exit code of this line is that of 'tee'" in answers["crash"][1]
    pages = {name: read_why(lab, job) for name, job in jobs.items()}
    assert "Completed, but its output ends with AttributeError (crash.py:4)." in pages["crash"]
    assert "gsub had warned at submission: " not in pages["sound"]
    assert f"gsub --again {jobs['crash']} --prerun=only --prerun-steps 180" in pages["crash"]
    assert "training diverged (NaN) (model_diverged): user program" in pages["nan"]
    assert "NEXT Nothing: it completed." in pages["sound"]
    assert "late.py:4: NameError: name 'args' is not defined" in pages["late"].partition("gsub had warned")[2]
    assert "It failed after step 119: this pre-run goes that far." in pages["late"]

    def completed_with_error() -> set[str]:
        lab.reconcile_once()
        history = lab.slurmwrap("history", user=ALICE).stdout.splitlines()
        rows = {name: next(line for line in history if line.startswith(jobs[name])) for name in jobs}
        return {name for name, row in rows.items() if "completed, error" in row}

    wait_until(lambda: completed_with_error() == {"crash", "nan"}, "history shows what both logs say", pause=0.5)
    found = json.loads(lab.slurmwrap("history", "--json", user=ALICE).stdout)
    kept = {run["address"]: run for run in found["runs"]}
    assert kept[jobs["crash"]]["diagnosis"]["category"] == "completed_with_error"
    assert (kept[jobs["crash"]]["diagnosis"]["error"], kept[jobs["crash"]]["decision"]) == (
        "traceback_from_crash",
        "none",
    )
    failed = json.loads(lab.slurmwrap("history", "--failed", "--json", user=ALICE).stdout)
    assert [run["address"] for run in failed["runs"] if run["address"] in jobs.values()] == [jobs["late"]]
    mine = lab.slurmwrap("reconcile", "--once", "--user", user=ALICE).stderr  # as alice, who owns the files
    assert f"job {jobs['crash']} of {ALICE}: completed_with_error, none" in mine
    assert f"job {jobs['sound']} of {ALICE}: success, none" in mine


def test_a_pre_run_continues_until_the_requested_step(lab: Lab, work: Path) -> None:
    out, stderr = gsub(lab, work, "--prerun=only", "--json", "--prerun-steps", "7", "steps.sbatch")
    verdict = json.loads(out)
    assert (verdict["verdict"], verdict["steps"]) == ("pass", 7), stderr
    assert "the pre-run goes on until step 7, for " in stderr
    trial = stderr.partition("is job ")[2].split()[0]
    lab.reconcile_once()
    page = read_why(lab, trial)
    assert f"Job {trial} steps.sbatch of {ALICE}, 1 GPU, pre-run ended " in page
    assert str(work / "steps.sbatch") in page or f"steps.sbatch in {work}" in page


@pytest.mark.slow
def test_after_a_timeout_why_suggests_a_time_limit_from_the_progress(lab: Lab, work: Path) -> None:
    bar = "printf '  6%%|#         | 308/5000 [01:03<16:18,  4.80it/s]\\n'\nsleep 200\n"
    run_as(ALICE, ["tee", work / "slow.sbatch"], stdin=HEADER + bar)
    job = gsub(lab, work, "--time=1", "slow.sbatch")[0].rpartition(" ")[2]
    lab.wait_job(job, ("TIMEOUT",), timeout=200)
    lab.reconcile_once()
    page = read_why(lab, job)
    assert "Its output says that 16 min were left" in page
    assert f"gsub --time=00:25:00 {work / 'slow.sbatch'}" in page
