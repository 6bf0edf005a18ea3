"""When a trial may end because no optimizer step will come: nothing of the program trains. Edge: /proc, marks.

Evaluation, generation, a server or a simulation would else hold its job until the time limit. A program that may train
(training_expected.py) is waited for: it may load data for minutes before it makes its optimizer. Once an optimizer
exists, or a backward pass was seen, nothing here ends the trial.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.trial_result import StepReading
from slurmwrap.prerun.static.command_wrappers import PYTHON
from slurmwrap.prerun.static.training_expected import Expectation
from slurmwrap.prerun.trial.step_detection import is_marked

NO_PYTHON_S = 25.0  # nothing in such a program can be counted
IDLE_S = 15.0  # so long nothing of the trial computes, reads or writes
LISTENS_S = 5.0  # a socket that is open so long serves someone
AT_WORK_S = 30.0  # so long batches or texts go through a program that may train, without an optimizer
_IDLE_CORES = 0.02
_IDLE_BYTES = 256 << 10
# Sockets cost a look at every open file.
_AS_SELDOM_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivitySample:
    """What one look at the trial's processes showed."""

    at: float
    # Of all that run, and of their children that ended.
    cpu_s: float
    io_bytes: float
    # One of them is Python.
    python: bool
    # One waits for a disk or a file server.
    blocked: bool


class NoTrainingDetector:
    """Of one trial. `look` about once a second, then `ended`."""

    def __init__(self, step_dir: str, expectation: Expectation, *, began: float, no_training_s: float) -> None:
        self._step_dir, self._expectation = step_dir, expectation
        self._began, self._no_training_s = began, no_training_s
        self._looks: deque[ActivitySample] = deque()
        # Nothing is looked at any longer.
        self._steps_come = False
        self._listens_since: float | None = None
        self._ports: tuple[int, ...] = ()
        self._ports_at = began
        self._generates_since: float | None = None

    def look(self, now: float, processes: Sequence[psutil.Process]) -> None:
        """Takes in the trial's processes as they are."""
        self._steps_come = self._steps_come or is_marked(self._step_dir, "optimizer")
        if self._steps_come:
            return
        if now - self._ports_at >= _AS_SELDOM_S:
            # Who trains pays nothing for this.
            asked = not self._expectation.may_train or self._is_idle()
            self._ports, self._ports_at = list_listening_ports(processes) if asked else (), now
            self._listens_since = (self._listens_since or now) if self._ports else None
        self.take(look_at(now, processes))
        for process in () if self._expectation.may_train else processes:
            with suppress(psutil.Error):
                self._expectation.see(process.cmdline(), process.cwd())
        if self._generates_since is None and is_marked(self._step_dir, "generate"):
            self._generates_since = now

    def take(self, look: ActivitySample) -> None:
        """Takes in one look; those that are older than is needed go."""
        self._looks.append(look)
        while len(self._looks) > 2 and self._looks[1].at <= look.at - IDLE_S:
            self._looks.popleft()

    def ended(self, now: float, reading: StepReading) -> str:
        """Why no step is waited for any longer; "" while one may come."""
        if self._steps_come or not self._looks or reading.exact or reading.source == "backward":
            return ""
        why = (
            self._find_reason_at_work(now, reading)
            if self._expectation.may_train
            else self._find_reason_without_training(now)
        )
        return "" if why and is_marked(self._step_dir, "optimizer") else why

    def _find_reason_without_training(self, now: float) -> str:
        """Of a program in which nothing trains."""
        seconds = now - self._began
        # A loop of short programs has gaps.
        python = any(look.python for look in self._looks)
        serves = self._listens_since is not None and not self._expectation.distributed
        if serves and now - (self._listens_since or now) >= LISTENS_S:
            ports = _format_ports(self._ports)
            return f"nothing in its code trains, and it listens on {ports}: a server waits for its clients"
        if seconds >= min(NO_PYTHON_S, self._no_training_s) and not python:
            return "it only sleeps" if self._is_idle() else "no Python is in it whose steps could be seen"
        if seconds >= self._no_training_s:
            torch = "torch is used without an optimizer, and " if is_marked(self._step_dir, "torch") else ""
            return f"{torch}nothing in its code trains"
        return ""

    def _find_reason_at_work(self, now: float, reading: StepReading) -> str:
        """The same of a program that may train: it is seen to do something else."""
        if (
            reading.source == "dataloader"
            and reading.last - reading.first >= AT_WORK_S
            and not self._expectation.uncounted
        ):
            return f"{reading.count} batches went through it without an optimizer: it evaluates"
        if self._generates_since is not None and now - self._generates_since >= AT_WORK_S:
            return f"it generated text for {now - self._generates_since:.0f} s without an optimizer"
        if self._listens_since is not None and now - self._listens_since >= AT_WORK_S and self._is_idle():
            return f"it listens on {_format_ports(self._ports)} and does nothing else: a server waits for its clients"
        return ""

    def _is_idle(self) -> bool:
        if not self._looks:
            return False
        first, last = self._looks[0], self._looks[-1]
        if last.at - first.at < IDLE_S or any(look.blocked for look in self._looks):
            return False
        cpu_s, io_bytes = last.cpu_s - first.cpu_s, last.io_bytes - first.io_bytes
        return 0 <= cpu_s <= _IDLE_CORES * (last.at - first.at) and 0 <= io_bytes <= _IDLE_BYTES


def look_at(now: float, processes: Sequence[psutil.Process]) -> ActivitySample:
    """One look. Processes that end meanwhile are left out."""
    cpu_s = io_bytes = 0.0
    python = blocked = False
    for process in processes:
        try:
            times = process.cpu_times()
            cpu_s += times.user + times.system + times.children_user + times.children_system
            io = process.io_counters()
            io_bytes += io.read_chars + io.write_chars
            blocked = blocked or process.status() == psutil.STATUS_DISK_SLEEP
            python = python or process.name().startswith("python")
            python = python or bool(PYTHON.fullmatch(Path(process.exe()).name))
        except (psutil.Error, NotImplementedError, OSError):
            continue
    return ActivitySample(at=now, cpu_s=cpu_s, io_bytes=io_bytes, python=python, blocked=blocked)


def list_listening_ports(processes: Sequence[psutil.Process]) -> tuple[int, ...]:
    """TCP ports on which the processes accept connections."""
    found: set[int] = set()
    for process in processes:
        try:
            ask = getattr(process, "net_connections", None) or process.connections  # psutil < 6
            found.update(c.laddr.port for c in ask("tcp") if c.status == psutil.CONN_LISTEN)
        except (psutil.Error, OSError):
            continue
    return tuple(sorted(found))


def _format_ports(ports: Sequence[int]) -> str:
    return f"port{'s' if len(ports) > 1 else ''} {', '.join(map(str, ports[:3]))}"
