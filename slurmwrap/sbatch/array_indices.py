"""Parse the indices of --array as Slurm counts them, write them, and give SLURM_ARRAY_* of the first task. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from slurmwrap.fast_dataclasses import dataclass

_PART = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_STEP = re.compile(r":(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayIndices:
    """The indices of an array. `first` is the smallest index, in whatever order they were written."""

    first: int
    last: int
    count: int
    step: int

    def environment(self) -> dict[str, str]:
        """Return the SLURM_ARRAY_* variables of the first task, except SLURM_ARRAY_JOB_ID."""
        return {
            "SLURM_ARRAY_TASK_ID": str(self.first),
            "SLURM_ARRAY_TASK_MIN": str(self.first),
            "SLURM_ARRAY_TASK_MAX": str(self.last),
            "SLURM_ARRAY_TASK_COUNT": str(self.count),
            "SLURM_ARRAY_TASK_STEP": str(self.step),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayPart:
    """One array of Slurm. Task `tasks[i]` of it is the task that the user's array would have under `indices[i]`."""

    tasks: tuple[int, ...]
    indices: tuple[int, ...]
    limit: int | None = None  # so many of its tasks run at the same time; None: no limit
    after: int | None = None  # the part, by its place, that must have ended before this one starts; None: none

    @property
    def array(self) -> str:
        """Return the value of --array."""
        return fold_task_indices(self.tasks) + (f"%{self.limit}" if self.limit is not None else "")


def parse_indices(indices: str) -> ArrayIndices | None:
    """Parse `0-15%4`, `1,3,5-7` or `[0-100:10]`; None for an empty text and for indices that Slurm refuses.

    The step is the first one that is written, or 1 if there is none (measured on 22.05.8: `1-9:4,20` has step 4).
    """
    ranges = _parse_ranges(indices)
    if ranges is None:
        return None
    count = len(ranges[0]) if len(ranges) == 1 else len(set().union(*ranges))
    step = _STEP.search(indices.partition("%")[0])
    return ArrayIndices(
        first=min(part[0] for part in ranges),
        last=max(part[-1] for part in ranges),
        count=count,
        step=int(step[1]) if step else 1,
    )


def expand_indices(indices: str) -> tuple[int, ...]:
    """Return every index of `0-15%4` in ascending order; () for a text that Slurm refuses."""
    return tuple(sorted(set().union(*(_parse_ranges(indices) or ()))))


def fold_indices(indices: Iterable[int]) -> str:
    """Return indices as --array takes them: 1, 2, 3, 7 -> "1-3,7"."""
    ranges: list[tuple[int, int]] = []
    for index in sorted(set(indices)):
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1] = ranges[-1][0], index
        else:
            ranges.append((index, index))
    return ",".join(_format_range(first, last) for first, last in ranges)


def fold_task_indices(indices: Sequence[int]) -> str:
    """Return indices for --array, with a step where there is one: 0, 4, 8 -> "0-8:4"."""
    step = indices[1] - indices[0] if len(indices) > 1 else 0
    if step > 1 and len(indices) > 2 and tuple(indices) == tuple(range(indices[0], indices[-1] + 1, step)):
        return f"{indices[0]}-{indices[-1]}:{step}"
    return fold_indices(indices)


def _format_range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first},{last}" if last == first + 1 else f"{first}-{last}"


def _parse_ranges(indices: str) -> list[range] | None:
    """Return one range for each part; None if Slurm refuses the text."""
    ranges = []
    for part in indices.partition("%")[0].strip(" []").split(","):
        found = _PART.fullmatch(part.strip())
        if found is None or found[3] == "0":
            return None
        first = int(found[1])
        ranges.append(range(first, int(found[2] or first) + 1, int(found[3] or 1)))
    return ranges if all(ranges) else None
