"""The number of messages that gsub sends to slurmctld, which counts them for each user (sdiag)."""

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
    """A new directory of alice; the answers of Slurm that earlier calls have cached are removed."""
    uid = pwd.getpwnam(ALICE).pw_uid
    shutil.rmtree(f"/tmp/slurmwrap-{uid}", ignore_errors=True)
    path = Path(pwd.getpwnam(ALICE).pw_dir) / re.sub(r"\W", "_", request.node.name)
    lab.run(["mkdir", "-p", str(path)], user=ALICE)
    (path / "job.sbatch").write_text(SCRIPT)
    return path


def count_messages(lab: Lab) -> int:
    """The number of messages that the controller has received from alice."""
    statistics = lab.run(["sdiag"]).stdout.partition("statistics by user")[2]
    found = re.search(rf"^\s*{re.escape(ALICE)}\s+\(\s*\d+\)\s+count:(\d+)", statistics, re.MULTILINE)
    return int(found[1]) if found else 0


def count_messages_of_submission(lab: Lab, work: Path, *words: str, **environ: str) -> int:
    """The number of messages of one submission. root cancels the job."""
    before = count_messages(lab)
    environ["XDG_STATE_HOME"] = str(work)  # without pre-runs of earlier tests, whose state gsub would read
    done = lab.run(["env", *(f"{name}={value}" for name, value in environ.items()), *words], user=ALICE, cwd=work)
    after = count_messages(lab)
    found = re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout)
    assert found, (done.stdout, done.stderr)
    lab.run(["scancel", found[1]])
    return after - before


def test_repeated_gsub_calls_read_once_and_then_send_as_many_messages_as_sbatch(lab: Lab, work: Path) -> None:
    plain = count_messages_of_submission(lab, work, "sbatch", "job.sbatch")
    kept = {"SLURMWRAP_SUBMIT_SNAPSHOT_KEPT_S": "60"}  # long enough for a slow machine
    first, *later = [
        count_messages_of_submission(lab, work, "gsub", "--prerun=off", "job.sbatch", **kept) for _ in range(IN_A_ROW)
    ]
    assert later == [plain] * (IN_A_ROW - 1)
    assert plain < first <= plain + 10


def test_every_call_reads_without_the_snapshot_cache(lab: Lab, work: Path) -> None:
    off = {"SLURMWRAP_SUBMIT_SNAPSHOT_KEPT_S": "0"}
    first, second = (
        count_messages_of_submission(lab, work, "gsub", "--prerun=off", "job.sbatch", **off) for _ in range(2)
    )
    assert first == second > count_messages_of_submission(lab, work, "sbatch", "job.sbatch")


def test_a_call_passed_on_unchanged_sends_as_many_messages_as_sbatch(lab: Lab, work: Path) -> None:
    (work / "job.sbatch").write_text(SCRIPT.replace("--gres=gpu:8", ""))
    assert count_messages_of_submission(lab, work, "gsub", "job.sbatch") == count_messages_of_submission(
        lab, work, "sbatch", "job.sbatch"
    )
