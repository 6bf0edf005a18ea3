"""The processes of a trial: finds and ends all of them. Edge: signals.

torchrun's workers and DataLoader's have sessions of their own, so no process group reaches them (measured: two were
left and held the pipe). The supervisor is their subreaper instead, and whatever descends from it is the trial's.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psutil

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37  # linux/prctl.h


@contextmanager
def become_subreaper() -> Iterator[bool]:
    """Orphans below us become our children while this holds. Yields False where the kernel does not do it."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int(0)
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    held = libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield held
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


class ProcessTree:
    """Everything that descends from us and was not there before."""

    def __init__(self) -> None:
        self._us = psutil.Process()
        self._others = {(p.pid, p.create_time()) for p in _list_children(self._us)}

    def processes(self) -> tuple[psutil.Process, ...]:
        """The trial's processes that still run, parents before children."""
        found = _list_children(self._us)
        foreign = {pid for pid, started in self._others if psutil.pid_exists(pid)}
        return tuple(p for p in found if p.pid not in foreign and not self._is_below(p, foreign) and _is_running(p))

    def _is_below(self, process: psutil.Process, foreign: set[int]) -> bool:
        if not foreign:
            return False
        with suppress(psutil.Error):
            return any(parent.pid in foreign for parent in process.parents())
        return False

    def end(self, script: int, *, within_s: float = 10.0) -> tuple[int, ...]:
        """Kills all of it; the pids that outlived it (in D state) are returned.

        Freezes before it kills, the script first: no one may see a child die and go on with the next line.
        `script` is reaped by its own parent object, everything else here.
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
        """True when some are not to be had yet: one looks like a zombie while its other threads still end."""
        left = False
        for child in _list_direct_children(self._us):
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
