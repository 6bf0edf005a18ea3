"""What gsub costs the controller, as slurmctld itself counts it for each user (sdiag)."""

from __future__ import annotations

import pwd
import re
import shutil
from pathlib import Path

import pytest
from realslurm import USERS, Lab

ALICE = USERS[0]
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]

SCRIPT = "#!/bin/bash\n#SBATCH --hold -N2 --gres=gpu:8 --ntasks-per-node=1 -c8 --mem=64000\nsrun hostname\n"
IN_A_ROW = 8


@pytest.fixture
def work(lab: Lab, request: pytest.FixtureRequest) -> Path:
    """A fresh directory of alice's, and none of what an earlier call of hers has read."""
    uid = pwd.getpwnam(ALICE).pw_uid
    shutil.rmtree(f"/tmp/slurmwrap-{uid}", ignore_errors=True)
    path = Path(pwd.getpwnam(ALICE).pw_dir) / re.sub(r"\W", "_", request.node.name)
    lab.run(["mkdir", "-p", str(path)], user=ALICE)
    (path / "job.sbatch").write_text(SCRIPT)
    return path


def messages(lab: Lab) -> int:
    """All that the controller has taken from alice."""
    said = lab.run(["sdiag"]).stdout.partition("statistics by user")[2]
    found = re.search(rf"^\s*{re.escape(ALICE)}\s+\(\s*\d+\)\s+count:(\d+)", said, re.MULTILINE)
    return int(found[1]) if found else 0


def cost(lab: Lab, work: Path, *words: str, **environ: str) -> int:
    """Messages of one submission; the job is cancelled by root."""
    before = messages(lab)
    environ["XDG_STATE_HOME"] = str(work)  # no pre-runs of earlier tests, which gsub would ask after
    done = lab.run(["env", *(f"{name}={value}" for name, value in environ.items()), *words], user=ALICE, cwd=work)
    after = messages(lab)
    found = re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout)
    assert found, (done.stdout, done.stderr)
    lab.run(["scancel", found[1]])
    return after - before


def test_a_loop_of_gsub_reads_once_and_then_costs_what_sbatch_costs(lab: Lab, work: Path) -> None:
    plain = cost(lab, work, "sbatch", "job.sbatch")
    kept = {"SLURMWRAP_SUBMIT_SNAPSHOT_KEPT_S": "60"}  # however slow this machine is today
    first, *later = [cost(lab, work, "gsub", "--prerun=off", "job.sbatch", **kept) for _ in range(IN_A_ROW)]
    assert later == [plain] * (IN_A_ROW - 1)
    assert plain < first <= plain + 10


def test_switched_off_every_call_reads(lab: Lab, work: Path) -> None:
    off = {"SLURMWRAP_SUBMIT_SNAPSHOT_KEPT_S": "0"}
    first, second = (cost(lab, work, "gsub", "--prerun=off", "job.sbatch", **off) for _ in range(2))
    assert first == second > cost(lab, work, "sbatch", "job.sbatch")


def test_a_call_that_is_passed_on_costs_what_sbatch_costs(lab: Lab, work: Path) -> None:
    (work / "job.sbatch").write_text(SCRIPT.replace("--gres=gpu:8", ""))
    assert cost(lab, work, "gsub", "job.sbatch") == cost(lab, work, "sbatch", "job.sbatch")
