"""Find and kill all processes of a trial (adapter: signals).

The workers of torchrun and DataLoader have sessions of their own, so killing a process group does not reach them
(measured: two were left and held the pipe). Instead the supervisor is their subreaper, and all its descendants belong
to the trial.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import psutil

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37  # linux/prctl.h


@contextmanager
def become_subreaper() -> Iterator[bool]:
    """Make this process the parent of its orphaned descendants. Yield False if the kernel does not support it."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int(0)
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    held = libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield held
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


class ProcessTree:
    """The descendants of this process that were started after the creation of this object."""

    def __init__(self, list_detached: Callable[[], Iterable[int]] = tuple) -> None:
        """`list_detached`: returns pids of the trial that are no descendants, such as those that a daemon started."""
        self._list_detached = list_detached
        self._supervisor = psutil.Process()
        self._others = {(p.pid, p.create_time()) for p in _list_children(self._supervisor)}

    def processes(self) -> tuple[psutil.Process, ...]:
        """Return the trial's processes that still run, parents before children."""
        found = _list_children(self._supervisor) + _list_by_pid(self._list_detached())
        foreign = {pid for pid, started in self._others if psutil.pid_exists(pid)}
        return tuple(p for p in found if p.pid not in foreign and not self._is_below(p, foreign) and _is_running(p))

    def _is_below(self, process: psutil.Process, foreign: set[int]) -> bool:
        if not foreign:
            return False
        with suppress(psutil.Error):
            return any(parent.pid in foreign for parent in process.parents())
        return False

    def end(self, script: int, *, within_s: float = 10.0) -> tuple[int, ...]:
        """Kill all processes and return the pids that survived (in D state).

        All processes are stopped before they are killed, the script first, so that none sees a child die and goes on
        with its next line. The Popen object reaps `script`; everything else is reaped here.
        """
        deadline = time.monotonic() + within_s
        while ((alive := self.processes()) or self._reap(script)) and time.monotonic() < deadline:
            self._freeze(alive)
            for process in self.processes():
                _send(process, signal.SIGKILL)
            self._reap(script)
            time.sleep(0.01)
        return tuple(p.pid for p in self.processes())

    def _freeze(self, alive: Sequence[psutil.Process]) -> None:
        frozen: set[int] = set()
        while fresh := [p for p in alive if p.pid not in frozen]:
            for process in fresh:
                _send(process, signal.SIGSTOP)
                frozen.add(process.pid)
            alive = self.processes()

    def _reap(self, script: int) -> bool:
        """Reap the ended children. Return True if some cannot be reaped yet.

        A process looks like a zombie while its other threads are still ending.
        """
        left = False
        for child in _list_direct_children(self._supervisor):
            known = (child.pid, _get_start_time(child)) in self._others or child.pid == script
            if not known:
                with suppress(ChildProcessError):
                    left |= os.waitpid(child.pid, os.WNOHANG) == (0, 0)
        return left


def _list_children(process: psutil.Process) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = process.children(recursive=True)
    except psutil.Error:
        return []
    return found


def _list_by_pid(pids: Iterable[int]) -> list[psutil.Process]:
    found = []
    for pid in pids:
        with suppress(psutil.Error):
            found.append(psutil.Process(pid))
    return found


def _list_direct_children(process: psutil.Process) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = process.children()
    except psutil.Error:
        return []
    return found


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _get_start_time(process: psutil.Process) -> float:
    try:
        return float(process.create_time())
    except psutil.Error:
        return 0.0


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.Error):
        process.send_signal(number)
