"""Markdown: tables, blocks of commands, differences in per cent. Pure."""

from __future__ import annotations

from collections.abc import Sequence

HOUR = 3600.0


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A head that begins with ">" aligns its column to the right."""
    names = [name.removeprefix(">") for name in head]
    rules = ["---:" if name.startswith(">") else "---" for name in head]
    return "\n".join(f"| {' | '.join(row)} |" for row in (names, rules, *rows))


def block(*commands: object) -> str:
    """Commands as they are typed."""
    return "\n".join(["<!-- test: not run: by bench/evaluation -->", "```sh", *map(str, commands), "```"])


def number(value: float | None, digits: int = 2) -> str:
    """ "-" where there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def off(ours: float, theirs: float | None) -> str:
    """By how much ours differs, in per cent."""
    if theirs is None:
        return "-"
    shown = f"{100 * (ours / theirs - 1):+.1f}"
    return f"{shown.lstrip('+-') if float(shown) == 0 else shown} %"


def agrees(ours: float, theirs: float | None, *, digits: int, within: float = 0.01) -> str:
    """Whether ours is theirs: all the digits that they give, or within so much."""
    if theirs is None:
        return ""
    if round(ours, digits) == round(theirs, digits):
        return "exact"
    return "yes" if abs(ours / theirs - 1) <= within else "no"
