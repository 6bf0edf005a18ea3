"""Edge: real time."""

from __future__ import annotations

import time


class SystemClock:
    """The machine's clock, as `edges.Clock`."""

    def now(self) -> float:
        """Unix seconds."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Waits; a negative time is none."""
        time.sleep(max(0.0, seconds))
