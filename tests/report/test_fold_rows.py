"""Folding: names that differ in one number share a line, without loss of information."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmwrap.model.hostlist import expand
from slurmwrap.report.fold_rows import drop_empty_columns, fold_jobs, fold_names, format_ranges, group_alike, label


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], ()),
        (["/data/a.tar"], ("/data/a.tar",)),
        ([f"/data/shard-{i:03d}.tar" for i in range(41)], ("/data/shard-[000-040].tar",)),
        (["/d/s-1.tar", "/d/s-2.tar", "/d/s-9.tar", "/e/s-1.tar"], ("/d/s-[1-2,9].tar", "/e/s-1.tar")),
        (["n1", "n2", "n10", "n2"], ("n[1-2,10]",)),
        (["node08", "node09", "node10"], ("node[08-10]",)),
        (["p01", "p1"], ("p01", "p1")),
        (["r1/f1", "r1/f2", "r2/f1", "r2/f2"], ("r1/f[1-2]", "r2/f[1-2]")),
        (["epoch=3-step=9", "epoch=4-step=9"], ("epoch=[3-4]-step=9",)),
        (["x", "y"], ("x", "y")),
    ],
)
def test_names_are_folded(names: list[str], folded: tuple[str, ...]) -> None:
    assert fold_names(names) == folded


@given(st.sets(st.integers(min_value=0, max_value=300), min_size=1), st.sampled_from([0, 3]))
def test_a_folded_name_can_be_expanded_as_a_slurm_hostlist(numbers: set[int], width: int) -> None:
    names = [f"node{number:0{width}d}" for number in numbers]
    assert sorted(name for one in fold_names(names) for name in expand(one)) == sorted(names)


def test_ranges_keep_zero_padding() -> None:
    assert format_ranges(["3", "1", "2", "7"]) == "1-3,7"
    assert format_ranges(["08", "09", "10", "10"]) == "08-10"


def test_job_ids_are_folded_as_slurm_prints_them() -> None:
    assert fold_jobs(["77_0", "77_1", "77_5", "81", "90_2", "81"]) == "77_[0-1,5], 81, 90_2"
    assert label(["81"]) == "81"
    assert label(["81", "80", "75"]) == "81 (3)"
    assert label([f"77_{n}" for n in range(31, -1, -1)]) == "77_[0-31] (32)"


def test_groups_keep_the_order_of_their_first_member() -> None:
    assert group_alike(["b1", "a1", "b2"], lambda text: text[0]) == (("b1", "b2"), ("a1",))
    assert drop_empty_columns(["a", "b", "c"], [["1", "", "x"], ["2", "", ""]]) == (["a", "c"], [["1", "x"], ["2", ""]])
