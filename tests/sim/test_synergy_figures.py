"""Figures of Synergy's simulator, reproduced by our engine and mechanisms, partly job by job.

4 servers of 8 GPUs, 24 CPUs and 500 GB with rounds of 300 s, unless stated otherwise.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from slurmwrap.cli.profile.profile_files import parse_profiles
from slurmwrap.placement.allocate import allocate
from slurmwrap.sim.engines.rounds_engine import play_rounds
from slurmwrap.sim.queue_policies import Fifo, Policy, Srtf
from slurmwrap.sim.run_simulation import Simulation, run_simulation
from slurmwrap.sim.sim_job import SimJob, make_equal_servers
from slurmwrap.sim.sim_outcome import TimeSummary, summarize_outcome
from slurmwrap.sim.trace.read_trace import read_load
from slurmwrap.sim.trace.synergy_loads import generate_load

pytestmark = pytest.mark.early

DATA = Path(__file__).resolve().parents[1] / "data"
HOUR = 3600.0
SLOW = pytest.mark.slow
with (DATA / "profiles" / "synergy_profiles.csv").open(newline="") as lines:
    PROFILES = {profile.key: profile for profile in parse_profiles(lines, at=0.0)}
with (DATA / "synergy" / "ended.csv").open(newline="") as lines:
    ENDED = list(csv.DictReader(lines))
COLUMNS = [name for name in ENDED[0] if name != "job"]


def make_simulation(
    jobs: tuple[SimJob, ...], policy: str, mechanism: str, *, servers: int = 4, **others: object
) -> Simulation:
    return Simulation(
        jobs=jobs,
        servers=make_equal_servers(servers, gpus=8, cpus=24, mem_gb=500),
        policy=policy,
        mechanism=mechanism,
        round_s=300.0,
        profiles=PROFILES,
        **others,
    )


def load_trace(name: str) -> tuple[SimJob, ...]:
    return read_load(DATA / "traces" / f"{name}.csv").jobs


def to_hours(summary: TimeSummary) -> tuple[float, float, float]:
    """Makespan, mean and p99 of the JCT in hours, rounded like Synergy's figures."""
    return (
        round(summary.makespan_s / HOUR, 2),
        round(summary.mean_jct_s / HOUR, 3),
        round(summary.p99_jct_s / HOUR, 2),
    )


@pytest.mark.parametrize(
    "column", [*COLUMNS[::3], *(pytest.param(c, marks=SLOW) for c in COLUMNS if c not in COLUMNS[::3])]
)
def test_every_job_ends_at_the_same_time_as_in_synergys_simulator(column: str) -> None:
    policy, mechanism, placement = column.split(":")
    jobs = tuple(
        replace(job, gpus=16) if job.number % 17 == 5 else job
        for job in generate_load("synergy-dynamic", seed=3, jobs=150, jobs_per_hour=12, gpu_demand="synthetic")
    )
    outcome, _ = run_simulation(make_simulation(jobs, policy, mechanism, placement=placement, las_thresholds=()))
    assert outcome.ended_s == tuple(float(row[column]) for row in ENDED)


@pytest.mark.parametrize("mechanism", ["tune", "greedy"])
def test_las_and_2d_las_give_the_same_run(mechanism: str) -> None:
    """Also for Synergy's special cases with LAS: greedy does not get the whole queue, tune takes large jobs first."""
    jobs = generate_load("synergy-dynamic", seed=3, jobs=40, jobs_per_hour=30, gpu_demand="synthetic")
    by_one, by_other = (run_simulation(make_simulation(jobs, name, mechanism, servers=2)) for name in ("las", "2d-las"))
    assert by_one == by_other


@pytest.mark.parametrize(
    ("mechanism", "figures"),
    [
        ("proportional", (15.25, 5.631, 12.94)),
        ("tune", (11.00, 5.083, 10.59)),
        ("greedy", (12.33, 5.494, 11.76)),
        # Synergy's mean is 4.662: the program does not define which of equal jobs is faster
        pytest.param("opt", (10.58, 4.668, 10.09), marks=SLOW),
    ],
)
def test_fifo_on_the_static_trace_gives_synergys_figures(mechanism: str, figures: tuple[float, float, float]) -> None:
    assert to_hours(run_simulation(make_simulation(load_trace("synergy_static100"), "fifo", mechanism))[1]) == figures


@pytest.mark.parametrize(
    ("mechanism", "figures"),
    [
        ("proportional", (19.50, 3.907, 14.19)),
        ("tune", (13.25, 3.188, 10.27)),
        ("greedy", (13.91, 3.233, 11.58)),  # Synergy counts from 0, 8 s before the first submission: 13.92
        pytest.param("opt", (12.83, 3.093, 10.26), marks=SLOW),
    ],
)
def test_srtf_on_the_dynamic_trace_gives_synergys_figures(mechanism: str, figures: tuple[float, float, float]) -> None:
    assert to_hours(run_simulation(make_simulation(load_trace("synergy_dynamic100"), "srtf", mechanism))[1]) == figures


@pytest.mark.parametrize(
    ("name", "policy", "figures"),
    [("synergy_static100", Fifo(), (11.00, 5.083, 10.59)), ("synergy_dynamic100", Srtf(), (13.25, 3.188, 10.27))],
    ids=["static", "dynamic"],
)
def test_policy_tune_of_production_gives_the_same_figures(
    name: str, policy: Policy, figures: tuple[float, float, float]
) -> None:
    jobs, servers = load_trace(name), make_equal_servers(4, gpus=8, cpus=24, mem_gb=500)
    outcome = play_rounds(jobs, servers, policy, partial(allocate, policy="tune"), profiles=PROFILES, round_s=300.0)
    assert to_hours(summarize_outcome(jobs, outcome, servers)) == figures


@pytest.mark.parametrize(
    ("policy", "mechanism", "count", "window", "figures"),
    [
        pytest.param("fifo", "proportional", 10_000, range(4000, 5000), (81.089, 214.610, 70.703), marks=SLOW),
        pytest.param("fifo", "tune", 10_000, range(4000, 5000), (21.877, 156.933, 10.826), marks=SLOW),
        pytest.param("srtf", "tune", 10_000, range(4000, 5000), (16.603, 182.171, 3.898), marks=SLOW),
        # the beginning of the same load; values of this program at a time when the rows above passed
        ("fifo", "proportional", 300, range(100, 200), (22.673, 165.005, 6.356)),
        ("fifo", "tune", 300, range(100, 200), (19.764, 165.005, 5.819)),
    ],
)
def test_synergys_documented_check_on_128_gpus(
    policy: str, mechanism: str, count: int, window: range, figures: tuple[float, float, float]
) -> None:
    """Jobs 4000 to 4999 of an endless load at 9 jobs per hour; with 10,000 jobs these never run alone.

    Mean, p99 and median of the JCT in hours.
    """
    jobs = generate_load("synergy-dynamic", seed=42, jobs=count, jobs_per_hour=9, split=(20, 70, 10), run_times="gavel")
    _, summary = run_simulation(make_simulation(jobs, policy, mechanism, servers=16, window=window))
    found = (summary.mean_jct_s, summary.p99_jct_s, summary.median_jct_s)
    assert tuple(round(seconds / HOUR, 3) for seconds in found) == figures


STATIC = (1.0533, 1.129, 1.1613, 1.0353, 1.0402, 1.052, 1.0855, 1.0385, 1.1557, 1.1333)
DYNAMIC = (1.2104, 1.2096, 1.1943, 1.1773, 1.1964, 1.2056, 1.1931, 1.1847, 1.1551, 1.2022)


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=SLOW) for seed in range(3, 11))])
def test_generated_loads_gain_as_much_from_tune_as_in_synergys_simulator(seed: int) -> None:
    """Makespan (static, FIFO) and mean JCT (dynamic, SRTF): proportional divided by tune, as in Synergy's simulator."""
    static, dynamic = generate_load("synergy-static", seed=seed), generate_load("synergy-dynamic", seed=seed)
    makespans = [
        run_simulation(make_simulation(static, "fifo", name))[1].makespan_s for name in ("proportional", "tune")
    ]
    means = [run_simulation(make_simulation(dynamic, "srtf", name))[1].mean_jct_s for name in ("proportional", "tune")]
    assert round(makespans[0] / makespans[1], 4) == STATIC[seed - 1]
    assert round(means[0] / means[1], 4) == DYNAMIC[seed - 1]
