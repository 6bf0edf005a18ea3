"""The template of a configuration file, and the reference in Markdown: both out of config_keys.py. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from slurmwrap.config.config_keys import Key, about, keys, toml

_WIDE = 80
_HEAD = """\
slurmwrap's configuration. The site's is /etc/slurmwrap/config.toml, a user's own
~/.config/slurmwrap/config.toml is laid over it, and variables such as SLURMWRAP_PRERUN_STEPS over both.
Every key is here with its default; take away the "#" in front of what you change.
`slurmwrap config check FILE` tells mistakes, `slurmwrap config show` what is in force and who said so.
"""


def template() -> str:
    """A whole config.toml: every key as a comment with its default, so that it loads and changes nothing."""
    blocks = ["\n".join(_comment(_HEAD))]
    for section in dict.fromkeys(key.section for key in keys()):
        title = [f"[{section}]"] if section else []
        blocks.append("\n".join([*_comment(about(section)), *title]))
        blocks += ["\n".join(_explained(key)) for key in keys() if key.section == section]
    return "\n\n".join(blocks) + "\n"


def _explained(key: Key) -> list[str]:
    told = f"{key.text} {_capital(_terms(key))}."
    return [*_comment(told), f"#{key.word} = {toml(key.default)}"]


def _terms(key: Key) -> str:
    return f"{key.unit}, {key.allowed}" if key.unit else key.allowed


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(" ".join(text.split()), _WIDE - 2, break_on_hyphens=False)]


def reference() -> str:
    """docs/configuration.md's tables: one per section."""
    return "\n\n".join(_section(section) for section in dict.fromkeys(key.section for key in keys()))


def _section(section: str) -> str:
    title = f"### [{section}]" if section else "### Above all sections"
    rows = [_row(("key", "default", "unit", "allowed", "what it does", "in a user's own file")), _row(("---",) * 6)]
    rows += [_row(_cells(key)) for key in keys() if key.section == section]
    return f"{title}\n\n{' '.join(about(section).split())}\n\n" + "\n".join(rows)


def _cells(key: Key) -> Iterator[str]:
    yield f"`{key.word}`"
    yield f"`{toml(key.default)}`"
    yield key.unit
    yield key.allowed
    yield key.text.replace("|", "\\|")
    yield key.reader.in_a_users_file


def _row(cells: Iterator[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
