"""Split an array with indices beyond Slurm's MaxArraySize into several arrays, its parts. Pure.

MaxArraySize limits the index, not the number of tasks: with 1001, Slurm takes the indices 0 to 1000 (slurm.conf(5)).
The first part keeps the user's indices that are below the limit. In the others Slurm counts from 0, and the program
that runs the script (inject/slurmwrap_members.py) gives each task the index that the user wrote.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.fast_dataclasses import replace
from slurmwrap.sbatch.array_indices import ArrayPart, expand_indices, fold_task_indices
from slurmwrap.sbatch.job_request import JobRequest, OptionChange
from slurmwrap.sbatch.pack_option import REFUSED, PackPlan, count_simultaneous, name_outputs

# Slurm's own greatest MaxArraySize.
_MOST_TASKS = 4_000_001
# Of the options that packing refuses, those with which the wrapper cannot start the script.
_REFUSED_OPTIONS = ("container", "container-id", "wrap", "input", "export-file")


def split_indices(indices: Sequence[int], size: int, limit: int | None = None) -> tuple[ArrayPart, ...]:
    """Return the parts of an array whose `indices` ascend. `size`: MaxArraySize; `limit`: the number after %.

    The limits of the parts that can run together add up to `limit`. If there are more parts than that, the later ones
    each wait for an earlier one.
    """
    own = tuple(index for index in indices if index < size)
    rest = tuple(indices[len(own) :])
    chunks = [rest[at : at + size] for at in range(0, len(rest), size)]
    parts = [ArrayPart(tasks=tuple(range(len(chunk))), indices=chunk) for chunk in chunks]
    if own:
        parts.insert(0, ArrayPart(tasks=own, indices=own))
    if limit is None:
        return tuple(parts)
    lanes = min(limit, len(parts))
    shares = [limit // lanes + (lane < limit % lanes) for lane in range(lanes)]
    return tuple(
        replace(part, limit=shares[at % lanes], after=at - lanes if at >= lanes else None)
        for at, part in enumerate(parts)
    )


def find_splitting_obstacle(request: JobRequest, parts: Sequence[ArrayPart]) -> str:
    """Return why the array cannot be submitted as these parts; "" if it can."""
    if request.hetjob:
        return "a heterogeneous job has several components"
    for option in _REFUSED_OPTIONS:
        if request.setting(option) is not None:
            return REFUSED[option]
    if any("container" in name for name in request.plugin_options):
        return "the container of a site plugin starts the batch script, and the wrapper is not in it"
    if request.setting("wait") is not None:
        return "--wait waits for one job"
    dependency = request.value("dependency") or ""
    if "aftercorr" in dependency:
        return "--dependency=aftercorr pairs tasks of two arrays by Slurm's index"
    if "?" in dependency and any(part.after is not None for part in parts):
        return "its % limit makes parts wait for each other, and --dependency with ? takes no other condition"
    return ""


def split_plan(request: JobRequest, plan: PackPlan | None, size: int) -> PackPlan | None:
    """Return how the array is submitted; `plan` itself if Slurm takes it as one. `plan` None: it is not packed.

    With --pack the array tasks that run several members each are split. `size`: MaxArraySize.
    """
    members = plan.members if plan is not None else 1
    indices = expand_indices(request.value("array") or "")
    tasks = indices[::members]
    if not tasks or tasks[-1] < size or len(tasks) > _MOST_TASKS:
        return plan
    limit = count_simultaneous(request)
    parts = split_indices(tasks, size, None if limit is None else max(1, limit // members))
    many = f"{len(parts)} arrays, of which this is the first" if len(parts) > 1 else "an array that counts from 0"
    reason = f"MaxArraySize={size} lets Slurm take indices up to {size - 1}: submitted as {many}"
    array = OptionChange(option="array", value=parts[0].array, reason=reason)
    if plan is None:
        changes = (array, *name_outputs(request, "the array is split"))
        return PackPlan(
            members=1, indices=indices, array=parts[0].array, changes=changes, shape=request.shape, parts=parts
        )
    changes = tuple(array if one.option == "array" else one for one in plan.changes)
    return replace(plan, array=parts[0].array, changes=changes, parts=parts)


def make_part_changes(
    request: JobRequest, plan: PackPlan, number: int, jobs: Sequence[int]
) -> tuple[OptionChange, ...]:
    """Return the options of the part `number`. `jobs`: the ids of the parts that have been submitted before."""
    part = plan.parts[number]
    reason = f"part {number + 1} of {len(plan.parts)} of the array: {fold_task_indices(part.indices)}"
    changes = tuple(
        replace(one, value=part.array, reason=reason) if one.option == "array" else one for one in plan.changes
    )
    if part.after is None:
        return changes
    given = request.value("dependency")
    value = f"afterany:{jobs[part.after]}" + (f",{given}" if given else "")
    why = f"--array=...%{count_simultaneous(request)}: it starts when job {jobs[part.after]} has ended"
    return (*changes, OptionChange(option="dependency", value=value, reason=why))
