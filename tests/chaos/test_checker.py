"""The checker of the fault run (.ci/chaos): each planted violation is found, and sound records have none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from chaos import collect
from chaos.checker import (
    KernelLine,
    NodeSight,
    PendingJob,
    PlannedFault,
    RecordedAction,
    RecordedRun,
    RunRecords,
    ScriptLine,
    SlurmRun,
    Submitted,
    check,
    count_by_title,
)

REQUEUE = RecordedAction(
    job_id=1, submit=95, rule="retry", mode="act", verb="requeuehold", target="1", key="", value="", done_at=130.0,
    error="",
)  # fmt: skip
DRAIN = replace(REQUEUE, rule="drain", verb="drain", target="n1")
RESUME = replace(DRAIN, job_id=0, submit=0, verb="resume", rule="resume")
HELD = PendingJob(address="9", name="c9", state="PENDING", reason="JobHeldAdmin", start=None)
KILLED = PlannedFault(kind="kill slurmctld", target="slurmctld", began=125.0, ended=130.0)


def _line(what: str, at: float, restarts: int = 0, job_id: int = 1) -> ScriptLine:
    return ScriptLine(marker="c1", index="", root=job_id, job_id=job_id, restarts=restarts, what=what, at=at)


def _row(start: float, end: float | None, **more: object) -> RecordedRun:
    values = {"job_id": 1, "name": "c1", "state": "FAILED", "submit": start - 5, "reconciled": True, **more}
    return RecordedRun(start=start, end=end, **values)  # type: ignore[arg-type]


# Job 1 fails, slurmwrap requeues it once, and its second run completes.
SOUND = RunRecords(
    ended_at=1000.0,
    submitted=(Submitted(marker="c1", kind="retry-nccl", at=95.0, job_id=1),),
    slurm_runs=(
        SlurmRun(job_id=1, name="c1", state="FAILED", submit=95.0, start=100.0, end=120.0),
        SlurmRun(job_id=1, name="c1", state="COMPLETED", submit=135.0, start=140.0, end=160.0),
    ),
    lines=(_line("start", 101.0), _line("start", 141.0, 1), _line("end", 159.0, 1)),
    recorded=(_row(100.0, 120.0), _row(140.0, 160.0, state="COMPLETED")),
    actions=(REQUEUE, replace(REQUEUE, verb="release")),
    sights=(NodeSight(at=150.0, node="n1", state="DRAINED", reason="slurmwrap: gpu_hardware"),),
    kernel=(KernelLine(at=110.0, node="n1"),),
)


def test_sound_records_have_no_violation() -> None:
    assert check(SOUND) == ()


def test_a_node_may_be_resumed_after_each_drain_and_the_rule_and_its_command_record_it() -> None:
    again = replace(DRAIN, job_id=2)
    command = replace(RESUME, rule="drain")
    kept = replace(SOUND, actions=(*SOUND.actions, DRAIN, RESUME, command, again, RESUME, command))
    assert check(kept) == ()


PLANTED: dict[str, tuple[RunRecords, str, int]] = {
    # What was planted: the records, the title that counts it, and how many are counted (0: it has an excuse)
    "a run without a row": (replace(SOUND, recorded=SOUND.recorded[:1]), "lost runs", 1),
    "two runs in one row": (replace(SOUND, recorded=(_row(100.0, 160.0),)), "lost runs", 1),
    "a job that nothing knows": (
        replace(SOUND, submitted=(*SOUND.submitted, Submitted(marker="c2", kind="plain", at=300.0, job_id=2))),
        "lost runs",
        1,
    ),
    "a job that a killed slurmctld forgot": (
        replace(
            SOUND,
            submitted=(*SOUND.submitted, Submitted(marker="c2", kind="plain", at=120.0, job_id=2)),
            faults=(KILLED,),
        ),
        "lost runs",
        0,
    ),
    "a run that a killed slurmctld ran again": (
        replace(
            SOUND,
            slurm_runs=(*SOUND.slurm_runs, replace(SOUND.slurm_runs[1], start=180.0, end=190.0)),
            faults=(replace(KILLED, began=165.0, ended=175.0),),
        ),
        "lost runs",
        0,
    ),
    "a run that nothing ran again": (
        replace(SOUND, slurm_runs=(*SOUND.slurm_runs, replace(SOUND.slurm_runs[1], start=180.0, end=190.0))),
        "lost runs",
        1,
    ),
    "a script without a completion record": (
        replace(SOUND, lines=(*SOUND.lines, replace(_line("start", 200.0, job_id=7), marker="c7"))),
        "lost runs",
        0,
    ),
    "two rows of one run": (
        replace(SOUND, recorded=(*SOUND.recorded, _row(140.0, 160.0, submit=139))),
        "doubled actions",
        1,
    ),
    "one call, two jobs": (
        replace(
            SOUND,
            lines=(*SOUND.lines, _line("start", 102.0, job_id=2)),
            slurm_runs=(
                *SOUND.slurm_runs,
                SlurmRun(job_id=2, name="c1", state="FAILED", submit=96.0, start=101.0, end=103.0),
            ),
            recorded=(*SOUND.recorded, _row(101.0, 103.0, job_id=2)),
        ),
        "doubled actions",
        1,
    ),
    "a node that is resumed twice after one drain": (
        replace(SOUND, actions=(*SOUND.actions, DRAIN, RESUME, RESUME)),
        "doubled actions",
        1,
    ),
    "a completed job that slurmwrap requeued": (
        replace(SOUND, lines=(_line("start", 101.0), _line("end", 119.0), *SOUND.lines[1:])),
        "doubled actions",
        1,
    ),
    "a completed job that a killed slurmctld ran again": (
        replace(
            SOUND, lines=(_line("start", 101.0), _line("end", 119.0), *SOUND.lines[1:]), actions=(), faults=(KILLED,)
        ),
        "doubled actions",
        0,
    ),
    "a completed second run that a killed slurmctld ran again": (
        replace(
            SOUND,
            lines=(*SOUND.lines, _line("start", 170.0, 1)),
            slurm_runs=(*SOUND.slurm_runs, replace(SOUND.slurm_runs[1], start=170.0, end=180.0)),
            recorded=(*SOUND.recorded, _row(170.0, 180.0)),
            faults=(replace(KILLED, began=161.0, ended=165.0),),
        ),
        "doubled actions",
        0,
    ),
    "a run requeued twice": (
        replace(SOUND, actions=(*SOUND.actions, replace(REQUEUE, verb="requeue"))),
        "doubled actions",
        1,
    ),
    "a run that nothing requeued": (replace(SOUND, actions=()), "doubled actions", 1),
    "a run that Slurm requeued": (
        replace(
            SOUND,
            actions=(),
            slurm_runs=(replace(SOUND.slurm_runs[0], state="NODE_FAIL"), SOUND.slurm_runs[1]),
            pending=(HELD,),
        ),
        "stuck holds",
        1,
    ),
    "a drain made twice": (
        replace(SOUND, actions=(*SOUND.actions, *[replace(REQUEUE, verb="drain", target="n1")] * 2)),
        "doubled actions",
        1,
    ),
    "a held job": (
        replace(SOUND, pending=(HELD,)),
        "stuck holds",
        1,
    ),
    "a begin time in the far future": (
        replace(
            SOUND, pending=(PendingJob(address="9", name="c9", state="PENDING", reason="BeginTime", start=9000.0),)
        ),
        "stuck holds",
        1,
    ),
    "a drain without a kernel line": (replace(SOUND, kernel=()), "drained nodes", 1),
    "a drain before its kernel line": (replace(SOUND, kernel=(KernelLine(at=151.0, node="n1"),)), "drained nodes", 1),
    "a hook that failed": (
        replace(SOUND, sights=(NodeSight(at=1.0, node="n2", state="DRAINED", reason="Epilog error"),)),
        "drained nodes",
        1,
    ),
    "a node that Slurm set down": (
        replace(SOUND, sights=(NodeSight(at=1.0, node="n2", state="DOWN", reason="Not responding"),)),
        "drained nodes",
        0,
    ),
    "a limit that was not given back": (replace(SOUND, lowered_limits=("9",)), "leftover limits", 1),
    "a priority that was not given back": (replace(SOUND, changed_priorities=("9",)), "leftover limits", 1),
    "an intent without an end": (
        replace(SOUND, actions=(*SOUND.actions, replace(REQUEUE, verb="update job", done_at=None))),
        "unfinished intents",
        1,
    ),
    "a user's intent without an end": (
        replace(SOUND, user_actions=(replace(REQUEUE, done_at=None),)),
        "unfinished intents",
        1,
    ),
    "a run that is not finished": (
        replace(SOUND, recorded=(SOUND.recorded[0], _row(140.0, 160.0, reconciled=False))),
        "unfinished intents",
        1,
    ),
    "a completed job that slurmwrap released": (
        replace(
            SOUND,
            actions=(replace(REQUEUE, verb="release"),),
            lines=(_line("start", 101.0), _line("end", 119.0), *SOUND.lines[1:]),
        ),
        "doubled actions",
        1,
    ),
    "a run without an end": (replace(SOUND, recorded=(SOUND.recorded[0], _row(140.0, None))), "unfinished intents", 1),
    "a run that a killed slurmctld forgot": (
        replace(SOUND, recorded=(*SOUND.recorded, _row(125.0, None, name="c2", job_id=2)), faults=(KILLED,)),
        "unfinished intents",
        0,
    ),
    "an observation that was not read": (replace(SOUND, unread_files=("spool/x.obs",)), "unfinished intents", 1),
    "a rejected observation": (replace(SOUND, rejected=("1 files of uid 0: expired",)), "unfinished intents", 1),
    "an observation that a full disk cut": (
        replace(
            SOUND,
            rejected=("2 files of uid 64030: the record is not whole",),
            faults=(PlannedFault(kind="full state", target="state", began=1.0, ended=2.0),),
        ),
        "unfinished intents",
        0,
    ),
    "a submission that a killed slurmctld forgot": (
        replace(SOUND, rejected=("1 files of uid 1001: Slurm does not list the job as this user's",), faults=(KILLED,)),
        "unfinished intents",
        0,
    ),
    "a submission that Slurm does not know": (
        replace(SOUND, rejected=("1 files of uid 1001: Slurm does not list the job as this user's",)),
        "unfinished intents",
        1,
    ),
    "an observation that was cut without a full disk": (
        replace(SOUND, rejected=("2 files of uid 64030: the record is not whole",)),
        "unfinished intents",
        1,
    ),
    "a damaged database": (replace(SOUND, broken_databases=("site.db: page 3",)), "broken databases", 1),
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_violation_is_found_once_and_under_its_title(what: str) -> None:
    records, title, count = PLANTED[what]
    found = check(records)
    assert {one.title for one in found} == {title}, found
    assert [bool(one.excuse) for one in found] == [not count], found
    assert count_by_title(found) == {**dict.fromkeys(count_by_title(()), 0), title: count}


COMPLETIONS = """\
JobId=1 UserId=a(1) GroupId=a(1) Name=c1 JobState=FAILED Partition=gpu StartTime=1970-01-01T00:01:40 \
EndTime=1970-01-01T00:02:00 NodeList=n0 NodeCnt=1 ProcCnt=1 WorkDir=/ SubmitTime=1970-01-01T00:01:35 ExitCode=1:0
JobId=1 UserId=a(1) GroupId=a(1) Name=c1 JobState=PENDING Partition=gpu StartTime=1970-01-01T00:01:40 \
EndTime=1970-01-01T00:02:10 NodeList=n0 NodeCnt=0 ProcCnt=1 WorkDir=/ SubmitTime=1970-01-01T00:01:35 ExitCode=1:0
JobId=2 UserId=a(1) GroupId=a(1) Name=c2 JobState=CANCELLED Partition=gpu \
StartTime=1970-01-01T00:02:30 EndTime=1970-01-01T00:02:30 NodeList=(null) SubmitTime=1970-01-01T00:01:30 ExitCode=0:0
"""


def test_a_requeued_run_is_one_run_and_a_job_that_never_ran_has_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "_parse_time", lambda text: 60.0 * int(text[14:16]) + int(text[17:19]))
    assert collect.parse_completions(COMPLETIONS) == (
        SlurmRun(job_id=1, name="c1", state="FAILED", submit=95.0, start=100.0, end=120.0),
        SlurmRun(job_id=2, name="c2", state="CANCELLED", submit=90.0, start=None, end=150.0),
    )


def test_a_half_written_script_line_is_left_out() -> None:
    whole = "start|c1-array|3|10|11|0|101.5\n"
    assert collect.parse_script_lines(f"{whole}end|c1-arr") == (
        ScriptLine(marker="c1-array", index="3", root=10, job_id=11, restarts=0, what="start", at=101.5),
    )
