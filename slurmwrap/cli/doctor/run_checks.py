"""Runs the checks: each in a process of its own with a deadline, several side by side, so that none can hang doctor.

A thread would not do: one that waits for a dead NFS server cannot be left behind. A child can, also in D state.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from slurmwrap.cli.doctor.check_records import FAIL, OK, UNKNOWN, YOU, CheckContext, CheckResult, CheckSpec
from slurmwrap.fast_dataclasses import asdict, dataclass, field

_SIDE_BY_SIDE = 6
_TICK_S = 0.1
Progress = Callable[[Sequence[str]], None]  # the names of the checks that are at work


@dataclass(slots=True)
class _Child:
    look: CheckSpec
    pid: int
    reader: int
    until: float
    said: bytearray = field(default_factory=bytearray)


def run_all_checks(
    where: CheckContext, looks: Sequence[CheckSpec], progress: Progress = lambda names: None
) -> tuple[CheckResult, ...]:
    """All checks, in the order of `looks`. One that goes wrong or hangs is reported as such, and the others go on."""
    with suppress(Exception):  # an answer of Slurm's that no one can read: each check that asks for it will say so
        where.prime()
    waiting, running = list(looks), list[_Child]()
    found: dict[str, CheckResult] = {}
    while waiting or running:
        while waiting and len(running) < _SIDE_BY_SIDE:
            running.append(_start_child(waiting.pop(0), where))
        progress([child.look.name for child in running])
        _read_children(running)
        for child in [child for child in running if _is_over(child)]:
            running.remove(child)
            found[child.look.name] = _get_child_result(child)
    return tuple(found[look.name] for look in looks)


def run_check(look: CheckSpec, where: Any) -> CheckResult:
    """One check in this process; what goes wrong in it is its result."""
    try:
        return look.see(where)
    except Exception as error:
        text = f"the check itself failed: {type(error).__name__}: {error}"
        return CheckResult(name=look.name, state=UNKNOWN, text=text)


def check_for_hang(name: str, work: Callable[[], object], deadline_s: float) -> CheckResult | None:
    """Whether something that must be done in this process would hang it: a child does it first. None: it ends."""

    def see(_: CheckContext) -> CheckResult:
        with suppress(Exception):  # what is wrong with it is told when it is done here
            work()
        return CheckResult(name=name, state=OK, text="")

    look = CheckSpec(
        name=name, section=YOU, see=see, about="A file server does not answer.", mend="", deadline_s=deadline_s
    )
    child = _start_child(look, None)
    while not _is_over(child):
        _read_children([child])
    found = _get_child_result(child)
    return found if found.state == FAIL else None


def _start_child(look: CheckSpec, where: CheckContext | None) -> _Child:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()  # what it starts goes with it
            os.close(reader)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            with os.fdopen(writer, "wb") as stream:
                stream.write(json.dumps(asdict(run_check(look, where))).encode())
        finally:
            os._exit(0)
    os.close(writer)
    return _Child(look=look, pid=pid, reader=reader, until=time.monotonic() + look.deadline_s)


def _read_children(running: Sequence[_Child]) -> None:
    """Takes what has come, for a moment at most. A reader at its end is closed."""
    by_reader = {child.reader: child for child in running}
    for reader in select.select(list(by_reader), [], [], _TICK_S)[0]:
        chunk = os.read(reader, 1 << 16)
        by_reader[reader].said.extend(chunk)
        if not chunk:
            os.close(reader)
            by_reader[reader].reader = -1


def _is_over(child: _Child) -> bool:
    return child.reader < 0 or time.monotonic() >= child.until


def _get_child_result(child: _Child) -> CheckResult:
    if child.reader >= 0:
        os.close(child.reader)
        _kill(child.pid)
        text = f"no answer within {child.look.deadline_s:g} s"
        return CheckResult(
            name=child.look.name, state=FAIL, text=text, hint=f"Something it waits for hangs. {child.look.about}"
        )
    os.waitpid(child.pid, 0)
    try:
        return _from_plain(json.loads(bytes(child.said)))
    except ValueError:
        return CheckResult(name=child.look.name, state=UNKNOWN, text="the check ended without a word")


def _kill(pid: int) -> None:
    """Its whole session. One in D state is left behind: init takes it when we are gone."""
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, os.WNOHANG)


def _from_plain(plain: dict[str, Any]) -> CheckResult:
    return CheckResult(**{**plain, "details": tuple(plain["details"])})
