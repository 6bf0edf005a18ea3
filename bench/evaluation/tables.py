"""Format Markdown: tables, blocks of commands, differences in per cent. Pure."""

from __future__ import annotations

from collections.abc import Sequence

HOUR = 3600.0


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table. A heading that begins with ">" aligns its column to the right."""
    names = [name.removeprefix(">") for name in head]
    rules = ["---:" if name.startswith(">") else "---" for name in head]
    return "\n".join(f"| {' | '.join(row)} |" for row in (names, rules, *rows))


def block(*commands: object) -> str:
    """Return a block of command lines."""
    return "\n".join(["<!-- test: not run: by bench/evaluation -->", "```sh", *map(str, commands), "```"])


def number(value: float | None, digits: int = 2) -> str:
    """Return the formatted value; "-" without one."""
    return "-" if value is None else f"{value:,.{digits}f}"


def off(ours: float, theirs: float | None) -> str:
    """Return the difference of slurmwrap's figure in per cent."""
    if theirs is None:
        return "-"
    shown = f"{100 * (ours / theirs - 1):+.1f}"
    return f"{shown.lstrip('+-') if float(shown) == 0 else shown} %"


def agrees(ours: float, theirs: float | None, *, digits: int, within: float = 0.01) -> str:
    """Return a verdict: whether slurmwrap's figure equals the published one in all its digits, or within `within`."""
    if theirs is None:
        return ""
    if round(ours, digits) == round(theirs, digits):
        return "exact"
    return "yes" if abs(ours / theirs - 1) <= within else "no"
