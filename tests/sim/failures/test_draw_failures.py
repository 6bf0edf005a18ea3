"""Drawn failures have the rates, causes and repetitions of the Philly trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from slurmwrap.sim.failures.assumptions import REHEARSED, FailureSettings
from slurmwrap.sim.failures.draw_failures import (
    FailingJob,
    compute_kill_chances,
    compute_time_to_failure,
    draw_failures,
    inject_failures,
    is_shown_alone,
)
from slurmwrap.sim.failures.published_rates import FAILING_JOBS, JOBS, PHILLY, get_demand_column
from slurmwrap.sim.sim_job import SimJob

DEFAULT = FailureSettings()
Trace = Callable[..., list[SimJob]]


def make_philly_jobs(count: int, trace: Trace) -> list[SimJob]:
    """Jobs whose GPU demands have the distribution of the failed jobs in table 7."""
    columns = [sum(c.by_demand[at] / c.repetition for c in PHILLY) for at in range(3)]
    edges = np.cumsum(columns) / sum(columns)
    gpus = [(1, 4, 8)[int(np.searchsorted(edges, (at * 0.618034) % 1.0))] for at in range(count)]
    return trace(count, gpus=tuple(gpus), work_s=(600.0, 3600.0, 40_000.0, 7200.0))


def test_the_same_seed_draws_the_same_failures_and_another_seed_others(trace: Trace) -> None:
    jobs = trace(2000)
    assert inject_failures(jobs, DEFAULT, 3) == inject_failures(jobs, DEFAULT, 3)
    assert inject_failures(jobs, DEFAULT, 3) != inject_failures(jobs, DEFAULT, 4)


def test_the_failure_of_a_job_does_not_depend_on_other_jobs(trace: Trace) -> None:
    jobs = trace(2000)
    one, other = ({f.number: f.reason for f in inject_failures(part, DEFAULT, 3)} for part in (jobs, jobs[:1500]))
    both = one.keys() & other.keys()
    assert len(both) > 200
    assert {n: one[n] for n in both} == {n: other[n] for n in both}


def test_shares_of_failed_and_killed_jobs_equal_the_published_shares(trace: Trace) -> None:
    jobs = make_philly_jobs(10_000, trace)
    found = draw_failures(jobs, DEFAULT, 1).values()
    fails, killed = sum(bool(f.category) for f in found), sum(f.killed for f in found)
    for count, share in ((fails, FAILING_JOBS), (killed, DEFAULT.killed_jobs)):
        assert count / len(jobs) == pytest.approx(share, abs=4 * sqrt(share * (1 - share) / len(jobs)))


def test_killed_jobs_have_the_published_share_of_gpu_time() -> None:
    gpu_s = np.exp(np.random.default_rng(1).normal(7, 2, 5000))
    chances = compute_kill_chances(gpu_s, DEFAULT)
    assert float(chances.mean()) == pytest.approx(DEFAULT.killed_jobs, rel=1e-3)
    assert float((chances * gpu_s).sum() / gpu_s.sum()) == pytest.approx(DEFAULT.killed_gpu_time, rel=1e-3)


def test_causes_and_trials_of_failed_jobs_match_table_7(trace: Trace) -> None:
    """Chi-square test over the causes with enough jobs, at the 0.1 % level."""
    found = inject_failures(make_philly_jobs(60_000, trace), DEFAULT, 5)
    seen, whole = Counter(f.reason for f in found), sum(c.jobs for c in PHILLY)
    expected = {c.reason: c.jobs / whole * len(found) for c in PHILLY if c.jobs / whole * len(found) >= 10}
    distance = sum((seen[reason] - count) ** 2 / count for reason, count in expected.items())
    assert len(expected) == 19
    assert distance < 43.8  # 19 causes and the rest: 19 degrees of freedom
    trials = Counter[str]()
    for one in found:
        trials[one.reason] += one.trials
    whole_trials, all_trials = sum(c.trials for c in PHILLY), trials.total()
    off = {c.reason: trials[c.reason] / all_trials - c.trials / whole_trials for c in PHILLY}
    assert max(map(abs, off.values())) < 0.015
    assert all_trials / len(found) == pytest.approx(whole_trials / whole, rel=0.03)


@pytest.mark.parametrize(("gpus", "column"), [(1, 0), (4, 1), (8, 2)])
def test_the_cause_depends_on_the_gpu_demand(trace: Trace, gpus: int, column: int) -> None:
    assert get_demand_column(gpus) == column
    found = inject_failures(trace(8000, gpus=(gpus,)), DEFAULT, 2)
    jobs = {c.reason: c.by_demand[column] / c.repetition for c in PHILLY}
    top = max(jobs, key=lambda reason: jobs[reason])
    share = sum(f.reason == top for f in found) / len(found)
    assert share == pytest.approx(jobs[top] / sum(jobs.values()), abs=0.03)


def test_failed_jobs_per_user_and_cause_match_table_7(trace: Trace) -> None:
    """Jobs per user and cause, on a trace a tenth as long as Philly's."""
    found = [
        f for f in inject_failures(make_philly_jobs(JOBS // 10, trace), DEFAULT, 1) if f.category == "incorrect_inputs"
    ]
    cause = next(c for c in PHILLY if c.category == "incorrect_inputs")
    assert len(found) / len({f.uid for f in found}) == pytest.approx(cause.jobs / cause.users, rel=0.2)


def test_the_same_fault_recurs_only_for_the_same_user(trace: Trace) -> None:
    jobs = trace(8000)
    found = {f.number: f for f in inject_failures(jobs, replace(DEFAULT, same_fault=1.0), 1) if f.fault >= 0}
    again = [f for f in found.values() if f.fault != f.number]
    assert len(again) > 100
    assert {found[f.fault].uid == f.uid for f in again} == {True}
    assert not [f for f in inject_failures(jobs, replace(DEFAULT, same_fault=0.0), 1) if f.fault not in (-1, f.number)]


def test_a_fault_of_the_job_recurs_at_the_same_time_and_a_curable_one_does_not() -> None:
    row = next(at for at, cause in enumerate(PHILLY) if cause.category == "semantic_error")
    one = FailingJob(number=4, uid=1, category="semantic_error", row=row, run_s=77.0)
    assert [compute_time_to_failure(one, 1, run) for run in range(3)] == [77.0, 77.0, 77.0]
    row = next(at for at, cause in enumerate(PHILLY) if cause.category == "mpi_runtime_failure")
    other = FailingJob(number=4, uid=1, category="mpi_runtime_failure", row=row, run_s=77.0, curable=True)
    assert len({compute_time_to_failure(other, 1, run) for run in range(3)}) == 3


@pytest.mark.parametrize(
    ("category", "gpus", "shown"),
    [
        ("syntax_error", 8, True),
        ("incorrect_inputs", 8, True),
        ("gpu_oom", 1, True),
        ("gpu_oom", 8, False),  # the job divides its memory over its GPUs
        ("cuda_version_mismatch", 1, False),  # the nodes of the job may differ from that of the pre-run
        ("mpi_error", 8, False),
        ("cpu_oom", 1, False),  # more memory may cure it
        ("no_signature", 8, False),
        ("job_preempted", 1, False),
    ],
)
def test_which_failures_a_one_gpu_pre_run_shows(category: str, gpus: int, shown: bool) -> None:
    assert is_shown_alone(category, gpus) is shown


LATE = replace(DEFAULT, rehearsed=1.0, sees_late=1.0, needs_company=0.0)


@pytest.mark.parametrize(
    ("settings", "late"),
    [(replace(LATE, rehearsal_s=0.0), frozenset()), (LATE, REHEARSED)],
    ids=["three steps", "rehearsal"],
)
def test_which_late_failures_a_pre_run_shows(trace: Trace, settings: FailureSettings, late: frozenset[str]) -> None:
    found = inject_failures(trace(4000, gpus=(1, 4)), settings, 1)
    assert any(f.shown and f.run_s <= settings.trial_s for f in found)
    assert not [f for f in found if f.shown and f.curable]
    after = [f for f in found if f.run_s > settings.trial_s and not f.curable]
    assert {f.category for f in after if f.shown} == {f.category for f in after} & late
    assert all(f.shown for f in after if f.category in late)


def test_a_wrong_input_is_found_only_if_the_file_is_broken_and_read(trace: Trace) -> None:
    found = inject_failures(trace(20_000), replace(DEFAULT, own_read=0.5, inputs_checked=0.6), 1)
    wrong = [f.checked for f in found if f.category == "incorrect_inputs"]
    assert sum(wrong) / len(wrong) == pytest.approx(0.3, abs=4 * sqrt(0.3 * 0.7 / len(wrong)))
    assert not [f for f in found if f.checked and f.category != "incorrect_inputs"]


def test_an_empty_trace_gives_no_failures() -> None:
    assert inject_failures([], DEFAULT, 1) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"failing_jobs": 1.2},
        {"failing_jobs": 0.9, "killed_jobs": 0.2},
        {"checkpoint_s": 0.0},
        {"trial_s": -1},
        {"lemon_share": (0.2, 0.1)},
    ],
)
def test_invalid_settings_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        FailureSettings(**changes)  # type: ignore[arg-type]
