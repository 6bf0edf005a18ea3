"""A user's own report: requested and used resources, and what the user can do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import nights
import pytest

from slurmwrap.model.decision import BlockedInput
from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun, PrerunRecord
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.submission import Submission
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.report import sections
from slurmwrap.report.night_report import Blocked, Estimate, Headline, NightReport, Preruns, SuspectNodes, ToDo
from slurmwrap.report.user_report import compute_advised_time_s, describe_unused_request, make_own_report
from slurmwrap.sbatch.job_request import CpuUnit, MemUnit, ResourceShape

SINCE, UNTIL = 1_000_000.0, 1_086_400.0
NIGHT = NightReport(
    since=SINCE, until=UNTIL, clusters=("lab",), headline=Headline(),
    preruns=Preruns(saved=Estimate(gpu_hours=None, n=0, needed=20, formula="prerun-1")),
)  # fmt: skip
SHAPE = ResourceShape(
    cpus=8, cpu_unit=CpuUnit.PER_TASK, mem_mib=65536, mem_unit=MemUnit.PER_NODE, time_limit_s=7 * 86400
)
MEASURED = Measurement(cpus_used=1.0, mem_peak_mib=2000, mem_source="cgroup")


def make_run(number: int, category: str = "success", *, end: float = SINCE + 5000, **more: Any) -> JobRun:
    record = JobRun(
        attempt=RunKey(cluster="lab", job_id=number, submit_time=int(SINCE)), address=str(number), name="train.sbatch",
        user="ada", uid=7, state="COMPLETED" if category == "success" else "FAILED", gpus=2, cpus=8, nodes=("n0",),
        mem_mib_per_node=65536, time_limit_s=7 * 86400, start_time=int(end) - 44, end_time=int(end),
        diagnosis=Diagnosis(
            category=category, domain="U", decision="stop", confidence=1.0, signature="", advice=f"mind {category}"
        ),
    )  # fmt: skip
    return replace(record, **more)


def make_submission(number: int, shape: ResourceShape = SHAPE) -> Submission:
    return Submission(
        cluster="lab", job_id=number, uid=7, user="ada", at=SINCE, name="train.sbatch", script_path="train me.sbatch",
        work_dir="/home/ada", shape=shape, profile_key="k",
    )  # fmt: skip


def make_prerun(number: int | None, outcome: Outcome, at: float, **verdict: Any) -> PrerunRecord:
    result = Verdict(outcome=outcome, layer="exit", reason="train.py:7: NameError", **verdict)
    return PrerunRecord(
        cluster="lab", job_id=number, prerun_job_id=900, uid=7, at=at, verdict=result, profile_key="k", gpus=2
    )


def test_a_request_of_7_days_for_44_seconds_gets_advised_options() -> None:
    measured = make_run(81, measurement=MEASURED)
    found = make_own_report(NIGHT, [measured, make_run(80, end=SINCE + 90)], [make_submission(81)], [])
    (row,) = found.usage
    assert (row.runs, row.time_asked_s, row.time_used_s, row.cpus_used, row.mem_mib_peak) == (
        2,
        604800,
        44.0,
        1.0,
        2000,
    )
    assert row.change == ("--time=0:10:00", "--cpus-per-task=2", "--mem=4G")
    assert describe_unused_request(row) == "asked for 7 d, ran 44 s at most"
    assert found.to_do == (
        ToDo(
            why="train.sbatch: asked for 7 d, ran 44 s at most; with less it may start sooner "
            "(add its arguments, if any)",
            command="gsub --time=0:10:00 --cpus-per-task=2 --mem=4G '/home/ada/train me.sbatch'",
            advice=True,
        ),
    )


@pytest.mark.parametrize(
    ("change", "shape", "expected"),
    [
        ({"time_limit_s": 3540}, SHAPE, ("--cpus-per-task=2", "--mem=4G")),  # short enough for backfill
        ({"measurement": None}, SHAPE, ("--time=0:10:00",)),
        # half of the CPUs in use, and a peak that needs the memory: both stay
        ({"measurement": replace(MEASURED, cpus_used=4.0, mem_peak_mib=40000)}, SHAPE, ("--time=0:10:00",)),
        # in the unit of the job: sbatch rejects another one
        (
            {},
            replace(SHAPE, mem_mib=8192, mem_unit=MemUnit.PER_CPU, cpu_unit=CpuUnit.NONE, cpus=None),
            ("--time=0:10:00", "--mem-per-cpu=1G"),
        ),
        ({}, replace(SHAPE, mem_mib=None, mem_unit=MemUnit.NONE), ("--time=0:10:00", "--cpus-per-task=2")),
    ],
)
def test_smaller_requests_are_advised_when_much_was_not_used(
    change: dict, shape: ResourceShape, expected: tuple[str, ...]
) -> None:
    one = make_run(81, **{"measurement": MEASURED, **change})
    assert make_own_report(NIGHT, [one], [make_submission(81, shape)], []).usage[0].change == expected


def test_figures_of_a_pre_run_are_shown_but_not_used_for_advice() -> None:
    passed_prerun = make_prerun(
        81, Outcome.PASS, SINCE + 9, measurement=Measurement(cpus_used=0.5, mem_peak_mib=1000, gpus=1)
    )
    (row,) = make_own_report(NIGHT, [make_run(81)], [make_submission(81)], [passed_prerun]).usage
    assert (row.cpus_used, row.mem_mib_peak, row.measured_by) == (1.0, 2000, "the pre-run")  # scaled to two GPUs
    assert row.change == ("--time=0:10:00",)


@pytest.mark.parametrize(
    ("longest", "minutes"), [(44, 10), (401, 15), (3600, 90), (86400, 2880), (30 * 86400, 45 * 1440)]
)
def test_the_advised_time_limit_is_rounded_and_half_as_much_again(longest: float, minutes: int) -> None:
    assert compute_advised_time_s(longest) == 60 * minutes


def test_unused_gpus_are_shown() -> None:
    (row,) = make_own_report(NIGHT, [make_run(81, measurement=replace(MEASURED, gpus_unused=1))], [], []).usage
    assert describe_unused_request(row) == "asked for 7 d, ran 44 s at most; 1 of 2 GPUs were never used"
    assert row.change == ("--time=0:10:00",)  # submitted without gsub: its options are not known


def test_a_failed_job_is_listed_to_do_until_it_completes() -> None:
    failed = [make_run(81, "import_error"), make_run(82, "import_error", end=SINCE + 6000)]
    found = make_own_report(NIGHT, failed, [], [])
    assert found.to_do == (ToDo(why="train.sbatch failed 2 times: mind import_error", command="slurmwrap why 82"),)
    later = make_run(83, end=SINCE + 7000, time_limit_s=600)
    assert make_own_report(NIGHT, [*failed, later], [], []).to_do == ()
    assert make_own_report(NIGHT, [make_run(84, "cancelled")], [], []).to_do == ()
    # it is retried automatically
    assert make_own_report(NIGHT, [replace(failed[1], retry_at=UNTIL)], [], []).to_do == ()
    # after the end of the night
    assert make_own_report(NIGHT, [make_run(85, "cpu_oom", end=UNTIL + 1)], [], []).to_do == ()


def test_a_job_cancelled_by_its_pre_run_is_listed_until_a_pre_run_passes() -> None:
    stopped, passed = make_prerun(81, Outcome.FAIL, SINCE + 5), make_prerun(82, Outcome.PASS, SINCE + 9)
    known = [make_submission(81), make_submission(82)]
    assert make_own_report(NIGHT, [], known, [stopped]).to_do == (
        ToDo(why="job 81 was cancelled by its pre-run: train.py:7: NameError", command="slurmwrap why 81"),
    )
    assert make_own_report(NIGHT, [], known, [stopped, passed]).to_do == ()


def test_administrator_rows_are_removed_and_the_users_blocked_input_is_listed() -> None:
    suspects = SuspectNodes(
        nodes=("n7",), strikes=1, conclusive=True, causes=("x",), jobs=1, users=1, last_at=1, text=""
    )
    inputs = [
        Blocked(
            input=BlockedInput(digest="d", path="/d/a b", uid=uid, reason="/d/a b: truncated", at=1.0),
            user="",
            new=True,
        )
        for uid in (7, -1)
    ]
    night = replace(
        NIGHT,
        suspects=(suspects,),
        blocked=tuple(inputs),
        to_do=(ToDo(why="once it is repaired", command="slurmwrap nodes repaired n3 --resume"),),
    )
    found = make_own_report(night, [], [], [])
    assert (found.own, found.suspects) == (True, ())
    assert found.to_do == (
        ToDo(
            why="jobs that read /d/a b are refused until it changes: truncated",
            command="slurmwrap inputs show '/d/a b'",
        ),
    )


def test_requested_and_used_memory_is_shown_in_gib() -> None:
    row = sections.usage(nights.own()).tables[0].rows[0]
    assert row.values[6:8] == (500.0, 44_000 / 1024)
