"""slurmwrap watch: the view of a job in each state, at each terminal width, and the explanation of each reason."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from datetime import UTC
from pathlib import Path

import pytest

from slurmwrap.cli.terminal import paint
from slurmwrap.cli.watch.job_status import (
    CountedSteps,
    JobStatus,
    Output,
    WatchedPrerun,
    find_counted_progress,
    read_output,
    select_findings,
)
from slurmwrap.cli.watch.loss_outlook import LossOutlook
from slurmwrap.cli.watch.watch_output import (
    ScreenStyle,
    format_log_line,
    format_screen,
    make_change_key,
    status_to_json_dict,
)
from slurmwrap.diagnosis.log_progress import ShownProgress
from slurmwrap.errors import UsageError
from slurmwrap.gsub.follow_prerun import PrerunSnapshot
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.placement_plan import Level, PlacementPlan
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.running_job import STUCK, CountedLosses, EarlyFinding, LossPoint
from slurmwrap.model.verdict import FailedCommand, Outcome, Verdict
from slurmwrap.placement.expected_start import ExpectedStart
from slurmwrap.profiling.loss_fit import Dominated
from slurmwrap.profiling.progress_estimate import EndForecast, RunProgress
from slurmwrap.report.pending_reasons import explain_reason
from slurmwrap.report.text_format import sparkline
from slurmwrap.sbatch.job_request import OptionChange
from slurmwrap.slurm.squeue_parser import WatchedJob

REASONS = Path(__file__).parents[2] / "data" / "slurm" / "reasons.txt"
NOW = 1_795_280_000.0  # 2026-11-21 16:53:20 UTC
UTC_STYLE = ScreenStyle(zone=UTC)
JOB = JobRecord(
    job_id=81, name="train", user="ada", uid=1000, partition="gpu", state="PENDING", reason="Resources", num_nodes=2,
    gpus=16, submit_time=int(NOW) - 800, eligible_time=int(NOW) - 723, time_limit_s=8 * 3600,
)  # fmt: skip
RUNNING = replace(JOB, state="RUNNING", reason="None", start_time=int(NOW) - 860, nodes=("n0", "n1"))


def make_status(record: JobRecord = JOB, **more) -> JobStatus:
    watched = {key: more.pop(key) for key in ("expected_start", "expected_nodes", "dependency") if key in more}
    return JobStatus(at=NOW, address=more.pop("address", "81"), rows=(WatchedJob(record=record, **watched),), **more)


def test_a_pending_job_shows_its_reason_and_expected_start() -> None:
    waiting = make_status(expected_start=int(NOW) + 2280, expected_nodes="n[2-3]")
    assert format_screen(waiting, UTC_STYLE) == [
        "job 81 (train): pending for 12 min, 2 nodes, 16 GPUs",
        "reason   it is the next in line, and what it asks for is not free yet",
        "         (Resources)",
        "         a shorter --time may help",
        "start    expected 17:31, in 38 min, on n[2-3]; Slurm's forecast",
    ]


def test_a_running_job_shows_time_steps_and_output() -> None:
    running = make_status(
        RUNNING,
        counts_steps=True,
        steps=CountedSteps(count=12340, at=NOW - 2, per_s=8.0),
        rates=(4.0, 8.0, 6.0, 8.2),
        output=Output(at=NOW - 12, last_line="epoch 3  loss 0.21\x1b[2J", mean_gap_s=1.0),
        gpus=False,
    )
    assert format_screen(running, UTC_STYLE) == [
        "job 81 (train): running for 14 min on n[0-1], 2 nodes, 16 GPUs",
        "time     0:14:20 of 8:00:00 ░░░░░░░░░░ ends by 11-22 00:39",
        "steps    12,340  8.2/s  ▄█▆█",
        "GPU use  --gpus measures it, by a small step in the job",
        "output   epoch 3 loss 0.21\\x1b[2J",
        "         last output 12 s ago",
    ]
    assert format_screen(running, replace(UTC_STYLE, unicode=False))[1:3] == [
        "time     0:14:20 of 8:00:00 [----------] ends by 11-22 00:39",
        "steps    12,340  8.2/s  =@*@",
    ]


def test_the_expected_start_by_run_times_comes_before_slurms_forecast() -> None:
    start = ExpectedStart(at=NOW + 1500, by=NOW + 7000, jobs=9, predicted=8)
    both = make_status(expected_start=int(NOW) + 82_280, expected_nodes="n[2-3]", start=start)
    assert format_screen(both, replace(UTC_STYLE, columns=200))[3:] == [
        "start    expected 17:18, in 25 min, nine of ten by 18:50, by run times of 8 of 9 jobs before it",
        "         if all jobs use their time limits: 11-22 15:44, in 22 h 51 min, on n[2-3]; Slurm's forecast",
    ]
    # Slurm's forecast adds nothing.
    same = make_status(expected_start=int(NOW) + 1500, start=replace(start, by=NOW + 1500))
    assert format_screen(same, UTC_STYLE)[4:] == [
        "start    expected 17:18, in 25 min, by run times of 8 of 9 jobs before it"
    ]
    assert status_to_json_dict(both)["forecast_start"] == {
        "at": int(NOW) + 1500, "by": int(NOW) + 7000, "jobs": 9, "predicted": 8,
    }  # fmt: skip


def test_a_partition_that_starts_the_job_earlier_is_named_with_the_command() -> None:
    status = make_status(expected_start=int(NOW) + 82_280, earlier=("second", NOW + 1500))
    assert format_screen(status, replace(UTC_STYLE, columns=200))[-1] == (
        "         partition second would start it at about 17:18: scontrol update JobId=81 Partition=gpu,second"
    )
    assert status_to_json_dict(status)["earlier"] == {"partition": "second", "at": int(NOW) + 1500}
    now = make_status(earlier=("second", NOW))
    assert "partition second would start it now" in format_screen(now, replace(UTC_STYLE, columns=200))[-1]


def test_a_running_job_shows_its_loss_and_what_stops_it() -> None:
    losses = CountedLosses(points=(LossPoint(at_s=9.0, step=7.0, loss=1.5),), taken=7, bad=3)
    running = make_status(RUNNING, loss=LossOutlook(losses=losses), stops="at plateau after its next checkpoint")
    assert format_screen(running, UTC_STYLE)[2:] == [
        "warning  the loss was NaN or infinite in 3 of 7 recorded steps",
        "loss     1.5",
        "stop     at plateau after its next checkpoint",
    ]
    assert status_to_json_dict(running)["loss"] == {
        "taken": 7, "not_finite": 3, "not_finite_at_end": 0, "unit": None, "prediction": None,
    }  # fmt: skip


def test_an_array_shows_its_dominated_tasks() -> None:
    array = make_status(
        replace(RUNNING, array_job_id=81, array_task_id=2),
        dominated=(Dominated(name="81_2", best="81_1", probability=0.999, final=2.5, best_final=1.8),),
    )
    assert format_screen(array, UTC_STYLE)[1:] == [
        "sweep    81_2 will end above 81_1 with 99 % (predicted final loss 2.5 against",
        "         1.8); scancel them if only the best counts",
    ]
    assert make_change_key(array) != make_change_key(replace(array, dominated=()))


END = EndForecast(
    at=NOW + 2100, by=NOW + 2400, source="progress", progress=ShownProgress(done=1200, total=4000), needs_s=2960.0
)


@pytest.mark.parametrize(
    ("end", "rows"),
    [
        (END, ["ends     about 17:28, in 35 min, by its progress: step 1,200 of 4,000"]),
        (replace(END, progress=ShownProgress(left_s=2100)), ["ends     about 17:28, in 35 min, by its progress"]),
        (
            replace(END, source="runs", n=14, progress=None),
            ["ends     about 17:28, in 35 min, nine of ten by 17:33, by its earlier 14 runs"],
        ),
        (
            replace(END, source="user", n=1, progress=None),
            ["ends     about 17:28, in 35 min, nine of ten by 17:33, by your last run with as many GPUs"],
        ),
        (
            replace(END, share_at_limit=0.62, at=NOW + 45_000, needs_s=45_860.0),
            [
                "ends     about 11-22 05:23, in 12 h 30 min, by its progress: step 1,200 of 4,000",
                "warning  its time limit comes first: about 62 % will be done by then",
                "         let it write a checkpoint before 11-22 00:39, or ask your administrators for more time; "
                "from its beginning it needs --time=16:00:00",
            ],
        ),
    ],
)
def test_the_expected_end_of_a_running_job_is_shown(end: EndForecast, rows: list[str]) -> None:
    running = make_status(RUNNING, end=end)
    assert format_screen(running, replace(UTC_STYLE, columns=200))[2:] == rows
    assert ("; its time limit comes first" in format_log_line(running, UTC_STYLE)) == (len(rows) > 1)
    assert (make_change_key(running) != make_change_key(make_status(RUNNING))) == (len(rows) > 1)


def test_the_expected_end_is_an_object_in_json_and_unknown_for_a_silent_job() -> None:
    assert status_to_json_dict(make_status(RUNNING, end=replace(END, share_at_limit=0.6249)))["forecast_end"] == {
        "at": int(NOW) + 2100, "by": int(NOW) + 2400, "source": "progress", "runs": None, "done": 1200, "total": 4000,
        "unit": "step", "share_at_limit": 0.625,
    }  # fmt: skip
    silent = make_status(RUNNING, end=END, output=Output(at=NOW - 700, last_line="step 1200 of 4000", mean_gap_s=1.0))
    assert status_to_json_dict(silent)["forecast_end"] is None
    assert not [line for line in format_screen(silent, UTC_STYLE) if line.startswith("ends")]


@pytest.mark.parametrize(
    ("measurement", "gpus", "total"),
    [
        (Measurement(total_steps=1000, total_is_shared=False), 4, 1000),
        (Measurement(total_steps=1000, total_is_shared=True), 4, 250),
        (Measurement(total_steps=1000), 1, 1000),
        (Measurement(total_steps=1000), 4, None),
        (Measurement(total_steps=100, total_is_shared=False), 4, None),  # more were counted
        (Measurement(), 1, None),
    ],
)
def test_counted_steps_are_progress_if_the_pre_run_found_their_total(
    measurement: Measurement, gpus: int, total: int | None
) -> None:
    verdict = Verdict(outcome=Outcome.PASS, layer="optimizer", reason="", measurement=measurement)
    steps = CountedSteps(count=200, at=NOW, per_s=2.0)
    found = find_counted_progress(WatchedPrerun(job_id=82, verdict=verdict), gpus, steps)
    if total is None:
        assert found is None
        return
    shown = ShownProgress(done=200, total=total, left_s=(total - 200) / 2)
    assert found == RunProgress(at=NOW, shown=shown)


def test_progress_is_read_from_the_output_of_this_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = replace(RUNNING, std_out=str(out), std_err=str(out))
    out.write_text("loading data\n" + "x" * 100 + "\n" + "step 100/1000 loss 1\n")
    os.utime(out, (NOW - 60, NOW - 60))
    assert read_output(job).shown == ShownProgress(done=100, total=1000, left_s=7200.0)
    # A run that began at a later step: the time it took for all steps is not known.
    assert read_output(replace(job, restarts=1)).shown == ShownProgress(done=100, total=1000)
    out.write_text("Resumed from checkpoint at step 90\n" + "x" * 99_000 + "\nstep 100/1000 loss 1\n")
    assert read_output(job).shown == ShownProgress(done=100, total=1000)


def test_a_narrow_terminal_shows_all_words_within_its_width() -> None:
    waiting = make_status(expected_start=int(NOW) + 2280, expected_nodes="n[2-3]")
    for columns in (40, 60, 79, 120):
        shown = format_screen(waiting, ScreenStyle(columns=columns, zone=UTC))
        assert max(len(line) for line in shown) <= columns
        assert " ".join(" ".join(shown).split()) == " ".join(" ".join(format_screen(waiting, UTC_STYLE)).split())


def test_steps_that_stopped_are_reported() -> None:
    slow = make_status(RUNNING, steps=CountedSteps(count=7, at=NOW - 400, per_s=0.05))
    assert format_screen(slow, UTC_STYLE)[2] == "steps    7  3/min"
    stuck = make_status(RUNNING, steps=CountedSteps(count=7, at=NOW - 401, per_s=0.05))
    assert format_screen(stuck, UTC_STYLE)[2] == "steps    7  3/min  (none for 6 min)"


PLAN = PlacementPlan(
    lines=(OptionChange(option="switches", value="1@5:00", reason=""),),
    levels=(
        Level(name="fewest nodes, one switch", wait_s=900),
        Level(name="fewest nodes", wait_s=1800),
        Level(name="any", wait_s=0),
    ),
)


@pytest.mark.parametrize(
    ("waited", "relaxes", "expected"),
    [
        (723, True, "requires fewest nodes, one switch; relaxes to fewest nodes at 16:56, in 2 min"),
        (1000, True, "requires fewest nodes; relaxes to any nodes at 17:06, in 13 min"),
        (2000, True, "requires no particular nodes any more"),
        (-60, True, "will require fewest nodes, one switch for 15 min once it may start, then fewest nodes"),
        (723, False, "requests at most 1 leaf switch; Slurm drops this after 5:00 (min:s) of waiting"),
    ],
)
def test_the_required_locality_and_the_time_it_relaxes_are_shown(waited: int, relaxes: bool, expected: str) -> None:
    record = replace(JOB, eligible_time=int(NOW) - waited)
    shown = format_screen(make_status(record, plan=PLAN, relaxes=relaxes), ScreenStyle(columns=200, zone=UTC))
    assert [line for line in shown if line.startswith("place")] == [f"place    {expected}"]


WAITS_FOR_PRERUN = replace(JOB, reason="BeginTime", eligible_time=int(NOW) + 540)


PRERUN = replace(JOB, job_id=82, num_nodes=1, gpus=1)
RUNNING_PRERUN = replace(PRERUN, state="RUNNING", reason="None", start_time=int(NOW) - 125)


def row_of(record: JobRecord = PRERUN, expected_start: int | None = None) -> WatchedJob:
    return WatchedJob(record=record, expected_start=expected_start)


@pytest.mark.parametrize(
    ("trial", "expected"),
    [
        (WatchedPrerun(job_id=82, row=row_of()), "(job 82) waits for a free GPU; the job starts without it in 9 min"),
        (
            WatchedPrerun(job_id=82, row=row_of(replace(PRERUN, reason="Priority"), int(NOW) + 2280)),
            "(job 82) waits for a free GPU, expected to start at 17:31; the job starts without it in 9 min",
        ),
        (
            WatchedPrerun(job_id=82, row=row_of(replace(PRERUN, reason="Dependency"))),
            "(job 82) waits for the same dependency",
        ),
        (
            WatchedPrerun(job_id=82, row=row_of(replace(PRERUN, reason="QOSMaxJobsPerUserLimit"))),
            "(job 82) waits: its QOS allows no more jobs for one user now (QOSMaxJobsPerUserLimit); "
            "the job starts without it in 9 min",
        ),
        (
            WatchedPrerun(
                job_id=82,
                row=row_of(replace(RUNNING_PRERUN, start_time=int(NOW) - 3)),
                seen=PrerunSnapshot(stage="starting"),
            ),
            "(job 82) has started 3 s ago; the job starts without it in 9 min",
        ),
        (
            WatchedPrerun(
                job_id=82,
                row=row_of(RUNNING_PRERUN),
                seen=PrerunSnapshot(stage="stepping", steps=3, steps_wanted=3, gpu_percent=41.2),
            ),
            "(job 82) has run for 2 min: 3 of 3 steps, GPU 41 % busy; the job starts without it in 9 min",
        ),
        (
            # The directory of the pre-run is not visible on this host.
            WatchedPrerun(job_id=82, row=row_of(RUNNING_PRERUN)),
            "(job 82) has run for 2 min; the job starts without it in 9 min",
        ),
        (
            WatchedPrerun(job_id=82, row=row_of(replace(RUNNING_PRERUN, state="CANCELLED"))),
            "(job 82) cancelled; it left no verdict; the job starts without it in 9 min",
        ),
        (
            WatchedPrerun(job_id=82),
            "(job 82) is not known to Slurm any more, and left no verdict; the job starts without it in 9 min",
        ),
        (
            WatchedPrerun(
                job_id=82, verdict=Verdict(outcome=Outcome.FAIL, layer="exit", reason="train.py:9: ValueError")
            ),
            "fail: train.py:9: ValueError",
        ),
    ],
)
def test_a_job_that_waits_for_its_pre_run_shows_the_state_of_the_pre_run(trial: WatchedPrerun, expected: str) -> None:
    shown = format_screen(make_status(WAITS_FOR_PRERUN, trial=trial), ScreenStyle(columns=200, zone=UTC))
    assert f"pre-run  {expected}" in shown
    assert ("reason   it waits for its pre-run (BeginTime)" in shown) == (trial.verdict is None)
    assert [line for line in shown if line.startswith("start")] == (
        [] if trial.verdict is None else ["start    not before 17:02, in 9 min"]
    )


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_failed_commands_of_a_passed_pre_run_are_shown(state: str) -> None:
    failed = (FailedCommand(file="/home/a/train.sbatch", line=6, text="mail: command not found"),)
    passed = Verdict(outcome=Outcome.PASS, layer="optimizer", reason="3 optimizer steps ran", failed_commands=failed)
    shown = format_screen(
        make_status(replace(WAITS_FOR_PRERUN, state=state), trial=WatchedPrerun(job_id=82, verdict=passed)),
        ScreenStyle(columns=120, zone=UTC),
    )
    assert "passed, but 1 command of the script failed: line 6: mail: command not found" in "\n".join(shown)


@pytest.mark.parametrize(
    ("change", "title"),
    [
        ({"state": "COMPLETED", "end_time": int(NOW)}, "completed after 14 min on n[0-1], 2 nodes, 16 GPUs"),
        (
            {"state": "FAILED", "exit_code": 3, "end_time": int(NOW)},
            "failed with exit code 3 after 14 min on n[0-1], 2 nodes, 16 GPUs",
        ),
        ({"state": "OUT_OF_MEMORY", "signal": 9}, "out of memory on n[0-1], 2 nodes, 16 GPUs"),
        ({"state": "FAILED", "signal": 11}, "failed with signal 11 on n[0-1], 2 nodes, 16 GPUs"),
        ({"state": "TIMEOUT", "signal": 15}, "time limit reached on n[0-1], 2 nodes, 16 GPUs"),
        (
            {"state": "CANCELLED", "nodes": (), "start_time": None, "gpus": 1, "num_nodes": 1},
            "cancelled, 1 node, 1 GPU",
        ),
        ({"state": "COMPLETING"}, "ending on n[0-1], 2 nodes, 16 GPUs"),
    ],
)  # fmt: skip
def test_an_ended_job_is_shown_with_state_and_duration(change: dict[str, object], title: str) -> None:
    ended = make_status(replace(RUNNING, **change))  # type: ignore[arg-type]
    assert format_screen(ended, ScreenStyle(columns=120, zone=UTC)) == [f"job 81 (train): {title}"]


def array_rows() -> tuple[WatchedJob, ...]:
    def make_row(number: int, task: int | None, state: str, waiting: str = "") -> WatchedJob:
        record = replace(
            JOB,
            job_id=number,
            array_job_id=77,
            array_task_id=task,
            state=state,
            array_tasks=waiting,
            num_nodes=1,
            gpus=1,
        )
        return WatchedJob(record=record)

    states = ["RUNNING", "COMPLETED", "FAILED", "COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY"]
    return (make_row(77, None, "PENDING", "20-99"), *(make_row(78 + at, at, state) for at, state in enumerate(states)))


def test_an_array_is_counted_by_state_and_names_failed_tasks() -> None:
    array = JobStatus(at=NOW, address="77", rows=array_rows(), gone={"77_7": "COMPLETED", "77_8": "CANCELLED"})
    assert format_screen(array, UTC_STYLE) == [
        "job 77 (train): 80 pending, 3 completed, 2 failed, 1 running, 1 time limit",
        "  reached, 1 out of memory, 1 cancelled",
        "task     77_2, 77_4, 77_5 and 2 more did not complete; slurmwrap why 77_2",
        "reason   it is the next in line, and what it asks for is not free yet",
        "         (Resources)",
        "         a shorter --time may help",
    ]
    assert (array.ended, array.completed) == (False, False)
    assert status_to_json_dict(array)["tasks"] == {
        "PENDING": 80, "RUNNING": 1, "COMPLETED": 3, "FAILED": 2, "TIMEOUT": 1, "OUT_OF_MEMORY": 1, "CANCELLED": 1,
    }  # fmt: skip


def test_a_pipe_gets_one_line_and_json_gets_one_object() -> None:
    seen = PrerunSnapshot(stage="waiting for one GPU", seconds=3, steps_wanted=3, reason="Resources")
    gated = make_status(
        WAITS_FOR_PRERUN, trial=WatchedPrerun(job_id=82, row=row_of(expected_start=int(NOW) + 2280), seen=seen)
    )
    assert format_log_line(gated, UTC_STYLE) == (
        "16:53:20 job 81 (train): pending, 2 nodes, 16 GPUs; it waits for its pre-run (BeginTime); "
        "pre-run (job 82) waits for a free GPU, expected to start at 17:31; the job starts without it in 9 min"
    )
    assert status_to_json_dict(gated) == {
        "at": NOW, "job": "81", "name": "train", "state": "PENDING", "tasks": None, "members": None,
        "reason": "BeginTime",
        "reason_words": "it waits for its pre-run", "queue_order": None, "expected_start": None, "forecast_start": None,
        "earlier": None,
        "shared": None, "share_advice": None,
        "nodes": [], "gpus": 16,
        "start": None, "time_limit_s": 28800, "end": None, "forecast_end": None, "exit_code": None, "findings": [],
        "locality": None,
        "prerun": {
            "job": 82, "state": "PENDING", "pending_reason": "Resources", "expected_start": int(NOW) + 2280,
            "start": None, "stage": "waiting for one GPU", "steps": 0, "steps_wanted": 3, "verdict": None,
            "reason": None, "failed_commands": [],
        },
        "output": None, "steps": None, "loss": None, "dominated": [], "steps_per_s": None,
        "gpu_percent": None, "gpu_use": None,
    }  # fmt: skip


def test_a_small_change_of_the_expected_start_is_not_a_change() -> None:
    first = make_status(expected_start=int(NOW) - int(NOW) % 600 + 3000)
    later = replace(first, at=NOW + 60, rows=(replace(first.rows[0], expected_start=int(NOW) - int(NOW) % 600 + 3300),))
    assert make_change_key(first) == make_change_key(later)
    assert make_change_key(make_status()) != make_change_key(make_status(replace(JOB, reason="Priority")))
    assert make_change_key(make_status()) != make_change_key(make_status(silent="no answer"))


@pytest.mark.parametrize(
    ("age", "gap", "warned"),
    [
        (599, 1.0, False),
        (601, 1.0, True),
        (2400, 500.0, False),  # usual gap about 8 minutes: 40 minutes without output are not unusual yet
        (2600, 500.0, True),
    ],
)
def test_the_warning_of_missing_output_depends_on_the_usual_gap(age: float, gap: float, warned: bool) -> None:
    silent = make_status(RUNNING, output=Output(at=NOW - age, last_line="step 7", mean_gap_s=gap))
    shown = [line for line in format_screen(silent, UTC_STYLE) if line.startswith("warning")]
    minutes = int(age // 60)
    usual = {1.0: "1 s", 500.0: "8 min"}[gap]
    assert shown == ([f"warning  no output for {minutes} min; usually a line every {usual}"] if warned else [])
    assert (f"; no output for {minutes} min" in format_log_line(silent, UTC_STYLE)) == warned
    assert status_to_json_dict(silent)["output"] == {
        "last_at": NOW - age, "last_line": "step 7", "usual_gap_s": gap, "silent_s": age if warned else None,
    }  # fmt: skip
    assert (make_change_key(silent) != make_change_key(make_status(RUNNING))) == warned


def test_counted_steps_prevent_the_warning_and_empty_output_is_shown() -> None:
    silent = Output(at=NOW - 2400, last_line="step 7", mean_gap_s=1.0)
    steps = make_status(RUNNING, output=silent, steps=CountedSteps(count=7, at=NOW - 2, per_s=1.0))
    assert format_screen(steps, UTC_STYLE)[-1] == "         last output 40 min ago"
    nothing = make_status(RUNNING, output=Output(at=NOW - 2400, empty=True))
    assert format_screen(nothing, UTC_STYLE)[-1] == "warning  no output for 40 min"
    assert (
        format_screen(make_status(RUNNING, output=Output(at=NOW - 9, empty=True)), UTC_STYLE)[-1] == "output   none yet"
    )


def test_the_last_line_is_read_from_the_newer_of_stdout_and_stderr(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    job = replace(RUNNING, std_out=str(out), std_err=str(err))
    assert read_output(job) is None
    start = int(job.start_time or 0)
    out.write_text("step\n" * 100)
    err.write_text("  1%|\r  2%|\r")
    os.utime(out, (start + 200, start + 200))
    os.utime(err, (start + 300, start + 300))
    assert read_output(job) == Output(at=start + 300, last_line="2%|", mean_gap_s=150.0)
    os.utime(out, (start + 700, start + 700))
    first = read_output(job, read_output(replace(job, std_out="")))
    assert first == Output(at=start + 700, last_line="step", mean_gap_s=7.0, longest_gap_s=400.0)
    out.unlink()
    out.symlink_to(err)  # a symbolic link is not followed
    assert read_output(replace(job, std_err="")) is None


def test_the_last_answer_is_kept_when_slurm_does_not_answer() -> None:
    assert format_screen(make_status(RUNNING, silent="squeue: no answer within 10 s"), UTC_STYLE)[1:3] == [
        "Slurm    does not answer (squeue: no answer within 10 s); this is its last",
        "         answer",
    ]


def test_the_dependency_of_a_job_is_shown() -> None:
    waiting = make_status(replace(JOB, reason="Dependency"), dependency="afterok:80(unfulfilled)")
    assert format_screen(waiting, ScreenStyle(columns=120, zone=UTC))[1] == (
        "reason   it waits for other jobs (--dependency): afterok:80(unfulfilled) (Dependency)"
    )


def test_control_characters_in_a_job_name_are_escaped() -> None:
    hostile = make_status(replace(JOB, name="a\x1b]0;x\x07b\nc"))
    assert format_screen(hostile, UTC_STYLE)[0].startswith("job 81 (a\\x1b]0;x\\x07b c): pending")


def test_colour_codes_enclose_whole_lines() -> None:
    shown = format_screen(make_status(), ScreenStyle(zone=UTC, paint=paint))
    assert shown[0] == "\x1b[1mjob 81 (train): pending for 12 min, 2 nodes, 16 GPUs\x1b[0m"
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown] == format_screen(make_status(), UTC_STYLE)


def test_a_sparkline_is_scaled_from_zero_to_the_maximum() -> None:
    assert sparkline((0.0, 1.0, 2.0, 4.0, 8.0)) == "▁▂▃▅█"
    assert sparkline((1.0, 2.0), unicode=False) == "+@"
    assert sparkline((0.0, 25.0, 50.0), most=100.0) == "▁▃▅"
    assert (sparkline(()), sparkline((3.0,)), sparkline((0.0, 0.0))) == ("", "", "")
    assert len(sparkline(tuple(float(n) for n in range(60)))) == 20


@pytest.mark.parametrize("word", ["x1", "1;reboot", "1_", "_2", "1.batch", "\u0661"])
def test_an_invalid_job_id_is_refused(slurmwrap, word: str) -> None:
    done = slurmwrap("watch", word)
    assert isinstance(done.exception, UsageError)
    assert str(done.exception) == f"'{word}' is no job id"


# --- reasons ----------------------------------------------------------------------------------------------------------


NAMES = [line for line in REASONS.read_text(encoding="ascii").splitlines() if line and not line.startswith("#")]


def test_every_pending_reason_of_slurm_has_a_description() -> None:
    assert len(NAMES) > 200
    found = {name: explain_reason(name).words for name in NAMES}
    assert {name: words for name, words in found.items() if words == name or words[-1] == "." or len(words) > 90} == {}


def test_pending_reasons_are_explained_in_words() -> None:
    wanted = {
        "QOSMaxGRESPerUser": "its QOS allows no more GPUs or other GRES for one user now",
        "AssocGrpGRES": "the jobs of your account together get no more GPUs or other GRES now",
        "QOSGrpCPUMinutesLimit": "the jobs of its QOS together get no more minutes of CPUs now",
        "QOSMaxWallDurationPerJobLimit": "it asks for more run time in one job than its QOS allows",
        "MaxGRESPerAccount": "its QOS allows no more GPUs or other GRES for one account now",
        "QOSMinGRES": "its QOS requires more GPUs or other GRES",
        "AssocMaxMemPerNode": "it asks for more memory on one node than your account allows",
        "ReqNodeNotAvail, UnavailableNodes:n1": "a node that it needs is down, drained, or reserved",
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": (
            "nodes that it needs are down, drained, or reserved for partitions of a higher priority"
        ),
        "launch_failed_requeued_held": "it could not be started on its nodes and is held",
        "SomethingOfNextYear": "SomethingOfNextYear",
        "": "Slurm gives no reason",
    }
    assert {reason: explain_reason(reason).words for reason in wanted} == wanted


def test_a_waiting_job_shows_its_class_in_the_queues_order() -> None:
    text = "in class 2 of 8: usually runs 20 min on 16 GPUs"
    waiting = make_status(queue_order=text)
    assert f"queue    {text}" in format_screen(waiting, UTC_STYLE)
    assert f"; queue {text}" in format_log_line(waiting, UTC_STYLE)
    assert status_to_json_dict(waiting)["queue_order"] == text


def test_findings_of_the_rule_early_are_shown_in_each_view() -> None:
    run = RunKey(cluster="c", job_id=81, submit_time=JOB.submit_time)
    finding = EarlyFinding(
        attempt=run, kind=STUCK, at=NOW - 600, n=840, evidence="no step for 14 min\x1b[2J", uid=1000, address="81",
        mode="advise",
    )  # fmt: skip
    stuck = make_status(RUNNING, findings=(finding,))
    assert "found    stuck since 16:43: no step for 14 min\\x1b[2J" in format_screen(stuck, UTC_STYLE)
    assert "; found stuck since 16:43: no step for 14 min" in format_log_line(stuck, UTC_STYLE)
    assert make_change_key(stuck) != make_change_key(make_status(RUNNING))
    assert status_to_json_dict(stuck)["findings"] == [
        {"job": "81", "kind": "stuck", "at": int(NOW) - 600, "n": 840, "evidence": finding.evidence, "action": None}
    ]


@pytest.mark.parametrize(
    ("comment", "shown"),
    [
        ("slurmwrap: stuck: no step for 14 min (slurmwrap why 81)", "found    stuck: no step for 14 min"),
        ("slurmwrap: partly dead: rank 3 ended", "found    partly dead: rank 3 ended"),
        ("slurmwrap: idle GPUs: 7 of 8 GPUs\x1b[2J", "found    idle GPUs: 7 of 8 GPUs\\x1b[2J"),
        ("slurmwrap: requeued after gpu_oom", ""),
        ("stuck: my own comment", ""),
    ],
)
def test_a_finding_that_only_the_comment_has_is_shown(comment: str, shown: str) -> None:
    rows = (WatchedJob(record=replace(RUNNING, comment=comment)),)
    status = make_status(RUNNING, findings=select_findings(rows, {}))
    assert [line for line in format_screen(status, UTC_STYLE) if line.startswith("found")] == ([shown] if shown else [])
