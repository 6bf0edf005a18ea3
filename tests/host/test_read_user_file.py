"""Output files whose paths Slurm resolved, read with the rights of the job's user."""

from __future__ import annotations

import os
import pwd
from dataclasses import replace
from pathlib import Path

import pytest

from slurmwrap.host.read_user_file import UserLogs
from slurmwrap.model.evidence import LogTail, RunKey
from slurmwrap.model.job_run import JobRun

USER = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")


def attempt(out: Path | str, err: Path | str = "", uid: int = USER) -> JobRun:
    key = RunKey(cluster="lab", job_id=41, submit_time=1)
    return JobRun(attempt=key, uid=uid, std_out=str(out), std_err=str(err))


@pytest.fixture
def home(open_dir: Path) -> Path:
    path = open_dir / "home"
    path.mkdir(mode=0o700)
    os.chown(path, USER, USER)
    return path


def texts(run: JobRun) -> list[tuple[str, str]]:
    return [(tail.name, tail.text) for tail in UserLogs().tails(run)]


def after(path: Path, earlier: LogTail) -> LogTail:
    """What is read of a run whose predecessor left the file as `earlier` tells."""
    (tail,) = UserLogs().tails(replace(attempt(path), output_begins={str(path): [earlier.size, earlier.mark]}))
    return tail


def test_what_an_earlier_run_wrote_to_the_same_file_is_left_out(home: Path) -> None:
    path = give(home / "out", "NCCL error\n")
    (first,) = UserLogs().tails(attempt(path))
    give(path, "NCCL error\nKeyError: 'x'\n")
    second = after(path, first)
    assert (second.text, second.first_line, second.truncated) == ("KeyError: 'x'\n", 2, False)
    assert after(path, second).text == ""


@pytest.mark.parametrize("text", ["short", "begun anew, and longer than before\n"])
def test_a_file_that_the_next_run_began_anew_is_read_whole(home: Path, text: str) -> None:
    path = give(home / "out", "NCCL error\n")
    (first,) = UserLogs().tails(attempt(path))
    assert after(give(path, text), first).text == text


def test_lines_of_a_long_file_are_numbered_as_in_the_file(home: Path) -> None:
    path = give(home / "out", "".join(f"{number}\n" for number in range(1, 50_001)))
    (tail,) = UserLogs().tails(attempt(path))
    assert tail.text.startswith(f"{tail.first_line}\n") and tail.first_line > 1


def give(path: Path, text: str) -> Path:
    path.write_text(text)
    os.chown(path, USER, USER)
    return path


def test_both_files_are_read_each_once_and_names_are_taken_literally(home: Path) -> None:
    out, err = give(home / "%j \n'a", "out"), give(home / "err", "err")
    assert texts(attempt(out, err)) == [(str(out), "out"), (str(err), "err")]
    assert texts(attempt(out, out)) == [(str(out), "out")]


def test_a_long_file_gives_its_end(home: Path) -> None:
    (tail,) = UserLogs().tails(attempt(give(home / "out", "line\n" * 100_000)))
    assert tail.truncated and tail.text.startswith("line\n") and 65_000 < len(tail.text) <= 65_536


def test_what_the_user_cannot_read_or_does_not_own_is_not_read(home: Path) -> None:
    (home / "link").symlink_to("/etc/shadow")
    (home / "roots").write_text("readable, but root's")
    for path in (home / "link", home / "roots", home / "missing", home, "/etc/shadow", "/dev/null", "relative"):
        assert UserLogs().tails(attempt(path)) == ()


@pytest.mark.parametrize("uid", [0, -1, 4_000_000_000])
def test_a_job_of_root_or_of_nobody_known_is_not_read(home: Path, uid: int) -> None:
    assert UserLogs().tails(attempt(give(home / "out", "text"), uid=uid)) == ()


def test_the_user_himself_reads_his_own(home: Path) -> None:
    path = give(home / "out", "text")
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(*[pwd.getpwuid(USER).pw_gid] * 3)
        os.setresuid(USER, USER, USER)
        os._exit(0 if texts(attempt(path)) == [(str(path), "text")] else 1)
    assert os.waitpid(child, 0)[1] == 0
