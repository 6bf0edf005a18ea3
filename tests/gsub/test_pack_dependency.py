"""--dependency on packed jobs: members are named by their tasks; aftercorr pairs only tasks with the same members."""

from __future__ import annotations

import pytest

from slurmwrap.errors import RefusedError
from slurmwrap.gsub.pack_dependency import adapt_dependency, check_correspondence, list_named_jobs
from slurmwrap.model.submission import PackedArray

PACKS = {
    77: PackedArray(directory="/p", members=4, array="0-6%4"),
    80: PackedArray(directory="/p", members=2, array="1-9:2"),
    90: PackedArray(directory="/p", members=1, array="0-6"),  # --pack=auto: it is folded later
}


@pytest.mark.parametrize(
    ("asked", "adapted"),
    [
        ("afterok:77_5", "afterok:77_4"),
        ("afterok:77_5:81_5,afterany:80_7", "afterok:77_4:81_5,afterany:80_5"),
        ("after:77_3+10?afterany:77", "after:77_0+10?afterany:77"),
        ("afternotok:77_4", "afternotok:77_4"),
        ("afterok:77_9,singleton", "afterok:77_9,singleton"),  # no such member: Slurm says what it is
        ("afterok:81_5", "afterok:81_5"),
        ("afterok:90_5", "afterok:90"),
        ("aftercorr:77:81", "afterok:77,aftercorr:81"),
        ("aftercorr:77:81?afterok:1", "afterok:77?aftercorr:81?afterok:1"),
        ("aftercorr:81", "aftercorr:81"),
    ],
)
def test_a_member_is_named_by_its_task_and_a_packed_array_as_a_whole(asked: str, adapted: str) -> None:
    assert adapt_dependency(asked, PACKS, "0-6", packed=False)[0] == adapted


def test_aftercorr_is_kept_for_packed_jobs_and_for_single_jobs() -> None:
    assert adapt_dependency("aftercorr:77", PACKS, "0-6", packed=True) == ("aftercorr:77", ())
    assert adapt_dependency("aftercorr:77", PACKS, "", packed=False) == ("aftercorr:77", ())


def test_the_failure_of_one_member_cannot_be_waited_for() -> None:
    with pytest.raises(RefusedError, match="Slurm knows only how the whole task ended") as refused:
        adapt_dependency("afternotok:77_5", PACKS, "", packed=False)
    assert "afternotok:77_4 is met if any of its members 4-6 fails" in refused.value.hint


def test_jobs_are_found_in_every_kind_of_dependency() -> None:
    value = "afterok:77_5:78+3,aftercorr:80:77,singleton"
    assert list_named_jobs(value) == (77, 78, 80)
    assert list_named_jobs(value, "aftercorr") == (80, 77)


@pytest.mark.parametrize(
    ("job", "indices", "members", "why"),
    [
        (77, tuple(range(7)), 4, ""),
        (80, (1, 3, 5, 7, 9), 2, ""),
        (81, tuple(range(7)), 1, ""),  # --pack=auto may choose one member
        (77, tuple(range(8)), 4, "has 4 members in each task"),
        (77, tuple(range(7)), 2, "each task of this one has 2 members"),
        (77, tuple(range(7)), 1, "each task of this one has one member"),
        (81, tuple(range(7)), 4, "is not packed by gsub --pack"),
        (81, tuple(range(7)), 0, "as many members as its pre-run finds best"),
        (90, tuple(range(7)), 1, "that is not known yet"),
    ],
)
def test_aftercorr_pairs_only_tasks_with_the_same_members(
    job: int, indices: tuple[int, ...], members: int, why: str
) -> None:
    if not why:
        check_correspondence(f"aftercorr:{job}", indices, members, PACKS)
        return
    with pytest.raises(RefusedError, match=why) as refused:
        check_correspondence(f"aftercorr:{job}", indices, members, PACKS)
    assert f"--dependency=afterok:{job} waits for the whole array" in refused.value.hint
