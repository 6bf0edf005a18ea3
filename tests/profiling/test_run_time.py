"""Run times predicted from earlier runs: censored runs, scaling, mixing of levels, and the history."""

from __future__ import annotations

from dataclasses import replace
from math import inf, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.run_time import (
    FROM_ACCOUNT,
    FROM_OTHER_RUNS,
    FROM_PARTITION,
    FROM_PRERUN,
    FROM_RUNS,
    FROM_SCALED_RUNS,
    FROM_USER,
    QUANTILE_LEVELS,
    RunTimeEstimate,
    RunTimeSample,
    scale_estimate,
)
from slurmwrap.model.submission import Submission
from slurmwrap.profiling.run_time import (
    KEPT_RUNS,
    RunTimeGroup,
    RunTimeHistory,
    RunTimeLevel,
    RunTimeQuery,
    _redistribute_cut_off,
    compute_run_s_by_prerun,
    estimate_run_time,
    find_length_factor,
    list_groups,
    make_run_time_record,
)

JOB = RunTimeQuery(
    user="1001", key="train", variant="v", length=(("epochs", "90"),), gpus=8, account="vision", partition="gpu"
)


def sample(run_s: float, *, complete: bool = True) -> RunTimeSample:
    return RunTimeSample(run_s=run_s, complete=complete)


def estimate(*levels: tuple[str, list[RunTimeSample]]) -> RunTimeEstimate:
    found = estimate_run_time(RunTimeLevel(source=source, samples=samples) for source, samples in levels)
    assert found is not None
    return found


# --- the distribution ------------------------------------------------------------------------------------------------


def test_cut_off_runs_give_their_weight_to_longer_ones_as_kaplan_and_meier_compute_by_hand() -> None:
    """Ends at 10, 20+, 30, 40+, 50 (+: cut off). S: 1, 4/5 after 10, 4/5 x 2/3 = 8/15 after 30, 0 after 50."""
    runs = [sample(10), sample(20, complete=False), sample(30), sample(40, complete=False), sample(50)]
    found = _redistribute_cut_off([(one, 1.0) for one in runs])
    total = sum(weight for _, weight in found)
    assert [(time, pytest.approx(weight / total)) for time, weight in found] == [
        (10, 1 / 5),
        (30, 4 / 15),
        (50, 8 / 15),
    ]


def test_the_longest_run_that_was_cut_off_stands_for_a_longer_one() -> None:
    ((first, _), (last, weight)) = _redistribute_cut_off([(sample(10), 1.0), (sample(20, complete=False), 1.0)])
    assert (first, last, weight) == (10, 30.0, 1.0)


def test_equal_runs_give_their_run_time_with_a_narrow_spread() -> None:
    found = estimate((FROM_RUNS, [sample(7200)] * 14))
    assert (found.source, found.n) == (FROM_RUNS, 14)
    assert found.p50_s == pytest.approx(7200)
    assert 6500 < found.p10_s <= found.p50_s <= found.p90_s < 8000


def test_a_run_that_a_person_ended_early_does_not_widen_the_spread() -> None:
    runs = [RunTimeSample(run_s=600.0)] * 14
    early = RunTimeSample(run_s=5.0, complete=False)
    assert estimate((FROM_RUNS, [*runs, early])).p90_s == pytest.approx(estimate((FROM_RUNS, runs)).p90_s, rel=0.02)


def test_one_run_of_the_same_job_counts_more_than_many_of_the_user() -> None:
    found = estimate((FROM_RUNS, [sample(100)]), (FROM_USER, [sample(10_000)] * KEPT_RUNS))
    assert found.source == FROM_RUNS
    assert 90 < found.p50_s < 120
    # The rest of the probability is the user's.
    assert found.p90_s > 1000


def test_newer_runs_count_more() -> None:
    older, newer = [sample(100)] * 20, [sample(1000)] * 20
    assert estimate((FROM_USER, older + newer)).p50_s > estimate((FROM_USER, newer + older)).p50_s


def test_runs_submitted_shortly_before_or_after_the_job_count_more() -> None:
    short = [RunTimeSample(run_s=100, submit_s=float(n)) for n in range(15)]
    long = [RunTimeSample(run_s=1000, submit_s=100.0 + n) for n in range(15)]
    # In whichever order they ended.
    for runs in (short + long, long + short):
        level = [RunTimeLevel(source=FROM_USER, samples=runs)]
        medians = [estimate_run_time(level, submit_s) for submit_s in (7.0, 107.0, inf)]
        assert [round(one.p50_s, -2) for one in medians if one is not None] == [100, 1000, 1000]


def test_of_many_runs_the_nearest_count() -> None:
    runs = [RunTimeSample(run_s=100 if n < KEPT_RUNS else 1000, submit_s=float(n)) for n in range(2 * KEPT_RUNS)]
    found = estimate_run_time([RunTimeLevel(source=FROM_USER, samples=runs)], 1.0)
    assert found is not None
    assert (found.n, round(found.p90_s, -2)) == (KEPT_RUNS, 100)


def test_only_the_newest_runs_count() -> None:
    kept = [sample(500)] * KEPT_RUNS
    assert estimate((FROM_RUNS, [sample(5)] * 100 + kept)) == estimate((FROM_RUNS, kept))


def test_a_level_without_complete_runs_is_left_out() -> None:
    found = estimate((FROM_RUNS, [sample(50, complete=False)]), (FROM_ACCOUNT, [sample(300)]))
    assert (found.source, found.n) == (FROM_ACCOUNT, 1)
    assert estimate_run_time([RunTimeLevel(source=FROM_RUNS, samples=[sample(50, complete=False)])]) is None


samples = st.lists(
    st.builds(RunTimeSample, run_s=st.floats(min_value=1, max_value=1e6), complete=st.booleans()), max_size=50
)


@given(st.tuples(samples, samples, samples))
def test_quantiles_ascend_and_stay_near_the_runs(levels: tuple[list[RunTimeSample], ...]) -> None:
    sources = (FROM_RUNS, FROM_OTHER_RUNS, FROM_USER)
    found = estimate_run_time(RunTimeLevel(source=s, samples=runs) for s, runs in zip(sources, levels, strict=True))
    everything = [one for level in levels for one in level]
    if not any(one.complete for one in everything):
        assert found is None
        return
    assert found is not None
    assert list(found.quantiles_s) == sorted(found.quantiles_s)
    # Spread: e^1.5 to either side at most, and a half for the longest that was cut off.
    assert min(one.run_s for one in everything) / 4.5 <= found.quantiles_s[0] or found.quantiles_s[0] == 1
    assert found.quantiles_s[-1] <= 1.5 * 4.5 * max(one.run_s for one in everything)


@given(samples.filter(lambda found: any(one.complete for one in found)), st.floats(min_value=1, max_value=1e6))
def test_the_share_within_is_the_inverse_of_the_quantiles(runs: list[RunTimeSample], run_s: float) -> None:
    found = estimate((FROM_USER, runs))
    share = found.share_within(run_s)
    assert 0 <= share <= 1
    if found.quantiles_s[0] < run_s < found.quantiles_s[-1]:
        assert log(found.quantile_s(share)) == pytest.approx(log(run_s), abs=1e-6)


def test_the_remaining_time_is_that_of_the_runs_that_last_longer() -> None:
    found = RunTimeEstimate(quantiles_s=tuple(1000 * level for level in QUANTILE_LEVELS), source=FROM_RUNS, n=20)
    assert found.expect_remaining_s(0) == pytest.approx(500)
    # Half of the probability beyond 600 s lies below 800 s.
    assert found.expect_remaining_s(600) == pytest.approx(200)
    assert found.expect_remaining_s(990) is None


def test_a_scaled_estimate_keeps_its_source_and_refuses_impossible_factors() -> None:
    found = estimate((FROM_RUNS, [sample(100)]))
    assert scale_estimate(found, 3).p50_s == pytest.approx(3 * found.p50_s)
    with pytest.raises(ValueError, match="greater than 0"):
        scale_estimate(found, 0)


# --- which runs compare ----------------------------------------------------------------------------------------------


def with_length(*pairs: tuple[str, str], variant: str = "v") -> RunTimeQuery:
    return replace(JOB, length=pairs, variant=variant)


@pytest.mark.parametrize(
    ("mine", "theirs", "factor"),
    [
        (with_length(("epochs", "90")), with_length(("epochs", "90")), 1.0),
        (with_length(("epochs", "90")), with_length(("epochs", "30")), 3.0),
        (with_length(("epochs", "90")), with_length(("epochs", "90"), variant="w"), None),
        (with_length(("epochs", "90")), with_length(("max-steps", "90")), None),
        (with_length(("epochs", "90")), with_length(("epochs", "0")), None),
        (with_length(("epochs", "90")), with_length(("epochs", "all")), None),
        # Not a count: data set 20 is not twice data set 10.
        (with_length(("dataset", "20")), with_length(("dataset", "10")), None),
        # Two options differ, or the same option of two programs.
        (with_length(("epochs", "9"), ("max-steps", "9")), with_length(("epochs", "3"), ("max-steps", "3")), None),
        (with_length(("epochs", "3"), ("epochs", "9")), with_length(("epochs", "3"), ("epochs", "6")), None),
    ],
)
def test_runs_compare_if_at_most_one_count_differs(
    mine: RunTimeQuery, theirs: RunTimeQuery, factor: float | None
) -> None:
    assert find_length_factor(mine, theirs) == factor


# --- the history -----------------------------------------------------------------------------------------------------


def test_the_history_names_the_most_specific_source_that_has_runs() -> None:
    history = RunTimeHistory()
    assert history.estimate(JOB) is None
    sources = []
    for job, run_s in (
        (replace(JOB, user="1", account="other", key=""), 10.0),
        (replace(JOB, user="2", key=""), 20.0),
        (replace(JOB, key=""), 30.0),
        (replace(JOB, variant="w"), 40.0),
        (replace(JOB, length=(("epochs", "45"),)), 50.0),
        (JOB, 60.0),
    ):
        history.add(job, sample(run_s))
        found = history.estimate(JOB)
        assert found is not None
        sources.append(found.source)
    assert sources == [FROM_PARTITION, FROM_ACCOUNT, FROM_USER, FROM_OTHER_RUNS, FROM_SCALED_RUNS, FROM_RUNS]


def test_jobs_of_unknown_account_are_no_group() -> None:
    history = RunTimeHistory()
    history.add(replace(JOB, user="2", account="", partition="cpu", key=""), sample(10))
    assert history.estimate(replace(JOB, account="", key="")) is None


def test_runs_of_another_user_with_the_same_key_are_not_of_the_same_job() -> None:
    history = RunTimeHistory()
    history.add(replace(JOB, user="2"), sample(10))
    found = history.estimate(JOB)
    assert found is not None and found.source == FROM_ACCOUNT


def test_half_the_epochs_take_half_the_time() -> None:
    history = RunTimeHistory()
    for _ in range(8):
        history.add(JOB, sample(9000))
    found = history.estimate(replace(JOB, length=(("epochs", "30"),)))
    assert found is not None and found.source == FROM_SCALED_RUNS
    assert found.p50_s == pytest.approx(3000, rel=0.05)


def test_a_pre_run_counts_where_no_comparable_run_is_known() -> None:
    history = RunTimeHistory()
    history.add(replace(JOB, key=""), sample(50_000))
    found = history.estimate(JOB, prerun_s=1800.0)
    assert found is not None
    assert (found.source, found.n) == (FROM_PRERUN, 0)
    assert found.p50_s == pytest.approx(1800, rel=0.3)


def test_each_group_is_read_once_and_an_estimate_is_made_again_after_a_new_run() -> None:
    stored = RunTimeHistory()
    stored.add(JOB, sample(600))
    asked: list[RunTimeGroup] = []

    def read(group: RunTimeGroup) -> tuple[tuple[RunTimeQuery, RunTimeSample], ...]:
        asked.append(group)
        return tuple(stored.runs(group))

    history = RunTimeHistory(read=read)
    first = history.estimate(JOB)
    assert history.estimate(JOB) is first
    assert sorted(asked) == sorted(list_groups(JOB))
    stored.add(JOB, sample(6000))
    history.add(JOB, sample(6000))
    again = history.estimate(JOB)
    assert again == stored.estimate(JOB) != first
    assert len(asked) == 4


def test_a_run_that_is_added_before_its_group_is_read_counts_once() -> None:
    stored = RunTimeHistory()
    history = RunTimeHistory(read=stored.runs)
    stored.add(JOB, sample(600))
    history.add(JOB, sample(600))
    assert len(history.runs(("key", "1001", "train"))) == 1


# --- which runs are evidence -----------------------------------------------------------------------------------------

RUN = JobRun(
    attempt=RunKey(cluster="lab", job_id=81, submit_time=100),
    address="81",
    user="ada",
    uid=1001,
    account="vision",
    partition="gpu",
    state="COMPLETED",
    gpus=8,
    eligible_time=100,
    start_time=1000,
    end_time=4600,
    diagnosis=Diagnosis(category="success", domain="", decision="none", confidence=1.0, signature=""),
)
CALL = Submission(
    cluster="lab", job_id=81, uid=1001, user="ada", at=99.0, profile_key="train", profile_variant="v",
    length=(("epochs", "90"),),
)  # fmt: skip


def ended(state: str, category: str, **changes: object) -> JobRun:
    assert RUN.diagnosis is not None
    return replace(RUN, state=state, diagnosis=replace(RUN.diagnosis, category=category, **changes))  # type: ignore[arg-type]


def test_a_completed_run_is_evidence_from_its_start_without_the_time_in_the_queue() -> None:
    found = make_run_time_record(RUN, CALL)
    assert found is not None
    assert (found.job, found.sample, found.end_time) == (JOB, replace(sample(3600.0), submit_s=100.0), 4600)


@pytest.mark.parametrize(
    ("state", "category"), [("TIMEOUT", "time_limit"), ("CANCELLED", "cancelled"), ("REQUEUED", "cancelled")]
)
def test_a_run_that_was_cut_off_is_evidence_that_it_takes_longer(state: str, category: str) -> None:
    found = make_run_time_record(ended(state, category), None)
    assert found is not None
    assert (found.job.key, found.sample.complete) == ("", False)


@pytest.mark.parametrize(
    "run",
    [
        ended("FAILED", "gpu_oom"),
        ended("COMPLETED", "completed_with_error"),
        ended("TIMEOUT", "hang"),
        ended("NODE_FAIL", "node_failure"),
        ended("COMPLETED", "success", resumed=True),
        replace(RUN, diagnosis=None),
        replace(RUN, start_time=None),
        replace(RUN, start_time=4600),
        replace(RUN, uid=-1),
    ],
)
def test_failed_resumed_and_unstarted_runs_are_no_evidence(run: JobRun) -> None:
    assert make_run_time_record(run, CALL) is None


def test_what_a_user_claims_is_limited() -> None:
    for claim in (
        replace(CALL, profile_key="k" * 201),
        replace(CALL, length=(("epochs", "9" * 1000),)),
        replace(CALL, length=(("epochs", "9"),) * 100),
    ):
        found = make_run_time_record(RUN, claim)
        assert found is not None
        assert found.job.length == ()
        assert len(found.job.key) <= 200


@pytest.mark.parametrize(
    ("total", "shared", "rate", "gpus", "run_s"),
    [
        (9000, False, 2.0, 8, 4500.0),
        (9000, True, 2.0, 8, 562.5),
        (9000, True, 2.0, 0, 4500.0),
        (9000, None, 2.0, 1, 4500.0),
        (9000, None, 2.0, 8, None),
        (None, True, 2.0, 8, None),
        (9000, True, None, 8, None),
        (4, True, 2.0, 8, 1.0),
    ],
)
def test_the_run_time_by_a_pre_run_follows_from_its_speed_and_the_steps_of_the_training(
    total: int | None, shared: bool | None, rate: float | None, gpus: int, run_s: float | None
) -> None:
    measured = Measurement(steps=3, steps_per_s=rate, total_steps=total, total_is_shared=shared)
    assert compute_run_s_by_prerun(measured, gpus) == run_s
