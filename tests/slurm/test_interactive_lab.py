"""gsub inside a job: at a terminal of `srun --pty` or `salloc` as usual, in a batch script as sbatch."""

from __future__ import annotations

import pwd
import re
import shutil
from pathlib import Path

import pytest
from realslurm import USERS, Lab

ALICE = USERS[0]
pytestmark = [
    pytest.mark.usefixtures("lab_without_hooks"),
    pytest.mark.lab,
    pytest.mark.skipif(shutil.which("script") is None, reason="no script(1) to make a terminal"),
]

JOB = "#!/bin/bash\n#SBATCH --gres=gpu:2\n#SBATCH --time=5\n#SBATCH --mem=2000\nsrun hostname\n"


@pytest.fixture
def home(lab: Lab, request: pytest.FixtureRequest) -> Path:
    """A new directory of alice with a script that no earlier pre-run passed."""
    path = Path(pwd.getpwnam(ALICE).pw_dir) / re.sub(r"\W", "_", request.node.name)
    lab.clear(ALICE)  # the interactive job gets its nodes at once
    lab.run(["mkdir", "-p", str(path)], user=ALICE)
    (path / "job.sbatch").write_text(f"{JOB}# {path.name}\n")
    return path


def list_jobs(lab: Lab) -> set[int]:
    # %A, not %i: earlier test files may have left arrays (12_[0-3]) and heterogeneous jobs (12+0)
    return {int(i) for i in lab.run(["squeue", "-h", "-a", "-t", "all", "-u", ALICE, "-o", "%A"]).stdout.split()}


@pytest.mark.parametrize(
    "outer", ["srun -c 2 --mem-per-cpu=100 --gres=gpu:1 --pty", "salloc --mem-per-cpu=100 --gres=gpu:1"]
)
def test_a_call_at_a_terminal_inside_a_job_has_a_pre_run(lab: Lab, home: Path, outer: str) -> None:
    done = lab.run(["script", "-qec", f"{outer} gsub job.sbatch", "/dev/null"], user=ALICE, cwd=home)
    # It keeps its place if the nodes are not idle again yet after the tests before.
    match = re.search(r"job (\d+) (?:waits for|keeps its place in the queue; meanwhile runs) its pre-run", done.stdout)
    assert match, done.stdout + done.stderr
    lab.wait_job(int(match[1]), {"COMPLETED"}, timeout=120)
    assert re.fullmatch(r"n\d+\n", (home / f"slurm-{match[1]}.out").read_text())


def test_a_call_in_a_batch_script_submits_one_job_as_sbatch_does(lab: Lab, home: Path) -> None:
    (home / "outer.sbatch").write_text("#!/bin/bash\ngsub job.sbatch\n")
    before = list_jobs(lab)
    outer = int(lab.run(["sbatch", "--parsable", "-o", "outer.out", "outer.sbatch"], user=ALICE, cwd=home).stdout)
    lab.wait_job(outer, {"COMPLETED"}, timeout=120)
    match = re.fullmatch(r"Submitted batch job (\d+)\n", (home / "outer.out").read_text())
    assert match
    assert list_jobs(lab) - before == {outer, int(match[1])}


def test_a_call_at_a_terminal_inside_a_pre_run_submits_nothing(lab: Lab, home: Path) -> None:
    typed = "script -qec 'gsub --gres=gpu:2 --wrap=hostname' /dev/null"
    (home / "job.sbatch").write_text(f"{JOB}{typed}\nenv -u SLURM_JOB_ID {typed}\ntrue\n")
    before = list_jobs(lab)
    done = lab.run(["gsub", "--prerun=only", "job.sbatch"], user=ALICE, cwd=home)
    assert done.returncode in (0, 4), done.stderr
    assert len(list_jobs(lab) - before) == 1
