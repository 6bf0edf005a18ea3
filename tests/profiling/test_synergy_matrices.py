"""Import of Synergy's profile matrices: the shipped file, and files that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.cli.profile.profile_files import parse_profiles
from slurmwrap.model.resource_profile import CurvePoint, Measurement, ResourceProfile, SpeedPoint
from slurmwrap.profiling.merge_profiles import is_plausible_surface, merge
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.serialize import to_json_dict

SHIPPED = Path(__file__).parents[1] / "data" / "profiles" / "synergy_profiles.csv"


def test_the_shipped_file_gives_one_profile_per_model() -> None:
    found = parse_profiles(SHIPPED.read_text(encoding="utf-8").splitlines(), at=7.0)
    assert {one.key: (one.cpus_per_gpu, one.mem_mib_per_gpu) for one in found} == {
        "alexnet": (12, 128_000),
        "bert": (1, 21_330),
        "deepspeech": (3, 64_000),
        "gnmt": (1, 21_330),
        "lstm": (1, 21_330),
        "m5": (6, 192_000),
        "mobilenet": (5, 64_000),  # 1.49 of 1.55: within 5 %
        "res18": (9, 64_000),
        "res50": (4, 64_000),
        "shufflenet": (12, 128_000),
        "transformer": (1, 21_330),
        "vae": (1, 21_330),
    }
    assert {(len(one.cpu_curve), one.cpu_bound, one.source, one.confidence, one.measured_at) for one in found} == {
        (9, False, "import", 0.25, 7.0)
    }


def test_a_measured_curve_replaces_an_imported_one_and_busy_cpus_only_raise_it() -> None:
    shipped = parse_profiles(SHIPPED.read_text(encoding="utf-8").splitlines(), at=7.0)
    imported = next(one for one in shipped if one.key == "res50")
    given = {"key": "res50", "at": 1.8e9, "gpu_type": "", "gpus_per_node": 1}
    busy = Measurement(cpus_used=6.0, cpus_allocated=16)
    assert merge(imported, busy, source="epilog", complete=True, **given).cpus_per_gpu == 7.5
    own = tuple(CurvePoint(cpus=cpus, steps_per_s=rate) for cpus, rate in ((1, 5.0), (2, 10.0), (4, 10.1)))
    curve = Measurement(cpu_curve=own, cpu_curve_end="workers")
    found = merge(imported, curve, source="prerun", complete=False, **given)
    assert (found.cpus_per_gpu, found.cpu_curve) == (2.0, own)


def test_the_curve_consists_of_the_points_with_the_most_memory() -> None:
    (found,) = parse_profiles(
        ["model,cpus,mem_gb,throughput", "m,1,10,0.1", "m,2,10,0.2", "m,1,20,0.5", "m,2,20,1.0"], at=0.0
    )
    assert [(point.cpus, point.steps_per_s) for point in found.cpu_curve] == [(1, 0.5), (2, 1.0)]
    assert (found.cpus_per_gpu, found.mem_mib_per_gpu) == (2, 20 * 1024)


def test_all_measured_points_are_stored_as_a_surface() -> None:
    (found,) = parse_profiles(
        ["model,cpus,mem_gb,throughput", "m,2,10.5,0.2", "m,1,10.5,0.1", "m,1,20,0", "m,2,20,1.0"], at=0.0
    )
    assert found.surface == (
        SpeedPoint(cpus=1, mem_mib=10_752, speed=0.1),
        SpeedPoint(cpus=2, mem_mib=10_752, speed=0.2),
        SpeedPoint(cpus=2, mem_mib=20_480, speed=1.0),
    )
    assert record_from_json(ResourceProfile, to_json_dict(found)) == found


def test_a_new_curve_removes_the_imported_surface() -> None:
    (imported,) = parse_profiles(["model,cpus,mem_gb,throughput", "m,1,10,0.5", "m,2,10,1.0"], at=0.0)
    given = {"key": "m", "source": "epilog", "at": 9.0, "gpu_type": "", "gpus_per_node": 1, "complete": True}
    busy = merge(imported, Measurement(cpus_used=0.5, cpus_allocated=2), **given)
    assert busy.surface == imported.surface
    own = Measurement(cpu_curve=(CurvePoint(cpus=1, steps_per_s=5.0), CurvePoint(cpus=2, steps_per_s=9.0)))
    assert merge(imported, own, **given).surface == ()


@pytest.mark.parametrize(
    "point",
    [
        SpeedPoint(cpus=0, mem_mib=1, speed=1.0),
        SpeedPoint(cpus=65_537, mem_mib=1, speed=1.0),
        SpeedPoint(cpus=1, mem_mib=0, speed=1.0),
        SpeedPoint(cpus=1, mem_mib=2 * 10**12, speed=1.0),
        SpeedPoint(cpus=1, mem_mib=1, speed=0.0),
        SpeedPoint(cpus=1, mem_mib=1, speed=1e300),
    ],
)
def test_one_implausible_point_makes_a_surface_implausible(point: SpeedPoint) -> None:
    good = SpeedPoint(cpus=1, mem_mib=1, speed=1.0)
    assert is_plausible_surface((good,))
    assert not is_plausible_surface((good, point))
    assert not is_plausible_surface((good,) * 257)


HEAD = "model,cpus,mem_gb,throughput"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a,b", "1,2"], "line 1: there is no column 'model'"),
        ([], "line 1: there is no column 'model'"),
        ([HEAD, "m,1,10"], "line 2: cpus, mem_gb and throughput must be numbers"),
        ([HEAD, "m,x,10,1"], "line 2: cpus, mem_gb and throughput must be numbers"),
        ([HEAD, "m,1,10,1", ",1,10,1"], "line 3: it names no model"),
        ([HEAD, "m\x1b[31m,1,10,1"], "line 2: it names no model"),
        ([HEAD, "m,1.5,10,1"], "line 2: a number is out of range"),
        ([HEAD, "m,1,10,nan"], "line 2: a number is out of range"),
        ([HEAD, "m,1,-10,1"], "line 2: a number is out of range"),
        ([HEAD, "m,nan,10,1"], "line 2: a number is out of range"),
    ],
)
def test_an_invalid_matrix_is_refused_with_its_line(lines: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_profiles(lines, at=0.0)
