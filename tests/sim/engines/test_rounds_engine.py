"""The rounds engine: leases, held GPUs, and calls of policy and mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path

import pytest

from slurmwrap.errors import TraceError
from slurmwrap.model.resource_profile import ResourceProfile, SpeedPoint
from slurmwrap.placement.allocate import allocate_proportional
from slurmwrap.placement.demand import Allocation, JobDemand, Server
from slurmwrap.sim.engines.rounds_engine import play_rounds
from slurmwrap.sim.mechanism.mechanism import Habits
from slurmwrap.sim.queue_policies import make_policy
from slurmwrap.sim.sim_job import SimJob, make_equal_servers
from slurmwrap.sim.sim_outcome import SimOutcome
from slurmwrap.sim.trace.read_trace import read_load

TWO_GPUS = make_equal_servers(1, gpus=2, cpus=6, mem_gb=125)
TWO_SERVERS = make_equal_servers(2, gpus=4, cpus=12, mem_gb=250)
KNOWN = {"net": ResourceProfile(key="net", surface=(SpeedPoint(cpus=3, mem_mib=64_000, speed=1.0),))}


def job(number: int, submit_s: float, work_s: float, gpus: int = 1, model: str = "") -> SimJob:
    return SimJob(number=number, job=f"j{number}", submit_s=submit_s, work_s=work_s, gpus=gpus, model=model)


def play(
    jobs: Sequence[SimJob],
    policy: str = "fifo",
    *,
    servers: Sequence[Server] = TWO_GPUS,
    round_s: float = 0.0,
    placement: str = "any",
) -> SimOutcome:
    return play_rounds(
        jobs,
        servers,
        make_policy(policy, jobs),
        allocate_proportional,
        profiles={},
        round_s=round_s,
        placement=placement,
    )


@dataclass(slots=True, kw_only=True)
class DoubleSpeed:
    """A mechanism that doubles the speed of the first job and records the jobs of each call."""

    calls: list[list[str]] = field(default_factory=list)

    def __call__(self, claims: Sequence[JobDemand], servers: Sequence[Server]) -> list[Allocation]:
        self.calls.append([claim.job for claim in claims])
        return [
            Allocation(job=claim.job, cpus=3, mem_mib=64_000, servers=(servers[0].name,), speed=1.0 if place else 2.0)
            for place, claim in enumerate(claims)
        ]


def test_an_empty_trace_gives_an_empty_outcome() -> None:
    assert play(()) == SimOutcome(mode="rounds", began_s=(), ended_s=(), held_s=(), servers=())


def test_a_shorter_job_preempts_a_longer_one_which_continues_later() -> None:
    outcome = play((job(0, 5, 100, gpus=2), job(1, 25, 30, gpus=2)), "srtf")
    assert replace(outcome, steps=0) == SimOutcome(
        mode="rounds",
        began_s=(5.0, 25.0),
        ended_s=(135.0, 55.0),
        held_s=(100.0, 30.0),
        servers=(1, 1),
        preemptions=1,
    )


def test_in_rounds_jobs_start_and_end_at_round_boundaries() -> None:
    outcome = play((job(0, 0, 100), job(1, 310, 300), job(2, 320, 301)), round_s=300)
    assert outcome.began_s == (0.0, 600.0, 600.0)
    assert outcome.ended_s == (300.0, 900.0, 1200.0)
    assert outcome.held_s == (300.0, 300.0, 600.0)


def test_rounds_begin_at_1_s_if_all_jobs_are_submitted_at_once() -> None:
    assert play((job(0, 0, 100), job(1, 0.5, 100)), round_s=300).ended_s == (301.0, 301.0)


def test_rounds_begin_at_multiples_of_the_round_length() -> None:
    assert play((job(0, 301, 100), job(1, 900, 100)), round_s=300).began_s == (600.0, 900.0)


def test_a_round_contains_only_whole_iterations() -> None:
    # res50 takes 0.78 s: 384 iterations in 300 s, so 400 (312 s) and 768 (599.04 s) both take two rounds, 769 three
    jobs = tuple(job(n, 0, 0.78 * count, model="res50") for n, count in enumerate((384, 400, 768, 769)))
    assert play(jobs, servers=TWO_SERVERS, round_s=300).held_s == (300.0, 600.0, 600.0, 900.0)


def test_in_rounds_smaller_jobs_pass_a_job_that_does_not_fit() -> None:
    jobs = (job(0, 0, 250), job(1, 10, 50, gpus=2), job(2, 20, 30))
    assert play(jobs, round_s=100).began_s == (0.0, 300.0, 100.0)


def test_first_fit_lets_jobs_pass_without_preemption() -> None:
    jobs = (job(0, 0, 100), job(1, 10, 50, gpus=2), job(2, 20, 200))
    outcome = play(jobs, "fjf")
    assert outcome.began_s == (0.0, 220.0, 20.0)
    assert outcome.preemptions == 0


def test_plain_las_without_rounds_is_called_before_a_job_ends() -> None:
    jobs = (job(0, 0, 3000, gpus=2), job(1, 1000, 2000, gpus=2))
    outcome = play_rounds(
        jobs, TWO_GPUS, make_policy("las", jobs, thresholds=()), allocate_proportional, profiles={}, round_s=0
    )
    assert outcome.began_s == (0.0, 1000.0)
    assert outcome.preemptions > 2
    assert sorted(outcome.held_s) == [2000.0, 3000.0]


def test_a_window_ends_the_run_with_its_last_job() -> None:
    jobs = (job(0, 0, 1000), job(1, 0, 10), job(2, 500, 10))
    outcome = play_rounds(
        jobs, TWO_GPUS, make_policy("fifo", jobs), allocate_proportional, profiles={}, round_s=0, window=range(1, 2)
    )
    assert outcome.ended_s == (None, 10.0, None)
    assert outcome.began_s == (0.0, 0.0, None)
    assert outcome.held_s == (10.0, 10.0, 0.0)  # the first job still runs


def test_progress_is_reported_up_to_the_last_job() -> None:
    reports: list[tuple[int, int]] = []
    jobs = (job(0, 0, 10), job(1, 0, 10), job(2, 5, 10))
    play_rounds(
        jobs, TWO_GPUS, make_policy("fifo", jobs), allocate_proportional, profiles={}, round_s=0,
        progress=lambda ended, count: reports.append((ended, count)),
    )  # fmt: skip
    assert reports == [(2, 3), (3, 3)]


def test_a_job_larger_than_the_cluster_is_refused_with_its_line() -> None:
    big = replace(job(0, 0, 10, gpus=9), line=17)
    with pytest.raises(TraceError, match="line 17: job j0 asks for 9 GPUs, the cluster has 8"):
        play((big,), servers=TWO_SERVERS)


def test_with_consolidate_a_job_waits_for_one_server_although_gpus_are_free() -> None:
    jobs = (job(0, 0, 100, gpus=3), job(1, 0, 200, gpus=3), job(2, 10, 50, gpus=2))
    assert play(jobs, servers=TWO_SERVERS).began_s[2] == 10.0
    assert play(jobs, servers=TWO_SERVERS, placement="consolidate").began_s[2] == 100.0


def test_with_consolidate_a_large_job_uses_idle_servers_and_shares_the_last() -> None:
    jobs = (job(0, 0, 100, gpus=2), job(1, 0, 100, gpus=6), job(2, 0, 100, gpus=1))
    outcome = play(jobs, servers=TWO_SERVERS, placement="consolidate")
    assert outcome.began_s == (0.0, 0.0, 100.0)
    assert outcome.servers == (1, 2, 1)


def test_with_consolidate_a_shorter_job_clears_a_server_and_a_displaced_job_moves() -> None:
    jobs = (job(0, 0, 100, gpus=4), job(1, 0, 900), job(2, 0, 800, gpus=2), job(3, 50, 10, gpus=4))
    outcome = play(jobs, "srtf", servers=TWO_SERVERS, placement="consolidate")
    assert outcome.began_s == (0.0, 0.0, 0.0, 50.0)
    assert outcome.ended_s == (100.0, 910.0, 810.0, 60.0)
    assert outcome.preemptions == 2


def test_with_placement_skew_only_skewed_models_wait_for_one_server() -> None:
    def begins(model: str) -> float | None:
        others = (job(0, 0, 100, gpus=3, model="vgg11"), job(1, 0, 200, gpus=3, model="vgg11"))
        jobs = (*others, job(2, 10, 50, gpus=2, model=model))
        return play(jobs, servers=TWO_SERVERS, placement="skew").began_s[2]

    assert {model: begins(model) for model in ("vgg16", "resnet50", "")} == {"vgg16": 100.0, "resnet50": 10.0, "": 10.0}


def test_an_unknown_placement_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no placement 'near': any, consolidate, skew"):
        play((job(0, 0, 1),), placement="near")


def test_a_job_runs_at_the_current_speed_of_its_allocation() -> None:
    mechanism = DoubleSpeed()
    jobs = (job(0, 0, 100, model="net"), job(1, 0, 100, model="net"))
    outcome = play_rounds(jobs, TWO_GPUS, make_policy("fifo", jobs), mechanism, profiles=KNOWN, round_s=0)
    # the second: 50 s at speed 1, then it is first, with 50 s of work at speed 2
    assert outcome.ended_s == (50.0, 75.0)


def test_the_mechanism_is_called_only_if_the_running_jobs_or_their_order_change() -> None:
    mechanism = DoubleSpeed()
    jobs = tuple(job(n, n * 1000, 2950 if n else 10_000, model="net") for n in range(2))
    play_rounds(jobs, TWO_GPUS, make_policy("fifo", jobs), mechanism, profiles=KNOWN, round_s=100)
    assert mechanism.calls[1:] == [["0"], ["0", "1"], ["0"]]  # the first call asks for the speed of the job alone


def test_the_mechanism_is_not_called_for_jobs_without_a_profile() -> None:
    mechanism = DoubleSpeed()
    jobs = (job(0, 0, 100, model="other"),)
    assert play_rounds(jobs, TWO_GPUS, make_policy("fifo", jobs), mechanism, profiles=KNOWN, round_s=0).ended_s == (
        100.0,
    )
    assert mechanism.calls == []


def test_with_whole_queue_the_mechanism_gets_the_whole_queue() -> None:
    mechanism = DoubleSpeed()
    jobs = tuple(job(n, 0, 100, gpus=2, model="net") for n in range(2))
    play_rounds(
        jobs, TWO_GPUS, make_policy("fifo", jobs), mechanism, profiles=KNOWN, round_s=300,
        habits=Habits(whole_queue=True),
    )  # fmt: skip
    assert mechanism.calls[1] == ["0", "1"]


def test_a_job_that_does_not_fit_on_empty_servers_is_an_error() -> None:
    def never(claims: Sequence[JobDemand], servers: Sequence[Server]) -> list[Allocation]:
        return [Allocation(job=claim.job, cpus=3, mem_mib=64_000) for claim in claims]

    jobs = (job(0, 0, 100, model="net"),)
    with pytest.raises(TraceError, match="job 0 of the trace does not fit, not even on empty servers"):
        play_rounds(jobs, TWO_GPUS, make_policy("fifo", jobs), never, profiles=KNOWN, round_s=300)


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["any", "consolidate"])
@pytest.mark.parametrize("round_s", [0.0, 300.0])
def test_every_job_of_the_philly_trace_ends_after_holding_its_gpus_for_its_work(placement: str, round_s: float) -> None:
    jobs = tuple(read_load(Path(__file__).parents[2] / "data" / "traces" / "philly.csv.gz").jobs)
    servers = make_equal_servers(64, gpus=8, cpus=32, mem_gb=512)
    outcome = play_rounds(
        jobs, servers, make_policy("srsf", jobs), allocate_proportional,
        profiles={}, round_s=round_s, placement=placement,
    )  # fmt: skip
    assert len(jobs) == 82_247
    assert None not in outcome.ended_s
    needed = [ceil(job.work_s / round_s) * round_s if round_s else job.work_s for job in jobs]
    assert outcome.held_s == pytest.approx(needed, abs=1e-3)
