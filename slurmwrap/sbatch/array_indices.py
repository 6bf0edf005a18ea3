"""Parse the indices of --array as Slurm counts them, and give the SLURM_ARRAY_* variables of its first task. Pure."""

from __future__ import annotations

import re

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
    text = indices.partition("%")[0].strip(" []")
    found = [_PART.fullmatch(part.strip()) for part in text.split(",")]
    ranges = []
    for part in found:
        if part is None or part[3] == "0":
            return None
        first = int(part[1])
        ranges.append(range(first, int(part[2] or first) + 1, int(part[3] or 1)))
    if not all(ranges):
        return None
    count = len(ranges[0]) if len(ranges) == 1 else len(set().union(*ranges))
    step = _STEP.search(text)
    return ArrayIndices(
        first=min(part[0] for part in ranges),
        last=max(part[-1] for part in ranges),
        count=count,
        step=int(step[1]) if step else 1,
    )
