"""Members of packed arrays in lists: in place of their tasks, with their part of the GPU's time; own arrays only."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmwrap.cli.member_runs import describe_members, divide_time, split_packed_runs
from slurmwrap.cli.record_access import JobRecords, RecordSource
from slurmwrap.cli.run_selection import sum_run_records
from slurmwrap.config.load_config import Config
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.submission import PackedArray, Submission

TASK = JobRun(
    attempt=RunKey(cluster="lab", job_id=77, submit_time=1000),
    address="77_0", name="sweep", user="ada", uid=1000, state="FAILED", exit_code=1, gpus=1, cpus=8,
    start_time=1010, end_time=1110,
)  # fmt: skip
OTHER = replace(TASK, attempt=replace(TASK.attempt, job_id=90), address="90")


@pytest.fixture
def known(tmp_path: Path) -> JobRecords:
    """A task of 77 that was requeued once and ran four members, a task that never started any, and another job."""
    (tmp_path / "members").mkdir()
    ends = [("completed", 1060, 0), ("failed", 1110, 1), ("cancelled", 1060, None), ("stopped", 1110, 0)]
    for index, (state, end, code) in enumerate(ends):
        plain = {"index": index, "state": state, "task": "77_0", "begin": 1010.0, "end": float(end), "exit_code": code}
        (tmp_path / f"members/{index}.json").write_text(json.dumps(plain))
    submission = Submission(
        cluster="lab", job_id=77, uid=1000, user="ada", at=999.0,
        pack=PackedArray(directory=str(tmp_path), members=4, array="0-7"),
    )  # fmt: skip
    first = replace(TASK, state="REQUEUED", start_time=900, end_time=920)
    later = replace(TASK, attempt=replace(TASK.attempt, submit_time=1001), restarts=1)
    waits = replace(TASK, attempt=replace(TASK.attempt, job_id=78), address="77_4", state="CANCELLED", end_time=1010)
    return JobRecords(attempts=(first, later, waits, OTHER), submissions=(submission,))


def split(records: JobRecords, *, uid: int = 1000, site: bool = False) -> dict[str, JobRun]:
    source = RecordSource(database=Path("/absent"), site=site, uid=uid)
    return {run.address: run for run in split_packed_runs(records, source, Config()).attempts}


def test_members_stand_in_place_of_their_task_with_their_part_of_its_gpu_time(known: JobRecords) -> None:
    runs = split(known)
    assert {address: run.state for address, run in runs.items()} == {
        "77_0": "COMPLETED", "77_1": "FAILED", "77_2": "CANCELLED", "77_3": "FAILED", "77_4": "CANCELLED",
        "90": "FAILED",
    }  # fmt: skip
    # 20 s of the first run and the first 50 s of the second are of all four, the last 50 s of the two that still ran.
    assert [runs[f"77_{index}"].gpu_s for index in range(4)] == [17.5, 42.5, 17.5, 42.5]
    assert [runs[address].gpu_s for address in ("77_4", "90")] == [None, None]
    assert runs["77_1"].diagnosis is not None and runs["77_1"].cpus == 2
    before, after = (sum_run_records(one) for one in (known.attempts, tuple(runs.values())))
    assert (before.runs, after.runs) == (4, 6)
    assert after.gpu_hours == pytest.approx(before.gpu_hours)
    own = replace(known, attempts=tuple(runs.values()))
    assert describe_members(own, 1050.0, 2000.0) == (
        "Members of packed arrays, of which each task is counted as one run: 2 failed, 1 completed, 1 cancelled.",
    )
    assert describe_members(own, 2000.0, 3000.0) == ()


def test_no_files_are_read_for_another_user_or_for_the_site(known: JobRecords) -> None:
    for found in (split(known, uid=1001), split(known, site=True)):
        assert sorted(found) == ["77_0", "77_4", "90"]


def test_a_job_of_before_the_submission_with_the_same_id_is_not_split(known: JobRecords) -> None:
    late = replace(known, submissions=tuple(replace(one, at=5000.0) for one in known.submissions))
    assert sorted(split(late)) == ["77_0", "77_4", "90"]


SPANS = st.lists(st.tuples(st.one_of(st.none(), st.floats(-50, 200)), st.one_of(st.none(), st.floats(-50, 200))))


@given(spans=SPANS)
def test_the_parts_of_a_time_add_up_to_it(spans: list[tuple[float | None, float | None]]) -> None:
    parts = divide_time(0.0, 100.0, spans)
    assert all(part >= 0 for part in parts)
    assert sum(parts) == pytest.approx(100.0 if spans else 0.0)
