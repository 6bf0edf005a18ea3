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
from slurmwrap.model.submission import PackedArray
from slurmwrap.sbatch.array_indices import expand_indices
from slurmwrap.store.deserialize import record_from_json

SPEC = "spec.json"  # what the program that runs the members must know
_MOST_BYTES = 1 << 16
_MOST_SPEC_BYTES = 1 << 24  # it lists the indices of all members
_STATES = {"completed": "COMPLETED", "failed": "FAILED", "cancelled": "CANCELLED"}


def read_folded_array(pack: PackedArray) -> PackedArray:
    """Return the array with the number of members that its pre-run may have chosen. Call it as their user only."""
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        members = json.loads(read_private_file(Path(pack.directory) / SPEC, _MOST_SPEC_BYTES))["members"]
        return replace(pack, members=members) if isinstance(members, int) and members > 0 else pack
    return pack


def find_task_index(pack: PackedArray, member: int) -> int | None:
    """Return the index of the array task that runs a member; None if the array has no such member."""
    indices = expand_indices(pack.array)
    if member not in indices or pack.members < 1:
        return None
    at = indices.index(member)
    return indices[at - at % pack.members]


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
