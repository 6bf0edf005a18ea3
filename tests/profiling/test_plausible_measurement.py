"""Implausible measurements: the user controls the values of a pre-run, and they must not harm other users."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmwrap.model.resource_profile import CurvePoint, Measurement, ResourceProfile
from slurmwrap.profiling.merge_profiles import adapt_profile, drop_implausible_values, merge
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.serialize import to_json_dict

SOUND = Measurement(
    seconds=31.0,
    steps=40,
    steps_per_s=2.5,
    cpus_used=3.5,
    mem_peak_mib=2048,
    mem_source="cgroup",
    cpu_curve=(CurvePoint(cpus=2, steps_per_s=1.5), CurvePoint(cpus=4, steps_per_s=2.5, spread=0.01, rounds=2)),
    cpu_curve_end="workers",
    gpu_util=0.9,
    sensitivity={"cpu": 1.2, "memory": 1.0},
)
WHOLE = st.sampled_from([0, 1, -1, 7, 64, 2**63 - 1, -(2**63)])
REAL = st.sampled_from([0.0, 1.0, -1.0, 0.5, 5e-324, 1e-300, 1e18, 1e308, -1e308])
POINT = st.builds(CurvePoint, cpus=WHOLE, steps_per_s=REAL, spread=REAL, rounds=WHOLE)
ANY = st.builds(
    Measurement,
    seconds=REAL,
    steps_per_s=st.none() | REAL,
    cpus_used=st.none() | REAL,
    cpus_allocated=st.none() | WHOLE,
    mem_peak_mib=st.none() | WHOLE,
    gpus=WHOLE,
    gpu_mem_peak_mib=st.none() | WHOLE,
    cpu_curve=st.lists(POINT, max_size=5).map(tuple),
    loader_workers=st.none() | WHOLE,
    read_mib_per_s=st.none() | REAL,
    model_mib=st.none() | REAL,
    largest_tensor_mib=st.none() | REAL,
    gpu_util=st.none() | REAL,
    sensitivity=st.dictionaries(st.sampled_from(["cpu", "a b", "x" * 99]), REAL),
)


def test_a_plausible_measurement_is_unchanged() -> None:
    assert drop_implausible_values(SOUND) is SOUND


@pytest.mark.parametrize(
    ("odd", "kept"),
    [
        ({"mem_peak_mib": -1}, {"mem_peak_mib": None}),
        ({"gpu_util": 1.5}, {"gpu_util": None}),
        ({"gpus": 0}, {"gpus": 1}),
        ({"steps_per_s": 5e-324}, {"steps_per_s": None}),
        ({"mem_source": "\x1b]0;x"}, {"mem_source": ""}),
        ({"cpu_curve_end": "\n"}, {"cpu_curve_end": ""}),
        ({"sensitivity": {"cpu": 1.2, "\x1b[2J": 1.0}}, {"sensitivity": {"cpu": 1.2}}),
    ],
)
def test_only_implausible_values_are_dropped(odd: dict[str, object], kept: dict[str, object]) -> None:
    sound = to_json_dict(SOUND)
    assert drop_implausible_values(record_from_json(Measurement, sound | odd)) == record_from_json(
        Measurement, sound | kept
    )


@given(st.lists(ANY, min_size=1, max_size=3))
def test_any_measurement_can_be_merged_serialized_and_read_again(measurements: list[Measurement]) -> None:
    profile = None
    for measurement in measurements:
        profile = merge(
            profile,
            measurement,
            key="k",
            source="prerun",
            at=9e8,
            gpu_type="",
            gpus_per_node=measurement.gpus,
            complete=False,
        )
    assert profile is not None
    text = json.dumps(to_json_dict(adapt_profile(profile, 1e9)), allow_nan=False)
    assert to_json_dict(record_from_json(ResourceProfile, json.loads(text))) == json.loads(text)
