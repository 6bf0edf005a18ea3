"""Synergy's round loop: every 300 s all leases end, everything is released, and the chosen jobs are placed anew.

The check that the policy `tune` is Synergy-Tune as published: docs/placement.md compares what this gives with what the
authors' own simulator gives on the same traces. So it keeps that simulator's ways (msr-fiddle/synergy, 1bb2bed6): whole
iterations per round, the first round one second after the first job, and a remaining time reckoned at the speed that
the job had in the last round.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from math import floor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from replay.generator import ITERATION_S
from replay.tracefile import SHARE, TraceJob
from slurmwrap.placement.allocate import allocate
from slurmwrap.placement.claim import Claim, Grant, Server, SpeedPoint
from slurmwrap.placement.room import rooms_of

ROUND_S = 300.0
FIRST_S = 1.0
Speeds = Mapping[str, tuple[SpeedPoint, ...]]
Round = Callable[[Sequence[Claim], Sequence[Server]], tuple[Grant, ...]]


def by_policy(name: str) -> Round:
    """`proportional` or `tune`, by the package's own allocate()."""
    return lambda claims, servers: allocate(claims, servers, name)


def greedy(claims: Sequence[Claim], servers: Sequence[Server]) -> tuple[Grant, ...]:
    """Synergy's baseline: the best demand on the first server that has it, or not in this round. One-GPU jobs."""
    rooms = rooms_of(servers)
    grants = []
    for claim in claims:
        best = _best(claim)
        room = next((room for room in rooms if room.holds(1, best.cpus, best.mem_mib)), None)
        if room is not None:
            room.take(1, best.cpus, best.mem_mib)
        names = () if room is None else (room.server.name,)
        grants.append(Grant(job=claim.job, cpus=best.cpus, mem_mib=best.mem_mib, servers=names, speed=best.speed))
    return tuple(grants)


def play_rounds(
    jobs: Sequence[TraceJob],
    speeds: Speeds,
    servers: Sequence[Server],
    policy: Round,
    *,
    shortest: bool = False,
    at_share: bool = False,
) -> tuple[float, ...]:
    """When each job ended, seconds: the end of its last round. One-GPU jobs of the generator's models.

    `shortest`: by remaining time (SRTF) instead of arrival. `at_share`: that is reckoned at the proportional share, as
    the authors do for the proportional policy.
    """
    claims = [claim_of(job, speeds) for job in jobs]
    best = [1.0 if at_share else _best(claim).speed for claim in claims]
    left = [round(job.work_s / ITERATION_S[job.model]) for job in jobs]
    ended, last = [0.0] * len(jobs), list(best)
    now, waiting = FIRST_S, set(range(len(jobs)))
    gpus = sum(server.gpus for server in servers)

    def remaining(number: int) -> float:
        return left[number] * ITERATION_S[jobs[number].model] / last[number]

    while waiting:
        here = sorted(number for number in waiting if jobs[number].submit_s <= now)
        chosen = sorted(here, key=remaining)[:gpus] if shortest else here[:gpus]
        grants = policy([claims[number] for number in chosen], servers)
        last = list(best)
        for number, grant in zip(chosen, grants, strict=True):
            speed = grant.speed or 1.0
            last[number] = 1.0 if at_share else speed
            if grant.servers:
                left[number] -= floor(ROUND_S / (ITERATION_S[jobs[number].model] / speed))
            if left[number] <= 0:
                ended[number] = now + ROUND_S
                waiting.remove(number)
        now += ROUND_S
    return tuple(ended)


def claim_of(job: TraceJob, speeds: Speeds) -> Claim:
    return Claim(job=str(job.number), gpus_per_node=job.gpus, cpus=SHARE[0], mem_mib=SHARE[1], speeds=speeds[job.model])


def _best(claim: Claim) -> SpeedPoint:
    """The fewest CPUs, then the least memory, of the fastest points."""
    return min(claim.speeds, key=lambda point: (-point.speed, point.cpus, point.mem_mib))
