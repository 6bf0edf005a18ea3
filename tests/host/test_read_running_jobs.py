"""New output and step counts of running jobs, read as their user."""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path

import pytest

from slurmwrap.host.read_running_jobs import RunningJobReader
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.running_read import RunningNews, RunningRead

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
UID = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else os.geteuid()


def write(path: Path, text: str, uid: int = UID) -> Path:
    path.write_text(text)
    os.chown(path, uid, -1)
    return path


def read_of(
    path: Path, *, begins: dict[str, list[object]] | None = None, ranks: bool = False, **changes: object
) -> RunningRead:
    run = JobRun(
        attempt=RunKey(cluster="c", job_id=41, submit_time=1), uid=UID, std_out=str(path), std_err=str(path),
        start_time=int(time.time()) - 60, address="41", output_begins=begins or {},
    )  # fmt: skip
    return RunningRead(run=run, ranks=ranks, **changes)  # type: ignore[arg-type]


def read(*reads: RunningRead) -> list[RunningNews]:
    found = RunningJobReader()(UID, reads)
    assert None not in found
    return [one for one in found if one is not None]


def test_only_what_is_new_is_read_of_several_jobs_at_once(open_dir: Path) -> None:
    path, other = write(open_dir / "a", "one\ntwo\n"), write(open_dir / "b", "three\n")
    (first, second) = read(read_of(path), read_of(other))
    assert [news.logs[0].text for news in (first, second)] == ["one\ntwo\n", "three\n"]
    begins = {log.name: [log.size, log.mark] for log in first.logs}
    assert [log.text for log in read(read_of(path, begins=begins))[0].logs] == [""]
    write(path, "one\ntwo\nmore\n")
    assert [log.text for log in read(read_of(path, begins=begins))[0].logs] == ["more\n"]
    write(path, "a new file\n")
    assert [log.text for log in read(read_of(path, begins=begins))[0].logs] == ["a new file\n"]


def test_at_most_64_kib_are_read_and_marked_as_cut(open_dir: Path) -> None:
    path = write(open_dir / "a", "0123456789abcde\n" * 10_000)
    (news,) = read(read_of(path))
    assert len(news.logs[0].text) <= 64 * 1024 and news.logs[0].truncated and news.logs[0].size == 160_000


def test_steps_of_all_processes_are_read(open_dir: Path) -> None:
    steps = open_dir / "steps"
    steps.mkdir(mode=0o755)
    write(steps / "41.0.n1.700", "7 optimizer 10.0 13.0 0 0\n")
    write(steps / "41.0.n2.900", "5 optimizer 10.0 13.0 0 0\n")
    write(steps / "41.1.n2.900", "50 optimizer 10.0 13.0 0 0\n")
    write(steps / "41.0.n1.700.loss", f"1 9 4 3 {13.0:16.6f} 0\n")
    (news,) = read(read_of(open_dir / "none", step_dir=str(steps)))
    assert (news.steps["count"], news.steps["total"], news.steps["processes"]) == (7, 12, 2)
    assert news.steps["bad_losses"] == 3 and news.logs == ()


def test_files_of_ranks_next_to_the_output_are_read_if_they_are_new(open_dir: Path) -> None:
    path = write(open_dir / "slurm-41.out", "")
    for rank in range(3):
        write(open_dir / f"log.{rank}", f"rank {rank}\n")
    os.utime(open_dir / "log.1", (time.time() - 40, time.time() - 40))
    (news,) = read(read_of(path, ranks=True, since=time.time() - 20))
    assert sorted(log.text for log in news.logs) == ["", "rank 0\n", "rank 2\n"]


@ROOT
def test_files_of_others_are_not_read(open_dir: Path) -> None:
    secret = write(open_dir / "secret", "secret\n", uid=0)
    link = open_dir / "link"
    link.symlink_to(secret)
    (first, second) = read(read_of(secret), read_of(link))
    assert first.logs == second.logs == ()


def test_a_user_whose_files_hang_delays_one_look(open_dir: Path) -> None:
    path = write(open_dir / "a", "one\n")
    shift = [-60.0]  # with a clock 60 s behind, the child has no time at all
    reader = RunningJobReader(clock=lambda: time.monotonic() + shift[0])
    found = []
    for shift[0] in (-60.0, 60.0, 700.0):
        found.append(reader(UID, [read_of(path)])[0] is None)
    assert found == [True, True, False]


def test_an_unknown_user_has_nothing_to_read(open_dir: Path) -> None:
    assert RunningJobReader()(4_000_000, [read_of(open_dir / "a")]) == (None,)


@pytest.mark.parametrize("path", ["relative", "/dev/null", "/a\udc00\0b", "/nowhere/at/all"])
def test_paths_that_are_not_read(path: str, open_dir: Path) -> None:
    del open_dir
    assert read(read_of(Path(path)))[0].logs == ()
