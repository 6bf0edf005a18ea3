"""Parse --pack, and fold the tasks of a user's array into fewer array tasks that run several members each. Pure.

A member is one index of the user's array. An array task of Slurm runs `members` of them on its one GPU and has the
index of the first one, so an index never means two things: 77_4 is the task with the members 4, 5, 6 and 7.
"""

from __future__ import annotations

import re

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.sbatch.array_indices import ArrayPart, expand_indices, fold_task_indices
from slurmwrap.sbatch.job_request import CpuUnit, JobRequest, MemUnit, OptionChange, ResourceShape

PACK_HINT = "It takes a number from 1 to 32, or auto; with NVIDIA's MPS: --pack=4,mps."
AUTO = "auto"
_MOST_MEMBERS = 32
_VALUE = re.compile(r"(auto|[0-9]{1,2})(,mps)?", re.ASCII)
# Options with which a member would not be one process tree on one node, or that concern the whole task in another way.
REFUSED = {
    "container": "the container of --container starts the batch script, and the wrapper is not in it",
    "container-id": "the container of --container-id starts the batch script, and the wrapper is not in it",
    "wrap": "--wrap has no script: write it into a file",
    "input": "--input is read by the batch script alone",
    "export-file": "--export-file is read by sbatch alone",
    "ntasks-per-gpu": "--ntasks-per-gpu starts several tasks",
    "tres-per-task": "--tres-per-task says what a task gets in a way that is not multiplied",
    "mincpus": "--mincpus says what a node must have, in a way that is not multiplied",
}
# A member that does one of these to its job does it to all members of the task.
_OWN_JOB = re.compile(rb"(?m)^[^#\n]*\b(?:scontrol[ \t]+(?:requeue|requeuehold|hold|suspend)|scancel)\b")
# Names of SLURM_* variables that are the same in all members of a task, and different in tasks of an array.
_SHARED_ID = re.compile(rb"\bSLURM_JOB_?ID\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOption:
    """The value of --pack. `members` None: auto."""

    members: int | None
    mps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPlan:
    """How an array is folded. `indices`: all members, ascending; `changes`: the options of the folded job."""

    members: int
    indices: tuple[int, ...]
    array: str
    changes: tuple[OptionChange, ...]
    shape: ResourceShape
    mps: bool = False
    remarks: tuple[str, ...] = ()
    auto: bool = False  # --pack=auto chose the members
    # Up to so many members are tried together by the pre-run, which folds the array then; 0: `members` is final.
    measured_up_to: int = 0
    measure_limit_s: float = 0.0  # seconds that this takes at most
    parts: tuple[ArrayPart, ...] = ()  # the arrays that are submitted (sbatch/array_parts.py); (): one

    @property
    def is_folded(self) -> bool:
        """Return whether a task runs several members, or may: an array that is only split has one in each task."""
        return self.members > 1 or self.measured_up_to > 0 or not self.parts

    @property
    def tasks(self) -> int:
        """Return the number of Slurm's array tasks."""
        return -(-len(self.indices) // self.members)


def parse_pack(text: str) -> PackOption:
    """Return the value of --pack. Raise ValueError for anything else."""
    found = _VALUE.fullmatch(text)
    if found is None or (found[1] != AUTO and not 1 <= int(found[1]) <= _MOST_MEMBERS):
        raise ValueError(f"{text!r} is no number of members")
    return PackOption(members=None if found[1] == AUTO else int(found[1]), mps=found[2] is not None)


def find_packing_obstacle(request: JobRequest) -> str:
    """Return why the tasks of this job cannot be packed; "" if they can."""
    if not request.hetjob and not expand_indices(request.value("array") or ""):
        return "it packs the tasks of an array, and the job has no --array"
    if why := find_wrapper_obstacle(request, "each task of the array"):
        return why
    return ""


def find_wrapper_obstacle(request: JobRequest, subject: str) -> str:
    """Return why a program of gsub's cannot start the script on a GPU with other ones; "" if it can.

    `subject`: what has the resources of the request, "the job".
    """
    shape = request.shape
    if request.hetjob:
        return "a heterogeneous job has several parts"
    for option, why in REFUSED.items():
        if request.setting(option) is not None:
            return why
    if any("container" in name for name in request.plugin_options):
        return "the container of a site plugin starts the batch script, and the wrapper is not in it"
    if (shape.nodes or 1) > 1 or (shape.max_nodes or 1) > 1:
        return f"{subject} has several nodes"
    if (shape.tasks or 1) > 1 or (shape.tasks_per_node or 1) > 1:
        return f"{subject} starts several processes (--ntasks)"
    if shape.gpus != 1:
        return f"{subject} has {shape.gpus or 'no'} GPUs, and only one can be shared"
    if shape.exclusive:
        return f"--exclusive asks for a whole node for {subject}"
    own = request.own
    if own.stop_at or own.stop_when or own.count_steps:
        return "--count-steps, --stop-at and --stop-when do not distinguish programs that share a GPU yet"
    if own.preemptible or own.lease_s:
        return "--preemptible and --lease would end all members of a task together"
    if found := _OWN_JOB.search(request.script.content):
        words = found[0].split(b"#")[0].strip().decode("utf-8", "replace")
        return f"the script acts on its own job, in which other programs run too ({words[-60:]})"
    return ""


def count_simultaneous(request: JobRequest) -> int | None:
    """Return the limit after % in --array: how many members run at the same time; None if there is none."""
    limit = (request.value("array") or "").partition("%")[2].strip(" []")
    return int(limit) if limit.isdecimal() and int(limit) > 0 else None


def compute_memory_mib(shape: ResourceShape) -> int:
    """Return the memory of a job with one GPU in MiB; 0 if it asks for none, or for all of a node."""
    each = shape.mem_mib or 0
    return each * (shape.cpus or 1) if shape.mem_unit is MemUnit.PER_CPU else each


def make_pack_plan(request: JobRequest, members: int, reason: str, *, mps: bool = False) -> PackPlan:
    """Return how the array is folded into tasks of `members` members.

    CPUs and memory of a task are those of its members together. With `%N` at most N members run at the same time.
    """
    indices = expand_indices(request.value("array") or "")
    limit = count_simultaneous(request)
    members = max(1, min(members, len(indices), limit or members))
    array = fold_task_indices(indices[::members])
    if limit is not None:
        array += f"%{max(1, limit // members)}"
    shape = _multiply(request.shape, members)
    count = -(-len(indices) // members)
    tasks = f"{count} array {'task' if count == 1 else 'tasks'}"
    why = f"--pack: {len(indices)} members in {tasks}, {members} on each GPU ({reason})"
    return PackPlan(
        members=members,
        indices=indices,
        array=array,
        changes=(
            OptionChange(option="array", value=array, reason=why),
            *_multiply_cpus(request, shape, members),
            *_multiply_memory(request, shape, members),
            *name_outputs(request, "--pack"),
        ),
        shape=shape,
        mps=mps,
        remarks=tuple(_list_remarks(request, members)),
    )


def _multiply(shape: ResourceShape, members: int) -> ResourceShape:
    cpus = (shape.cpus or 1) * members
    unit = CpuUnit.PER_TASK if shape.cpu_unit is CpuUnit.NONE else shape.cpu_unit
    scales = shape.mem_mib is not None and shape.mem_unit is not MemUnit.PER_CPU
    mem = shape.mem_mib * members if scales and shape.mem_mib is not None else shape.mem_mib
    return replace(shape, cpus=cpus, cpu_unit=unit, mem_mib=mem)


def _multiply_cpus(request: JobRequest, shape: ResourceShape, members: int) -> tuple[OptionChange, ...]:
    one = request.shape.cpus or 1
    reason = f"--pack: {members} members with {one} {'CPU' if one == 1 else 'CPUs'} each"
    return (OptionChange(option=shape.cpu_unit.value, value=str(shape.cpus), reason=reason),)


def _multiply_memory(request: JobRequest, shape: ResourceShape, members: int) -> tuple[OptionChange, ...]:
    if shape.mem_mib == request.shape.mem_mib:
        return ()
    given = request.value(shape.mem_unit.value)
    reason = f"--pack: {members} members with {given} each; they share it, none has a limit of its own"
    return (OptionChange(option=shape.mem_unit.value, value=f"{shape.mem_mib}M", reason=reason),)


def name_outputs(request: JobRequest, why: str) -> tuple[OptionChange, ...]:
    """Return the output files of the tasks, next to those of the members, which keep the user's names."""
    output = request.value("output") or ""
    # No file can be made next to a device such as /dev/null.
    output = "" if output.startswith("/dev/") else output
    folder = output.rpartition("/")[0] + "/" if "/" in output else ""
    reason = f"{why}: what the wrapper prints; each member writes to the files that sbatch would name for it"
    name = f"{folder}slurm-%A_%a.pack"
    error = OptionChange(option="error", value=f"{name}.err", reason=reason)
    job_name = () if request.value("job-name") else (_keep_job_name(request, why),)
    return (
        OptionChange(option="output", value=f"{name}.out", reason=reason),
        *((error,) if request.setting("error") else ()),
        *job_name,
    )


def _keep_job_name(request: JobRequest, why: str) -> OptionChange:
    return OptionChange(
        option="job-name", value=request.job_name, reason=f"{why}: its name by the script, as sbatch would choose it"
    )


def _list_remarks(request: JobRequest, members: int) -> list[str]:
    remarks = []
    if members > 1 and request.shape.time_limit_s is not None:
        remarks.append("the time limit is that of each task: members that share a GPU are slower than alone")
    if members > 1 and _SHARED_ID.search(request.script.content):
        remarks.append("the script uses SLURM_JOB_ID, which is the same in all members of a task")
    return remarks
