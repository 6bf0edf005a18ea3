"""Record when this process reached each stage, for bench/submit_latency.py: a list and one clock call per stage.

With SLURMWRAP_STAGES=PATH in the environment a process writes to PATH, when it ends, a line of JSON per stage: its name
and CLOCK_MONOTONIC in seconds, which the process that started this one can compare with its own clock.
"""

from __future__ import annotations

import os
from time import CLOCK_MONOTONIC, clock_gettime

WHERE = "SLURMWRAP_STAGES"
_reached: list[tuple[str, float]] = []


def reached(stage: str) -> None:
    """Record the end of the stage of this name."""
    _reached.append((stage, clock_gettime(CLOCK_MONOTONIC)))


def leave() -> None:
    """Write the recorded stages to the file that SLURMWRAP_STAGES names; without it do nothing."""
    if where := os.environ.get(WHERE):
        import json

        descriptor = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.write(descriptor, "".join(json.dumps(one) + "\n" for one in _reached).encode())
        os.close(descriptor)
