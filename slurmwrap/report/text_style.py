"""How a page of text looks: the reader's clock, colour, width, and whether they want all of it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, tzinfo

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.report import text_format

Paint = Callable[[str, str], str]  # (harmless text, "bold" | "red" | "green" | "yellow" | "dim") -> the same, in colour


def plain(text: str, style: str) -> str:
    """A Paint without colour."""
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStyle:
    """`columns` bind all but commands, which must stay whole to be pasted."""

    zone: tzinfo | None = UTC
    paint: Paint = plain
    columns: int = text_format.WIDTH
    verbose: bool = False

    def wrapped(self, text: str, indent: str = "  ", hanging: str | None = None) -> str:
        """Words of harmless text on lines of at most `columns`."""
        return text_format.wrapped(
            text, indent=indent, hanging=indent if hanging is None else hanging, columns=self.columns
        )

    def moment(self, at: float) -> str:
        """Unix seconds -> "2026-11-20 06:00"."""
        return text_format.moment(at, self.zone)
