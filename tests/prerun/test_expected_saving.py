"""What a pre-run is expected to save and to cost."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmwrap.model.run_time import FROM_RUNS, FROM_USER, QUANTILE_LEVELS, RunTimeEstimate
from slurmwrap.prerun import expected_saving
from slurmwrap.prerun.expected_saving import (
    PrerunCase,
    ScriptHistory,
    ScriptOutcome,
    describe_estimate,
    estimate_saving,
    interpolate_late_loss,
    summarize_history,
    update_probability,
)

HOUR_S = 3600.0


def estimate(gpus: int = 8, hours: float = 4.0, **changes: object) -> expected_saving.SavingEstimate:
    case = PrerunCase(gpus=gpus, run_time=expect(hours * HOUR_S))
    return estimate_saving(replace(case, **changes))  # type: ignore[arg-type]


def expect(run_s: float, source: str = FROM_RUNS) -> RunTimeEstimate:
    return RunTimeEstimate(quantiles_s=(run_s,) * len(QUANTILE_LEVELS), source=source, n=5)


@given(st.sampled_from((2, 5, 8)), st.floats(0.01, 500), st.floats(1.01, 100))
def test_a_longer_job_and_a_larger_job_of_its_class_save_more(gpus: int, hours: float, factor: float) -> None:
    assert estimate(gpus, hours * factor).saving >= estimate(gpus, hours).saving * 0.999
    assert estimate(gpus * 2, hours).saving > estimate(gpus, hours).saving or gpus == 2


@given(st.floats(0, 1), st.integers(0, 1000), st.integers(0, 1000))
def test_the_probability_lies_between_the_prior_and_the_share_seen(prior: float, failed: int, sound: int) -> None:
    known = failed + sound
    share = failed / known if known else prior
    low, high = sorted((prior, share))
    assert low - 1e-9 <= update_probability(prior, failed, known) <= high + 1e-9


@given(st.floats(1, 1e7))
def test_a_late_failure_loses_at_most_the_run_time(run_s: float) -> None:
    assert 0 < interpolate_late_loss(run_s) <= run_s * (1 + 1e-9)


def test_the_late_loss_is_the_tables_at_its_points() -> None:
    for run_s, lost_s in expected_saving.LATE_LOSS_S:
        assert interpolate_late_loss(run_s) == pytest.approx(lost_s)


@pytest.mark.parametrize(
    ("case", "run_s", "source"),
    [
        (PrerunCase(gpus=8, time_limit_s=7200, run_time=expect(60)), 60, "history"),
        (PrerunCase(gpus=8, time_limit_s=7200, run_time=expect(9000)), 7200, "history"),
        (
            PrerunCase(gpus=8, time_limit_s=7200, run_time=expect(60, FROM_USER)),
            7200 * expected_saving.LIMIT_SHARE,
            "time limit",
        ),
        (PrerunCase(gpus=8, run_time=expect(60, FROM_USER)), 60, "similar jobs"),
        (PrerunCase(gpus=8, time_limit_s=7200), 7200 * expected_saving.LIMIT_SHARE, "time limit"),
        (PrerunCase(gpus=8), expected_saving.PHILLY_RUN_S[2], "Philly"),
    ],
)
def test_the_run_time_is_taken_from_the_best_source(case: PrerunCase, run_s: float, source: str) -> None:
    found = estimate_saving(case)
    assert (found.run_s, found.run_source) == (pytest.approx(run_s), source)


def test_the_delay_costs_only_a_job_that_could_start() -> None:
    waits, starts = estimate(wait_weight=2.0), estimate(wait_weight=2.0, starts_now=True)
    assert (waits.delay_cost, starts.delay_cost) == (0.0, 2 * expected_saving.PRERUN_S)


def outcomes(key: str, *failed: bool | None) -> list[ScriptOutcome]:
    return [ScriptOutcome(key=key, fingerprint=f"{key}{n}", failed=one) for n, one in enumerate(failed)]


def test_first_and_later_versions_of_a_script_are_counted_apart() -> None:
    past = [*outcomes("a", True, False, False), *outcomes("b", False, True), *outcomes("c", None)]
    found = summarize_history(past, "b")
    assert (found.new, found.changed, found.own, found.seen) == ((1, 2), (1, 3), (1, 2), True)
    assert not summarize_history(past, "d").seen


def test_a_version_that_failed_once_counts_as_failed_also_if_it_completed_later() -> None:
    past = [replace(outcomes("a", True)[0], failed=failed) for failed in (None, True, False, None)]
    assert summarize_history(past, "a").own == (1, 1)


def test_the_newest_pre_runs_of_the_same_key_are_the_expectation() -> None:
    past = [ScriptOutcome(key="a", fingerprint=str(n), prerun_s=n * 10.0) for n in range(1, 10)]
    other = ScriptOutcome(key="b", fingerprint="x", prerun_s=9e9)
    assert summarize_history([*past, other], "a").prerun_s == 70.0


def test_a_changed_script_is_judged_by_changes_and_by_its_own_versions() -> None:
    prior = estimate().failure_probability
    sound_changes = ScriptHistory(seen=True, changed=(0, 40), new=(40, 40))
    assert estimate(history=sound_changes).failure_probability < prior
    assert estimate(history=replace(sound_changes, seen=False)).failure_probability > prior
    own = replace(sound_changes, own=(20, 20))
    assert estimate(history=own).failure_probability > estimate(history=sound_changes).failure_probability


def test_the_reason_shows_the_terms_of_the_comparison() -> None:
    found = estimate(16, 24.0, starts_now=True)
    text = describe_estimate(found)
    assert found.worthwhile
    assert "16 GPUs x 6.9% risk x" in text
    assert "its own 1.0 GPU-min and 1.0 GPU-min for the delay" in text
    assert "run time from its earlier runs, risk from Philly's failures" in text
    assert {"saving", "prerun_cost", "delay_cost", "failure_probability", "lost_s"} <= set(asdict(found))


@pytest.mark.parametrize(
    ("gpus", "starts_now", "minutes"),
    [(2, True, 422), (4, True, 148), (8, True, 64), (16, True, 22), (2, False, 148), (4, False, 53), (8, False, 22)],
)
def test_the_shortest_time_limits_with_a_pre_run_are_those_of_the_page(
    gpus: int, starts_now: bool, minutes: int
) -> None:
    """docs/prerun-reference.md, "Which jobs are worth it"."""
    cases = [PrerunCase(gpus=gpus, time_limit_s=60.0 * m, starts_now=starts_now) for m in (minutes - 1, minutes)]
    assert [estimate_saving(case).worthwhile for case in cases] == [False, True]


def test_the_sites_scripts_shift_the_risk_before_the_users_own() -> None:
    sound = ScriptHistory(new=(0, 1000), changed=(0, 1000))
    broken = ScriptHistory(new=(1000, 1000), changed=(1000, 1000))
    alone = estimate().failure_probability
    assert estimate(site=sound).failure_probability < alone < estimate(site=broken).failure_probability
    own = ScriptHistory(new=(0, 100))
    assert estimate(site=broken, history=own).failure_probability < 0.2
    text = describe_estimate(estimate(site=sound, history=own))
    assert "risk from Philly's failures and 1000 scripts of this site and 100 of yours" in text
