"""Arrays with indices beyond MaxArraySize: how they are split, and what keeps one from being split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_submit import request

from slurmwrap.sbatch.array_indices import expand_indices
from slurmwrap.sbatch.array_parts import find_splitting_obstacle, make_part_changes, split_indices, split_plan
from slurmwrap.sbatch.fast_passthrough import is_certain_passthrough
from slurmwrap.sbatch.passthrough import NO_GPU, may_need_splitting

SCRIPT = b"#!/bin/bash\n#SBATCH --gres=gpu:1 --output=%A-%a.log\necho hello\n"


@given(indices=st.sets(st.integers(0, 300), min_size=1), size=st.integers(1, 60), limit=st.none() | st.integers(1, 40))
def test_each_index_is_in_one_part_and_slurm_takes_each_part(indices: set[int], size: int, limit: int | None) -> None:
    parts = split_indices(sorted(indices), size, limit)
    assert [index for part in parts for index in part.indices] == sorted(indices)
    for part in parts:
        assert max(part.tasks) < size
        assert len(part.tasks) == len(part.indices)
        assert expand_indices(part.array) == part.tasks
    if limit is not None:
        # Of parts that wait for each other, one runs at a time.
        heads = [part.limit or 0 for part in parts if part.after is None]
        assert sum(heads) <= limit
        assert all(part.limit == heads[at % len(heads)] for at, part in enumerate(parts))
        assert all(part.after == at - len(heads) for at, part in enumerate(parts) if part.after is not None)
        assert all(part.limit for part in parts)


def test_the_first_part_keeps_the_indices_below_the_limit() -> None:
    first, second = split_indices(range(1, 2001), 1001)
    assert (first.array, second.array) == ("1-1000", "0-999")
    assert (second.indices[0], second.indices[-1]) == (1001, 2000)
    (only,) = split_indices(range(5000, 5900), 1001)
    assert only.array == "0-899"


def test_an_array_below_the_limit_is_left_as_it_is() -> None:
    assert split_plan(request("--array=0-1000", script=SCRIPT), None, 1001) is None
    plan = split_plan(request("--array=0-1001%7", script=SCRIPT), None, 1001)
    assert plan is not None and plan.array == "0-1000%4"
    assert not plan.is_folded
    assert {one.option for one in plan.changes} == {"array", "output", "job-name"}


def test_a_later_part_waits_for_an_earlier_one_if_fewer_tasks_than_parts_may_run() -> None:
    asked = request("--array=0-39%2", "--dependency=afterok:5", script=SCRIPT)
    plan = split_plan(asked, None, 10)
    assert plan is not None
    (array, *_, dependency) = make_part_changes(asked, plan, 2, [81, 82])
    assert (array.value, dependency.value) == ("0-9%1", "afterany:81,afterok:5")
    assert [one.option for one in make_part_changes(asked, plan, 1, [81])] == [one.option for one in plan.changes]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--dependency=aftercorr:5",), "aftercorr"),
        (("--dependency=afterok:5?afterok:6", "--array=0-39%2"), "wait for each other"),
        (("--wait",), "--wait"),
        (("--container=/bundle",), "container"),
        (("--input=/data/in",), "--input"),
    ],
)
def test_what_cannot_be_split_is_named(words: tuple[str, ...], why: str) -> None:
    asked = request("--array=0-39", *words, script=SCRIPT)
    plan = split_plan(asked, None, 10)
    assert plan is not None and why in find_splitting_obstacle(asked, plan.parts)
    assert find_splitting_obstacle(request("--array=0-39", "-N2", script=SCRIPT), plan.parts) == ""


@pytest.mark.parametrize(
    ("words", "reason", "needed"),
    [
        (("--array=1-2000",), NO_GPU, True),
        (("--array=0-1000",), NO_GPU, False),
        (("--array=1-2000",), "The array has 2000 tasks, more than 1000 (submit.array_threshold).", True),
        (("--array=1-2000", "--pack=2"), NO_GPU, False),
        (("--array=1-2000",), "gsub is switched off (submit.enabled).", False),
        ((), NO_GPU, False),
    ],
)
def test_a_call_that_is_passed_on_may_need_splitting(words: tuple[str, ...], reason: str, needed: bool) -> None:
    assert may_need_splitting(request(*words, script=SCRIPT), reason) is needed


def test_a_large_array_without_gpus_is_not_certain_to_be_passed_on() -> None:
    def is_certain(script: bytes, *words: str) -> bool:
        return is_certain_passthrough([*words, "x.sh"], {}, lambda path: script)

    plain, large = b"#!/bin/sh\n#SBATCH --time=1200\n", b"#!/bin/sh\n#SBATCH --array=1-2000%10\n"
    assert is_certain(plain) and is_certain(plain, "--array=1-999", "--mem=1G")
    assert not is_certain(large)
    assert not is_certain(plain, "--array=1-2000")
    assert not is_certain(plain, "-a", "1-2000")
    assert not is_certain(b"#!/bin/sh\n#SBATCH -a 1-2000\n")
