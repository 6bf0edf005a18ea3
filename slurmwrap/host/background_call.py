"""Edge: one piece of work next to us, for what mostly waits for another process."""

from __future__ import annotations

from _thread import allocate_lock, start_new_thread  # `threading` is made of these, and costs every gsub 1 ms
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")


def start_in_background(work: Callable[[], T]) -> Callable[[], T]:
    """Starts `work` at once; no one waits for it at the program's end. What comes back waits, and gives its value."""
    found: list[T] = []
    raised: list[BaseException] = []
    running = allocate_lock()

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            raised.append(error)
        finally:
            running.release()

    def result() -> T:
        with running:
            if raised:
                raise raised[0]
            return found[0]

    running.acquire()
    start_new_thread(run, ())
    return result
