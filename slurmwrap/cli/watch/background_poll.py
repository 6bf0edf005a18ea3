"""Read something again and again in a thread, so that a slow Slurm or file system does not block the keyboard."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

LONGEST_INTERVAL_S = 60.0  # between two reads while nothing changes
_BACKOFF_FACTOR = 1.25  # the interval grows by this factor while nothing changes
T = TypeVar("T")


def compute_pause(pause: float, every: float, calm: bool) -> float:
    """Return the seconds until the next read: `every`, and more after each read in which nothing changed (`calm`)."""
    return min(pause * _BACKOFF_FACTOR, max(LONGEST_INTERVAL_S, every)) if calm else every


class BackgroundPoll(Generic[T]):
    """Calls `read` at most once at a time. A call that hangs holds up nothing but this poll."""

    def __init__(
        self,
        read: Callable[[], T],
        every: float,
        *,
        is_calm: Callable[[T, T], bool] = lambda before, now: False,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`every`: seconds between two reads; `is_calm`: whether nothing changed; `wake`: called after each read."""
        self._read, self._every, self._is_calm, self._wake = read, every, is_calm, wake
        self._pause = every
        self._due = self._ended_at = 0.0
        self._began: float | None = None
        self._ended = threading.Event()
        self._answers: list[tuple[T | None, Exception | None]] = []
        self.value: T | None = None

    @property
    def busy_s(self) -> float:
        """For how many seconds the present read has lasted; 0 if there is none."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    def hurry(self) -> None:
        """Let the next poll() read."""
        self._due, self._pause = 0.0, self._every

    def hasten(self) -> None:
        """Let the next read be no later than if something had changed."""
        self._due = min(self._due, self._ended_at + self._every)

    def poll(self) -> bool:
        """Start a read if one is due, and return whether `value` is new. Raise what the last read raised."""
        new = self._take()
        if self._began is None and time.monotonic() >= self._due:
            self._began = time.monotonic()
            self._ended.clear()
            threading.Thread(target=self._run, daemon=True).start()
        return new

    def wait(self, seconds: float) -> bool:
        """Wait until the present read has ended, at most so long; then as poll(), but start nothing."""
        self._ended.wait(seconds)
        return self._take()

    def _run(self) -> None:
        try:
            self._answers.append((self._read(), None))
        except Exception as error:
            self._answers.append((None, error))
        self._ended.set()
        self._wake()

    def _take(self) -> bool:
        if not self._answers:
            return False
        value, error = self._answers.pop()
        calm = value is not None and self.value is not None and self._is_calm(self.value, value)
        self._pause = compute_pause(self._pause, self._every, calm)
        self._began, self._ended_at = None, time.monotonic()
        self._due = self._ended_at + self._pause
        if error is not None:
            raise error
        self.value = value
        return True
