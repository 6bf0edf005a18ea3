"""What of a study was guessed or left out, in whole sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurmwrap.model.hostlist import names_in
from slurmwrap.sim.outcome import SimOutcome
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.trace.trace_load import Load
from slurmwrap.sim.whatif.cluster_shape import ClusterShape

_HOUR = 3600.0


def remarks_of(
    load: Load, site: ClusterShape, plain: SimOutcome, measured: Sequence[SimJob], window: tuple[float, float]
) -> tuple[str, ...]:
    """What the reader must know of this dump, the weightiest first."""
    return (*_of_site(site), *_of_jobs(load, plain, measured), *_of_cpus(load, site, window), *load.remarks)


def _of_site(site: ClusterShape) -> Iterator[str]:
    if site.source == "dump":
        yield (
            "The cluster is a guess: the nodes that jobs with GPUs ran on, each with the most that was ever held on it "
            "at once. `scontrol show node -d -o > nodes.txt` and --nodes nodes.txt give the real one."
        )
    if site.source == "options":
        yield "The cluster is as said on the command line: equal nodes, every job may run on each."


def _of_jobs(load: Load, plain: SimOutcome, measured: Sequence[SimJob]) -> Iterator[str]:
    never = sum(ended is None for ended in plain.ended_s)
    if never:
        jobs, verb = _format_jobs(never), _format_verb(never)
        yield f"{jobs} could never start on this cluster, even when it was empty, and {verb} left out."
    running = sum(one.end_s is None for one in load.actual)
    if running:
        jobs = _format_jobs(running)
        yield f"{jobs} had not ended when the dump was made: replayed as far as known, and not measured."
    before = len(load.jobs) - never - running - len(measured)
    if before > 0:
        yield (
            f"{_format_jobs(before)} {'was' if before == 1 else 'were'} submitted before the window: "
            "replayed, because they "
            "hold nodes, and not measured."
        )


def _of_cpus(load: Load, site: ClusterShape, window: tuple[float, float]) -> Iterator[str]:
    if not load.cpu_jobs:
        return
    names = {server.name for server in site.servers}
    pairs = zip(load.cpu_jobs, load.cpu_actual, strict=True)
    held = sum(
        (job.cpus or 1) * _compute_overlap(one.start_s, one.end_s, window)
        for job, one in pairs
        if _is_touching(one.node_list, names)
    )
    there = sum(server.cpus for server in site.servers) * max(1e-9, window[1] - window[0])
    yield (
        f"{_format_jobs(len(load.cpu_jobs))} without GPUs are not replayed. On the nodes with GPUs they really held "
        f"{100 * held / there:.1f} % of the CPU time."
    )


def _is_touching(node_list: str, names: set[str]) -> bool:
    return any(name in names for name in names_in(node_list))


def _compute_overlap(start: float, end: float | None, window: tuple[float, float]) -> float:
    return max(0.0, min(window[1], window[1] if end is None else end) - max(window[0], start))


def _format_jobs(count: int) -> str:
    return f"{count:,} job" + ("s" if count != 1 else "")


def _format_verb(count: int) -> str:
    return "is" if count == 1 else "are"
