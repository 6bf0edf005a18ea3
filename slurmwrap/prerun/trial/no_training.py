"""Decide when to end a trial because no optimizer step will come: the program does not train (adapter: /proc, marks).

Otherwise the job of an evaluation, generation, server or simulation would wait until the trial's time limit. A program
that may train (training_expected.py) gets more time: it may load data for minutes before it creates its optimizer. Once
an optimizer exists or a backward pass was seen, this module never ends the trial.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import psutil

from slurmwrap.model.trial_result import StepReading
from slurmwrap.prerun.isolation import overlay_enter
from slurmwrap.prerun.static.training_expected import Expectation
from slurmwrap.prerun.trial.activity import ActivitySample
from slurmwrap.prerun.trial.step_detection import is_marked

NO_PYTHON_S = 25.0  # seconds after which a program without Python is ended, because its steps cannot be counted
IDLE_S = 15.0  # a trial is idle if it did not compute, read or write for this time
LISTENS_S = 5.0  # a program that has listened on a port for this time is a server
AT_WORK_S = 30.0  # a program that has processed batches or texts for this time without an optimizer does not train
_IDLE_CORES = 0.02
_IDLE_BYTES = 256 << 10
# Seconds between two searches for listening ports, which read the list of every open file.
_PORTS_INTERVAL_S = 3.0


class NoTrainingDetector:
    """Detects that a trial does not train. Call `look` about once a second, then `ended`."""

    def __init__(self, step_dir: str, expectation: Expectation, *, began: float, no_training_s: float) -> None:
        self._step_dir, self._expectation = step_dir, expectation
        self._began, self._no_training_s = began, no_training_s
        self._samples: deque[ActivitySample] = deque()
        # An optimizer exists, so nothing needs to be examined any longer.
        self._has_optimizer = False
        self._listens_since: float | None = None
        self._ports: tuple[int, ...] = ()
        self._ports_at = began
        self._generates_since: float | None = None

    def look(self, sample: ActivitySample, processes: Sequence[psutil.Process]) -> None:
        """Examine the trial's processes. `sample`: their activity now."""
        self._has_optimizer = self._has_optimizer or is_marked(self._step_dir, "optimizer")
        if self._has_optimizer:
            return
        now = sample.at
        if now - self._ports_at >= _PORTS_INTERVAL_S:
            # A program that trains is not slowed down by this search.
            asked = not self._expectation.may_train or self._is_idle()
            self._ports, self._ports_at = list_listening_ports(processes) if asked else (), now
            self._listens_since = (self._listens_since or now) if self._ports else None
        self.take(sample)
        for process in () if self._expectation.may_train else processes:
            with suppress(psutil.Error):
                words = process.cmdline()
                # Before it becomes the script, the process is the Python program that mounts the overlay.
                if overlay_enter.__file__ not in words:
                    self._expectation.see(words, process.cwd())
        if self._generates_since is None and is_marked(self._step_dir, "generate"):
            self._generates_since = now

    def take(self, look: ActivitySample) -> None:
        """Add a sample, and drop samples that are older than needed."""
        self._samples.append(look)
        while len(self._samples) > 2 and self._samples[1].at <= look.at - IDLE_S:
            self._samples.popleft()

    def ended(self, now: float, reading: StepReading) -> str:
        """Return why no optimizer step will come; "" while one may come."""
        if self._has_optimizer or not self._samples or reading.exact or reading.source == "backward":
            return ""
        why = (
            self._find_reason_at_work(now, reading)
            if self._expectation.may_train
            else self._find_reason_without_training(now)
        )
        return "" if why and is_marked(self._step_dir, "optimizer") else why

    def _find_reason_without_training(self, now: float) -> str:
        """Return the reason for a program whose code does not train; "" while it gets more time."""
        seconds = now - self._began
        # Consider several samples, because a loop of short programs has gaps.
        python = any(look.python for look in self._samples)
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
        """Return the reason for a program that may train but was seen to do something else; "" if it was not."""
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
        if not self._samples:
            return False
        first, last = self._samples[0], self._samples[-1]
        if last.at - first.at < IDLE_S or any(look.blocked for look in self._samples):
            return False
        cpu_s, io_bytes = last.cpu_s - first.cpu_s, last.io_bytes - first.io_bytes
        return 0 <= cpu_s <= _IDLE_CORES * (last.at - first.at) and 0 <= io_bytes <= _IDLE_BYTES


def list_listening_ports(processes: Sequence[psutil.Process]) -> tuple[int, ...]:
    """Return the TCP ports on which the processes accept connections."""
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
