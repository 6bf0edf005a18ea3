"""Measure what the processes of a trial do, and decide that they stand still (adapter: /proc, socket diagnostics).

A program that waits for a peer, a lock, a file or standard input would hold its GPU until the trial's time limit. A
trial stands still if for a while no step was made, nothing was printed, and its processes used no CPU, disk, network or
GPU. Python prints where its threads are on SIGURG (inject/sitecustomize.py).
"""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.prerun.static.command_wrappers import PYTHON

# What a standing program may still do: threads that poll, and log writers.
_IDLE_CORES = 0.01
_IDLE_BYTES = 256 << 10
_IDLE_NETWORK_BYTES = 64 << 10
_IDLE_GPU = 0.02
# Socket diagnostics of TCP, as in linux/netlink.h, sock_diag.h, inet_diag.h and tcp.h.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_DUMP, _NLMSG_DONE, _NLMSG_ERROR = 4, 20, 0x301, 3, 2
_INET_DIAG_INFO = 2
_ALL_STATES = 0xFFFFFFFF
_MESSAGE_HEADER, _DIAG_BYTES, _INODE_AT, _BYTES_AT = 16, 72, 68, 120
_SOCKET = re.compile(r"socket:\[(\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivitySample:
    """The activity of the trial's processes at one moment."""

    at: float
    # CPU seconds of all running processes and of their children that have ended.
    cpu_s: float
    io_bytes: float
    # Whether one of them is Python.
    python: bool
    # Whether one waits for a disk or a file server.
    blocked: bool


def take_activity_sample(now: float, processes: Sequence[psutil.Process]) -> ActivitySample:
    """Return the activity of the processes now. Processes that end in the meantime are skipped."""
    cpu_s = io_bytes = 0.0
    python = blocked = False
    for process in processes:
        try:
            times = process.cpu_times()
            cpu_s += times.user + times.system + times.children_user + times.children_system
            io = process.io_counters()
            io_bytes += io.read_chars + io.write_chars
            blocked = blocked or process.status() == psutil.STATUS_DISK_SLEEP
            python = python or is_python(process)
        except (psutil.Error, NotImplementedError, OSError):
            continue
    return ActivitySample(at=now, cpu_s=cpu_s, io_bytes=io_bytes, python=python, blocked=blocked)


def is_python(process: psutil.Process) -> bool:
    """Return whether the process is a Python interpreter, whatever it calls itself."""
    return process.name().startswith("python") or bool(PYTHON.fullmatch(Path(process.exe()).name))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Anchor:
    """The last moment at which the trial was seen to do something."""

    sample: ActivitySample
    steps: int
    output_bytes: int
    network_bytes: int | None = None  # measured only after half of the time has passed


class InactivityDetector:
    """Detects that a trial stands still. Call `look` about once a second."""

    def __init__(self, *, no_activity_s: float) -> None:
        self._limit_s = no_activity_s
        self._anchor: _Anchor | None = None

    def look(
        self,
        sample: ActivitySample,
        *,
        steps: int,
        output_bytes: int,
        gpu: float | None,
        processes: Sequence[psutil.Process] = (),
    ) -> bool:
        """Return whether nothing has happened for the time limit.

        `steps`: count of any source. `gpu`: use of the busiest GPU since the last call, 0 to 1; None if unknown.
        """
        anchor = self._anchor
        if anchor is None or self._has_moved(anchor, sample, steps, output_bytes, gpu):
            self._anchor = _Anchor(sample=sample, steps=steps, output_bytes=output_bytes)
            return False
        quiet_s = sample.at - anchor.sample.at
        if quiet_s < self._limit_s / 2:
            return False
        if anchor.network_bytes is None:
            self._anchor = replace(anchor, network_bytes=count_network_bytes(processes))
            return False
        if quiet_s < self._limit_s:
            return False
        if abs(count_network_bytes(processes) - anchor.network_bytes) > _IDLE_NETWORK_BYTES:
            self._anchor = _Anchor(sample=sample, steps=steps, output_bytes=output_bytes)
            return False
        return True

    def _has_moved(
        self, anchor: _Anchor, sample: ActivitySample, steps: int, output_bytes: int, gpu: float | None
    ) -> bool:
        cpu_s = sample.cpu_s - anchor.sample.cpu_s
        io_bytes = sample.io_bytes - anchor.sample.io_bytes
        return (
            sample.blocked
            or (steps, output_bytes) != (anchor.steps, anchor.output_bytes)
            or not 0 <= cpu_s <= _IDLE_CORES * self._limit_s
            or not 0 <= io_bytes <= _IDLE_BYTES
            or (gpu or 0.0) > _IDLE_GPU
        )


def count_network_bytes(processes: Iterable[psutil.Process]) -> int:
    """Return the bytes that the processes' TCP connections have sent and received; 0 if the kernel does not tell."""
    sockets = {inode for process in processes for inode in _list_sockets(process.pid)}
    if not sockets:
        return 0
    with suppress(OSError, struct.error):
        return sum(
            count
            for family in (socket.AF_INET, socket.AF_INET6)
            for inode, count in _read_tcp_counters(family)
            if inode in sockets
        )
    return 0


def _list_sockets(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if found := _SOCKET.fullmatch(str(Path(entry.path).readlink())):
                    yield int(found[1])


def _read_tcp_counters(family: int) -> Iterator[tuple[int, int]]:
    """Yield (inode, bytes sent and received) of each TCP socket of this network namespace (sock_diag(7))."""
    request = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), _ALL_STATES)
    header = struct.pack("=IHHII", _MESSAGE_HEADER + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as link:
        link.settimeout(2.0)
        link.send(header + request)
        while True:
            data = link.recv(1 << 16)
            at = 0
            while at + _MESSAGE_HEADER <= len(data):
                length, kind = struct.unpack_from("=IH", data, at)
                if kind in (_NLMSG_DONE, _NLMSG_ERROR) or length < _MESSAGE_HEADER:
                    return
                yield _parse_tcp_socket(data[at + _MESSAGE_HEADER : at + length])
                at += (length + 3) & ~3


def _parse_tcp_socket(message: bytes) -> tuple[int, int]:
    """Return (inode, bytes sent and received) of one inet_diag_msg with its attributes."""
    inode = struct.unpack_from("=I", message, _INODE_AT)[0]
    at, count = _DIAG_BYTES, 0
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind == _INET_DIAG_INFO and length >= 4 + _BYTES_AT + 16:
            count = sum(struct.unpack_from("=QQ", message, at + 4 + _BYTES_AT))
        at += max(4, (length + 3) & ~3)
    return inode, count


def ask_for_stacks(processes: Iterable[psutil.Process]) -> int:
    """Ask each Python process that listens for it to print its stacks; return how many were asked.

    SIGURG does nothing to a process without a handler (signal(7)).
    """
    asked = 0
    for process in processes:
        with suppress(psutil.Error, OSError, ValueError):
            if is_python(process) and _catches(process.pid, signal.SIGURG):
                process.send_signal(signal.SIGURG)
                asked += 1
    return asked


def _catches(pid: int, number: int) -> bool:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
