"""The real time (adapter)."""

from __future__ import annotations

import time


class SystemClock:
    """Implements `protocols.Clock` with the machine's clock."""

    def now(self) -> float:
        """Return the time in Unix seconds."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Sleep; not at all for a negative number."""
        time.sleep(max(0.0, seconds))
