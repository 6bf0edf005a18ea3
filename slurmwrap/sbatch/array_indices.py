"""Parse the indices of --array as Slurm counts them, write them, and give SLURM_ARRAY_* of the first task. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

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
