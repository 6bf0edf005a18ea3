"""The loop of slurmwrap watch: a temporary failure of Slurm, a job that squeue no longer lists, and squeue output."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from slurmwrap.cli.watch import watch_command as watch
from slurmwrap.cli.watch.job_status import JobStatus
from slurmwrap.errors import SlurmError, SlurmUnreachable, SlurmwrapError
from slurmwrap.model.job_record import JobRecord
from slurmwrap.slurm.squeue_parser import JOB_FIELDS, WatchedJob, make_watched_format, parse_watched

RUNNING = JobRecord(job_id=81, name="train", state="RUNNING", num_nodes=1, start_time=1000, nodes=("n0",))
ENDED = replace(RUNNING, state="COMPLETED", end_time=1060)


class ScriptedWatcher:
    """Returns a given series of results: records, None, or errors. `last`: the recorded state of a job that ended."""

    def __init__(self, *looks: JobRecord | SlurmError | None, last: str = "") -> None:
        self.looks, self.last = list(looks), last

    def look(self, now: float) -> JobStatus:
        found = self.looks.pop(0)
        if isinstance(found, SlurmError):
            raise found
        return JobStatus(at=1030.0, address="81", rows=() if found is None else (WatchedJob(record=found),))

    def ending(self) -> str:
        return self.last

    def judge_end(self, status: JobStatus) -> bool:
        return False

    def describe_loss(self, status: JobStatus) -> str:
        return ""

    def why(self, ended: JobStatus | None = None) -> tuple[tuple[str, str], ...]:
        return (("why", "gpu_oom: CUDA out of memory"), ("next", "Ask for more."))


def run_watch(capsys: pytest.CaptureFixture[str], script: ScriptedWatcher) -> tuple[int, list[str]]:
    code = watch._until_the_end(script, watch._Screen(), 0.01)  # type: ignore[arg-type]
    return code, [line.partition(" job ")[2] or line for line in capsys.readouterr().out.splitlines()]


def test_watch_continues_while_slurm_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    no_answer = SlurmUnreachable("squeue: no answer within 10 s")
    code, lines = run_watch(capsys, ScriptedWatcher(RUNNING, no_answer, no_answer, RUNNING, ENDED))
    assert code == 0
    running = "81 (train): running for 30 s on n0, 1 node"
    assert next(line for line in lines if line.startswith("81")) == running
    assert lines[1].startswith("81 (train): running for ")
    assert lines[1].endswith("does not answer (squeue: no answer within 10 s); this is its last answer")
    assert lines[2] == running  # two queries without answer were one change, which is over
    assert lines[3] == "81 (train): completed after 60 s on n0, 1 node"


@pytest.mark.parametrize(("state", "expected"), [("COMPLETED", 0), ("OUT_OF_MEMORY", 1)])
def test_a_job_that_squeue_no_longer_lists_ends_with_its_recorded_state(capsys, state: str, expected: int) -> None:
    code, lines = run_watch(capsys, ScriptedWatcher(RUNNING, None, last=state))
    assert (code, lines[1]) == (expected, f"81 (train): {state.lower().replace('_', ' ')} on n0, 1 node")
    assert lines[2:4] == ["why      gpu_oom: CUDA out of memory", "next     Ask for more."]
    assert lines[4:] == ([] if expected == 0 else ["slurmwrap why 81 shows more"])


def test_a_vanished_job_without_a_recorded_end_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SlurmwrapError, match="Slurm does not know job 81 any more"):
        run_watch(capsys, ScriptedWatcher(RUNNING, None))


def test_a_job_that_slurm_never_knew_is_an_error_with_a_hint(capsys) -> None:
    with pytest.raises(SlurmwrapError) as raised:
        run_watch(capsys, ScriptedWatcher(None))
    assert str(raised.value) == "Slurm does not know job 81: it ended a while ago, or it never existed"
    assert raised.value.hint == "slurmwrap why 81 shows its records; slurmwrap history lists your jobs"


def test_a_slurm_error_at_the_first_query_is_raised(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SlurmUnreachable):  # at the first query there is no earlier answer to keep
        run_watch(capsys, ScriptedWatcher(SlurmUnreachable("no slurm.conf")))


def test_a_closed_reader_is_detected_before_anything_is_written(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with (tmp_path / "watch.log").open("wb") as file:
        assert (watch.reader_is_gone(writing), watch.reader_is_gone(file.fileno())) == (False, False)
    os.close(reading)
    assert watch.reader_is_gone(writing)
    os.close(writing)


def make_squeue_row(separator: str, **fields: str) -> str:
    given = dict.fromkeys((*JOB_FIELDS, "SchedNodes", "Dependency"), "")
    given |= {
        "JobID": "81",
        "ArrayJobID": "81",
        "ArrayTaskID": "N/A",
        "NumNodes": "2",
        "exit_code": "0",
        "DerivedEC": "0",
    }
    return "".join(f"{value}{separator}" for value in {**given, **fields}.values()) + "\n"


def test_a_pending_row_has_an_expected_start_and_a_running_row_has_none() -> None:
    waiting = make_squeue_row(
        "|", State="PENDING", StartTime="1795280700", SchedNodes="n[0-1]", Dependency="afterok:80(unfulfilled)"
    )
    running = make_squeue_row(
        "|", JobID="82", State="RUNNING", StartTime="1795280700", SchedNodes="(null)", Dependency="(null)"
    )
    found = parse_watched(waiting + running, "|")
    assert [
        (w.record.job_id, w.record.start_time, w.expected_start, w.expected_nodes, w.dependency) for w in found
    ] == [
        (81, None, 1795280700, "n[0-1]", "afterok:80(unfulfilled)"),
        (82, 1795280700, None, "", ""),
    ]
    assert make_watched_format("|").count("|") == len(JOB_FIELDS) + 2
    with pytest.raises(ValueError, match="squeue gave"):
        parse_watched("81|PENDING|\n", "|")
