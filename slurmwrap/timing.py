"""When this process reached which stage, for bench/submit_latency.py: a list and one clock call per stage.

With SLURMWRAP_STAGES=PATH in the environment a process leaves there, at its end, a line of JSON per stage: its name and
CLOCK_MONOTONIC in seconds, which a process that started this one can compare with its own.
"""

from __future__ import annotations

import os
from time import CLOCK_MONOTONIC, clock_gettime

WHERE = "SLURMWRAP_STAGES"
_reached: list[tuple[str, float]] = []


def reached(stage: str) -> None:
    """The stage of this name is over now."""
    _reached.append((stage, clock_gettime(CLOCK_MONOTONIC)))


def leave() -> None:
    """At the end of the process, where someone wants to know."""
    if where := os.environ.get(WHERE):
        import json

        descriptor = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.write(descriptor, "".join(json.dumps(one) + "\n" for one in _reached).encode())
        os.close(descriptor)
