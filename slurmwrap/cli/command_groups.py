"""The commands of `slurmwrap` in the order and under the titles in which `--help` lists them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.core import TyperGroup

# What is in none of them comes last.
_GROUPS = (
    ("Commands for your jobs", ("watch", "why", "history", "report", "prerun", "profile")),
    ("More for users", ("jobs", "inputs", "classify", "doctor", "config", "completion", "lab")),
)
_REST = "Commands for administrators"


class Commands(TyperGroup):
    """A group whose help tells what a researcher needs from what an administrator runs."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes one list per group; all of them are as wide."""
        known = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        shown = {name: command for name, command in known.items() if command is not None and not command.hidden}
        width = max(map(len, shown), default=0)
        limit = formatter.width - 6 - width
        for title, names in _titled(tuple(shown)):
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", shown[name].get_short_help_str(limit)) for name in names])


def _titled(names: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Title and names of each list that has any."""
    grouped = {name for _, members in _GROUPS for name in members}
    rest = tuple(name for name in names if name not in grouped)
    for title, members in (*_GROUPS, (_REST, rest)):
        if found := tuple(name for name in members if name in names):
            yield title, found
