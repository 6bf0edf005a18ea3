"""Work and speed of the jobs of a trace.

The servers have 8 GPUs, 24 CPUs and 500 GB, that is 3 CPUs and 64,000 MiB per GPU.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmwrap.model.resource_profile import CurvePoint, ResourceProfile
from slurmwrap.placement.demand import JobDemand, SpeedPoint
from slurmwrap.sim.sim_job import SimJob, make_equal_servers
from slurmwrap.sim.sim_throughput import compute_job_shape, compute_share_work_s, list_model_speeds, make_sim_demand

SERVER = make_equal_servers(1, gpus=8, cpus=24, mem_gb=500)[0]
SPEEDS = (
    SpeedPoint(cpus=1, mem_mib=64_000, speed=0.5),
    SpeedPoint(cpus=3, mem_mib=64_000, speed=1.0),
    SpeedPoint(cpus=6, mem_mib=64_000, speed=1.6),
)
JOB = SimJob(number=3, job="three", submit_s=0, work_s=1000, gpus=2, model="net")


def test_a_profile_without_speeds_is_left_out() -> None:
    known = ResourceProfile(key="net", surface=SPEEDS)
    assert list_model_speeds({"net": known, "blank": ResourceProfile(key="blank")}, SERVER) == {"net": SPEEDS}


def test_a_cpu_curve_applies_at_the_memory_of_the_share() -> None:
    profile = ResourceProfile(key="net", cpu_curve=(CurvePoint(cpus=4, steps_per_s=2.0),))
    assert list_model_speeds({"net": profile}, SERVER) == {"net": (SpeedPoint(cpus=4, mem_mib=64_000, speed=2.0),)}


@pytest.mark.parametrize(
    ("cpus", "work_s"),
    [(None, 1000.0), (6, 1000.0), (12, 1600.0), (2, 500.0)],
    ids=["at its share", "says its share", "ran faster", "ran slower"],
)
def test_the_work_is_the_run_time_converted_to_the_share(cpus: int | None, work_s: float) -> None:
    assert compute_share_work_s(replace(JOB, cpus=cpus), SPEEDS, SERVER) == pytest.approx(work_s)


def test_the_work_is_the_run_time_if_its_speed_is_unknown() -> None:
    assert compute_share_work_s(replace(JOB, mem_mib=2000), SPEEDS, SERVER) == 1000.0
    assert compute_share_work_s(replace(JOB, cpus=64), (), SERVER) == 1000.0


@pytest.mark.parametrize(
    ("gpus", "nodes", "expected"),
    [(4, None, (1, 4)), (8, None, (1, 8)), (12, None, (2, 6)), (11, None, (11, 1)), (4, 2, (2, 2)), (4, 3, (4, 1))],
)
def test_a_job_is_divided_into_the_fewest_equal_parts(gpus: int, nodes: int | None, expected: tuple[int, int]) -> None:
    assert compute_job_shape(replace(JOB, gpus=gpus, nodes=nodes), SERVER) == expected


def test_the_demand_contains_request_speeds_and_run_time() -> None:
    assert make_sim_demand(replace(JOB, cpus=12, mem_mib=20_000), SPEEDS, SERVER) == JobDemand(
        job="3", gpus_per_node=2, cpus=6.0, mem_mib=10_000, speeds=SPEEDS, run_s=1000.0
    )


def test_a_job_without_speeds_demands_its_share() -> None:
    claim = make_sim_demand(replace(JOB, cpus=20, mem_mib=1000), (), SERVER)
    assert (claim.cpus, claim.mem_mib, claim.speeds) == (3.0, 64_000, ())


def test_a_demand_does_not_exceed_a_server() -> None:
    claim = make_sim_demand(replace(JOB, cpus=400, mem_mib=10_000_000), SPEEDS, SERVER)
    assert (claim.cpus, claim.mem_mib) == (12.0, 256_000)
