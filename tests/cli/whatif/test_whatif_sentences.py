"""The sentences of the what-if page agree with the figures that they describe."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import cache

import pytest
from whatif.month import month

from slurmwrap.cli.whatif.whatif_command import format_time_left
from slurmwrap.cli.whatif.whatif_output import (
    describe_prerun_effect,
    describe_savings,
    describe_trust,
    format_brief_time,
    format_dates,
    format_headline,
    format_signed,
)
from slurmwrap.sim.failures.study_result import FailureStudy, Interval
from slurmwrap.sim.trace.read_trace import parse_trace
from slurmwrap.sim.whatif.cluster_shape import cluster_shape_from_dump
from slurmwrap.sim.whatif.whatif_replay import StudyOptions, make_whatif_study
from slurmwrap.sim.whatif.whatif_study import ORDERED, PLAIN, DelayFit, Delays, Study


@cache
def study() -> Study:
    load = parse_trace(month(jobs=250, nodes=2, seed=5).splitlines(), "month.psv")
    found = make_whatif_study(load, cluster_shape_from_dump(load), {}, StudyOptions())
    return replace(found, trust=replace(found.trust, word="close"))


def study_with_savings(cured: Interval, saved: Interval) -> FailureStudy:
    """Return the failure study with these figures for all three parts together."""
    failures = study().failures
    arms = (*failures.arms[:-1], replace(failures.arm("all"), cured=cured, saved_gpu_hours=saved))
    return replace(failures, arms=arms)


def headline_for_change(mean: float, low: float, high: float) -> str:
    return format_headline(replace(study(), queueing_change_s=Interval(mean=mean, low=low, high=high)))


def test_a_significant_change_is_stated_with_its_interval() -> None:
    assert "(−10 h; 95 % interval −11 h 07 min to −8 h 20 min). " in headline_for_change(-36000.0, -40000.0, -30000.0)


def test_an_interval_that_includes_zero_is_not_stated_as_a_change() -> None:
    assert "would have left the mean queueing delay at" in headline_for_change(-300.0, -900.0, 100.0)
    assert "would not have changed the mean queueing delay" in headline_for_change(0.0, 0.0, 0.2)


@pytest.mark.parametrize(
    ("jobs", "wait_s", "stated"), [(45, 7200.0, True), (45, 3700.0, False), (45, 600.0, False), (19, 7200.0, False)]
)
def test_jobs_of_a_size_that_wait_longer_with_the_order_are_named(jobs: int, wait_s: float, stated: bool) -> None:
    def large(mean_s: float) -> Delays:
        plain = study().arms[0].classes[0]
        return replace(plain, label="more than 8 GPUs", jobs=jobs, queueing=replace(plain.queueing, mean=mean_s))

    waits = {PLAIN: 3600.0, ORDERED: wait_s}
    arms = [replace(arm, classes=(large(waits.get(arm.name, 0.0)),)) for arm in study().arms]
    changed = replace(study(), arms=tuple(arms))
    words = "With the order these would have waited longer, on average: 45 jobs with more than 8 GPUs 2 h"
    assert (words in format_headline(changed)) is stated
    far = replace(changed, trust=replace(study().trust, word="far"))
    assert "longer" not in format_headline(far)


def test_a_model_with_a_poor_fit_states_no_queueing_delay() -> None:
    far = replace(study(), trust=replace(study().trust, word="far"))
    assert format_headline(far).startswith("The effect on the queueing delay is not known")


def test_a_dump_of_too_few_days_states_that_there_is_no_interval() -> None:
    assert "(too few days for an interval)." in format_headline(replace(study(), queueing_change_s=None))


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        ((1200.0, 900.0, 1500.0), "about 1,200 GPU-hours of runs without a result would have been saved, retries and"),
        ((1200.0, 900.0, 1500.0), "(95 % interval 900 to 1,500; "),
        ((50.0, -10.0, 110.0), "pre-runs included (95 % interval 110 fewer to 10.0 more)"),
        ((-300.0, -400.0, -200.0), "300 GPU-hours more would have gone into runs without a result"),
        ((-300.0, -400.0, -200.0), "(95 % interval 200 to 400; "),
        ((12.0, None, None), "about 12.0 GPU-hours of runs without a result would have been saved"),
    ],
)
def test_gpu_hours_are_stated_as_saved_or_additional(
    saved: tuple[float, float | None, float | None], words: str
) -> None:
    mean, low, high = saved
    (sentence,) = describe_savings(study_with_savings(Interval(mean=0.0), Interval(mean=mean, low=low, high=high)))
    assert words in sentence


def test_jobs_cured_by_a_retry_are_stated_first_and_not_as_gpu_hours() -> None:
    cured, _ = describe_savings(
        study_with_savings(Interval(mean=7.2, low=3.0, high=11.0), Interval(mean=1.0, low=0.5, high=2.0))
    )
    assert "about 7 would have ended well by an automatic retry" in cured
    assert "(95 % interval 3 to 11)" in cured
    assert "GPU" not in cured


def test_a_dump_without_failures_states_no_savings() -> None:
    failures = study().failures
    plain = replace(failures.arm("plain"), failed_runs=Interval(mean=0.0))
    assert describe_savings(replace(failures, arms=(plain, *failures.arms[1:]))) == (
        "no run of the dump failed, so there was nothing to catch",
    )


def test_the_effect_of_pre_runs_is_stated_by_stopped_jobs_and_their_wait() -> None:
    failures = study().failures
    arm = replace(
        failures.arm("pre-run"), stopped_by_trial=Interval(mean=20.0), waited_in_vain_hours=Interval(mean=50.0)
    )
    rest = [one for one in failures.arms if one.name != "pre-run"]
    assert "About 20 jobs would have been stopped" in describe_prerun_effect(replace(failures, arms=(*rest, arm)))
    assert "they waited 2.5 h each" in describe_prerun_effect(replace(failures, arms=(*rest, arm)))
    none = replace(arm, stopped_by_trial=Interval(mean=0.0))
    assert describe_prerun_effect(replace(failures, arms=(*rest, none))) == ""


def test_the_class_that_fits_worst_is_named() -> None:
    fit = DelayFit(label="5–8 GPUs", word="fair", gap=0.2, mean_real_s=7200.0, mean_model_s=3600.0)
    sentences = describe_trust(replace(study(), trust=replace(study().trust, worst=fit)))
    assert sentences[-1] == "It fits worst for jobs with 5–8 GPUs: mean queueing delay 60 min in the model, 2 h really."


def test_a_fit_based_on_too_few_jobs_is_stated() -> None:
    assert "based on 3 jobs: too few" in describe_trust(replace(study(), jobs=3))[1]


@pytest.mark.parametrize(
    ("spent_s", "done", "words"),
    [
        (1.0, 50, ""),
        (60.0, 0, ""),
        (60.0, 100, ""),
        (60.0, 50, ", about 60 s left"),
        (600.0, 25, ", about 30 min left"),
    ],
)
def test_the_time_left_is_shown_once_the_pace_is_known(spent_s: float, done: int, words: str) -> None:
    assert format_time_left(spent_s, done, 100) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "0 s"), (99.4, "99 s"), (99.6, "2 min"), (5969.0, "99 min"), (5971.0, "1.7 h"), (172800.0, "2.0 d")],
)
def test_durations_in_columns_are_brief(seconds: float, words: str) -> None:
    assert format_brief_time(seconds) == words


def test_differences_are_shown_with_a_sign() -> None:
    assert (format_signed(90.0), format_signed(-90.0), format_signed(0.0)) == ("+90 s", "−90 s", "+0 s")


@pytest.mark.parametrize(
    ("first", "last", "words"),
    [
        ((2026, 10, 1), (2026, 10, 30), "1 to 30\xa0October\xa02026"),
        ((2026, 10, 20), (2026, 11, 3), "20\xa0October to 3\xa0November\xa02026"),
        ((2026, 12, 20), (2027, 1, 3), "20\xa0December 2026 to 3\xa0January\xa02027"),
    ],
)
def test_the_window_is_shown_without_repeating_the_month(
    first: tuple[int, int, int], last: tuple[int, int, int], words: str
) -> None:
    begin, end = (datetime(*day, tzinfo=UTC).timestamp() for day in (first, last))
    assert format_dates(begin, end, UTC) == words
