"""Every combination of mechanism, mode, placement and policy on random clusters.

All jobs end, and no server is overfilled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.cli.profile.profile_files import parse_profiles
from slurmwrap.placement.demand import Allocation, JobDemand, Server
from slurmwrap.sim.engines import rounds_engine
from slurmwrap.sim.mechanism.mechanism import Mechanism
from slurmwrap.sim.mechanism.mechanism_registry import MECHANISMS, make_habits, make_mechanism
from slurmwrap.sim.model_skew import PLACEMENTS
from slurmwrap.sim.queue_policies import POLICIES, make_policy
from slurmwrap.sim.run_simulation import IN_SLURM, Simulation, run_simulation
from slurmwrap.sim.sim_job import SimJob, make_equal_servers

_CSV = (Path(__file__).parents[1] / "data" / "profiles" / "synergy_profiles.csv").read_text()
PROFILES = {one.key: one for one in parse_profiles(_CSV.splitlines(), at=0.0)}
MODELS = ("", "vgg16", *PROFILES)  # unknown model, model of known skew, models with profiles
COMBINATIONS = [*product(("rounds",), MECHANISMS, PLACEMENTS), *product(("slurm",), IN_SLURM, PLACEMENTS)]
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    servers: tuple[Server, ...]
    jobs: tuple[SimJob, ...]
    policy: str
    round_s: float
    profiled: bool


@st.composite
def draws(draw: st.DrawFn, most_jobs: int = 8) -> Drawn:
    """Includes jobs that cannot be divided equally over the servers, and impossible numbers of nodes."""
    size, count = draw(st.sampled_from((1, 2, 3, 4, 8))), draw(st.integers(1, 4))
    per_gpu = draw(st.integers(1, 4))
    servers = make_equal_servers(count, gpus=size, cpus=size * per_gpu + draw(st.integers(0, 1)), mem_gb=size * 62.5)
    profiled = draw(st.booleans())
    jobs, at = [], 0.0
    for number in range(draw(st.integers(1, most_jobs))):
        at += draw(st.sampled_from((0.0, 10.0, 400.0)))
        gpus = draw(st.one_of(st.integers(1, min(4, size * count)), st.integers(1, size * count)))
        jobs.append(
            SimJob(
                number=number,
                job=f"j{number}",
                submit_s=at,
                work_s=draw(st.sampled_from((1.0, 50.0, 300.0, 7000.5))),
                gpus=gpus,
                nodes=draw(st.none() | st.integers(1, min(gpus, count))),
                cpus=draw(st.none() | st.just(gpus * draw(st.integers(1, per_gpu)))),
                mem_mib=draw(st.none() | st.just(gpus * 1024 * draw(st.integers(1, 60)))),
                limit_s=draw(st.sampled_from((None, None, 500.0))),
                model=draw(st.sampled_from(MODELS)),
            )
        )
    return Drawn(
        servers=servers,
        jobs=tuple(jobs),
        policy=draw(st.sampled_from(POLICIES)),
        round_s=draw(st.sampled_from((0.0, 300.0))),
        profiled=profiled,
    )


@pytest.mark.parametrize(("mode", "mechanism", "placement"), COMBINATIONS)
@settings(max_examples=6, deadline=None)
@given(drawn=draws())
def test_all_jobs_end_and_hold_no_more_gpus_than_the_cluster_has(
    mode: str, mechanism: str, placement: str, drawn: Drawn
) -> None:
    outcome, summary = run_simulation(
        Simulation(
            jobs=drawn.jobs, servers=drawn.servers, policy=drawn.policy, mechanism=mechanism, placement=placement,
            mode=mode, round_s=drawn.round_s, profiles=PROFILES if drawn.profiled else {},
        )
    )  # fmt: skip
    total, size = sum(server.gpus for server in drawn.servers), drawn.servers[0].gpus
    runs = [
        (began, ended, job.gpus)
        for job, began, ended in zip(drawn.jobs, outcome.began_s, outcome.ended_s, strict=True)
        if began is not None and ended is not None and job.submit_s <= began < ended
    ]
    assert len(runs) == len(drawn.jobs) == summary.jobs
    if mode == "slurm":  # in rounds a job may be preempted between begin and end
        begun = [sum(gpus for b, e, gpus in runs if b <= moment < e - ROUNDING) for moment, _, _ in runs]
        assert max(begun) <= total
    held = sum(s * job.gpus for s, job in zip(outcome.held_s, drawn.jobs, strict=True))
    assert held <= total * (max(ended for _, ended, _ in runs) - drawn.jobs[0].submit_s) + ROUNDING
    least = [-(-job.gpus // size) for job in drawn.jobs]
    assert all(few <= had <= len(drawn.servers) for few, had in zip(least, outcome.servers, strict=True))


@pytest.mark.parametrize("consolidate", [False, True])
@pytest.mark.parametrize("mechanism", MECHANISMS)
@settings(max_examples=6, deadline=None)
@given(drawn=draws())
def test_no_mechanism_overfills_a_server_in_rounds(mechanism: str, consolidate: bool, drawn: Drawn) -> None:
    unchecked = make_mechanism(mechanism, leases=True, consolidate=consolidate, largest_first=drawn.policy == "las")
    checked = _check_allocations(unchecked, pooled=mechanism == "opt")
    outcome = rounds_engine.play_rounds(
        drawn.jobs, drawn.servers, make_policy(drawn.policy, drawn.jobs), checked,
        profiles=PROFILES, round_s=drawn.round_s, habits=make_habits(mechanism, drawn.policy),
    )  # fmt: skip
    assert None not in outcome.ended_s


def _check_allocations(mechanism: Mechanism, *, pooled: bool) -> Mechanism:
    """The same mechanism with checks of its allocations. `pooled`: CPUs and memory of all servers count together."""

    def checked(claims: Sequence[JobDemand], servers: Sequence[Server]) -> Sequence[Allocation]:
        grants = mechanism(claims, servers)
        gpus, cpus, mem_mib = (defaultdict[str, float](float) for _ in range(3))
        for claim, grant in zip(claims, grants, strict=True):
            for name in grant.servers:
                units = claim.gpus // len(grant.servers)  # a server is listed once per GPU, or once per node
                gpus[name] += units
                where = "" if pooled else name
                cpus[where] += units * grant.cpus
                mem_mib[where] += units * grant.mem_mib
            assert not grant.servers or claim.gpus % len(grant.servers) == 0
        for server in servers:
            assert gpus[server.name] <= server.gpus
            assert cpus[server.name] <= server.cpus + ROUNDING
            assert mem_mib[server.name] <= server.mem_mib + ROUNDING
        assert cpus[""] <= sum(server.cpus for server in servers) + ROUNDING
        assert mem_mib[""] <= sum(server.mem_mib for server in servers) + ROUNDING
        return grants

    return checked


@pytest.mark.parametrize(
    ("gpus", "size", "count", "servers"), [(16, 8, 2, 2), (12, 8, 2, 2), (3, 2, 2, 2), (3, 4, 2, 1)]
)
@pytest.mark.parametrize("mechanism", ["proportional", "greedy", "tune", "graded"])
def test_a_consolidated_job_uses_the_fewest_servers(
    mechanism: str, gpus: int, size: int, count: int, servers: int
) -> None:
    """Also for three GPUs on servers of two GPUs, which are not equal parts."""
    job = SimJob(number=0, job="j", submit_s=0.0, work_s=60.0, gpus=gpus, model="res18")
    simulation = Simulation(
        jobs=(job,), mechanism=mechanism,
        servers=make_equal_servers(count, gpus=size, cpus=3 * size, mem_gb=62.5 * size),
        placement="consolidate", profiles=PROFILES,
    )  # fmt: skip
    assert run_simulation(simulation)[0].servers == (servers,)
