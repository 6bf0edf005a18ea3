"""Deadlines of tests that wait for real processes. Tests wait for a condition, never for a fixed time.

Each deadline is given for an idle machine, with at least five times the time needed there, and multiplied by
`SLOWNESS`: how much slower than an idle machine this machine starts Python when the tests begin.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
# Passed to xdist's workers, so that all of them use the same deadlines.
_VARIABLE = "SLURMWRAP_TEST_SLOWNESS"
# Seconds that an idle core needs to start the Python below (2 cores of 2023).
_START_S = 0.06
_MOST = 20.0


def measure_slowness() -> float:
    """Start time of Python relative to an idle machine, 1 to 20; measured once per session."""
    if _VARIABLE not in os.environ:
        argv = [sys.executable, "-I", "-c", "import json, subprocess"]
        took = []
        for _ in range(5):
            began = time.monotonic()
            subprocess.run(argv, check=True)
            took.append(time.monotonic() - began)
        os.environ[_VARIABLE] = f"{min(max(statistics.median(took) / _START_S, 1.0), _MOST):.2f}"
    return float(os.environ[_VARIABLE])


SLOWNESS = measure_slowness()


def allow(seconds: float) -> float:
    """Convert a deadline for an idle machine into one for this machine."""
    return seconds * SLOWNESS


def wait_for(look: Callable[[], T], good: Callable[[T], bool], timeout: float, pause: float = 0.25) -> T:
    """Call `look` until `good` accepts its value or `allow(timeout)` seconds passed; return the last value."""
    deadline = time.monotonic() + allow(timeout)
    while not good(seen := look()) and time.monotonic() < deadline:
        time.sleep(pause)
    return seen


def wait_until(condition: Callable[[], object], what: str, timeout: float = 60.0, pause: float = 0.02) -> None:
    """Wait for `condition`; fail with `what` after `allow(timeout)` seconds."""
    assert wait_for(condition, bool, timeout, pause), f"waited {allow(timeout):.0f} s in vain: {what}"
