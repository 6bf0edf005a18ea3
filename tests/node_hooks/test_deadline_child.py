"""Work in a child process that may hang: what the parent receives, and that it never waits beyond the deadline."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from waiting import allow

from slurmwrap.node_hooks import deadline_child

Send = Callable[[bytes], None]


def make_deadline(seconds: float = 5.0) -> float:
    return time.monotonic() + allow(seconds)


def summarize(result: deadline_child.Result) -> tuple[bytes, bool, bool]:
    return result.data, result.complete, result.late


def test_the_parent_receives_what_the_child_sends() -> None:
    assert summarize(deadline_child.call(lambda send: send(b"x" * 300_000), make_deadline(), 1 << 20)) == (
        b"x" * 300_000,
        True,
        False,
    )


def test_input_is_written_and_output_is_read_at_the_same_time() -> None:
    data = os.urandom(1 << 20)
    assert summarize(deadline_child.run(["/bin/cat"], data, make_deadline(), 2 << 20)) == (data, True, False)


@pytest.mark.parametrize("argv", [["/bin/false"], ["/nonexistent"], ["/bin/sh", "-c", "kill -9 $$"]])
def test_the_result_of_a_failing_program_is_not_complete(argv: list[str]) -> None:
    assert summarize(deadline_child.run(argv, b"x" * 200_000, make_deadline(), 100)) == (b"", False, False)


def test_an_exception_in_the_child_is_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    def fail(send: Send) -> None:
        send(b"half")
        raise RuntimeError("secret")

    assert summarize(deadline_child.call(fail, make_deadline(), 100)) == (b"half", False, False)
    assert "secret" not in "".join(capfd.readouterr())


def test_the_child_is_ended_when_its_output_exceeds_the_limit() -> None:
    result = deadline_child.run(["/bin/cat", "/dev/zero"], b"", make_deadline(), 100_000)
    assert not result.complete and not result.late and len(result.data) <= 100_000


def hang(send: Send) -> None:
    send(b"before ")
    os.kill(os.getpid(), signal.SIGSTOP)


def close_and_hang(send: Send) -> None:
    os.close(send.descriptor)  # type: ignore[attr-defined]
    time.sleep(100_000)


@pytest.mark.parametrize(("work", "data"), [(hang, b"before "), (close_and_hang, b"")])
def test_the_parent_stops_waiting_for_a_hanging_child_at_the_deadline(
    work: Callable[[Send], None], data: bytes
) -> None:
    assert summarize(deadline_child.call(work, make_deadline(0.3), 100)) == (data, False, True)


def test_the_child_has_its_own_session_and_an_alarm_that_ends_it() -> None:
    result = deadline_child.call(lambda send: send(b"%d %d" % (os.getsid(0), signal.alarm(0))), make_deadline(), 100)
    session, alarm = map(int, result.data.split())
    assert session != os.getsid(0) and 0 < alarm <= allow(5.0) + 2
