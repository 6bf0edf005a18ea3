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
from slurmwrap.placement.pack_size import choose_members
from slurmwrap.sbatch.array_indices import parse_indices
from slurmwrap.sbatch.job_request import JobRequest
from slurmwrap.sbatch.pack_option import PackPlan, compute_memory_mib, find_packing_obstacle, make_pack_plan, parse_pack
from slurmwrap.sbatch.script_directives import parse_directives

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.cluster import Snapshot
    from slurmwrap.model.resource_profile import ResourceProfile

_RUNNER = "slurmwrap_members.py"


def plan_packing(
    request: JobRequest, profile: ResourceProfile | None, snapshot: Snapshot, context: SubmitContext
) -> PackPlan | None:
    """Return how the job's array is packed; None if --pack=auto keeps one member on each GPU.

    RefusedError: it cannot be packed; the message says why.
    """
    option = parse_pack(request.own.pack or "")
    if why := find_packing_obstacle(request):
        raise RefusedError(f"--pack: {why}", hint="Submit it without --pack.")
    members, reason = option.members, "as asked"
    if members is None:
        members, reason = choose_members(request, profile, snapshot)
        if members == 1:
            context.say(f"--pack=auto: one member on each GPU: {reason}")
    if members == 1:
        return None
    plan = make_pack_plan(request, members, reason, mps=option.mps)
    if plan.members == 1:
        context.say(f"--pack: one member on each GPU: --array={request.value('array')} runs no two at the same time")
        return None
    _check_size(plan, snapshot)
    for remark in plan.remarks:
        context.say(f"--pack: {remark}")
    return plan


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
        (directory / "spec.json").write_text(json.dumps(make_spec(plan, prepared.request)), encoding="utf-8")
        (directory / "slurm_script").write_bytes(script)
        (directory / "slurm_script").chmod(0o700)
        (directory / _RUNNER).write_bytes((Path(inject.__path__[0]) / _RUNNER).read_bytes())
        (directory / "pack.sh").write_bytes(make_batch_script(script, directory))
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
    }


def make_batch_script(script: bytes, directory: Path) -> bytes:
    """Return the batch script of the array tasks: the user's directive lines, then the program that runs the members.

    Nodes may lack the interpreter that runs gsub; the program needs nothing but a Python 3.6.
    """
    lines = [
        script[directive.start : directive.stop]
        for directive in parse_directives(script)
        if directive.magic == "#SBATCH"
    ]
    python, runner, folder = (shlex.quote(path) for path in (sys.executable, f"{directory}/{_RUNNER}", str(directory)))
    program = f'python={python}\n[ -x "$python" ] || python=python3\nexec "$python" -I -B {runner} {folder} "$@"\n'
    head = b"#!/bin/sh\n# Array task of gsub --pack: it runs several members of the user's array (docs/packing.md).\n"
    return head + b"".join(line + b"\n" for line in lines) + program.encode(errors="surrogateescape")
