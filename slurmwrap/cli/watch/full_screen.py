"""A full-screen view on a terminal (adapter: termios, ANSI sequences): keys, redrawing, and leaving it as it was.

Only sequences that xterm, screen, tmux and the Linux console share are used, so that no terminfo entry is needed.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

# The alternate screen without its cursor, and back.
_ENTER, _LEAVE = "\033[?1049h\033[?25l\033[2J", "\033[0m\033[?25h\033[?1049l"
# Names of keys, and the sequences that terminals send for them.
KEYS = {
    b"\033[A": "up", b"\033OA": "up", b"\033[B": "down", b"\033OB": "down", b"\033[C": "right", b"\033OC": "right",
    b"\033[D": "left", b"\033OD": "left", b"\033[5~": "pageup", b"\033[6~": "pagedown", b"\033[H": "home",
    b"\033OH": "home", b"\033[1~": "home", b"\033[7~": "home", b"\033[F": "end", b"\033OF": "end", b"\033[4~": "end",
    b"\033[8~": "end", b"\r": "enter", b"\n": "enter", b"\t": "tab", b"\x7f": "backspace", b"\b": "backspace",
    b"\x06": "pagedown", b"\x02": "pageup",
}  # fmt: skip
# Time in which the rest of a key's sequence follows its first byte; alone it is the key Esc.
_ESCAPE_S = 0.1
_MOST_READ = 4096


def decode_keys(given: bytes) -> tuple[list[str], bytes]:
    """Return the keys in these bytes, and the bytes of an unfinished sequence. Unknown sequences are dropped.

    A key is a name in KEYS, "escape", or one printable character.
    """
    keys: list[str] = []
    while given:
        if given[:1] == b"\033":
            length = _find_sequence_end(given)
            if not length:
                return keys, given
            name = "escape" if length == 1 else KEYS.get(given[:length], "")
        elif given[:1] in KEYS:
            length, name = 1, KEYS[given[:1]]
        else:
            length = _find_character_end(given)
            if not length:
                return keys, given
            name = given[:length].decode("utf-8", "replace")
            name = name if name.isprintable() and name != "\ufffd" else ""
        keys += [name] if name else []
        given = given[length:]
    return keys, b""


def _find_sequence_end(given: bytes) -> int:
    """Return the length of the escape sequence at the beginning; 0 if it is not complete."""
    if len(given) < 2:
        return 0
    if given[1:2] == b"O":
        return 3 if len(given) > 2 else 0
    if given[1:2] != b"[":
        # Esc, and then another key.
        return 1
    return next((at + 1 for at in range(2, len(given)) if 0x40 <= given[at] <= 0x7E), 0 if len(given) < 32 else 1)


def _find_character_end(given: bytes) -> int:
    """Return the length of the UTF-8 character at the beginning; 0 if it is not complete."""
    first = given[0]
    length = 1 if first < 0xC2 or first > 0xF4 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    return length if len(given) >= length else 0


class FullScreen:
    """The terminal of stdin and stdout while a full-screen view is shown; a context manager.

    However the view ends, also by SIGTERM, SIGHUP or an exception, the terminal is left as it was. Ctrl-Z stops the
    program, and the view is drawn anew when it continues.
    """

    def __init__(self, *, unicode: bool) -> None:
        """`unicode`: the terminal shows more than ASCII."""
        self._unicode = unicode
        self._shown: list[str] = []
        self._size = (0, 0)
        self._rest = b""
        self._saved: list[Any] = []
        self._handlers: dict[int, Any] = {}
        # Written by signal handlers and other threads, so that read_keys() returns.
        self._woken, self._waker = os.pipe()
        for end in (self._woken, self._waker):
            os.set_blocking(end, False)

    def __enter__(self) -> FullScreen:
        self._saved = termios.tcgetattr(0)
        handlers = {
            signal.SIGWINCH: self._on_resize,
            signal.SIGTSTP: self._on_stop,
            signal.SIGTERM: _on_end,
            signal.SIGHUP: _on_end,
        }
        for number, handler in handlers.items():
            # A signal that is ignored, as SIGHUP under nohup, stays ignored.
            if signal.getsignal(number) != signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, handler)
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _start(self) -> None:
        # Keys arrive at once and are not echoed; Ctrl-C, Ctrl-Z and Ctrl-\\ still send their signals.
        tty.setcbreak(0, termios.TCSANOW)
        self._shown, self._size = [], (0, 0)
        self._write(_ENTER)

    def _stop(self) -> None:
        # The terminal may be gone.
        with suppress(OSError):
            self._write(_LEAVE)
        with suppress(OSError, termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, self._saved)

    def _on_resize(self, number: int, frame: FrameType | None) -> None:
        self.wake()

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # The program goes on here after SIGCONT.
        signal.signal(signal.SIGTSTP, self._on_stop)
        self._start()
        self.wake()

    def wake(self) -> None:
        """Let read_keys() return; any thread may call this."""
        # A full pipe wakes it as well.
        with suppress(OSError):
            os.write(self._waker, b".")

    def get_size(self) -> tuple[int, int]:
        """Return (columns, rows); 80 and 24 if the terminal does not say."""
        try:
            columns, rows = os.get_terminal_size(1)
        except OSError:
            columns, rows = 0, 0
        return columns or 80, rows or 24

    def read_keys(self, seconds: float) -> list[str]:
        """Return the keys pressed within this time, as soon as there are some or wake() was called.

        Raise EOFError if the terminal is gone.
        """
        ready, _, _ = select.select([0, self._woken], [], [], max(0.0, seconds))
        if self._woken in ready:
            with suppress(OSError):
                os.read(self._woken, _MOST_READ)
        if 0 not in ready:
            return []
        try:
            given = os.read(0, _MOST_READ)
        except OSError:
            given = b""
        if not given:
            raise EOFError
        keys, self._rest = decode_keys(self._rest + given)
        if self._rest and not select.select([0], [], [], _ESCAPE_S)[0]:
            keys, self._rest = [*keys, *(["escape"] if self._rest[:1] == b"\033" else [])], b""
        return keys

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, from the top; only those that changed are written."""
        size = self.get_size()
        fresh = size != self._size
        if fresh:
            self._shown, self._size = [], size
        shown = list(lines[: size[1]])
        old = [*self._shown, *[""] * (len(shown) - len(self._shown))]
        changed = [
            # Cleared first: after a line that fills the last column, "to the end of the line" would cut it.
            f"\033[{place + 1};1H\033[K{line}"
            for place, line in enumerate(shown)
            if fresh or line != old[place]
        ]
        if fresh:
            changed.insert(0, "\033[2J")
        elif len(self._shown) > len(shown):
            changed.append(f"\033[{len(shown) + 1};1H\033[J")
        self._shown = shown
        if changed:
            self._write("".join(changed))

    def _write(self, text: str) -> None:
        text = text if self._unicode else text.replace("…", "~")
        content = text.encode(sys.stdout.encoding or "ascii", "replace")
        # os.write(), since a signal handler may interrupt this and write itself: print() could not be called twice.
        until = time.monotonic() + 5.0
        while content and time.monotonic() < until:
            try:
                content = content[os.write(1, content) :]
            except BlockingIOError:
                select.select([], [1], [], 0.1)


def _on_end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
