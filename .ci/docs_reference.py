"""Generate docs/reference/ from the code: gsub, slurmwrap, exit codes, environment, files, schemas.

`.venv/bin/python .ci/docs_reference.py`; tests/docs/test_reference.py fails when the pages are outdated.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from docs_commands import Block, Command, Row, each, gsub, slurmwrap
from docs_tables import FILES, FOR_PEOPLE, INSIDE, OF_OTHERS

from slurmwrap import errors
from slurmwrap.config.load_config import make_variable_name
from slurmwrap.sbatch.option_table import OWN

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "reference"
SCHEMAS = ROOT / "docs" / "schemas"
WRITTEN = "<!-- Written by .ci/docs_reference.py; do not edit. -->\n"


def pages() -> dict[str, str]:
    """Return file name below docs/reference -> text of every generated page."""
    return {
        "gsub.md": gsub_page(),
        "slurmwrap.md": slurmwrap_page(slurmwrap()),
        "exit-codes.md": exit_codes_page(),
        "environment.md": environment_page(),
        "files.md": files_page(),
        "schemas.md": schemas_page(),
    }


# --- commands -----------------------------------------------------------------------------------------------------


def slurmwrap_page(root: Command) -> str:
    """Return the page with all commands, each with its help, arguments and options."""
    listed = _table(("command", "does"), ((f"[`{one.name}`](#{_anchor(one)})", one.about) for one in each(root)))
    first, *rest = each(root)
    parts = [f"# slurmwrap\n\n{WRITTEN}", _body(first), listed, "Each says this with `--help`, too.\n"]
    return "\n".join([*parts, *(f"## {one.name}\n\n{_body(one)}" for one in rest)])


def _anchor(command: Command) -> str:
    return "-".join(command.path)


def _body(command: Command) -> str:
    parts = [f"```text\n{command.synopsis}\n```\n"]
    parts += [_prose(block) for block in command.blocks]
    if command.arguments:
        parts += [_rows("argument", command.arguments)]
    own = tuple(row for row in command.options if "--help" not in row.words)
    if own:
        parts += [_rows("option", own)]
    return "\n".join(parts)


def _prose(block: Block) -> str:
    if not block.lines:
        return f"{_text(block.text)}\n"
    title = f"{_text(block.title)}\n\n" if block.title else ""
    lines = "\n".join(block.lines)
    return f"{title}```text\n{lines}\n```\n"


def _rows(kind: str, rows: Iterable[Row]) -> str:
    return _table((kind, "meaning"), ((f"`{row.typed}`", row.about) for row in rows))


def gsub_page() -> str:
    """Return the page with gsub's own help; sbatch's options are in docs/dropin.md."""
    parts = [f"# gsub\n\n{WRITTEN}"]
    for section in gsub():
        if section.title:
            parts += [f"## Options\n\n{_text(section.title)}\n"]
        if section.text:
            parts += [f"{_text(section.text)}\n"]
        if section.rows and all(not row.about for row in section.rows):
            parts += ["```text\n" + "\n".join(row.typed for row in section.rows) + "\n```\n"]
        elif section.rows:
            rows = ((f"`{row.typed}`", row.about.replace("\n", "; ")) for row in section.rows)
            parts += [_table(("typed" if not section.title else "option", "meaning"), rows)]
    parts += [
        "sbatch's own options, and what gsub does with each, stand in [dropin](../dropin.md#options); the variables "
        "in [environment](environment.md); what it ends with in [exit codes](exit-codes.md).\n"
    ]
    return "\n".join(parts)


# --- exit codes ---------------------------------------------------------------------------------------------------

OTHER_CODES = (
    (0, "", "all is well; gsub: the job was submitted (or shown, or its pre-run passed)"),
    (2, "", "slurmwrap: an option or a command that does not exist; `slurmwrap doctor`: a failure (1: a warning)"),
    (70, "", "an error of ours that was not expected; the message names the file with its details"),
    (130, "", "Ctrl-C"),
    (143, "", "SIGTERM"),
)


def exit_codes_page() -> str:
    """Return the page with the errors of errors.py, ordered by exit code."""
    errors_of_ours = ((code, f"`{name}`", text) for name, code, text in error_tree())
    rows = sorted((*OTHER_CODES, *errors_of_ours), key=lambda row: row[0])
    return "\n".join(
        (
            f"# Exit codes\n\n{WRITTEN}",
            _table(("code", "error", "when"), ((str(code), name, text) for code, name, text in rows)),
            "What sbatch itself refuses ends with sbatch's own code and words. `gsub --wait` ends with the job's. A "
            "hook always ends with 0, unless the Prolog gate is on and refuses a node ([hooks](../hooks.md)).\n",
        )
    )


def error_tree() -> Iterator[tuple[str, int, str]]:
    """Yield each error of errors.py with its exit code and meaning, from the tree in the module's docstring."""
    for line in (errors.__doc__ or "").splitlines():
        words = line.replace("├─", " ").replace("└─", " ").replace("│", " ").split()
        if len(words) >= 2 and words[1].isdigit():
            yield words[0], int(words[1]), " ".join(words[2:]) or "anything else that was to be expected"


# --- environment, files -------------------------------------------------------------------------------------------


def environment_page() -> str:
    """Return the page with every environment variable that slurmwrap reads."""
    own = ((f"`{one.variable}`", f"as `--{one.name}`") for one in OWN if one.variable and one.flag)
    absent = ((f"`{one.variable}`", f"`0`: as `--{one.name}`") for one in OWN if not one.flag)
    keys = f"`{make_variable_name('site.spool')}`, `{make_variable_name('prerun.partition')}` …"
    return "\n".join(
        (
            f"# Environment\n\n{WRITTEN}",
            "## For gsub\n",
            "sbatch's own variables (`SBATCH_…`) are read as sbatch reads them ([dropin](../dropin.md#options)).\n",
            _table(("variable", "meaning"), _merged((*own, *absent))),
            "## For both\n",
            _table(("variable", "meaning"), ((f"`{name}`", text) for name, text in FOR_PEOPLE.items())),
            f"Every key of the configuration has a variable, too: {keys} ([configuration](../configuration.md)).\n",
            "## Of others\n",
            _table(("variable", "meaning"), ((f"`{name}`", text) for name, text in OF_OTHERS.items())),
            "## Inside jobs and pre-runs\n",
            "Set by slurmwrap for its own processes. A script may read them and should not set them.\n",
            _table(("variable", "meaning"), ((f"`{name}`", text) for name, text in INSIDE.items())),
        )
    )


def _merged(rows: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    found: dict[str, list[str]] = {}
    for name, text in rows:
        found.setdefault(name, []).append(text)
    return [(name, "; ".join(texts)) for name, texts in sorted(found.items())]


def files_page() -> str:
    """Return the page with all files and directories of slurmwrap."""
    parts = [
        f"# Files and directories\n\n{WRITTEN}",
        "Where a key of the configuration is named, the key holds the path.\n",
    ]
    head = ("path", "owner, mode", "what")
    for title, rows in FILES:
        parts += [f"## {title}\n", _table(head, ((f"`{path}`", who, what) for path, who, what in rows))]
    return "\n".join(parts)


# --- schemas ------------------------------------------------------------------------------------------------------


def schemas_page() -> str:
    """Return the page with the output of `--json` from docs/schemas; records that several schemas share appear once."""
    parts = [
        f"# JSON\n\n{WRITTEN}",
        "With `--json` a command prints one object for programs. Keys are added over time and never change their "
        "meaning within a version; each schema stands as a file beside this page.\n",
    ]
    records: dict[str, dict[str, Any]] = {}
    for path in sorted(SCHEMAS.glob("*.json")):
        schema = json.loads(path.read_text(encoding="utf-8"))
        parts += [f"## {schema.get('title', path.stem)}\n", f"[`schemas/{path.name}`](../schemas/{path.name})\n"]
        parts += _shape(schema)
        records |= schema.get("$defs", {})
    parts += ["## Records\n", *(part for name in sorted(records) for part in (f"### {name}\n", *_shape(records[name])))]
    return "\n".join(parts)


def _shape(schema: dict[str, Any]) -> Iterator[str]:
    if about := schema.get("description"):
        yield f"{_text(about)}\n"
    if rows := list(_properties(schema)):
        yield _table(("key", "type", "meaning"), rows)


def _properties(schema: dict[str, Any], before: str = "") -> Iterator[tuple[str, str, str]]:
    for name, about in schema.get("properties", {}).items():
        optional = "" if name in schema.get("required", []) else ", may be missing"
        yield f"`{before}{name}`", f"{_type(about)}{optional}", about.get("description", "")
        yield from _properties(about, f"{before}{name}.")
        yield from _properties(_items(about), f"{before}{name}[].")


def _items(about: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an array's items; {} when `items` is `false`, as after the last item of a fixed number."""
    found = about.get("items", {})
    return found if isinstance(found, dict) else {}


def _type(about: dict[str, Any]) -> str:
    if "const" in about:
        return f"`{json.dumps(about['const'])}`"
    if "enum" in about:
        return "one of " + ", ".join(f"`{json.dumps(one)}`" for one in about["enum"])
    if "$ref" in about:
        name = str(about["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    several = about.get("anyOf") or about.get("oneOf")
    found = [_type(one) for one in several] if several else about.get("type", "any")
    if found == "array" and (pair := about.get("prefixItems")):
        return "array of " + ", ".join(map(_type, pair))
    if found == "array" and _items(about):
        return f"array of {_type(_items(about))}"
    return found if isinstance(found, str) else " or ".join(found)


# --- Markdown -----------------------------------------------------------------------------------------------------


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(map(_cell, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|")


def _text(text: str) -> str:
    """Return plain text as Markdown, with special characters outside `…` escaped."""
    parts = text.split("`")
    return "`".join(part if at % 2 else part.replace("<", "&lt;").replace("*", "\\*") for at, part in enumerate(parts))


def write() -> None:
    """Write all pages to docs/reference."""
    PAGES.mkdir(exist_ok=True)
    for name, text in pages().items():
        (PAGES / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
