"""Files of ranks next to a job's output: which belong to the job, which are sent, and how the rest is reported."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from hook_site import Site, append, give, only

from slurmwrap.node_hooks import log_tails, user_files


@pytest.mark.parametrize(
    ("names", "others"),
    [
        ([b"slurm-41.0.out", b"41_7.log", b"rank3-41", b"x41"], [b"slurm-411.out", b"410", b"141.out"]),
        ([b"log.0", b"log.1", b"log.2"], [b"log", b"log.x"]),
        ([b"rank0.log", b"rank1.log", b"rank10.log"], [b"rank0.pt", b"rank1.pt"]),
        ([b"out_00.txt", b"out_01.txt"], []),
        ([b"Task-0.err", b"Task-1.err"], [b"err0"]),
        ([], [b"log.1", b"log.2"]),  # the numbers of a family begin at 0
        ([], [b"log.0"]),
        ([], [b"model_0.pt", b"model_1.pt", b"epoch0.ckpt", b"0", b"1", b"data0.txt", b"data1.txt"]),
    ],
)
def test_names_with_the_job_id_or_a_numbered_family_belong_to_the_job(names: list[bytes], others: list[bytes]) -> None:
    assert log_tails.named_like(others + names, 41) == names


@pytest.mark.parametrize(
    ("job_id", "of_array", "names", "others"),
    [
        (18, False, [b"slurm-18.out", b"18_2.log", b"train-n16_18.log"], [b"slurm-16_18.out", b"17_18.err"]),
        (4711, False, [b"0_4711.log", b"20261121_4711.log", b"4698_4711-4711.log"], [b"slurm-4698_4711.out"]),
        (41, True, [b"slurm-41.0.out", b"rank3-41"], [b"slurm-41_7.out", b"slurm-41_41.out", b"x-41_0"]),
    ],
)
def test_files_of_other_array_tasks_do_not_belong_to_the_job(
    job_id: int, of_array: bool, names: list[bytes], others: list[bytes]
) -> None:
    assert log_tails.named_like(others + names, job_id, of_array) == names


def test_files_with_errors_come_first_and_then_the_newest() -> None:
    read = [(b"%d" % number, b"step 1\n", False) for number in range(20)]
    read[3] = (b"3", b"Traceback (most recent call last)\n", False)
    read[11] = (b"11", b"RuntimeError: NCCL\n", True)
    assert [one[0] for one in log_tails.preferred(read)] == [b"3", b"11", b"19", b"18", b"17", b"16", b"15", b"14"]


def test_two_places_are_left_for_the_newest_files() -> None:
    read = [(b"%d" % number, b"Error\n", False) for number in range(20)]
    assert [one[0] for one in log_tails.preferred(read)] == [b"0", b"1", b"2", b"3", b"4", b"5", b"19", b"18"]


def run_prolog(site: Site) -> Site:
    site.prolog()
    site.arrived()
    return site


def run_epilog(site: Site, **changed: str) -> dict[str, Any]:
    site.epilog(**changed)
    facts = only(site.arrived()).facts
    return {key: facts[key] for key in ("logs", "log_error", "logs_skipped") if key in facts}


def make_log(path: Path, text: str, beside: bool = True) -> dict[str, Any]:
    return {"name": str(path), "text": text, "truncated": False, **({"beside": True} if beside else {})}


def test_rank_files_next_to_the_output_are_read_too(site: Site) -> None:
    work = run_prolog(site).work
    give(work / "41.out", "srun: error: n0: task 1: Exited with exit code 1\n")
    for rank, text in ((0, "step 5\n"), (1, "Traceback\nValueError: boom\n"), (2, "step 5\n")):
        give(work / f"log.{rank}", text)
        os.utime(work / f"log.{rank}", (time.time() + rank, time.time() + rank))
    give(work / "log.3")  # empty
    os.utime(give(work / "log.4", "of an earlier job\n"), (1, 1))
    assert run_epilog(site) == {
        "logs": [
            make_log(work / "41.out", "srun: error: n0: task 1: Exited with exit code 1\n", beside=False),
            make_log(work / "log.1", "Traceback\nValueError: boom\n"),
            make_log(work / "log.2", "step 5\n"),
            make_log(work / "log.0", "step 5\n"),
        ]
    }


def test_without_an_output_file_rank_files_are_read_from_the_working_directory(site: Site) -> None:
    work = run_prolog(site).work
    give(work / "log.0", "Traceback\n")
    give(work / "log.1", "step\n")
    os.utime(work / "log.1", (time.time() + 5, time.time() + 5))
    found = run_epilog(site, SLURM_JOB_STDOUT="/dev/null", SLURM_JOB_STDERR="/dev/null")
    assert found == {"logs": [make_log(work / "log.0", "Traceback\n"), make_log(work / "log.1", "step\n")]}
    run_prolog(site)
    assert run_epilog(site, SLURM_JOB_STDOUT="/dev/null", SLURM_JOB_WORK_DIR="")["logs"] == []


def test_the_number_of_rank_files_is_limited_and_the_rest_is_counted(site: Site) -> None:
    work = run_prolog(site).work
    give(work / "41.out", "text\n")
    for rank in range(100):
        give(work / f"41_{rank}.err", f"{'y' * 99}\n" * 1000 + ("Error\n" if rank == 50 else ""))
    found = run_epilog(site)
    assert [Path(one["name"]).name for one in found["logs"]][:1] == ["41.out"] and len(found["logs"]) == 9
    assert all(len(one["text"]) <= 16384 and one["truncated"] for one in found["logs"][1:])
    assert found["logs_skipped"] == ["92 more files next to it: at most 8 are kept"]


def test_a_rank_file_must_be_a_readable_regular_file_of_the_user(site: Site) -> None:
    work = run_prolog(site).work
    secret = site.root / "secret"
    secret.write_text("SECRET\n")
    secret.chmod(0o600)
    give(work / "41.out", "text\n")
    (work / "41_0.err").symlink_to(secret)
    (work / "41_1.err").hardlink_to(secret)
    os.mkfifo(work / "41_2.err")
    (work / "41_3.err").mkdir()
    give(work / "41_4.err", "mine\n").chmod(0)
    os.truncate(give(work / "41_5.err"), 10 << 30)
    append(work / "41_5.err", "", "the end")
    found = run_epilog(site)
    assert [one["text"] for one in found["logs"]] == ["text\n", "the end\n"]
    assert found["logs_skipped"] == ["41_4.err: Permission denied"]


def test_without_the_jobs_start_time_no_rank_file_is_read(site: Site) -> None:
    give(site.work / "41.out", "text\n")
    give(site.work / "41_0.err", "mine\n")
    assert run_epilog(site) == {"logs": [make_log(site.work / "41.out", "text\n", beside=False)]}


def test_a_directory_with_too_many_files_is_not_searched(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}").touch()
    assert sorted(user_files.listed(os.fsencode(tmp_path), 4)) == [b"0", b"1", b"2", b"3"]
    with pytest.raises(user_files.Unreadable, match="too many files in its directory"):
        user_files.listed(os.fsencode(tmp_path), 3)


def test_of_a_long_file_only_the_end_is_read(tmp_path: Path) -> None:
    """A job may have dozens of such files, on a file system that many nodes read at the same moment."""
    path = tmp_path / "41_0.err"
    path.write_bytes(b"x\n" * (1 << 20))
    before = count_bytes_read()
    data, more = user_files.tail(os.fsencode(path), os.geteuid(), 1000)
    assert (len(data), more) == (1000, True)
    assert count_bytes_read() - before < 100_000


def count_bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])
