"""--array as Slurm 22.05.8 counts it: the values that the first task of each array got (measured on a lab)."""

from __future__ import annotations

import pytest

from slurmwrap.sbatch.array_indices import ArrayIndices, parse_indices


@pytest.mark.parametrize(
    ("indices", "first", "last", "count", "step"),
    [
        ("1,3,5-7", 1, 7, 5, 1),
        ("0-15%4", 0, 15, 16, 1),
        ("[0-100:10]", 0, 100, 11, 10),
        ("5,1", 1, 5, 2, 1),
        ("3", 3, 3, 1, 1),
        ("2-8:2", 2, 8, 4, 2),
        ("1-9:4,20", 1, 20, 4, 4),
        ("0-4:2,7-9", 0, 9, 6, 2),
        ("2-8:4", 2, 6, 2, 4),
    ],
)
def test_array_indices_give_first_last_count_and_step(
    indices: str, first: int, last: int, count: int, step: int
) -> None:
    assert parse_indices(indices) == ArrayIndices(first=first, last=last, count=count, step=step)


@pytest.mark.parametrize("indices", ["", "x", "5-3", "1-", "0-4:0"])
def test_indices_that_slurm_refuses_are_no_array(indices: str) -> None:
    assert parse_indices(indices) is None
