"""The one place that runs programs: nothing may hang it, nothing may get lost."""

from __future__ import annotations

import os
import select
import sys
import time
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


def test_ok_means_that_it_ended_with_zero() -> None:
    assert run(["true"], timeout_s=allow(5)).ok
    assert not run(["false"], timeout_s=allow(5)).ok


def test_program_that_does_not_exist_is_a_value_that_says_so() -> None:
    result = run(["/nonexistent/sbatch", "--version"], timeout_s=allow(5))
    assert (result.missing, result.exit_code, result.timed_out) == (True, None, False)
    assert result.stderr == b"/nonexistent/sbatch: No such file or directory"


def test_argument_with_a_nul_byte_is_a_value_too() -> None:
    result = run(["echo", "a\0b"], timeout_s=allow(5))
    assert result.missing
    assert b"null byte" in result.stderr


def test_working_directory_that_is_gone_is_a_value_too(tmp_path: Path) -> None:
    assert run(["pwd"], timeout_s=allow(5), cwd=tmp_path / "gone").missing
    assert run(["pwd"], timeout_s=allow(5), cwd=tmp_path).stdout == os.fsencode(tmp_path.resolve()) + b"\n"


def test_arguments_reach_the_program_as_they_are() -> None:
    nasty = "a b;$(touch x)`id`'\"\n\x01\udcff*"
    assert run(["printf", "%s", nasty], timeout_s=allow(5)).stdout == os.fsencode(nasty)


def test_megabytes_on_all_three_pipes_at_once_do_not_dead_lock() -> None:
    program = "import sys; b=sys.stdin.buffer.read(); sys.stderr.buffer.write(b); sys.stdout.buffer.write(b)"
    sent = os.urandom(1 << 20) * 4
    result = run([*PYTHON, program], timeout_s=allow(20), stdin=sent)
    assert (result.exit_code, result.stdout == sent, result.stderr == sent) == (0, True, True)


def test_input_that_nobody_reads_does_not_break_the_call() -> None:
    assert run(["true"], timeout_s=allow(5), stdin=b"x" * (1 << 20)).exit_code == 0


def test_empty_input_is_an_end_of_file_at_once() -> None:
    assert run(["cat"], timeout_s=allow(5), stdin=b"").exit_code == 0
    assert run(["cat"], timeout_s=allow(5)).exit_code == 0


def test_time_out_kills_the_whole_group_and_keeps_what_was_said(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"echo begun; sleep 100000 & echo $! > {pid_file}; wait"
    result = run(["sh", "-c", script], timeout_s=0.3)
    assert (result.timed_out, result.exit_code, result.stdout) == (True, None, b"begun\n")
    assert _gone(int(pid_file.read_text()))


def test_program_that_ignores_sigterm_and_closes_its_pipes_is_killed_all_the_same() -> None:
    program = "import os,signal,time; signal.signal(15, signal.SIG_IGN); os.close(1); os.close(2); time.sleep(100_000)"
    assert run([*PYTHON, program], timeout_s=0.5).timed_out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_of_a_command_that_runs_as_somebody_else_only_the_beginning_is_kept() -> None:
    script = "head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; exit 7"
    result = run(["sh", "-c", script], timeout_s=allow(20), uid=12345, cwd="/")
    assert (result.exit_code, len(result.stdout), len(result.stderr)) == (7, 1 << 14, 1 << 14)


def test_background_process_that_holds_the_pipes_is_not_waited_for(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    result = run(["sh", "-c", f"setsid sleep 100000 & echo $! > {pid_file}; echo done; exit 4"], timeout_s=allow(30))
    os.kill(int(pid_file.read_text()), 9)
    assert (result.exit_code, result.timed_out, result.stdout) == (4, False, b"done\n")


def test_what_a_command_says_just_before_it_ends_is_never_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine under load: it speaks and ends after we looked for output, and before we look whether it ended."""

    poll = select.poll

    class SeesNothing:
        def __init__(self) -> None:
            self.real = poll()
            self.register, self.unregister = self.real.register, self.real.unregister

        def poll(self, timeout: float) -> list[tuple[int, int]]:
            events = self.real.poll(timeout)
            if not events and (tmp_path / "pid").exists() and not (tmp_path / "go").exists():
                (tmp_path / "go").touch()
                os.waitid(os.P_PGID, int((tmp_path / "pid").read_text()), os.WEXITED | os.WNOWAIT)
            return events

    monkeypatch.setattr(select, "poll", SeesNothing)
    program = "echo $$ >p; mv p pid; until [ -e go ]; do sleep 0.01; done; echo said; echo told >&2"
    done = run(["sh", "-c", f"cd {tmp_path}; {program}"], timeout_s=allow(30))
    assert (done.exit_code, done.stdout, done.stderr) == (0, b"said\n", b"told\n")


def test_descendant_outside_the_group_cannot_hold_a_timed_out_call(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    result = run(["sh", "-c", f"setsid sleep 100000 & echo $! > {pid_file}; sleep 100000"], timeout_s=0.3)
    os.kill(int(pid_file.read_text()), 9)
    assert result.timed_out


def test_program_killed_by_a_signal_tells_which() -> None:
    assert run(["sh", "-c", "kill -9 $$"], timeout_s=allow(5)).exit_code == -9


def test_environment_is_ours_in_english_unless_given() -> None:
    assert (
        run(["sh", "-c", "echo $LC_ALL:$HOME"], timeout_s=allow(5)).stdout
        == f"C:{os.environ.get('HOME', '')}\n".encode()
    )
    environ = {"PATH": os.environ["PATH"], "A": "1"}
    assert run(["sh", "-c", "echo $LC_ALL:$A"], timeout_s=allow(5), environ=environ).stdout == b":1\n"


def test_command_has_a_session_of_its_own() -> None:
    program = "import os; print(os.getsid(0) == os.getpid())"
    assert run([*PYTHON, program], timeout_s=allow(5)).stdout == b"True\n"


def test_system_clock_moves_and_takes_a_negative_wait_for_none() -> None:
    clock = SystemClock()
    before = clock.now()
    clock.sleep(-1)
    clock.sleep(0.01)
    assert clock.now() - before > 0.009


def _gone(pid: int) -> bool:
    """Dead, or a zombie that waits for its new parent."""

    def look() -> bool:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return True
        return stat.rpartition(")")[2].split()[0] == "Z"

    return wait_for(look, bool, timeout=10, pause=0.02)


def test_input_may_come_after_the_program_has_started() -> None:
    fed = start_unfed_command(["sh", "-c", "echo begun; cat"], timeout_s=allow(10))
    result = fed(b"x" * 200_000)
    assert (result.exit_code, result.stdout) == (0, b"begun\n" + b"x" * 200_000)


def test_program_that_waits_for_an_input_which_is_empty_reads_its_end() -> None:
    assert start_unfed_command(["cat"], timeout_s=allow(10))(b"") == CommandResult(
        argv=("cat",), exit_code=0, stdout=b"", stderr=b""
    )


def test_time_out_of_an_unfed_program_counts_from_its_input() -> None:
    fed = start_unfed_command(["cat"], timeout_s=0.3)
    time.sleep(0.5)
    assert fed(b"late").stdout == b"late"
    slow = start_unfed_command(["sh", "-c", "echo here; exec sleep 100000"], timeout_s=0.3)(b"")
    assert (slow.timed_out, slow.exit_code, slow.stdout) == (True, None, b"here\n")


def test_unfed_program_that_cannot_be_started_is_a_value_when_it_is_fed() -> None:
    result = start_unfed_command(["/nonexistent/program"], timeout_s=allow(10))(b"words")
    assert (result.missing, result.exit_code) == (True, None)


def test_what_is_done_meanwhile_is_done_while_the_program_runs(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    os.mkfifo(theirs)
    os.mkfifo(ours)  # each end waits for the other: neither could come first or last

    def meanwhile() -> None:
        assert theirs.read_text() == "runs\n"
        ours.write_text("seen\n")

    done = run(["sh", "-c", f"echo runs > {theirs}; cat {ours}"], timeout_s=allow(10), meanwhile=meanwhile)
    assert (done.exit_code, done.stdout) == (0, b"seen\n")
