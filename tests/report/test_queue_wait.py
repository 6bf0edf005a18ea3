"""What jobs waited for, in the night report and in `slurmwrap why`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC

from night_figures import night_of

from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import ActionRecord, JobRun, QueueDelay
from slurmwrap.model.submission import Submission
from slurmwrap.report.headline import build_page
from slurmwrap.report.job_report.job_report_text import format_job_report
from slurmwrap.report.job_report.timeline import build_timeline
from slurmwrap.report.night_report import Queueing, WaitedLongest
from slurmwrap.report.queue_wait import compute_queueing, format_wait
from slurmwrap.report.report_formats import render_text

KEY = RunKey(cluster="lab", job_id=81, submit_time=100)
DELAY = QueueDelay(
    attempt=KEY, address="81", user="ada", gpus=4, eligible_at=100.0, seen_at=820.0,
    fair_share_s=240.0, fragmentation_s=480.0, waits_for="fragmentation", over=True,
)  # fmt: skip
SUBMISSION = Submission(cluster="lab", job_id=81, uid=1, user="ada", at=100.0)


def test_the_wait_is_described_in_one_sentence() -> None:
    assert (
        format_wait(DELAY)
        == "Waited 12 min: 4 min for its turn (fair share), 8 min for GPUs that were scattered (fragmentation)."
    )
    assert format_wait(replace(DELAY, fair_share_s=0, unknown_s=60, over=False)) == (
        "Waited 9 min so far: 8 min for GPUs that were scattered (fragmentation), 60 s not known."
    )
    assert format_wait(replace(DELAY, fair_share_s=0, fragmentation_s=0)) == "Waited 0 s."


def test_why_shows_the_wait_for_ended_running_and_waiting_jobs() -> None:
    line = "  Waited 12 min: 4 min for its turn (fair share), 8 min for GPUs that were"
    run = JobRun(attempt=KEY, address="81", state="COMPLETED", start_time=820, end_time=900, waited=DELAY)
    assert line in format_job_report(build_timeline("81", [SUBMISSION], [], [run], [])).splitlines()
    begun = replace(run, state="", end_time=None, waited=None)
    assert line in format_job_report(build_timeline("81", [SUBMISSION], [], [begun], [], [DELAY])).splitlines()
    assert line in format_job_report(build_timeline("81", [SUBMISSION], [], [], [], [DELAY])).splitlines()
    other = replace(DELAY, address="82", attempt=replace(KEY, job_id=82))
    assert build_timeline("81", [SUBMISSION], [], [], [], [other]).delays == ()


def test_advice_for_a_waiting_job_is_not_a_next_step_after_failure() -> None:
    from slurmwrap.model.evidence import Diagnosis
    from slurmwrap.report.job_report.next_step import find_next_step

    bug = Diagnosis(category="traceback_from_crash", domain="U", decision="stop", confidence=1, signature="s")
    run = JobRun(attempt=KEY, address="81", state="FAILED", start_time=9, end_time=10, diagnosis=bug, decision="stop")
    advised = ActionRecord(
        action_id=1, attempt=KEY, rule="relax", mode="advise", verb="update job", target="81", key="ExcNodeList",
        value="", reason="", intended_at=1.0,
    )  # fmt: skip
    assert find_next_step(build_timeline("81", [SUBMISSION], [], [run], [advised])) == find_next_step(
        build_timeline("81", [SUBMISSION], [], [run], [])
    )


def test_the_report_has_mean_p95_gpu_hours_and_longest_waits() -> None:
    short = [
        replace(DELAY, attempt=replace(KEY, job_id=n), address=str(n), gpus=1, fair_share_s=0.0, fragmentation_s=60.0)
        for n in range(100, 119)
    ]
    found = compute_queueing([*short, DELAY], since=800.0, until=900.0)
    assert found == Queueing(
        runs=20,
        fair_share_mean_s=12.0,
        fair_share_p95_s=0.0,
        fragmentation_mean_s=81.0,
        fragmentation_p95_s=60.0,
        gpu_hours=(4 * 720 + 19 * 60) / 3600,
        longest=(
            WaitedLongest(address="81", user="ada", gpus=4, total_s=720.0, fair_share_s=240.0, fragmentation_s=480.0),
            *(
                WaitedLongest(address=str(n), user="ada", gpus=1, total_s=60.0, fair_share_s=0.0, fragmentation_s=60.0)
                for n in range(100, 104)
            ),
        ),
    )


def test_the_text_report_shows_waits() -> None:
    page = night_of(delays=(DELAY,), since=0.0, until=900.0)
    _, _, section = render_text(build_page(page, UTC)).partition("WAITING AND LOCALITY\n")
    assert [" ".join(line.split()) for line in section.splitlines()] == [
        "1 run of gsub's jobs waited, 0.80 GPU-hours together.",
        "",
        "WHAT JOBS WAITED FOR",
        "waited for mean p95",
        "fair share 4 min 4 min",
        "fragmentation 8 min 8 min",
        "",
        "WAITED LONGEST",
        "job user GPUs waited fair share fragmentation now",
        "81 ada 4 12 min 4 min 8 min started",
    ]


def test_waits_outside_the_period_are_not_counted() -> None:
    assert compute_queueing([DELAY], since=821.0, until=900.0) == Queueing()
    assert compute_queueing([DELAY], since=10.0, until=100.0) == Queueing()
    assert (
        compute_queueing([replace(DELAY, fair_share_s=0.0, fragmentation_s=0.0)], since=0.0, until=900.0) == Queueing()
    )


def test_the_report_counts_how_often_jobs_of_others_were_passed() -> None:
    run = JobRun(
        attempt=KEY, address="81", user="ada", uid=1, state="COMPLETED", start_time=820, end_time=900, passed=2
    )
    ended = [replace(run, attempt=replace(KEY, job_id=81 + n), passed=n) for n in (2, 1, 0)]
    before = replace(run, attempt=replace(KEY, job_id=90), start_time=20, end_time=50)
    night = night_of(since=100.0, until=1000.0, attempts=[*ended, before, replace(run, passed=None)])
    assert (night.queueing.passing, night.queueing.passed) == (2, 3)
    text = " ".join(render_text(build_page(night, UTC)).split())
    assert "2 jobs of gsub passed waiting jobs of others, 3 times in all, each within order.band." in text
