"""Random requests, profiles and node histories, and the answers of a real sbatch to them with and without a plan."""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from waiting import allow

from slurmwrap.config.load_config import Config, Placement
from slurmwrap.errors import SlurmwrapError
from slurmwrap.model.cluster import NodeHealth, NodeLoad, Snapshot
from slurmwrap.model.hostlist import expand
from slurmwrap.model.placement_plan import PlacementPlan
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.placement.plan_placement import plan
from slurmwrap.placement.slurm_options import PlanningFacts
from slurmwrap.sbatch.job_request import JobRequest
from slurmwrap.sbatch.parse_request import parse_request
from slurmwrap.sbatch.rewrite import render

SCRIPT = "#!/bin/sh\ntrue\n"
_STARTS = re.compile(r"using (\d+) processors on nodes (\S+) in partition (\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One request as its user would write it, its plan, and the options with and without the plan."""

    seed: int
    asked: tuple[str, ...]
    request: JobRequest
    plan: PlacementPlan
    rendered: tuple[str, ...]

    @property
    def changed(self) -> bool:
        """Whether the plan requests something that the user did not request."""
        return self.rendered != self.asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of `sbatch --test-only`; `nodes` and `cpus` if it named them."""

    accepted: bool
    said: str
    nodes: tuple[str, ...] = ()
    cpus: int = 0


def make_trials(snapshot: Snapshot, seeds: Sequence[int]) -> Iterator[Trial]:
    """One trial for each seed whose request can be parsed. sbatch refuses the other requests itself."""
    names = [node.name for node in snapshot.nodes]
    for seed in seeds:
        chance = random.Random(seed)
        asked = tuple(_options(chance, names))
        if "--spread-job" in asked:  # crashes slurmctld 24.11.5 with switches; slurmwrap plans no placement for it
            continue
        try:
            request = parse_request(
                asked, environ={}, cwd="/", read_script=lambda path: b"", read_stdin=lambda: SCRIPT.encode()
            )
        except SlurmwrapError:
            continue
        found = plan(
            request, _profile(chance), snapshot, _health(chance, names), _config(chance), _outlook(chance, names)
        )
        batch = render(request, found.lines)
        yield Trial(seed=seed, asked=render(request, ()).options, request=request, plan=found, rendered=batch.options)


def run_sbatch_test_only(
    calls: Sequence[Sequence[str]], environ: Mapping[str, str], account: Mapping[str, object], workers: int = 3
) -> list[Answer]:
    """The answer of `sbatch --test-only` to each, in order; `workers` at a time."""

    def run_one(options: Sequence[str]) -> Answer:
        done = subprocess.run(
            ["sbatch", "--test-only", *options], input=SCRIPT, capture_output=True, text=True, timeout=allow(60),
            cwd="/", env=dict(environ), check=False, **account,
        )  # type: ignore[call-overload]  # fmt: skip
        starts = _STARTS.search(done.stderr)
        return Answer(
            accepted=done.returncode == 0,
            said=done.stderr.strip(),
            nodes=expand(starts[2]) if starts else (),
            cpus=int(starts[1]) if starts else 0,
        )

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(run_one, calls))


def find_broken_plans(
    found: Sequence[Trial], environ: Mapping[str, str], account: Mapping[str, object]
) -> tuple[list[str], int]:
    """(requests that failed because of their plan, number of accepted requests whose plan changed something)."""
    plain = run_sbatch_test_only([trial.asked for trial in found], environ, account)
    good = [(trial, answer) for trial, answer in zip(found, plain, strict=True) if answer.accepted and trial.changed]
    ours = run_sbatch_test_only([trial.rendered for trial, _ in good], environ, account)
    broken = []
    for (trial, before), after in zip(good, ours, strict=True):
        most = max(trial.request.shape.max_nodes or 0, len(before.nodes))  # Slurm itself may count differently
        if not after.accepted:
            broken.append(f"{trial.seed}: {' '.join(trial.asked)}\n  -> {' '.join(trial.rendered)}\n  {after.said}")
        elif trial.request.shape.max_nodes and len(after.nodes) > most:
            broken.append(f"{trial.seed}: {' '.join(trial.rendered)}: {len(after.nodes)} nodes, {most} asked at most")
    return broken, len(good)


# ------------------------------------------------------------------------------------------- random values


def _options(chance: random.Random, names: Sequence[str]) -> Iterator[str]:
    yield from _gpus(chance)
    yield from _nodes_and_tasks(chance)
    yield from _cpus_and_memory(chance)
    yield from _place(chance, names)
    if chance.random() < 0.6:
        yield f"--time={chance.choice(['1', '30', '2:00:00', '1-0'])}"


def _gpus(chance: random.Random) -> Iterator[str]:
    count = chance.choice([1, 1, 2, 2, 3, 4, 4, 5, 8, 8, 9, 16, 24])
    kind = chance.choice(["", "", "a100:"])
    unit = chance.choice(["gres", "gres", "gpus", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"])
    if unit == "gres":
        yield f"--gres=gpu:{kind}{min(count, 9)}"
    elif unit == "gpus-per-socket":
        yield f"--gpus-per-socket={kind}{min(count, 4)}"
        yield f"--sockets-per-node={chance.choice([1, 2])}"
    elif unit == "gpus-per-task":
        yield f"--gpus-per-task={kind}{min(count, 4)}"
        yield f"--ntasks={chance.choice([1, 2, 4, 8, 12])}"
    else:
        yield f"--{unit}={kind}{count if unit == 'gpus' else min(count, 9)}"
        if unit == "gpus" and chance.random() < 0.15:
            yield f"--gpus-per-node={chance.choice([1, 2, 4, 8])}"


def _nodes_and_tasks(chance: random.Random) -> Iterator[str]:
    least = chance.choice([1, 1, 2, 3, 4])
    shape = chance.random()
    if shape < 0.45:
        yield f"--nodes={least}"
    elif shape < 0.6:
        yield f"--nodes={least}-{least + chance.choice([1, 2, 5])}"
    tasks = chance.random()
    if tasks < 0.25:
        yield f"--ntasks-per-node={chance.choice([1, 2, 4, 8])}"
    elif tasks < 0.5:
        yield f"--ntasks={chance.choice([1, 2, 3, 4, 8, 16])}"
    if chance.random() < 0.08:
        yield chance.choice(["--ntasks-per-socket=2", "--mincpus=6", "--hint=nomultithread", "--overcommit"])


def _cpus_and_memory(chance: random.Random) -> Iterator[str]:
    cpus = chance.random()
    if cpus < 0.5:
        yield f"--cpus-per-task={chance.choice([1, 2, 4, 6, 8, 16, 32])}"
    elif cpus < 0.7:
        yield f"--cpus-per-gpu={chance.choice([1, 2, 4, 6])}"
    memory = chance.random()
    if memory < 0.45:
        yield f"--mem={chance.choice(['0', '4G', '60000', '120G', '250000', '255G'])}"
    elif memory < 0.6:
        yield f"--mem-per-cpu={chance.choice(['500', '2G', '7500', '20G'])}"
    elif memory < 0.8:
        yield f"--mem-per-gpu={chance.choice(['2G', '16G', '31000', '60G'])}"


def _place(chance: random.Random, names: Sequence[str]) -> Iterator[str]:
    if chance.random() < 0.5:
        yield f"--partition={chance.choice(['gpu', 'small', 'lean', 'alone', 'gpu,small', 'lean,alone'])}"
    for rate, options in (
        (0.15, [f"--exclude={','.join(sorted(chance.sample(list(names), 2)))}"]),
        (0.05, [f"--nodelist={chance.choice(list(names))}"]),
        (0.12, ["--constraint=rack1", "--constraint=rack2", "--constraint=rack1&old", "--constraint=[rack1|rack2]"]),
        (0.06, ["--prefer=rack1"]),
        (0.08, ["--exclusive"]),
        (0.06, ["--switches=1@1:00"]),
        (0.05, ["--reservation=course"]),
        (0.06, ["--array=0-3"]),
        (0.05, ["--begin=now+1hour", "--hold", "--use-min-nodes", "--contiguous", "--spread-job"]),
    ):
        if chance.random() < rate:
            yield chance.choice(options)


def _profile(chance: random.Random) -> ResourceProfile | None:
    if chance.random() < 0.1:
        return None
    return ResourceProfile(
        key="k",
        cpus_per_gpu=chance.choice([None, 0.5, 1.7, 3.3, 4.0, 7.9, 40.0]),
        cpu_bound=chance.random() < 0.2,
        mem_mib_per_gpu=chance.choice([None, 10, 3_000, 20_000, 31_500, 90_000, 400_000]),
        runs=chance.choice([0, 0, 1, 3, 9]),
        preruns=1,
        skew=chance.choice([None, 0.05, 0.31, 0.72, 1.0]),
    )


def _health(chance: random.Random, names: Sequence[str]) -> tuple[NodeHealth, ...]:
    bad = chance.sample(list(names), chance.choice([0, 1, 1, 3, 5]))
    return tuple(
        NodeHealth(node=name, status=chance.choice(["suspect", "lemon"]), since=at, reason="Xid 79")
        for at, name in enumerate(bad)
    )


def _config(chance: random.Random) -> Config:
    return Config(
        placement=Placement(exclude_cap=chance.choice([0.1, 0.5, 1.0]), switch_wait_s=chance.choice([0, 20, 300, 7200]))
    )


def _outlook(chance: random.Random, names: Sequence[str]) -> PlanningFacts:
    loads = {name: NodeLoad(node=name, cpus_busy=chance.random() * 32) for name in names[::2]}
    return PlanningFacts(
        loads=loads if chance.random() < 0.5 else {},
        relaxing=chance.random() < 0.6,
        starts_now=chance.random() < 0.6,
    )
