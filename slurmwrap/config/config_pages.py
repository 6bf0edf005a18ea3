"""The template of a configuration file, and the reference in Markdown: both out of config_keys.py. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from slurmwrap.config.config_keys import Key, describe_section, format_toml, list_keys

_WIDE = 80
_HEAD = """\
slurmwrap's configuration. The site's is /etc/slurmwrap/config.toml, a user's own
~/.config/slurmwrap/config.toml is laid over it, and variables such as SLURMWRAP_PRERUN_STEPS over both.
Every key is here with its default; take away the "#" in front of what you change.
`slurmwrap config check FILE` tells mistakes, `slurmwrap config show` what is in force and who said so.
"""


def make_template() -> str:
    """A whole config.toml: every key as a comment with its default, so that it loads and changes nothing."""
    blocks = ["\n".join(_format_comment(_HEAD))]
    for section in dict.fromkeys(key.section for key in list_keys()):
        title = [f"[{section}]"] if section else []
        blocks.append("\n".join([*_format_comment(describe_section(section)), *title]))
        blocks += ["\n".join(_explain_key(key)) for key in list_keys() if key.section == section]
    return "\n\n".join(blocks) + "\n"


def _explain_key(key: Key) -> list[str]:
    told = f"{key.text} {_capitalize(_format_terms(key))}."
    return [*_format_comment(told), f"#{key.word} = {format_toml(key.default)}"]


def _format_terms(key: Key) -> str:
    return f"{key.unit}, {key.allowed}" if key.unit else key.allowed


def _format_comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(" ".join(text.split()), _WIDE - 2, break_on_hyphens=False)]


def format_reference() -> str:
    """docs/configuration.md's tables: one per section."""
    return "\n\n".join(_format_section(section) for section in dict.fromkeys(key.section for key in list_keys()))


def _format_section(section: str) -> str:
    title = f"### [{section}]" if section else "### Above all sections"
    rows = [
        _format_row(("key", "default", "unit", "allowed", "what it does", "in a user's own file")),
        _format_row(("---",) * 6),
    ]
    rows += [_format_row(_list_cells(key)) for key in list_keys() if key.section == section]
    return f"{title}\n\n{' '.join(describe_section(section).split())}\n\n" + "\n".join(rows)


def _list_cells(key: Key) -> Iterator[str]:
    yield f"`{key.word}`"
    yield f"`{format_toml(key.default)}`"
    yield key.unit
    yield key.allowed
    yield key.text.replace("|", "\\|")
    yield key.reader.in_a_users_file


def _format_row(cells: Iterator[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]
