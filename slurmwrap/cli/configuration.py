"""`slurmwrap config`: show the values in force and their origin, print a template, and check a file."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from slurmwrap.cli import terminal
from slurmwrap.config import load_config as configuration
from slurmwrap.config.config_check import find_mistakes, find_remarks
from slurmwrap.config.config_errors import suggest_key
from slurmwrap.config.config_keys import Key, describe_section, format_toml
from slurmwrap.config.config_keys import make_template as template_text
from slurmwrap.config.key_origins import KeySetting, find_unknown_variables, list_settings
from slurmwrap.errors import ConfigError, UsageError
from slurmwrap.escape import harmless
from slurmwrap.json_output import format_json_document
from slurmwrap.report.job_report.job_report_text import Paint

app = typer.Typer(help="The configuration: what holds and why, a template, a check.", no_args_is_help=True)

_What = Annotated[str, typer.Argument(metavar="[SECTION[.KEY]]", help="A section or a key; all without it.")]
_Json = Annotated[bool, typer.Option("--json", help="For programs.")]
_Changed = Annotated[bool, typer.Option("--changed", help="Only what a file or a variable sets.")]
_File = Annotated[Path, typer.Argument(metavar="FILE", help="The file to check; it is only read.")]


@app.command(short_help="Show each value, and where it comes from.")
def show(what: _What = "", as_json: _Json = False, changed: _Changed = False) -> None:
    """Print each value with where it comes from: the default, a line of a file, or a variable.

    Defaults < the site's file < your file < SLURMWRAP_* variables.

    \b
    Examples:
      slurmwrap config show                 everything
      slurmwrap config show --changed       what was set, and where
      slurmwrap config show prerun          one section
      slurmwrap config show prerun.grace_s  one key: what it is for, what it may be
    """
    config = configuration.load(os.environ)
    chosen = _select_settings(what, list_settings(os.environ))
    if changed:
        chosen = [one for one in chosen if one.changed]
    notes = [*find_unknown_variables(os.environ), *find_remarks(config)]
    if as_json:
        typer.echo(
            format_json_document(
                "config", {"settings": [_setting_to_json_dict(one) for one in chosen], "remarks": notes}
            )
        )
        return
    paint = terminal.choose_painter()
    if len(chosen) == 1 and what == chosen[0].key.name:
        typer.echo(harmless("\n".join(_explain_key(chosen[0]))))
        return
    typer.echo("\n".join(_format_settings(chosen, paint)) or "Nothing is set: the defaults hold.")
    for note in notes:
        typer.echo(paint(f"note: {harmless(note)}", "yellow"))


@app.command(short_help="Print a complete config.toml to start with.")
def template() -> None:
    """Print a complete config.toml: every key explained, with its default, as a comment. It loads and changes nothing.

    \b
    Example:
      slurmwrap config template > config.toml
    """
    typer.echo(template_text(), nl=False)


@app.command(short_help="Show what is wrong with a file.")
def check(file: _File) -> None:
    """Read a file as slurmwrap would, and list everything that is wrong with it at once.

    Exit codes: 0 it can be installed, 78 it cannot.

    \b
    Example:
      slurmwrap config check config.toml
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error
    wrong = find_mistakes(str(file), text)
    for one in wrong:
        typer.echo(harmless(one))
    if wrong:
        sys.exit(ConfigError.exit_code)
    merged = configuration.merge(configuration.Config(), configuration.parse_config(text, str(file)))
    for one in find_remarks(merged):
        typer.echo(f"{file}: note: {one}")
    typer.echo(f"{file}: fine")


def _select_settings(what: str, found: Sequence[KeySetting]) -> list[KeySetting]:
    """Return the settings of a section, or of one key. Raise UsageError if there is neither."""
    if not what:
        return list(found)
    chosen = [one for one in found if what in (one.key.name, one.key.section)]
    if not chosen:
        raise UsageError(f"there is no section and no key '{what}'{suggest_key(what)}")
    return chosen


def _format_settings(chosen: Sequence[KeySetting], paint: Paint) -> Iterator[str]:
    """Yield sections with their keys, each key on one line if possible; values that are not the default are bold."""
    wide = max((len(one.key.word) for one in chosen), default=0)
    section = None
    for one in chosen:
        if one.key.section != section:
            if section is not None:
                yield ""
            section = one.key.section
            if section:
                yield paint(f"[{section}]", "bold")
        yield _format_line(one, wide, paint)


def _format_line(one: KeySetting, wide: int, paint: Paint) -> str:
    value = harmless(format_toml(one.held.value))
    origin = harmless(_shorten_origin(one.held.origin))
    if not one.changed:
        return f"{one.key.word:{wide}} = {value:12}  {paint(origin, 'dim')}"
    line = f"{one.key.word:{wide}} = {value:12}  {origin}"
    if len(line) > _get_columns():
        line = f"{one.key.word:{wide}} = {value}\n{'':{wide}}   {origin}"
    return paint(line, "bold")


def _shorten_origin(origin: str) -> str:
    home = os.environ.get("HOME", "")
    return f"~{origin.removeprefix(home)}" if home and origin.startswith(f"{home}/") else origin


def _explain_key(one: KeySetting) -> Iterator[str]:
    """Yield everything about one key."""
    key = one.key
    yield f"{key.name} = {format_toml(one.held.value)}"
    yield ""
    yield from _wrap_text(f"{key.text} {key.reader.sentence}")
    yield ""
    yield from (f"  {name:9} {text}" for name, text in _list_facts(key))
    yield "  set by    " + "\n            ".join(
        f"{_shorten_origin(said.origin)}: {format_toml(said.value)}" for said in reversed(one.said)
    )


def _list_facts(key: Key) -> Iterator[tuple[str, str]]:
    yield "allowed", key.allowed
    if key.unit:
        yield "unit", key.unit
    yield "default", format_toml(key.default)
    yield "variable", key.variable
    if key.section:
        yield "section", f"[{key.section}] {' '.join(describe_section(key.section).split())}"


def _wrap_text(text: str) -> list[str]:
    return textwrap.wrap(text, min(_get_columns(), 100), break_on_hyphens=False)


def _setting_to_json_dict(one: KeySetting) -> dict[str, Any]:
    """Return one setting as JSON fields."""
    key = one.key
    said = [{"origin": source.origin, "kind": source.kind, "value": source.value} for source in one.said]
    present = {"key": key.name, "value": one.held.value, "origin": one.held.origin, "kind": one.held.kind}
    description = {"default": key.default, "unit": key.unit, "allowed": key.allowed, "variable": key.variable}
    return {**present, **description, "text": key.text, "reader": key.reader.value, "said": said}


def _get_columns() -> int:
    return shutil.get_terminal_size((80, 24)).columns
