"""Which earlier failures use the retry budget, and how many GPU-hours they lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import START, job

from slurmwrap.model.evidence import Diagnosis
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.policy.retry_budget import Entry, Ledger, make_ledger
from slurmwrap.policy.run_from_slurm import record_of

HOUR = 3600


def run(
    restarts: int,
    category: str = "nccl_error",
    *,
    uid: int = 1001,
    decision: str = "retry",
    step: int | None = None,
    saved: int | None = None,
    resumed: bool = False,
    counted: int | None = None,
) -> JobRun:
    """The run after `restarts` requeues: two GPUs for an hour."""
    shown = job(81, restarts=restarts, submit_time=START + restarts, uid=uid, start_time=START, end_time=START + HOUR)
    found = Diagnosis(
        category=category,
        domain="AE",
        decision="none" if category in ("success", "cancelled") else "retry",
        confidence=1,
        signature="",
        step=step,
        checkpoint_step=saved,
        resumed=resumed,
    )
    measurement = None if counted is None else Measurement(steps=counted)
    return replace(record_of(shown, "lab"), diagnosis=found, decision=decision, measurement=measurement)


NOW = replace(run(3), diagnosis=None)


def test_earlier_failures_of_the_same_job_count() -> None:
    found = make_ledger([run(0), run(1, "network_error"), run(2), run(3)], NOW)
    assert (found.spent("nccl_error"), found.spent("network_error"), found.spent("cpu_oom")) == (2, 1, 0)
    assert found.failures == 3


@pytest.mark.parametrize(
    "other", [run(1, "success"), run(1, uid=1002), replace(run(1), diagnosis=None), run(1, "cancelled")]
)
def test_other_runs_than_failures_of_the_same_user_do_not_count(other: JobRun) -> None:
    assert make_ledger([other], NOW) == Ledger()


@pytest.mark.parametrize("state", ["PREEMPTED", "REQUEUED"])
def test_preemption_does_not_use_the_retry_budget(state: str) -> None:
    found = make_ledger([run(0), *(replace(run(n, "job_preempted"), state=state) for n in (1, 2))], NOW)
    assert (found.entries, found.failures) == ((Entry(category="nccl_error", entity="", node="", exit_code=1),), 1)
    assert found.lost_gpu_hours == pytest.approx(2)


def test_a_failed_run_whose_log_mentions_preemption_counts_as_a_failure() -> None:
    found = make_ledger([run(n, "job_preempted") for n in range(3)], NOW)
    assert (found.spent("job_preempted"), found.failures) == (3, 3)


def test_a_node_failure_does_not_use_the_budgets_of_other_causes() -> None:
    found = make_ledger([run(0, "node_failure"), run(1, "node_failure"), run(2, "node_failure")], NOW)
    assert (found.spent("nccl_error"), found.spent("node_failure")) == (0, 3)


def test_a_failure_of_an_incident_counts_only_in_the_total() -> None:
    found = make_ledger([replace(run(0), incident="i1"), run(1)], NOW)
    assert (found.spent("nccl_error"), found.failures) == (1, 2)


def test_an_older_job_with_the_same_id_does_not_count() -> None:
    old = [replace(run(r), attempt=replace(run(r).attempt, submit_time=START - 10**6 + r)) for r in range(3)]
    new = run(0)
    assert make_ledger(old, replace(run(0), diagnosis=None)) == Ledger()
    assert make_ledger([*old, new], replace(run(1), diagnosis=None)).failures == 1


def test_the_order_in_which_runs_are_given_does_not_matter() -> None:
    runs = [run(0), run(1, "network_error"), run(2)]
    assert make_ledger(runs[::-1], NOW) == make_ledger(runs, NOW)


@pytest.mark.parametrize(
    ("steps", "spent"),
    [
        ((100, 100, 100), 2),  # no run got beyond step 100
        ((100, 101, 101), 1),  # the second run got further, so the first does not count
        ((100, 101, 102), 0),  # the present run got further too
        ((100, 50, 100), 2),  # reaching the same step again is no progress
        ((100, 50, 99), 2),
        ((None, 50, 50), 2),  # the step of the first run is unknown
        ((100, None, 101), 0),
        ((None, None, None), 2),
    ],
)
def test_only_progress_beyond_the_best_step_restores_the_budget(steps: tuple[int | None, ...], spent: int) -> None:
    runs = [run(place, step=step) for place, step in enumerate(steps)]
    assert make_ledger(runs[:-1], runs[-1]).spent("nccl_error") == spent


def test_a_newer_checkpoint_is_progress_and_the_same_checkpoint_is_not() -> None:
    assert make_ledger([run(0, saved=10)], run(1, saved=20)).spent("nccl_error") == 0
    assert make_ledger([run(0, saved=20)], run(1, saved=20)).spent("nccl_error") == 1


@pytest.mark.parametrize(
    ("runs", "spent"),
    [
        ((run(0, counted=100), run(1, counted=100)), 1),
        ((run(0, counted=100), run(1, counted=101)), 0),
        ((run(0, counted=100, saved=80), run(1, counted=20, resumed=True)), 1),  # 80 + 20: not beyond
        ((run(0, counted=100, saved=80), run(1, counted=21, resumed=True)), 0),
        ((run(0, counted=100, saved=80), run(1, counted=21)), 1),  # it did not resume
        ((run(0, step=3), run(1, counted=500)), 1),  # epochs in the log are not comparable with counted steps
        ((run(0, step=100, counted=7), run(1, step=50, counted=8)), 0),
        ((run(0, step=50, counted=8), run(1, step=100, counted=7)), 0),
    ],
)
def test_counted_steps_are_compared_only_with_counted_steps(runs: tuple[JobRun, ...], spent: int) -> None:
    assert make_ledger(runs[:-1], runs[-1]).spent("nccl_error") == spent


def test_progress_does_not_reduce_the_total_of_failures() -> None:
    found = make_ledger([run(n, step=n) for n in range(5)], run(5, step=5))
    assert (found.entries, found.failures) == ((), 5)
    assert found.lost_gpu_hours == pytest.approx(12)


@pytest.mark.parametrize(
    ("first", "second", "lost"),
    [
        (run(0), run(1), 4.0),
        (run(0, step=100, saved=80), run(1), 4.0),  # its checkpoint was not used
        (run(0, step=100, saved=80), run(1, resumed=True), 2.4),
        (
            run(0, step=100, saved=80),
            run(1, resumed=True, step=120, saved=100),
            1.4,
        ),  # half of steps 80 to 120 is lost
        (run(0, counted=100, saved=80), run(1, resumed=True), 2.4),  # the log names only the checkpoint
        (run(0, step=100, saved=900), run(1, resumed=True), 2.0),  # a claimed step beyond the last one saves no more
        (run(0, "success"), run(1), 2.0),
    ],
)
def test_lost_gpu_hours_exclude_what_a_resumed_run_kept(first: JobRun, second: JobRun, lost: float) -> None:
    assert make_ledger([first], second).lost_gpu_hours == pytest.approx(lost)


@pytest.mark.parametrize(
    ("runs", "lost"),
    [
        ((run(0, step=1000, saved=995),), 0.01),  # only the time since the checkpoint is repeated
        ((run(0, step=1000),), 2.0),
        ((run(0, step=1000, saved=995), run(1, step=1000, saved=995)), 4.0),  # it wrote one before and did not use it
        ((run(0, step=1000, saved=995), run(1, resumed=True, step=1100, saved=1090)), 0.01 + 2 * 10 / 105),
    ],
)
def test_the_newest_checkpoint_counts_as_kept_unless_the_job_did_not_use_one(
    runs: tuple[JobRun, ...], lost: float
) -> None:
    assert make_ledger(runs[:-1], runs[-1]).lost_gpu_hours == pytest.approx(lost)


def test_a_refused_resize_is_recorded_with_its_cause() -> None:
    assert make_ledger([replace(run(0, "cpu_oom"), resize_refused=True)], NOW).refused == {"cpu_oom"}


def test_the_only_node_of_a_run_retried_elsewhere_counts_as_blamed() -> None:
    found = make_ledger([run(0, decision="retry_elsewhere"), run(1)], NOW)
    assert found.entries == (
        Entry(category="nccl_error", entity="", node="n1", exit_code=1),
        Entry(category="nccl_error", entity="", node="", exit_code=1),
    )
    assert found.nodes == {"n1"}
