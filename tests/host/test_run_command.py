"""The function that runs all other programs: no program may block it, and no output may be lost."""

from __future__ import annotations

import errno
import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from waiting import allow, wait_for

from slurmwrap.host.run_command import CommandResult, run, start_unfed_command
from slurmwrap.host.system_clock import SystemClock

PYTHON = (sys.executable, "-I", "-S", "-c")


def test_result_of_a_command_that_fails_holds_both_outputs_and_its_exit_code() -> None:
    argv = ("sh", "-c", "echo out; echo err >&2; exit 3")
    assert run(argv, timeout_s=allow(5)) == CommandResult(
        argv=argv, exit_code=3, stdout=b"out\n", stderr=b"err\n", timed_out=False, missing=False
    )


def test_ok_means_exit_code_0() -> None:
    assert run(["true"], timeout_s=allow(5)).ok
    assert not run(["false"], timeout_s=allow(5)).ok


def test_a_missing_program_gives_a_result_and_no_exception() -> None:
    result = run(["/nonexistent/sbatch", "--version"], timeout_s=allow(5))
    assert (result.missing, result.exit_code, result.timed_out) == (True, None, False)
    assert result.stderr == b"/nonexistent/sbatch: No such file or directory"


def test_an_argument_with_a_nul_byte_gives_a_result_and_no_exception() -> None:
    result = run(["echo", "a\0b"], timeout_s=allow(5))
    assert result.missing
    assert b"null byte" in result.stderr


def test_a_missing_working_directory_gives_a_result_and_no_exception(tmp_path: Path) -> None:
    assert run(["pwd"], timeout_s=allow(5), cwd=tmp_path / "gone").missing
    assert run(["pwd"], timeout_s=allow(5), cwd=tmp_path).stdout == os.fsencode(tmp_path.resolve()) + b"\n"


def test_arguments_reach_the_program_unchanged() -> None:
    special_characters = "a b;$(touch x)`id`'\"\n\x01\udcff*"
    assert run(["printf", "%s", special_characters], timeout_s=allow(5)).stdout == os.fsencode(special_characters)


def test_megabytes_on_all_three_pipes_at_once_do_not_deadlock() -> None:
    program = "import sys; b=sys.stdin.buffer.read(); sys.stderr.buffer.write(b); sys.stdout.buffer.write(b)"
    sent = os.urandom(1 << 20) * 4
    result = run([*PYTHON, program], timeout_s=allow(20), stdin=sent)
    assert (result.exit_code, result.stdout == sent, result.stderr == sent) == (0, True, True)


def test_input_that_the_program_does_not_read_is_no_error() -> None:
    assert run(["true"], timeout_s=allow(5), stdin=b"x" * (1 << 20)).exit_code == 0


def test_empty_input_is_an_immediate_end_of_file() -> None:
    assert run(["cat"], timeout_s=allow(5), stdin=b"").exit_code == 0
    assert run(["cat"], timeout_s=allow(5)).exit_code == 0


def test_a_timeout_kills_the_process_group_and_keeps_the_output(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"echo begun; sleep 100000 & echo $! > {pid_file}; wait"
    result = run(["sh", "-c", script], timeout_s=0.3)
    assert (result.timed_out, result.exit_code, result.stdout) == (True, None, b"begun\n")
    assert _is_dead(int(pid_file.read_text()))


def test_a_program_that_ignores_sigterm_and_closes_its_pipes_is_killed() -> None:
    program = "import os,signal,time; signal.signal(15, signal.SIG_IGN); os.close(1); os.close(2); time.sleep(100_000)"
    assert run([*PYTHON, program], timeout_s=0.5).timed_out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_only_the_first_16_kib_of_output_are_kept_from_another_users_command() -> None:
    script = "head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; exit 7"
    result = run(["sh", "-c", script], timeout_s=allow(20), uid=12345, cwd="/")
    assert (result.exit_code, len(result.stdout), len(result.stderr)) == (7, 1 << 14, 1 << 14)


def test_a_background_process_that_holds_the_pipes_is_not_awaited(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    result = run(["sh", "-c", f"setsid sleep 100000 & echo $! > {pid_file}; echo done; exit 4"], timeout_s=allow(30))
    os.kill(int(pid_file.read_text()), 9)
    assert (result.exit_code, result.timed_out, result.stdout) == (4, False, b"done\n")


def test_output_written_just_before_the_end_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loaded machine a program can write and end between the poll for output and the check whether it ended."""

    poll = select.poll

    class PollThatMissesOutput:
        def __init__(self) -> None:
            self.real = poll()
            self.register, self.unregister = self.real.register, self.real.unregister

        def poll(self, timeout: float) -> list[tuple[int, int]]:
            events = self.real.poll(timeout)
            if not events and (tmp_path / "pid").exists() and not (tmp_path / "go").exists():
                (tmp_path / "go").touch()
                os.waitid(os.P_PGID, int((tmp_path / "pid").read_text()), os.WEXITED | os.WNOWAIT)
            return events

    monkeypatch.setattr(select, "poll", PollThatMissesOutput)
    program = "echo $$ >p; mv p pid; until [ -e go ]; do sleep 0.01; done; echo said; echo told >&2"
    done = run(["sh", "-c", f"cd {tmp_path}; {program}"], timeout_s=allow(30))
    assert (done.exit_code, done.stdout, done.stderr) == (0, b"said\n", b"told\n")


def test_a_descendant_outside_the_group_does_not_delay_a_timed_out_call(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    result = run(["sh", "-c", f"setsid sleep 100000 & echo $! > {pid_file}; sleep 100000"], timeout_s=0.3)
    os.kill(int(pid_file.read_text()), 9)
    assert result.timed_out


def test_the_exit_code_of_a_killed_program_is_the_negative_signal_number() -> None:
    assert run(["sh", "-c", "kill -9 $$"], timeout_s=allow(5)).exit_code == -9


def test_the_environment_is_inherited_with_lc_all_c_unless_given() -> None:
    assert (
        run(["sh", "-c", "echo $LC_ALL:$HOME"], timeout_s=allow(5)).stdout
        == f"C:{os.environ.get('HOME', '')}\n".encode()
    )
    environ = {"PATH": os.environ["PATH"], "A": "1"}
    assert run(["sh", "-c", "echo $LC_ALL:$A"], timeout_s=allow(5), environ=environ).stdout == b":1\n"


def test_command_has_a_session_of_its_own() -> None:
    program = "import os; print(os.getsid(0) == os.getpid())"
    assert run([*PYTHON, program], timeout_s=allow(5)).stdout == b"True\n"


def test_the_system_clock_advances_and_ignores_a_negative_sleep() -> None:
    clock = SystemClock()
    before = clock.now()
    clock.sleep(-1)
    clock.sleep(0.01)
    assert clock.now() - before > 0.009


def _is_dead(pid: int) -> bool:
    """Whether the process is dead, or a zombie that its new parent has not reaped yet."""

    def is_dead_or_zombie() -> bool:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return True
        return stat.rpartition(")")[2].split()[0] == "Z"

    return wait_for(is_dead_or_zombie, bool, timeout=10, pause=0.02)


def test_input_may_come_after_the_program_has_started() -> None:
    feed = start_unfed_command(["sh", "-c", "echo begun; cat"], timeout_s=allow(10))
    result = feed(b"x" * 200_000)
    assert (result.exit_code, result.stdout) == (0, b"begun\n" + b"x" * 200_000)


def test_a_program_that_waits_for_an_empty_input_reads_end_of_file() -> None:
    assert start_unfed_command(["cat"], timeout_s=allow(10))(b"") == CommandResult(
        argv=("cat",), exit_code=0, stdout=b"", stderr=b""
    )


def test_the_timeout_of_an_unfed_program_starts_with_its_input() -> None:
    feed = start_unfed_command(["cat"], timeout_s=0.3)
    time.sleep(0.5)
    assert feed(b"late").stdout == b"late"
    slow = start_unfed_command(["sh", "-c", "echo here; exec sleep 100000"], timeout_s=0.3)(b"")
    assert (slow.timed_out, slow.exit_code, slow.stdout) == (True, None, b"here\n")


def test_an_unfed_program_that_cannot_start_gives_a_result_when_fed() -> None:
    result = start_unfed_command(["/nonexistent/program"], timeout_s=allow(10))(b"words")
    assert (result.missing, result.exit_code) == (True, None)


def test_meanwhile_is_called_while_the_program_runs(tmp_path: Path) -> None:
    from_program, to_program = tmp_path / "theirs", tmp_path / "ours"
    os.mkfifo(from_program)
    os.mkfifo(to_program)  # each FIFO needs both sides at once, so program and callback must overlap

    def meanwhile() -> None:
        assert from_program.read_text() == "runs\n"
        to_program.write_text("seen\n")

    done = run(["sh", "-c", f"echo runs > {from_program}; cat {to_program}"], timeout_s=allow(10), meanwhile=meanwhile)
    assert (done.exit_code, done.stdout) == (0, b"seen\n")


@pytest.mark.parametrize("possible", [0, 1, 2])
def test_too_many_open_files_leave_no_pipe_open(monkeypatch: pytest.MonkeyPatch, possible: int) -> None:
    made = [os.pipe] * possible

    def make_pipe() -> tuple[int, int]:
        if not made:
            raise OSError(errno.EMFILE, "Too many open files")
        return made.pop()()

    before = len(list(Path("/proc/self/fd").iterdir()))
    with monkeypatch.context() as patched:
        patched.setattr(os, "pipe", make_pipe)
        with suppress(OSError):
            run(["true"], timeout_s=allow(5), stdin=b"input")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
