"""Work in a child that may hang: what comes back, and that nobody waits for it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from waiting import allow

from slurmwrap.node_hooks import deadline_child

Send = Callable[[bytes], None]


def soon(seconds: float = 5.0) -> float:
    return time.monotonic() + allow(seconds)


def summary(result: deadline_child.Result) -> tuple[bytes, bool, bool]:
    return result.data, result.complete, result.late


def test_what_a_child_sends_comes_back() -> None:
    assert summary(deadline_child.call(lambda send: send(b"x" * 300_000), soon(), 1 << 20)) == (
        b"x" * 300_000,
        True,
        False,
    )


def test_a_program_is_fed_and_read_at_the_same_time() -> None:
    data = os.urandom(1 << 20)
    assert summary(deadline_child.run(["/bin/cat"], data, soon(), 2 << 20)) == (data, True, False)


@pytest.mark.parametrize("argv", [["/bin/false"], ["/nonexistent"], ["/bin/sh", "-c", "kill -9 $$"]])
def test_a_program_that_fails_is_not_complete(argv: list[str]) -> None:
    assert summary(deadline_child.run(argv, b"x" * 200_000, soon(), 100)) == (b"", False, False)


def test_an_exception_in_the_child_stays_there(capfd: pytest.CaptureFixture[str]) -> None:
    def fail(send: Send) -> None:
        send(b"half")
        raise RuntimeError("secret")

    assert summary(deadline_child.call(fail, soon(), 100)) == (b"half", False, False)
    assert "secret" not in "".join(capfd.readouterr())


def test_more_than_is_wanted_ends_the_child() -> None:
    result = deadline_child.run(["/bin/cat", "/dev/zero"], b"", soon(), 100_000)
    assert not result.complete and not result.late and len(result.data) <= 100_000


def hang(send: Send) -> None:
    send(b"before ")
    os.kill(os.getpid(), signal.SIGSTOP)


def close_and_hang(send: Send) -> None:
    os.close(send.descriptor)  # type: ignore[attr-defined]
    time.sleep(100_000)


@pytest.mark.parametrize(("work", "data"), [(hang, b"before "), (close_and_hang, b"")])
def test_a_child_that_hangs_is_left_at_the_deadline(work: Callable[[Send], None], data: bytes) -> None:
    assert summary(deadline_child.call(work, soon(0.3), 100)) == (data, False, True)


def test_the_child_has_no_terminal_session_of_ours_and_ends_itself_later() -> None:
    result = deadline_child.call(lambda send: send(b"%d %d" % (os.getsid(0), signal.alarm(0))), soon(), 100)
    session, alarm = map(int, result.data.split())
    assert session != os.getsid(0) and 0 < alarm <= allow(5.0) + 2
