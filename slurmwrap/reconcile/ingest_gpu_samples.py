"""Store the samples of GPUs that the nodes' samplers send while jobs run, folded into one row for each GPU of a run.

A message is not kept as an observation: a job of a day sends 300 of them from each node. Instead the number of a sample
shows whether it is stored already, so that a message may be read twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.observation import Observation
from slurmwrap.model.resource_profile import GPU_SHARES
from slurmwrap.model.running_job import CLOCK_REASONS, HOST, GpuSamples, GpuUse
from slurmwrap.policy.run_from_slurm import CLOCKS_S, record_of
from slurmwrap.profiling.gpu_use import add_samples, shorten_series
from slurmwrap.protocols import Store
from slurmwrap.reconcile.reconcile_context import SlurmJobs

# Largest values of a message that are not an error: GPUs and MIG instances of a node, samples, device minor, seconds
# of a sample, number of a sample (years), MiB, processes, joules.
_GPUS, _SAMPLES, _MINOR, _INTERVAL_S, _NUMBER, _MIB, _PROCESSES, _JOULES = 80, 120, 1023, 3600, 1e7, 1e8, 1e6, 1e12
_CPU_PERCENT = 1e6  # 100 for each busy CPU
_UUID = 96  # characters


def parse_samples(item: Observation) -> tuple[GpuSamples, ...]:
    """Return the samples of each GPU in a message. ValueError for anything that no sampler would send."""
    facts = item.facts
    found = facts.get("samples")
    began, interval_s = _parse(facts, "began", 0, 1e11), _parse(facts, "interval_s", 0.01, _INTERVAL_S)
    first = int(_parse(facts, "first", 0, _NUMBER))
    if not isinstance(found, list) or len(found) > _GPUS:
        raise ValueError("samples are not a list of GPUs")
    return tuple(_parse_gpu(one, item.node, began, interval_s, first) for one in found)


def _parse_gpu(plain: Any, node: str, began: float, interval_s: float, first: int) -> GpuSamples:
    if not isinstance(plain, Mapping) or not isinstance(mig := plain.get("mig", ""), str) or len(mig) > _UUID:
        raise ValueError("a GPU is not an object")
    gpu = int(_parse(plain, "gpu", HOST, _MINOR))
    bounds = (("use", _CPU_PERCENT if gpu == HOST else 100), ("mem_mib", _MIB), ("processes", _PROCESSES))
    use, mem, processes = (_parse_list(plain, name, most) for name, most in bounds)
    if not len(use) == len(mem) == len(processes):
        raise ValueError("the lists differ in length")
    return GpuSamples(
        node=node,
        gpu=gpu,
        mig=mig,
        began=began,
        interval_s=interval_s,
        first=first,
        use_pct=tuple(use),
        mem_mib=tuple(map(int, mem)),
        processes=tuple(map(int, processes)),
        mem_total_mib=int(_parse(plain, "mem_total_mib", 0, _MIB)),
        energy_j=_parse(plain, "energy_j", 0, _JOULES) if plain.get("energy_j") is not None else None,
        shares=_parse_shares(plain.get("shares", {})),
        share_samples=int(_parse(plain, "share_samples", 0, _NUMBER)) if "share_samples" in plain else 0,
        clocks=_parse_clocks(plain.get("clocks", {})),
    )


def _parse_shares(found: Any) -> dict[str, float]:
    if not isinstance(found, Mapping) or not found.keys() <= set(GPU_SHARES):
        raise ValueError("shares are not the shares of a GPU")
    return {name: _parse(found, name, 0, 1) for name in found}


def _parse_clocks(found: Any) -> dict[str, float]:
    """Return the counts that are known; a later release may count more."""
    if not isinstance(found, Mapping):
        raise ValueError("clocks are not the clocks of a GPU")
    most = {"sm": 1.0, **dict.fromkeys(("busy", "slowed", "thermal_s", *CLOCK_REASONS), _NUMBER)}
    return {name: _parse(found, name, 0, most[name]) for name in found if name in most}


def _parse(plain: Mapping[str, Any], name: str, least: float, most: float) -> float:
    value: Any = plain.get(name)
    if type(value) not in (int, float) or not math.isfinite(value) or not least <= value <= most:
        raise ValueError(f"{name} is no possible number")
    return float(value)


def _parse_list(plain: Mapping[str, Any], name: str, most: float) -> list[float]:
    found = plain.get(name)
    if not isinstance(found, list) or len(found) > _SAMPLES:
        raise ValueError(f"{name} is not a list of samples")
    return [_parse({name: value}, name, -1, most) for value in found]


def store_samples(item: Observation, cluster: str, store: Store, slurm_jobs: SlurmJobs) -> str:
    """Fold one message into the rows of its run. Return why it is rejected; "" if it is stored.

    Only a node of the run may report about it. Samples after the end of the run, and of a run that is not known any
    more, are dropped.
    """
    try:
        found = parse_samples(item)
    except ValueError as error:
        return f"it is not a message of a sampler: {error}"
    run = _find_run(item, cluster, store, slurm_jobs)
    if run is None:
        return ""
    if run.nodes and item.node not in run.nodes:
        return f"job {run.address} does not run on its node"
    stored = (*store.gpu_use(run.attempt, item.node), *store.host_use(run.attempt, item.node))
    known = {(use.gpu, use.mig): use for use in stored}
    for one in found:
        before = known.get((one.gpu, one.mig))
        after = add_samples(before, _cut_at_end(one, run.end_time), run.attempt)
        if after != before and after.use_pct:
            store.save_gpu_use(after)
    return ""


def _cut_at_end(found: GpuSamples, end_time: int | None) -> GpuSamples:
    """Return the samples that were taken before the run ended; the driver shows the next job's use afterwards."""
    if end_time is None:
        return found
    left = math.ceil((end_time - found.began) / found.interval_s - 0.5) - found.first
    kept = max(0, left)
    return replace(found, use_pct=found.use_pct[:kept], mem_mib=found.mem_mib[:kept], processes=found.processes[:kept])


def _find_run(item: Observation, cluster: str, store: Store, slurm_jobs: SlurmJobs) -> JobRun | None:
    """Return the run that a message is about: of this user, with this restart count, the newest that it can be."""
    uid, restarts, began = item.facts.get("uid"), item.facts.get("restarts"), item.facts["began"]
    job = slurm_jobs.latest.get(item.job_id)
    shown = [record_of(job, cluster)] if job is not None and not job.pending else []
    for runs in (shown, store.attempts(cluster=cluster, job_id=item.job_id)):
        mine = [
            run
            for run in runs
            if run.uid == uid and run.restarts == restarts and run.attempt.submit_time <= began + CLOCKS_S
        ]
        if mine:
            return max(mine, key=lambda run: run.attempt.submit_time)
    return None


def list_published_use(run: JobRun, store: Store) -> tuple[GpuUse, ...]:
    """Return the samples of a run's GPUs, CPUs and memory that its owner gets; () without GPUs."""
    return shorten_series((*store.gpu_use(run.attempt), *store.host_use(run.attempt))) if run.gpus else ()
