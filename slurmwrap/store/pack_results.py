"""Read what the wrapper of a packed job wrote about its members (adapter; gsub/pack_submission.py writes the rest).

The files belong to the user and can be read by that user alone: the directory's name comes from a user's record.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.pack_member import PackMember
from slurmwrap.model.submission import PackedArray, PartJob
from slurmwrap.sbatch.array_indices import expand_indices
from slurmwrap.store.deserialize import record_from_json

SPEC = "spec.json"  # what the program that runs the members must know
PART_JOBS = "jobs.json"  # the job ids of the parts of an array that is split
_MOST_BYTES = 1 << 16
_MOST_SPEC_BYTES = 1 << 24  # it lists the indices of all members
_STATES = {"completed": "COMPLETED", "failed": "FAILED", "cancelled": "CANCELLED"}


def read_folded_array(pack: PackedArray) -> PackedArray:
    """Return the array with the number of members that its pre-run may have chosen, and with its parts.

    Call it as their user only.
    """
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        spec = json.loads(read_private_file(Path(pack.directory) / SPEC, _MOST_SPEC_BYTES))
        members = spec["members"]
        if not isinstance(members, int) or members <= 0:
            return pack
        parts = _read_parts(pack, spec["parts"]) if spec.get("parts") else ()
        return replace(pack, members=members, parts=parts)
    return pack


def _read_parts(pack: PackedArray, tasks: list[dict[str, int]]) -> tuple[PartJob, ...]:
    jobs = json.loads(read_private_file(Path(pack.directory) / PART_JOBS, _MOST_BYTES))["jobs"]
    return tuple(
        PartJob(job_id=int(job), tasks=tuple(map(int, part)), indices=tuple(map(int, part.values())))
        for job, part in zip(jobs, tasks, strict=False)
    )


def find_member_task(pack: PackedArray, job_id: int, member: int) -> str | None:
    """Return the array task that runs a member: "77_4"; None if the array has no such member, or it is not submitted.

    `job_id`: of the array, for an array that is one job.
    """
    indices = expand_indices(pack.array)
    if member not in indices or pack.members < 1:
        return None
    at = indices.index(member)
    first = indices[at - at % pack.members]
    if not pack.parts:
        return f"{job_id}_{first}"
    found = (f"{part.job_id}_{part.tasks[part.indices.index(first)]}" for part in pack.parts if first in part.indices)
    return next(found, None)


def find_array_address(pack: PackedArray, address: str) -> str:
    """Return Slurm's address as the user counts: "77_1500" for task "78_499" of a split array, "77" for "78"."""
    head, _, task = address.partition("_")
    part = next((one for one in pack.parts if str(one.job_id) == head), None)
    if part is None:
        return address
    first = pack.parts[0]
    if task.isdecimal() and int(task) in part.tasks:
        return f"{first.job_id}_{part.indices[part.tasks.index(int(task))]}"
    return address if part is first else str(first.job_id)


def read_split_arrays(state_dir: Path, cluster: str) -> dict[int, PackedArray]:
    """Return the user's split arrays of a cluster by the id of each of their parts. Call it as their user only."""
    found: dict[int, PackedArray] = {}
    for path in sorted((state_dir / "pack").glob(f"*/{PART_JOBS}")):
        pack = read_folded_array(PackedArray(directory=str(path.parent), members=1, array=""))
        with suppress(OSError, ValueError, KeyError, TypeError):
            if json.loads(read_private_file(path, _MOST_BYTES))["cluster"] == cluster:
                found |= {part.job_id: pack for part in pack.parts}
    return found


def find_slurm_state(member: PackMember, task_state: str) -> str:
    """Return the state that Slurm would show of a member. `task_state`: of its array task, "" while that runs.

    A member that ended well after a signal to its task, or that has not ended, ended with the task. The kernel kills
    one process when the task's memory is full, and Slurm then calls the whole task OUT_OF_MEMORY.
    """
    if member.reason.startswith("memory"):  # the wrapper ended it, before the kernel would have
        return "OUT_OF_MEMORY"
    killed = member.signal == SIGKILL or member.exit_code == 128 + SIGKILL
    if member.state == "failed" and killed and task_state == "OUT_OF_MEMORY":
        return task_state
    state = _STATES.get(member.state, task_state)
    return "CANCELLED" if member.state == "stopped" and state == "COMPLETED" else state


def read_members(pack: PackedArray) -> tuple[PackMember, ...]:
    """Return the members that were started, ascending. Damaged files are left out. Call it as their user only."""
    return tuple(_read_each(pack))


def request_cancel(directory: Path, member: int) -> None:
    """Ask the wrapper of the task to end a member, or not to start it. OSError if that cannot be written."""
    (directory / "cancel").mkdir(mode=0o700, exist_ok=True)
    (directory / "cancel" / str(member)).touch(mode=0o600)


def _read_each(pack: PackedArray) -> Iterator[PackMember]:
    folder = Path(pack.directory) / "members"
    for index in expand_indices(pack.array):
        with suppress(OSError, ValueError, RecursionError):
            yield record_from_json(PackMember, json.loads(read_private_file(folder / f"{index}.json")))


def read_private_file(path: Path, most: int = _MOST_BYTES) -> bytes:
    """Return the first `most` bytes of a regular file that its own user reads. OSError for anything else."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no regular file")
        return file.read(most)
