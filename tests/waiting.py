"""How long a test waits for a real process before it gives up: a condition is waited for, never a time.

Each deadline is written as what a free machine is given, at least five times what it needs there, and multiplied by
`SLOWNESS`: how much slower than that this machine starts Python when the tests begin.
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
# Handed on to xdist's workers, so that all of them wait equally long.
_VARIABLE = "SLURMWRAP_TEST_SLOWNESS"
# Seconds in which a free core starts the Python below (2 cores of 2023).
_START_S = 0.06
_MOST = 20.0


def measure_slowness() -> float:
    """How many times longer than on a free machine a Python takes to start, 1 to 20; measured once per session."""
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
    """A deadline for this machine out of one for a free machine."""
    return seconds * SLOWNESS


def wait_for(look: Callable[[], T], good: Callable[[T], bool], timeout: float, pause: float = 0.25) -> T:
    """Look until what is seen is good or `allow(timeout)` seconds are over; return what was seen last."""
    deadline = time.monotonic() + allow(timeout)
    while not good(seen := look()) and time.monotonic() < deadline:
        time.sleep(pause)
    return seen


def wait_until(condition: Callable[[], object], what: str, timeout: float = 60.0, pause: float = 0.02) -> None:
    """Wait for `condition`; fail with `what` when `allow(timeout)` seconds are over."""
    assert wait_for(condition, bool, timeout, pause), f"waited {allow(timeout):.0f} s in vain: {what}"
