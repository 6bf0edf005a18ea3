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
from slurmwrap.prerun.static.job_logs import find_log_ends

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


def read_texts(run: JobRun) -> list[tuple[str, str]]:
    return [(tail.name, tail.text) for tail in UserLogs().tails(run)]


def read_after(path: Path, earlier: LogTail) -> LogTail:
    """Reads the output of a run whose previous run left the file as described by `earlier`."""
    (tail,) = UserLogs().tails(replace(attempt(path), output_begins={str(path): [earlier.size, earlier.mark]}))
    return tail


def test_output_of_an_earlier_run_in_the_same_file_is_left_out(home: Path) -> None:
    path = write_user_file(home / "out", "NCCL error\n")
    (first,) = UserLogs().tails(attempt(path))
    write_user_file(path, "NCCL error\nKeyError: 'x'\n")
    second = read_after(path, first)
    assert (second.text, second.first_line, second.truncated) == ("KeyError: 'x'\n", 2, False)
    assert read_after(path, second).text == ""


@pytest.mark.parametrize("text", ["short", "begun anew, and longer than before\n"])
def test_a_file_that_the_next_run_overwrote_is_read_whole(home: Path, text: str) -> None:
    path = write_user_file(home / "out", "NCCL error\n")
    (first,) = UserLogs().tails(attempt(path))
    assert read_after(write_user_file(path, text), first).text == text


def test_line_numbers_of_a_long_file_are_those_of_the_whole_file(home: Path) -> None:
    path = write_user_file(home / "out", "".join(f"{number}\n" for number in range(1, 50_001)))
    (tail,) = UserLogs().tails(attempt(path))
    assert tail.text.startswith(f"{tail.first_line}\n") and tail.first_line > 1


def write_user_file(path: Path, text: str) -> Path:
    path.write_text(text)
    os.chown(path, USER, USER)
    return path


def test_stdout_and_stderr_files_are_read_once_each_with_literal_names(home: Path) -> None:
    out, err = write_user_file(home / "%j \n'a", "out"), write_user_file(home / "err", "err")
    assert read_texts(attempt(out, err)) == [(str(out), "out"), (str(err), "err")]
    assert read_texts(attempt(out, out)) == [(str(out), "out")]


def test_only_the_end_of_a_long_file_is_read(home: Path) -> None:
    (tail,) = UserLogs().tails(attempt(write_user_file(home / "out", "line\n" * 100_000)))
    assert tail.truncated and tail.text.startswith("line\n") and 65_000 < len(tail.text) <= 65_536


def test_a_file_that_the_user_cannot_read_or_does_not_own_is_not_read(home: Path) -> None:
    (home / "link").symlink_to("/etc/shadow")
    (home / "roots").write_text("readable, but root's")
    for path in (home / "link", home / "roots", home / "missing", home, "/etc/shadow", "/dev/null", "relative"):
        assert UserLogs().tails(attempt(path)) == ()


@pytest.mark.parametrize("uid", [0, -1, 4_000_000_000])
def test_no_file_is_read_for_a_job_of_root_or_of_an_unknown_user(home: Path, uid: int) -> None:
    assert UserLogs().tails(attempt(write_user_file(home / "out", "text"), uid=uid)) == ()


def test_an_ordinary_user_can_read_the_output_of_the_own_job(home: Path) -> None:
    path = write_user_file(home / "out", "text")
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(*[pwd.getpwuid(USER).pw_gid] * 3)
        os.setresuid(USER, USER, USER)
        os._exit(0 if read_texts(attempt(path)) == [(str(path), "text")] else 1)
    assert os.waitpid(child, 0)[1] == 0


def read_named(run: JobRun, *named: str) -> list[tuple[str, str]]:
    return [(tail.name, tail.text) for tail in UserLogs().tails(run, named)]


def started_at(run: JobRun, start: float) -> JobRun:
    return replace(run, start_time=int(start))


def test_logs_that_the_submission_names_are_read_if_this_run_wrote_them(home: Path) -> None:
    (home / "o").mkdir()
    os.chown(home / "o", USER, USER)
    out, log = write_user_file(home / "out", "out"), write_user_file(home / "t.log", "KeyError")
    inside, old = write_user_file(home / "o" / "a.log", "in"), write_user_file(home / "o" / "old.log", "old")
    write_user_file(home / "o" / "weights.bin", "no log")
    start = log.stat().st_mtime
    os.utime(old, (start - 100, start - 100))
    run = started_at(attempt(out), start)
    assert read_named(run, str(log), f"{home}/o/", str(old)) == [
        (str(out), "out"),
        (str(log), "KeyError"),
        (str(inside), "in"),
    ]
    assert read_named(attempt(out), str(log)) == [(str(out), "out")], "the start of the run is not known"


def test_a_log_holds_only_what_was_appended_since_the_submission(home: Path) -> None:
    log = write_user_file(home / "t.log", "CUDA out of memory\n")
    end = find_log_ends([str(log)], USER)
    write_user_file(log, "CUDA out of memory\nstep 1\n")
    run = replace(started_at(attempt(""), log.stat().st_mtime), output_begins=end)
    assert read_named(run, *end) == [(str(log), "step 1\n")]


def test_a_submission_cannot_name_what_its_user_may_not_read_or_does_not_own(home: Path, open_dir: Path) -> None:
    roots = open_dir / "roots.log"
    roots.write_text("readable, but root's")
    secret = open_dir / "secret"
    secret.mkdir(mode=0o700)
    write_user_file(secret / "a.log", "its name, in a directory of root")
    (home / "link.log").symlink_to(roots)
    log = write_user_file(home / "t.log", "own")
    run = started_at(attempt(""), log.stat().st_mtime)
    named = [str(roots), f"{open_dir}/", f"{secret}/", f"{secret}/a.log", f"{home}/link.log", "t.log", "a\0b", "\ud800"]
    assert read_named(run, *named, "/dev/zero", "/etc/", str(log)) == [(str(log), "own")]


def test_only_a_few_of_many_named_logs_are_read(home: Path) -> None:
    logs = [write_user_file(home / f"{number}.log", "x") for number in range(20)]
    run = started_at(attempt(""), logs[0].stat().st_mtime)
    assert len(read_named(run, *map(str, logs))) == 8
    assert len(read_named(run, f"{home}/")) == 4
