"""Prepare and write a job that may share its GPU with another job of its user (gsub --share).

Its files are in share/RANDOM of the user's state directory, which nodes can read: spec.json, environment.json, the
user's script unchanged, the program that runs it (inject/slurmwrap_share.py), and the batch script. share/waiting and
share/running have a file with the job id for each job that waits or runs. Which of these suit the new job is decided
here, where the resource profiles are; when they may run together is decided on the node.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import ceil
from pathlib import Path
from time import time

from slurmwrap import inject
from slurmwrap.errors import RefusedError, StoreError
from slurmwrap.fast_dataclasses import asdict, dataclass, replace
from slurmwrap.gsub.pack_submission import MEMBER_PROGRAMS, make_batch_script
from slurmwrap.gsub.submit_context import PreparedJob, SharePlan, SubmitContext
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.placement.pack_size import find_card_mib
from slurmwrap.profiling.colocation import MEMORY_SHARE, GpuDemand, PairForecast, predict_pair, read_demand
from slurmwrap.sbatch.job_request import CpuUnit, GpuUnit, JobRequest, MemUnit, OptionChange
from slurmwrap.sbatch.pack_option import compute_memory_mib
from slurmwrap.sbatch.share_option import (
    appends_output,
    find_sharing_obstacle,
    list_share_changes,
    make_share_place,
    read_exported,
)
from slurmwrap.store.deserialize import record_from_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.config.load_config import Config
    from slurmwrap.model.cluster import Node, Snapshot
    from slurmwrap.model.run_time import RunTimeEstimate

_PROGRAMS = ("slurmwrap_share.py", *MEMBER_PROGRAMS)
_HEAD = b"# Job of gsub --share: it may share its GPU with another job of its user (docs/sharing.md).\n"
# Of a node's memory, what its GPUs' jobs may have together: Slurm keeps some for itself.
_MEMORY_SHARE = 0.95
# Index of the partition in SharePlan.place, after the cluster and the GPU type.
_PARTITION = 2
# Newest jobs of the user that are compared with a new one.
_MOST_JOBS = 100
# Jobs that waited longer, or were lost while they ran, are no longer compared.
_KEPT_S = 30 * 86400.0


def plan_sharing(
    request: JobRequest,
    profile: ResourceProfile | None,
    run_time: RunTimeEstimate | None,
    snapshot: Snapshot,
    context: SubmitContext,
) -> SharePlan:
    """Return what is known of the job for sharing its GPU. RefusedError: it cannot; the message says why."""
    why = find_sharing_obstacle(request)
    if not context.config.share.enabled:
        why = "the site has switched it off (share.enabled)"
    if why:
        raise RefusedError(f"--share: {why}", hint="Submit it without --share.")
    plan, alone = make_share_plan(request, profile, run_time, snapshot, context)
    if context.config.share.shards and profile is not None and not alone:
        shards = choose_shards(request, profile, snapshot, plan.card_mib or 0)
        if shards is not None:
            context.say(
                f"--share: it asks for {shards.value}: jobs of other users may run on the same GPU, and Slurm does not "
                "limit what each of them uses of it"
            )
            return replace(plan, shards=shards, room=(), changes=())
        context.say(
            "--share: it cannot ask for shards (docs/sharing.md), so it may share a GPU with your own jobs alone"
        )
    if alone:
        context.say(f"--share: it has its GPU alone: {alone}")
    return plan


def make_share_plan(
    request: JobRequest,
    profile: ResourceProfile | None,
    run_time: RunTimeEstimate | None,
    snapshot: Snapshot,
    context: SubmitContext,
) -> tuple[SharePlan, str]:
    """Return what is known of the job, and why that is too little to put it together with others; "" if it is not."""
    plan = SharePlan(
        changes=list_share_changes(request),
        room=tuple(list_room(request, snapshot)) if request.own.tune else (),
        place=(context.cluster, *make_share_place(request)),
    )
    if profile is None or profile.gpu_util is None or profile.gpu_mem_mib is None:
        missing = "no profile of this job is known yet" if profile is None else "its profile has no use of the GPU"
        return plan, missing
    card = find_smallest_card_mib(request, profile, snapshot)
    if card is None:
        return plan, "the memory of its type of GPU is not known"
    limit = request.shape.time_limit_s
    times = [t for t in (None if run_time is None else run_time.p90_s, limit) if t is not None]
    known = replace(
        plan,
        demand=read_demand(profile),
        cpus=profile.cpus_busy or profile.cpus_per_gpu or float(request.shape.cpus or 1),
        mem_mib=_estimate_memory_mib(request, profile, context.config),
        card_mib=card,
        time_s=min(times, default=None),
    )
    return known, ""


def _estimate_memory_mib(request: JobRequest, profile: ResourceProfile, config: Config) -> int | None:
    if profile.mem_mib_per_gpu:
        return round(profile.mem_mib_per_gpu * config.tuning.memory_margin)
    return compute_memory_mib(request.shape) or None


def list_room(request: JobRequest, snapshot: Snapshot) -> Iterator[OptionChange]:
    """Yield the CPUs and the memory of a GPU's share of a node, where it asks for less: a second job needs some."""
    shape, nodes = request.shape, _list_gpu_nodes(request, snapshot)
    cpus = min((node.cpus // node.gpus for node in nodes), default=0)
    mem_mib = min((int(_MEMORY_SHARE * node.mem_mib) // node.gpus for node in nodes), default=0)
    reason = "--share: a GPU's share of a node, so that a second job has room"
    if cpus > (shape.cpus or 1):
        unit = CpuUnit.PER_TASK if shape.cpu_unit is CpuUnit.NONE else shape.cpu_unit
        yield OptionChange(option=unit.value, value=str(cpus), reason=reason)
    if shape.mem_unit in (MemUnit.PER_NODE, MemUnit.PER_GPU) and 0 < (shape.mem_mib or 0) < mem_mib:
        yield OptionChange(option=shape.mem_unit.value, value=f"{mem_mib}M", reason=reason)


def _list_gpu_nodes(request: JobRequest, snapshot: Snapshot) -> list[Node]:
    """Return the nodes with GPUs of the job's type in its partitions."""
    wanted = set((request.value("partition") or snapshot.default_partition).split(",")) - {""}
    return [
        node
        for node in snapshot.nodes
        if node.gpus
        and (not wanted or not wanted.isdisjoint(node.partitions))
        and request.shape.gpu_type in (None, *node.gpu_type.split(","))
    ]


def choose_shards(
    request: JobRequest, profile: ResourceProfile, snapshot: Snapshot, card_mib: int
) -> OptionChange | None:
    """Return the --gres with shards in place of a GPU; None if the nodes have none, or the job needs a whole GPU.

    It gets the larger of its shares of the GPU's memory and time, so that jobs that all ask in this way fit together.
    """
    shape, nodes = request.shape, _list_gpu_nodes(request, snapshot)
    # Slurm refuses shards next to an option for GPUs, and cannot give CPUs or memory per GPU to a job without one.
    in_gres = shape.gpu_unit is GpuUnit.GRES and shape.cpu_unit is not CpuUnit.PER_GPU
    if not in_gres or shape.mem_unit is MemUnit.PER_GPU or (shape.gpu_type and len({n.gpu_type for n in nodes}) > 1):
        return None
    each = [node.shards // node.gpus for node in nodes]
    if not each or not min(each) or profile.gpu_mem_mib is None or profile.gpu_util is None or not card_mib:
        return None
    share = max(profile.gpu_mem_mib / (MEMORY_SHARE * card_mib), profile.gpu_util)
    count = max(1, ceil(share * max(each)))
    if count >= min(each):
        return None
    reason = f"--share: {100 * share:.0f} % of a GPU by its profile, in shards"
    return OptionChange(option="gres", value=f"shard:{count}", reason=reason)


def find_smallest_card_mib(request: JobRequest, profile: ResourceProfile, snapshot: Snapshot) -> int | None:
    """Return the memory of the smallest GPU that the job may get; None if that of one of them is not known."""
    types = {request.shape.gpu_type} if request.shape.gpu_type else {n.gpu_type for n in snapshot.nodes if n.gpus}
    cards = [find_card_mib(kind or profile.gpu_type) for kind in types]
    known = [card for card in cards if card is not None]
    return min(known) if known and len(known) == len(cards) else None


def write_share(prepared: PreparedJob, context: SubmitContext) -> PreparedJob:
    """Write the files of the job, and return `prepared` with their directory. StoreError if that fails."""
    plan, request = prepared.share, prepared.request
    if plan is None or plan.shards is not None:
        return prepared
    try:
        directory = Path(context.memory.share_dir())
        pairs = tuple(find_pairs(plan, directory.parent))
        spec = make_share_spec(plan, prepared, context.config)
        spec["pairs"] = {pair.name: {"speed": pair.forecast.speed} for pair in pairs}
        _write_private(directory / "spec.json", json.dumps(spec).encode())
        _write_private(directory / "environment.json", json.dumps(_make_environment(prepared, context)).encode())
        _write_private(directory / "slurm_script", request.script.content, 0o700)
        for program in _PROGRAMS:
            _write_private(directory / program, (Path(inject.__path__[0]) / program).read_bytes())
        batch = make_batch_script(request.script.content, directory, program=_PROGRAMS[0], head=_HEAD)
        _write_private(directory / "share.sh", batch)
    except OSError as error:
        raise StoreError(
            f"nothing was submitted: the files of the shared job cannot be written: {error}",
            hint="Make room there, or submit it without --share.",
        ) from error
    if plan.demand is not None:
        context.say(f"--share: it may share a GPU with {describe_pairs(pairs) or 'later jobs of yours'}")
    return replace(prepared, share_dir=str(directory))


def describe_pairs(pairs: Sequence[SharePair]) -> str:
    """Return "your job 12 (predicted 1.7x together)" for the best pair, and how many more there are; "" for none."""
    if not pairs:
        return ""
    best = max(pairs, key=lambda pair: pair.forecast.throughput)
    more = f" or {len(pairs) - 1} more" if len(pairs) > 1 else ""
    return f"your job {best.job} (predicted {best.forecast.throughput:.1f}x together){more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePair:
    """Another `--share` job of the user that suits: the name of its directory, its job id, and the forecast."""

    name: str
    job: str
    partition: str = ""  # as it was asked for; "": the default one
    forecast: PairForecast


def find_pairs(plan: SharePlan, folder: Path) -> Iterator[SharePair]:
    """Yield the user's waiting and running jobs of --share that suit this one. `folder`: share of the state."""
    if plan.demand is None or plan.card_mib is None:
        return
    for name, job in _list_marks(folder):
        with suppress(OSError, ValueError, KeyError, TypeError):
            spec = json.loads((folder / name / "spec.json").read_bytes())
            place = tuple(spec["place"])
            if not spec["demand"] or (plan.place and place != plan.place):
                continue
            other = record_from_json(GpuDemand, spec["demand"]["gpu"])
            forecast = predict_pair(plan.demand, other, gpu_mem_mib=min(plan.card_mib, spec["demand"]["card_mib"]))
            if forecast.worthwhile:
                yield SharePair(name=name, job=job, partition=place[_PARTITION], forecast=forecast)


def _list_marks(folder: Path) -> list[tuple[str, str]]:
    """Return (directory's name, job id) of the user's newest jobs that wait or run; remove old marks."""
    found = []
    for place in ("waiting", "running"):
        with suppress(OSError):
            for entry in os.scandir(folder / place):
                at = entry.stat(follow_symlinks=False).st_mtime
                if time() - at > _KEPT_S:
                    Path(entry.path).unlink()
                else:
                    found.append((at, entry.name, Path(entry.path).read_text(encoding="ascii", errors="replace")))
    return [(name, job) for _, name, job in sorted(found, reverse=True)[:_MOST_JOBS]]


def mark_waiting(share_dir: str, job_id: int) -> None:
    """Let the user's running `--share` jobs see that this one waits. A failure leaves it to run by itself."""
    directory = Path(share_dir)
    with suppress(OSError):
        _write_private(directory.parent / "waiting" / directory.name, str(job_id).encode())


def make_share_spec(plan: SharePlan, prepared: PreparedJob, config: Config) -> dict[str, object]:
    """Return what the program that runs the job must know (inject/slurmwrap_share.py)."""
    request, shape = prepared.request, prepared.request.shape
    os.umask(umask := os.umask(0o077))
    demand = plan.demand and {
        "gpu": asdict(plan.demand),
        "card_mib": plan.card_mib,
        "cpus": plan.cpus,
        "mem_mib": plan.mem_mib,
    }
    return {
        "demand": demand or {},
        "place": plan.place,
        "time_s": plan.time_s,
        "args": prepared.batch.args,
        "chdir": request.chdir,
        "submit_dir": request.cwd,
        "job_name": request.job_name,
        "output": request.value("output") or "slurm-%j.out",
        "error": request.value("error"),
        "truncate": not appends_output(request),
        "umask": umask,
        "cpus_per_task": shape.cpus if shape.cpu_unit is CpuUnit.PER_TASK else None,
        "look_s": config.share.look_s,
        "lease_s": config.share.lease_s,
    }


def _make_environment(prepared: PreparedJob, context: SubmitContext) -> dict[str, str]:
    """Return the environment that sbatch would give the job, without what Slurm adds on the node."""
    environ = {**context.environ, **prepared.job_environ, **(read_exported(prepared.request) or {})}
    return {name: value for name, value in environ.items() if not name.startswith("SLURM_")}


def _write_private(path: Path, content: bytes, mode: int = 0o600) -> None:
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags | os.O_CLOEXEC, mode)) as file:
        file.write(content)
