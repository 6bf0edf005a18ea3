"""What the weights of busy neighbours are worth: JCT of a simulated month without and with them.

A synthetic site of nodes with 8 GPUs runs jobs of the same 60 programs in two months. Half of the programs are
sensitive: they lose speed beside jobs that keep CPUs busy, by a coefficient that placement does not know. In the first
month the score has its usual weights. From its runs the weights are fitted as at a site (profiling/contention.py): the
steps of 70 % of the runs are counted, with 3 % noise. The second month has other jobs; it is run once with the usual
weights and once with the fitted ones, by the score that gsub uses. Jobs start in the order of arrival on the node with
the lowest score. What is simulated is the assumption of the model itself, so this shows what placement makes of a true
effect, not how large the effect is anywhere. With the coefficient 0 both months must be equal.

    python bench/contention.py [--seeds 4] [--nodes 8] [--load 0.7]
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import exp, sqrt
from statistics import mean, stdev

from slurmwrap.model.cluster import NO_EVIDENCE, ContentionWeights, Node, NodeLoad
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.placement.node_ranking import score
from slurmwrap.placement.resource_units import ResourceUnits
from slurmwrap.profiling.contention import ComparedRun, fit_contention_weights, make_contention_cases

GPUS, CPUS, MIB = 8, 96, 1_000_000
MONTH_S = 30 * 86400.0
COEFFICIENTS = (0.0, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Program:
    """One user's program, as its pre-run has measured it."""

    uid: int
    name: str
    gpus: int
    cpus_per_gpu: float  # busy
    sensitive: bool
    mean_s: float  # of a run alone

    @property
    def profile(self) -> ResourceProfile:
        return ResourceProfile(
            key=self.name, cpus_per_gpu=self.cpus_per_gpu, sensitivity={"cpu": 1.3 if self.sensitive else 1.0}
        )


@dataclass
class Job:
    """A job, and its state while it is simulated. `left_s`: seconds that it would still run alone."""

    program: Program
    arrives: float
    alone_s: float
    left_s: float = 0.0
    node: int = -1
    starts: float = 0.0
    ends: float = 0.0
    speed: float = 1.0
    seen: float = 0.0  # until when `left_s` is right


@dataclass
class Site:
    """The nodes with the jobs that run on them, and the effect of neighbours."""

    nodes: int
    coefficient: float
    weights: ContentionWeights
    running: dict[int, list[Job]] = field(default_factory=lambda: defaultdict(list))

    def find_node(self, job: Job) -> int | None:
        """Return the node that gsub would choose now: no idle node is broken if another holds the job."""
        program = job.program
        need = ResourceUnits(
            units=1, gpus=program.gpus, cpus=program.gpus * CPUS // GPUS, mem_mib=program.gpus * MIB // GPUS
        )
        best: tuple[tuple[bool, float, int], int] | None = None
        for number in range(self.nodes):
            used = sum(other.program.gpus for other in self.running[number])
            if used + program.gpus > GPUS:
                continue
            name = str(number)
            node = Node(
                name=name, state="MIXED", gpus=GPUS, gpus_used=used, cpus=CPUS, cpus_alloc=used * CPUS // GPUS,
                mem_mib=MIB, mem_alloc_mib=used * MIB // GPUS,
            )  # fmt: skip
            busy = sum(other.program.gpus * other.program.cpus_per_gpu for other in self.running[number])
            loads = {name: NodeLoad(node=name, cpus_busy=busy)}
            total = score(node, 1, need, program.profile, loads, self.weights).total
            key = (not used and program.gpus < GPUS, total, number)
            best = (key, number) if best is None or key < best[0] else best
        return None if best is None else best[1]

    def change(self, number: int, now: float) -> None:
        """Bring the jobs of a node up to date after one has come or gone."""
        jobs = self.running[number]
        for job in jobs:
            job.left_s -= (now - job.seen) * job.speed
            job.seen = now
        for job in jobs:
            if job.program.sensitive:
                own = job.program.gpus * job.program.cpus_per_gpu / CPUS
                others = sum(o.program.gpus * o.program.cpus_per_gpu for o in jobs if o is not job) / CPUS
                job.speed = exp(-self.coefficient * own * min(1.0, others))
            job.ends = now + max(0.0, job.left_s) / job.speed


def make_programs(rng: random.Random) -> list[Program]:
    """Return 60 programs of 12 users; a third of them needs many CPUs."""
    return [
        Program(
            uid=number % 12,
            name=f"p{number}",
            gpus=rng.choice((1, 1, 1, 2, 2, 4)),
            cpus_per_gpu=rng.uniform(7, 11) if rng.random() < 0.35 else rng.uniform(0.5, 3),
            sensitive=rng.random() < 0.5,
            mean_s=rng.uniform(1, 8) * 3600,
        )
        for number in range(60)
    ]


def make_jobs(programs: Sequence[Program], rng: random.Random, *, nodes: int, load: float) -> list[Job]:
    """Return the jobs of a month whose GPU time alone is `load` of what the nodes have."""
    jobs, now = [], 0.0
    gpu_s = mean(program.gpus * program.mean_s for program in programs)
    while now < MONTH_S:
        now += rng.expovariate(load * nodes * GPUS / gpu_s)
        program = rng.choice(programs)
        alone_s = program.mean_s * rng.lognormvariate(-0.125, 0.5)
        jobs.append(Job(program=program, arrives=now, alone_s=alone_s, left_s=alone_s))
    return jobs


def simulate(jobs: Sequence[Job], site: Site) -> list[Job]:
    """Run all jobs and return them with their starts and ends."""
    done: list[Job] = []
    waiting: list[Job] = []
    coming = [replace(job) for job in reversed(jobs)]
    while coming or waiting or any(site.running.values()):
        first = min((job for there in site.running.values() for job in there), key=lambda job: job.ends, default=None)
        if first is not None and (not coming or first.ends <= coming[-1].arrives):
            now = first.ends
            site.running[first.node].remove(first)
            done.append(first)
            site.change(first.node, now)
        else:
            now = coming[-1].arrives
            waiting.append(coming.pop())
        while waiting and (number := site.find_node(waiting[0])) is not None:
            job = waiting.pop(0)
            job.node, job.starts, job.seen = number, now, now
            site.running[number].append(job)
            site.change(number, now)
    return done


def fit(done: Sequence[Job], rng: random.Random, nodes: int) -> ContentionWeights:
    """Return the weights that a site would publish after these runs."""
    runs = [
        ComparedRun(
            uid=job.program.uid,
            work=(job.program.name,) if rng.random() < 0.7 else (),
            nodes=(str(job.node),),
            gpus=job.program.gpus,
            start=job.starts,
            end=job.ends,
            steps_per_s=job.alone_s / (job.ends - job.starts) * rng.gauss(1.0, 0.03),
            cpus_used=job.program.gpus * job.program.cpus_per_gpu * rng.gauss(1.0, 0.05),
            sensitivity=job.program.profile.sensitivity,
        )
        for job in done
    ]
    known = {str(n): Node(name=str(n), state="IDLE", gpus=GPUS, cpus=CPUS, mem_mib=MIB) for n in range(nodes)}
    return fit_contention_weights(make_contention_cases(runs, known, {}))


def compare_month(coefficient: float, seed: int, nodes: int, load: float) -> dict[str, float]:
    """Return the fitted weight, and JCT and run time with it over those without it, in the second month."""
    rng = random.Random(seed)
    programs = make_programs(rng)
    first, second = (make_jobs(programs, rng, nodes=nodes, load=load) for _ in range(2))
    weights = fit(simulate(first, Site(nodes, coefficient, NO_EVIDENCE)), rng, nodes)
    plain, fitted = (simulate(second, Site(nodes, coefficient, one)) for one in (NO_EVIDENCE, weights))
    found = {"weight": weights.cpus, "pairs": float(weights.pairs)}
    for name, chosen in (("all", (True, False)), ("sensitive", (True,))):
        jct, ran = (
            [
                mean(job.ends - getattr(job, begin) for job in done if job.program.sensitive in chosen)
                for done in (fitted, plain)
            ]
            for begin in ("arrives", "starts")
        )
        found |= {f"jct {name}": jct[0] / jct[1] - 1, f"run {name}": ran[0] / ran[1] - 1}
    lost = [job.ends - job.starts - job.alone_s for job in plain if job.program.sensitive]
    found["lost"] = max(0.0, sum(lost)) / sum(job.alone_s for job in plain if job.program.sensitive)
    return found


def main() -> int:
    """Print a table; exit code 1 if weights change anything on a site without an effect."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--load", type=float, default=0.7)
    asked = parser.parse_args()
    print("Change of the mean with fitted weights, % (± 2 standard errors over seeds); lost: time of sensitive jobs")
    print(f"{'effect':>6} {'lost':>7} {'weight':>7}  {'JCT, all':>15} {'JCT, sensitive':>15} {'run, sensitive':>15}")
    unchanged = True
    for coefficient in COEFFICIENTS:
        rows = [compare_month(coefficient, seed, asked.nodes, asked.load) for seed in range(asked.seeds)]
        changes = [
            _format_change([row[name] for row in rows]) for name in ("jct all", "jct sensitive", "run sensitive")
        ]
        lost, weight = (mean(row[name] for row in rows) for name in ("lost", "weight"))
        print(f"{coefficient:6.1f} {100 * lost:6.1f}% {weight:7.2f}  " + " ".join(f"{one:>15}" for one in changes))
        unchanged &= coefficient > 0 or all(row["jct all"] == 0 and row["weight"] == 1.0 for row in rows)
    return 0 if unchanged else 1


def _format_change(values: Sequence[float]) -> str:
    error = 2 * stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{100 * mean(values):+.2f} ± {100 * error:.2f}"


if __name__ == "__main__":
    sys.exit(main())
