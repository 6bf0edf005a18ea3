"""`gsub --explain`: when a job that must wait is expected to start, and what is asked of Slurm for it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from test_expected_run_time import make_history
from test_submit import NODES, NOW, FakeMemory, FakeSlurm, context, request

from slurmwrap.config.load_config import Config
from slurmwrap.console import Console
from slurmwrap.errors import SlurmUnreachable
from slurmwrap.gsub.prepare import prepare
from slurmwrap.gsub.queue_run_times import QueueRunTimes, list_submitted_ids
from slurmwrap.gsub.submit import format_submission_json, run
from slurmwrap.gsub.submit_context import SubmitResult
from slurmwrap.gsub.user_state import UserStateStore
from slurmwrap.model.cluster import Snapshot
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.run_time import FROM_RUNS, FROM_USER
from slurmwrap.model.submission import Submission
from slurmwrap.placement.expected_start import ExpectedStart
from slurmwrap.profiling.run_time import RunTimeHistory, RunTimeQuery
from slurmwrap.protocols import SbatchResult
from slurmwrap.slurm.squeue_parser import WatchedJob
from slurmwrap.store.database import Database
from slurmwrap.store.user_state_files import UserState

SCRIPT = b"#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:8\n#SBATCH --time=1-0\nsrun python train.py\n"
BUSY = tuple(replace(node, state="ALLOCATED", gpus_used=node.gpus) for node in NODES)
RUNNING = tuple(
    JobRecord(
        job_id=10 + number, uid=1001, partition="gpu", state="RUNNING", gpus=node.gpus, nodes=(node.name,),
        num_nodes=1, start_time=int(NOW) - 600, submit_time=int(NOW) - 700, time_limit_s=86_400, priority=5,
    )
    for number, node in enumerate(NODES)
)  # fmt: skip
# Each of them usually runs for one hour.
HISTORY = make_history(3600.0, RunTimeQuery(user="1001", gpus=RUNNING[0].gpus, partition="gpu"))


class BusySlurm(FakeSlurm):
    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), nodes=BUSY)


def explain(
    *words: str, jobs: Sequence[JobRecord] | None = RUNNING, slurm: FakeSlurm | None = None, own=HISTORY
) -> tuple[str, int]:
    """Return what `gsub --explain --dry-run` prints, and how often it read the queue."""
    asked = []

    def queue() -> Sequence[WatchedJob]:
        asked.append(1)
        if jobs is None:
            raise SlurmUnreachable("no answer")
        return [WatchedJob(record=job) for job in jobs]

    at = context(slurm or BusySlurm(), FakeMemory(past_runs=own), queue=queue)
    stream = StringIO()
    prepared = prepare(request("--dry-run", "--prerun=off", *words, script=SCRIPT), at)
    assert run(prepared, at, Console(program="gsub", stream=stream)) == 0
    return stream.getvalue(), len(asked)


def test_a_job_that_must_wait_is_told_when_it_may_start() -> None:
    text, asked = explain("--explain")
    assert f"gsub: expected start in 50 min, by the expected run times of {len(NODES)} of {len(NODES)} jobs" in text
    assert asked == 1


def test_without_explain_slurm_is_not_asked_about_the_queue() -> None:
    assert explain()[1] == 0


def test_a_job_that_may_start_now_or_waits_for_something_else_is_not_forecast() -> None:
    for words, slurm in (((), FakeSlurm()), (("--hold",), None), (("--dependency=afterok:1",), None)):
        text, asked = explain("--explain", *words, slurm=slurm)
        assert "expected start" not in text
        assert asked == 0


@pytest.mark.parametrize("case", [{"own": RunTimeHistory()}, {"jobs": None}, {"jobs": ()}])
def test_it_is_said_that_the_start_is_not_known(case: dict[str, object]) -> None:
    assert "gsub: its start is unknown: too few jobs before it have a known run time" in explain("--explain", **case)[0]


def test_the_json_object_has_the_start() -> None:
    at = context(BusySlurm(), FakeMemory(past_runs=HISTORY), queue=lambda: [WatchedJob(record=job) for job in RUNNING])
    prepared = prepare(request("--prerun=off", script=SCRIPT), at)
    start = ExpectedStart(at=1000.4, by=2000.0, jobs=3, predicted=2)
    sent = SubmitResult(
        result=SbatchResult(exit_code=0, stdout="", stderr="", job_id=7, timed_out=False), batch=prepared.batch
    )
    assert json.loads(format_submission_json(prepared, sent, "lab"))["start"] is None
    forecast = json.loads(format_submission_json(replace(prepared, start=start), sent, "lab"))["start"]
    assert forecast == {"at": 1000, "by": 2000, "jobs": 3, "predicted": 2}


def test_runs_of_the_same_job_are_found_by_its_submission() -> None:
    key = RunTimeQuery(user="1001", key="train-1", gpus=8, partition="gpu")
    history = make_history(7200.0, key)
    job = replace(RUNNING[0], job_id=41, array_job_id=40, array_task_id=1, gpus=8)
    mine = Submission(cluster="lab", job_id=40, uid=1001, user="alice", at=float(NOW) - 701, profile_key="train-1")

    def source(submission: Submission) -> str | None:
        known = QueueRunTimes(
            cluster="lab", published="", history=history, uid=1001, submissions={submission.job_id: submission}
        )
        found = known.estimate(job)
        return None if found is None else found.source

    assert list_submitted_ids([job, replace(job, uid=5), replace(job, gpus=0, array_job_id=39)], 1001) == [40]
    assert source(mine) == FROM_RUNS
    # Another user's claim, and a later job with the same id.
    assert source(replace(mine, uid=5)) == FROM_USER
    assert source(replace(mine, at=float(NOW))) == FROM_USER


def test_a_users_own_runs_say_nothing_about_other_users() -> None:
    other = replace(RUNNING[0], uid=5)
    mine = QueueRunTimes(cluster="lab", published="", history=HISTORY, uid=1001)
    assert mine.estimate(other) is None
    everyones = QueueRunTimes(cluster="lab", published="", history=HISTORY, uid=None)
    assert everyones.estimate(replace(other, job_id=99)) is not None


def test_submissions_of_jobs_are_read_from_database_and_spool(tmp_path: Path) -> None:
    state, sent = UserState(tmp_path), Submission(cluster="lab", job_id=40, uid=os.getuid(), user="alice", at=1.0)
    assert state.submissions_of("lab", [40]) == {}
    with Database.open(state.database) as database:
        for one in (sent, replace(sent, job_id=41), replace(sent, cluster="other", at=9.0)):
            database.save_submission(one)
    memory = UserStateStore(state, os.getuid(), Config())
    memory.remember_submission(replace(sent, at=3.0, name="newer"))
    memory.remember_submission(replace(sent, job_id=42))
    found = state.submissions_of("lab", [40, 41])
    assert {job_id: (one.at, one.name) for job_id, one in found.items()} == {40: (3.0, "newer"), 41: (1.0, "")}
