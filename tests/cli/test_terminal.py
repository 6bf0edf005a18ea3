"""Periods and dates of --since, colour, and the width of the terminal."""

from __future__ import annotations

import fcntl
import io
import os
import struct
import termios
from datetime import UTC, timedelta, timezone, tzinfo

import pytest

from slurmwrap.cli import terminal
from slurmwrap.errors import UsageError
from slurmwrap.report.job_report.job_report_text import plain

NOW = 1_795_240_800.0  # 2026-11-21 06:00 UTC


@pytest.mark.parametrize(
    ("text", "zone", "at"),
    [
        ("24h", None, NOW - 86_400),
        ("7d", None, NOW - 604_800),
        ("2w", None, NOW - 1_209_600),
        ("30min", None, NOW - 1_800),
        ("30m", None, NOW - 1_800),
        ("2026-11-21", UTC, NOW - 21_600),
        ("2026-11-21", timezone(timedelta(hours=1)), NOW - 25_200),
        ("2026-11-21T06:00+00:00", timezone(timedelta(hours=1)), NOW),
    ],
)
def test_since_accepts_periods_and_dates(text: str, zone: tzinfo | None, at: float) -> None:
    assert terminal.since(text, NOW, zone) == at


@pytest.mark.parametrize("text", ["", "7", "d", "-7d", "7 d", "yesterday", "2026-13-01", "9999999999d", "٧d"])
def test_an_invalid_period_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is neither a period nor a date"):
        terminal.since(text, NOW)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_is_used_only_on_a_terminal_that_supports_it() -> None:
    assert terminal.choose_painter(io.StringIO(), {}) is plain
    assert terminal.choose_painter(Terminal(), {"NO_COLOR": "1"}) is plain
    assert terminal.choose_painter(Terminal(), {"TERM": "dumb"}) is plain
    assert terminal.choose_painter(Terminal(), {"TERM": "xterm"})("a\nb", "red") == "\033[31ma\033[0m\n\033[31mb\033[0m"


@pytest.mark.parametrize(
    ("real", "shown", "within_40_and_120"), [(20, 60, 40), (90, 90, 90), (300, 110, 120), (0, 80, 80)]
)
def test_the_width_follows_the_terminal_within_limits(real: int, shown: int, within_40_and_120: int) -> None:
    main_fd, terminal_fd = os.openpty()
    fcntl.ioctl(terminal_fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, real, 0, 0))
    with os.fdopen(main_fd, "rb"), os.fdopen(terminal_fd, "w") as stream:
        assert terminal.columns(stream) == shown
        assert terminal.columns(stream, least=40, most=120) == within_40_and_120


def test_output_that_is_no_terminal_gets_80_columns() -> None:
    assert terminal.columns(io.StringIO()) == terminal.columns(Terminal(), least=100) == 80
