"""Prepare and write a packed job (gsub --pack): the plan, and the files with which its array tasks start their members.

The files are in pack/RANDOM of the user's state directory, which nodes can read: spec.json, the user's script
unchanged, the program that runs the members (inject/slurmwrap_members.py), and the batch script of the tasks. The
program writes members/INDEX.json there, which `slurmwrap why 77_5` reads.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from slurmwrap import inject
from slurmwrap.errors import RefusedError, StoreError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.gsub.submit_context import PreparedJob, SubmitContext
from slurmwrap.model.placement_plan import PlacementPlan
from slurmwrap.placement.pack_size import choose_members, find_most_members, is_of_slices, propose_slice
from slurmwrap.sbatch.array_indices import expand_indices, parse_indices
from slurmwrap.sbatch.array_parts import find_splitting_obstacle, split_plan
from slurmwrap.sbatch.job_request import JobRequest
from slurmwrap.sbatch.pack_option import (
    PackPlan,
    compute_memory_mib,
    count_simultaneous,
    find_packing_obstacle,
    make_pack_plan,
    parse_pack,
)
from slurmwrap.sbatch.rewrite import render
from slurmwrap.sbatch.script_directives import parse_directives
from slurmwrap.store.pack_results import SPEC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.cluster import Snapshot
    from slurmwrap.model.resource_profile import ResourceProfile

_RUNNER = "slurmwrap_members.py"
# The programs of a packed task. Those of a shared job read them too.
MEMBER_PROGRAMS = (_RUNNER, "slurmwrap_member_watch.py")


def find_members_to_measure(
    request: JobRequest, profile: ResourceProfile | None, snapshot: Snapshot, context: SubmitContext
) -> int:
    """Return how many members a pre-run should try together at most; 0 if it need not, or cannot, measure that.

    It need not if an earlier pre-run did, even if that found no speed: the next one would find none either.
    """
    known = profile is not None and (profile.pack_speeds or profile.pack_end)
    if parse_pack(request.own.pack or "").members is not None or known or not context.config.pack.measure_s:
        return 0
    if find_packing_obstacle(request) or is_of_slices(request, snapshot):
        return 0
    simultaneous = count_simultaneous(request)
    members = min(find_most_members(request, profile, snapshot), len(expand_indices(request.value("array") or "")))
    members = min(members, simultaneous or members)
    return members if members > 1 else 0


# Seconds in which the members of one number of them make their first steps; with slow ones fewer numbers are measured.
_START_S = 40.0


def plan_packing(
    request: JobRequest,
    profile: ResourceProfile | None,
    snapshot: Snapshot,
    context: SubmitContext,
    measured_up_to: int = 0,
) -> PackPlan | None:
    """Return how the job's array is packed; None if --pack=auto keeps one member on each GPU.

    `measured_up_to`: so many members at most are tried together by the job's pre-run, which folds the array then. Until
    then each task has one member. RefusedError: it cannot be packed; the message says why.
    """
    option = parse_pack(request.own.pack or "")
    if why := find_packing_obstacle(request):
        raise RefusedError(f"--pack: {why}", hint="Submit it without --pack.")
    if measured_up_to:
        reason = "its pre-run measures how many share a GPU and folds the array"
        limit_s = measured_up_to.bit_length() * (_START_S + context.config.pack.measure_s)
        return replace(
            make_pack_plan(request, 1, reason, mps=option.mps),
            auto=True,
            measured_up_to=measured_up_to,
            measure_limit_s=limit_s,
        )
    members, reason = option.members, "as asked"
    if members is None:
        if advice := propose_slice(request, profile, snapshot):
            context.say(f"--pack=auto: {advice}")
        members, reason = choose_members(request, profile, snapshot, context.config.pack.least_gain)
        if members == 1:
            context.say(f"--pack=auto: one member on each GPU: {reason}")
    if members == 1:
        return None
    plan = replace(make_pack_plan(request, members, reason, mps=option.mps), auto=option.members is None)
    if plan.members == 1:
        context.say(f"--pack: one member on each GPU: --array={request.value('array')} runs no two at the same time")
        return None
    _check_size(plan, snapshot)
    for remark in plan.remarks:
        context.say(f"--pack: {remark}")
    return plan


def plan_splitting(
    request: JobRequest, pack: PackPlan | None, snapshot: Snapshot, context: SubmitContext
) -> PackPlan | None:
    """Return how an array with indices beyond MaxArraySize is submitted; `pack` itself if it cannot be split."""
    plan = split_plan(request, pack, snapshot.max_array_size)
    if plan is pack or plan is None:
        return pack
    if why := find_splitting_obstacle(request, plan.parts):
        context.say(
            f"--array={request.value('array')} is beyond Slurm's MaxArraySize={snapshot.max_array_size}, "
            f"and is not split: {why}"
        )
        return pack
    return plan


def prepare_split_array(request: JobRequest, context: SubmitContext, reason: str) -> PreparedJob | None:
    """Return an array that is split and not changed otherwise; None if Slurm takes it as it is, or it cannot be split.

    `reason`: why it would go to sbatch unchanged.
    """
    snapshot = context.slurm.snapshot()
    plan = plan_splitting(request, None, snapshot, context) if snapshot.max_array_size else None
    if plan is None:
        return None
    own = replace(request.own, prerun="off", tune=False, place=False, retry=False, explain=False)
    request = replace(request, own=own)
    return PreparedJob(
        request=request,
        batch=render(request, (), added=plan.changes),
        plan=PlacementPlan(),
        snapshot=snapshot,
        added=plan.changes,
        profile=None,
        profile_key="",
        fingerprint="",
        inputs=(),
        warnings=(),
        prerun="off",
        prerun_reason=reason,
        retry=False,
        pack=plan,
    )


def _check_size(plan: PackPlan, snapshot: Snapshot) -> None:
    """Raise RefusedError if no node with GPUs has the CPUs or the memory of all members together."""
    nodes = [node for node in snapshot.nodes if node.gpus]
    for what, asked, most in (
        ("CPUs", plan.shape.cpus or 0, max((node.cpus for node in nodes), default=0)),
        ("MiB of memory", compute_memory_mib(plan.shape), max((node.mem_mib for node in nodes), default=0)),
    ):
        if most and asked > most:
            raise RefusedError(
                f"--pack: {plan.members} members need {asked:,} {what} together, and no node with GPUs has more than "
                f"{most:,}",
                hint=f"Pack fewer (--pack={max(1, plan.members * most // asked)}), or let each ask for less.",
            )


def write_pack(prepared: PreparedJob, context: SubmitContext) -> PreparedJob:
    """Write the files of the packed job, and return `prepared` with their directory. StoreError if that fails."""
    plan, script = prepared.pack, prepared.request.script.content
    if plan is None:
        return prepared
    try:
        directory = Path(context.memory.pack_dir())
        spec = {**make_spec(plan, prepared.request), **_make_watch_spec(plan, prepared.profile, context)}
        (directory / SPEC).write_text(json.dumps(spec), encoding="utf-8")
        (directory / "slurm_script").write_bytes(script)
        (directory / "slurm_script").chmod(0o700)
        for name in MEMBER_PROGRAMS:
            (directory / name).write_bytes((Path(inject.__path__[0]) / name).read_bytes())
        (directory / "pack.sh").write_bytes(make_batch_script(script, directory, "0:" if plan.parts else ""))
    except OSError as error:
        raise StoreError(
            f"nothing was submitted: the files of the packed job cannot be written: {error}",
            hint="Make room there, or submit it without --pack.",
        ) from error
    return replace(prepared, pack_dir=str(directory))


def make_spec(plan: PackPlan, request: JobRequest) -> Mapping[str, object]:
    """Return what the program that runs the members must know (inject/slurmwrap_members.py)."""
    array = parse_indices(request.value("array") or "")
    environment = {} if array is None else array.environment()
    environment.pop("SLURM_ARRAY_TASK_ID", None)
    return {
        "indices": plan.indices,
        "members": plan.members,
        "environment": environment,
        "output": request.value("output") or "slurm-%A_%a.out",
        "error": request.value("error"),
        "job_name": request.job_name,
        "append": request.value("open-mode") == "append",
        "mps": plan.mps,
        # Of each part: Slurm's index of a task -> the index of its first member.
        "parts": [dict(zip(part.tasks, part.indices, strict=True)) for part in plan.parts],
    }


def _make_watch_spec(plan: PackPlan, profile: ResourceProfile | None, context: SubmitContext) -> Mapping[str, object]:
    """Return what the program that runs the members must know to watch their memory and their speed.

    Steps are counted only for --pack=auto: who names the number of members wants them side by side. OSError: the step
    counter cannot be written.
    """
    settings = context.config.pack
    spec: dict[str, object] = {"memory_near": settings.memory_near if plan.is_folded else 0.0}
    if plan.auto and settings.separate_gain:
        spec |= {"separate_gain": settings.separate_gain, "separate_s": settings.separate_s}
        spec |= {"counter": context.memory.keep_counter(), "alone": find_speed_alone(profile)}
    return spec


def find_speed_alone(profile: ResourceProfile | None) -> float:
    """Return the measured steps per second of one member alone; 0 if they are not known."""
    points = () if profile is None else profile.pack_speeds
    return next((point.steps_per_s for point in points if point.members == 1), 0.0)


def write_part_script(prepared: PreparedJob, number: int, first_job: int) -> str:
    """Write the batch script of a part of a split array, and return its path. OSError if that fails.

    `first_job`: the job id of its first part.
    """
    directory = Path(prepared.pack_dir)
    path = directory / f"pack-{number}.sh"
    path.write_bytes(make_batch_script(prepared.request.script.content, directory, f"{number}:{first_job}"))
    return str(path)


_HEAD = b"# Array task of gsub: it runs one or several members of the user's array (docs/packing.md).\n"


def make_batch_script(
    script: bytes, directory: Path, part: str = "", *, program: str = _RUNNER, head: bytes = _HEAD
) -> bytes:
    """Return the batch script: the user's directive lines, then the program in `directory` that runs their script.

    `part`: of a split array, its number and the job id of the first one: "0:", "1:77". Nodes may lack the interpreter
    that runs gsub; the program needs nothing but a Python 3.6.
    """
    lines = [
        script[directive.start : directive.stop]
        for directive in parse_directives(script)
        if directive.magic == "#SBATCH"
    ]
    python, runner, folder = (shlex.quote(path) for path in (sys.executable, f"{directory}/{program}", str(directory)))
    which = f"export SLURMWRAP_ARRAY_PART={part}\n" if part else ""
    start = f'python={python}\n[ -x "$python" ] || python=python3\nexec "$python" -I -B {runner} {folder} "$@"\n'
    body = b"".join(line + b"\n" for line in lines)
    return b"#!/bin/sh\n" + head + body + (which + start).encode(errors="surrogateescape")
