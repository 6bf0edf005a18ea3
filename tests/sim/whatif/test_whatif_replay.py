"""The whole what-if study of an invented month, with the same jobs in its four arms."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from whatif.month import month

from slurmwrap.model.resource_profile import ResourceProfile, SpeedPoint
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.trace.read_trace import parse_trace
from slurmwrap.sim.trace.trace_load import Load
from slurmwrap.sim.whatif.cluster_shape import cluster_shape_from_dump
from slurmwrap.sim.whatif.whatif_replay import StudyOptions, make_whatif_study
from slurmwrap.sim.whatif.whatif_study import ORDERED, OURS, PLAIN, REAL, Study
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.serialize import to_json_dict


@cache
def load_month() -> Load:
    return parse_trace(month(jobs=200, nodes=3, seed=3).splitlines(), "month.psv")


@cache
def make_study() -> Study:
    return make_whatif_study(load_month(), cluster_shape_from_dump(load_month()), {}, StudyOptions())


def test_all_arms_measure_the_same_jobs() -> None:
    assert [arm.name for arm in make_study().arms] == [REAL, PLAIN, OURS, ORDERED]
    assert {arm.all.jobs for arm in make_study().arms} == {make_study().jobs}
    assert {tuple((one.label, one.jobs) for one in arm.classes) for arm in make_study().arms} == {
        tuple((one.label, one.jobs) for one in make_study().arms[0].classes)
    }
    assert sum(one.jobs for one in make_study().arms[0].classes) == make_study().jobs


def test_the_real_arm_equals_the_sacct_data() -> None:
    since = make_study().window.since - (load_month().epoch or 0.0)
    waits = [
        actual.start_s - job.submit_s
        for job, actual in zip(load_month().jobs, load_month().actual, strict=True)
        if job.submit_s >= since and actual.end_s is not None
    ]
    assert len(waits) == make_study().jobs
    assert make_study().arm(REAL).all.queueing.mean == pytest.approx(sum(waits) / len(waits), rel=0.001)


def test_gpu_utilisation_of_the_model_is_close_to_the_real_one() -> None:
    real, plain, ours, ordered = (arm.gpu_utilisation for arm in make_study().arms)
    assert plain == pytest.approx(real, abs=0.05)
    assert ours == pytest.approx(plain, abs=0.01)
    assert ordered == pytest.approx(plain, abs=0.05)


def test_queueing_distributions_do_not_decrease() -> None:
    for arm in make_study().arms:
        assert all(a <= b for a, b in pairwise(arm.all.queueing_within))


def test_lost_gpu_hours_equal_the_plain_arm_of_the_failure_study() -> None:
    failed = [one for one in make_study().waste.lost if one.state != "CANCELLED"]
    assert make_study().failures.arm("plain").cost_gpu_hours.mean == pytest.approx(sum(one.gpu_hours for one in failed))


def test_the_study_can_be_serialized_and_read_again() -> None:
    plain = json.loads(json.dumps(to_json_dict(make_study()), allow_nan=False))
    assert record_from_json(Study, plain) == make_study()


def test_an_anonymous_study_differs_only_in_user_names() -> None:
    hidden = make_whatif_study(load_month(), cluster_shape_from_dump(load_month()), {}, StudyOptions(anonymous=True))
    assert replace(hidden, waste=make_study().waste) == make_study()
    assert {one.user[0] for one in hidden.waste.users} == {"u"}
    assert not {one.user for one in hidden.waste.users} & {one.user for one in make_study().waste.users}


def test_a_window_without_jobs_is_refused() -> None:
    with pytest.raises(ValueError, match="no job with GPUs"):
        make_whatif_study(load_month(), cluster_shape_from_dump(load_month()), {}, StudyOptions(since_s=10**9))


def test_jobs_with_a_profile_are_counted_and_the_mean_jct_does_not_grow() -> None:
    points = tuple(SpeedPoint(cpus=cpus, mem_mib=4096, speed=1.0) for cpus in (2, 4, 8, 16))
    known = {"bert-ft": ResourceProfile(key="bert-ft", surface=points, confidence=1.0)}
    tuned = make_whatif_study(load_month(), cluster_shape_from_dump(load_month()), known, StudyOptions())
    assert 0 < tuned.profiled == sum(job.model == "bert-ft" for job in list_measured_jobs())
    assert tuned.arm(PLAIN) == make_study().arm(PLAIN)
    assert tuned.arm(OURS).all.jct.mean <= 1.02 * tuned.arm(PLAIN).all.jct.mean


def list_measured_jobs() -> list[SimJob]:
    since = make_study().window.since - (load_month().epoch or 0.0)
    pairs = zip(load_month().jobs, load_month().actual, strict=True)
    return [job for job, what in pairs if job.submit_s >= since and what.end_s is not None]
