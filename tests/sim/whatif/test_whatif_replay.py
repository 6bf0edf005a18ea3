"""A month that never was, all the way: the three worlds, the same jobs in each."""

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
from slurmwrap.sim.whatif.whatif_study import OURS, PLAIN, REAL, Study
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.serialize import to_json_dict


@cache
def load() -> Load:
    return parse_trace(month(jobs=200, nodes=3, seed=3).splitlines(), "month.psv")


@cache
def study() -> Study:
    return make_whatif_study(load(), cluster_shape_from_dump(load()), {}, StudyOptions())


def test_the_same_jobs_are_measured_in_all_three_worlds() -> None:
    assert [arm.name for arm in study().arms] == [REAL, PLAIN, OURS]
    assert {arm.all.jobs for arm in study().arms} == {study().jobs}
    assert {tuple((one.label, one.jobs) for one in arm.classes) for arm in study().arms} == {
        tuple((one.label, one.jobs) for one in study().arms[0].classes)
    }
    assert sum(one.jobs for one in study().arms[0].classes) == study().jobs


def test_what_really_happened_is_as_sacct_says() -> None:
    since = study().window.since - (load().epoch or 0.0)
    waits = [
        actual.start_s - job.submit_s
        for job, actual in zip(load().jobs, load().actual, strict=True)
        if job.submit_s >= since and actual.end_s is not None
    ]
    assert len(waits) == study().jobs
    assert study().arm(REAL).all.queueing.mean == pytest.approx(sum(waits) / len(waits), rel=0.001)


def test_the_gpus_are_held_as_long_in_the_model_as_really() -> None:
    real, plain, ours = (arm.gpu_utilisation for arm in study().arms)
    assert plain == pytest.approx(real, abs=0.05)
    assert ours == pytest.approx(plain, abs=0.01)


def test_distributions_never_fall() -> None:
    for arm in study().arms:
        assert all(a <= b for a, b in pairwise(arm.all.queueing_within))


def test_lost_gpu_hours_are_the_failures_studys_world_as_it_was() -> None:
    failed = [one for one in study().waste.lost if one.state != "CANCELLED"]
    assert study().failures.arm("plain").cost_gpu_hours.mean == pytest.approx(sum(one.gpu_hours for one in failed))


def test_the_study_is_json_and_comes_back() -> None:
    plain = json.loads(json.dumps(to_json_dict(study()), allow_nan=False))
    assert record_from_json(Study, plain) == study()


def test_once_more_without_names_nothing_else_differs() -> None:
    hidden = make_whatif_study(load(), cluster_shape_from_dump(load()), {}, StudyOptions(anonymous=True))
    assert replace(hidden, waste=study().waste) == study()
    assert {one.user[0] for one in hidden.waste.users} == {"u"}
    assert not {one.user for one in hidden.waste.users} & {one.user for one in study().waste.users}


def test_a_window_without_jobs_is_an_error() -> None:
    with pytest.raises(ValueError, match="no job with GPUs"):
        make_whatif_study(load(), cluster_shape_from_dump(load()), {}, StudyOptions(since_s=10**9))


def test_a_job_with_a_known_profile_is_counted_and_never_slower() -> None:
    points = tuple(SpeedPoint(cpus=cpus, mem_mib=4096, speed=1.0) for cpus in (2, 4, 8, 16))
    known = {"bert-ft": ResourceProfile(key="bert-ft", surface=points, confidence=1.0)}
    tuned = make_whatif_study(load(), cluster_shape_from_dump(load()), known, StudyOptions())
    assert 0 < tuned.profiled == sum(job.model == "bert-ft" for job in _measured())
    assert tuned.arm(PLAIN) == study().arm(PLAIN)
    assert tuned.arm(OURS).all.jct.mean <= 1.02 * tuned.arm(PLAIN).all.jct.mean


def _measured() -> list[SimJob]:
    since = study().window.since - (load().epoch or 0.0)
    pairs = zip(load().jobs, load().actual, strict=True)
    return [job for job, what in pairs if job.submit_s >= since and what.end_s is not None]
