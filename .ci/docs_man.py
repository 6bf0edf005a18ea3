"""Generate docs/man: gsub(1), slurmwrap(1), slurmwrap-config.toml(5), and a page for each command, as git-commit(1).

Commands that users need are in section 1, those of administrators in section 8. `.venv/bin/python .ci/docs_man.py`;
tests/docs/test_reference.py fails when the pages are outdated. The wheel installs them as share/man.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from docs_commands import Block, Command, Row, Section, each, gsub, slurmwrap
from docs_reference import OTHER_CODES, error_tree
from docs_tables import FILES, FOR_PEOPLE, OF_OTHERS

from slurmwrap import __version__
from slurmwrap.config.config_keys import describe_section, format_toml, list_keys

PAGES = Path(__file__).resolve().parents[1] / "docs" / "man"
DATE = "2026-11-21"  # of the release; with the present day, no two builds would be equal


CONFIGURATION = "slurmwrap-config.toml"
# Commands that change the cluster, the nodes or the site's records.
ADMINISTRATION = frozenset(["db", "hooks", "incidents", "inputs", "metrics", "nodes", "reconcile", "report", "spool"])


def pages() -> dict[str, str]:
    """Return path below docs/man -> text of every man page."""
    root = slurmwrap()
    made = {
        "gsub": _page("gsub", "submit a GPU job as sbatch does, and look after it", _gsub(gsub())),
        "slurmwrap": _page("slurmwrap", root.about, _slurmwrap(root)),
        CONFIGURATION: _page(CONFIGURATION, "configuration of gsub and slurmwrap", _configuration()),
        **{_name(one): _page(_name(one), one.about, _command(one)) for one in root.below},
    }
    return {f"man{_section(name)}/{name}.{_section(name)}": text for name, text in made.items()}


def _section(name: str) -> int:
    """Return the section of the manual; it is 1 for other programs too."""
    if name == CONFIGURATION:
        return 5
    return 8 if name.removeprefix("slurmwrap-") in ADMINISTRATION else 1


def _page(name: str, about: str, body: Iterable[str]) -> str:
    head = f'.TH {_word(name.upper())} {_section(name)} {DATE} "slurmwrap {__version__}" "slurmwrap manual"'
    title = f"{_plain(name)} \\- {_plain(about[0].lower() + about[1:])}"
    return "\n".join([head, ".SH NAME", title, *body]) + "\n"


def _name(command: Command) -> str:
    return "-".join(command.path)


# --- gsub ---------------------------------------------------------------------------------------------------------


def _gsub(sections: tuple[Section, ...]) -> Iterator[str]:
    first, synopsis, calls, options, *rest = sections
    yield from (".SH SYNOPSIS", _line(_bold_first(synopsis.rows[0].typed)))
    yield from (".SH DESCRIPTION", _line(_plain(first.text)))
    yield from (".SH EXAMPLES", *_tagged(calls.rows))
    yield from (".SH OPTIONS", _line(_plain(options.title)), *_tagged(options.rows))
    for section in rest:
        yield from (".PP", _line(_plain(section.text)), *_tagged(section.rows))
    yield from _exit_status()
    yield from (".SH ENVIRONMENT", "sbatch's own variables, GSUB_* as said above, and")
    yield from _tagged(Row(typed=name, about=_no_links(text)) for name, text in {**FOR_PEOPLE, **OF_OTHERS}.items())
    yield from _files()
    yield from _see("slurmwrap", "slurmwrap-why", "slurmwrap-prerun", "sbatch", "squeue", "scontrol")


# --- slurmwrap ----------------------------------------------------------------------------------------------------


def _slurmwrap(root: Command) -> Iterator[str]:
    yield from (".SH SYNOPSIS", _line(_bold_first(root.synopsis)), ".SH DESCRIPTION", *_blocks(root.blocks))
    yield from (".SH OPTIONS", *_tagged(root.options), ".SH COMMANDS")
    for one in root.below:
        yield from (".TP", f"\\fB{_plain(_name(one))}\\fR({_section(_name(one))})", _line(_plain(one.about)))
    yield from (*_exit_status(), *_files(), *_see("gsub", CONFIGURATION, *(_name(one) for one in root.below)))


def _command(command: Command) -> Iterator[str]:
    yield ".SH SYNOPSIS"
    shown = [one for one in each(command) if not one.below]
    for at, one in enumerate(shown):
        yield from ((".br",) if at else ())
        yield _line(_bold_first(one.synopsis, len(one.path)))
    yield from (".SH DESCRIPTION", *_blocks(command.blocks))
    if command.below:
        yield ".SH COMMANDS"
        for one in shown:
            yield f".SS {_plain(' '.join(one.path[1:]))}"
            yield from (*_blocks(one.blocks), *_tagged((*one.arguments, *_own(one))))
    elif rows := (*command.arguments, *_own(command)):
        yield from (".SH OPTIONS", *_tagged(rows))
    yield from _see("slurmwrap", "gsub", CONFIGURATION)


def _own(command: Command) -> tuple[Row, ...]:
    return tuple(row for row in command.options if "--help" not in row.words)


# --- configuration ------------------------------------------------------------------------------------------------


def _configuration() -> Iterator[str]:
    yield ".SH DESCRIPTION"
    yield ".ad l"  # groff warns of a line that it cannot adjust, as one with a long default
    yield "Configuration in TOML. All keys are optional; slurmwrap\\-config(1) prints what holds and where it was set."
    for section in dict.fromkeys(key.section for key in list_keys()):
        yield f".SH {_plain(f'[{section}]' if section else 'above all sections').upper()}"
        yield _line(_plain(_no_links(" ".join(describe_section(section).split()))))
        for key in list_keys():
            if key.section == section:
                allowed = f"{key.unit}, {key.allowed}" if key.unit else key.allowed
                text = " ".join(_no_links(key.text).split())
                yield from _tagged([Row(typed=f"{key.word} = {format_toml(key.default)}", about=f"{text}\n{allowed}")])
    yield from (*_files(), *_see("slurmwrap-config", "gsub", "slurmwrap"))


# --- parts --------------------------------------------------------------------------------------------------------


def _exit_status() -> Iterator[str]:
    yield ".SH EXIT STATUS"
    found: dict[int, list[str]] = {}
    rows = (*((code, text) for code, _, text in OTHER_CODES), *((code, text) for _, code, text in error_tree()))
    for code, text in sorted(rows):
        found.setdefault(code, []).append(text)
    for code, texts in found.items():
        yield from (".TP", str(code), _line(_plain("; ".join(texts))))


def _files() -> Iterator[str]:
    yield ".SH FILES"
    for _, rows in FILES:
        yield from _tagged(Row(typed=path, about=_no_links(f"{what} ({who})")) for path, who, what in rows)


def _see(*names: str) -> Iterator[str]:
    yield ".SH SEE ALSO"
    *before, last = (f".BR {_word(name)} ({_section(name)})" for name in names)
    yield from (*(f"{one} ," for one in before), last)


def _blocks(blocks: tuple[Block, ...]) -> Iterator[str]:
    for at, block in enumerate(blocks):
        yield from ((".PP",) if at else ())
        if not block.lines:
            yield _line(_plain(block.text))
            continue
        if block.title:
            yield from (_line(_plain(block.title)), ".PP")
        yield from (".nf", ".RS 2", *map(_line, map(_plain, block.lines)), ".RE", ".fi")


def _tagged(rows: Iterable[Row]) -> Iterator[str]:
    for row in rows:
        yield from (".TP", _line(f"\\fB{_plain(row.typed)}\\fR"))
        lines = [line for line in row.about.split("\n") if line]
        for at, line in enumerate(lines or ["\\&"]):
            yield from ((".br",) if at else ())
            yield _line(_plain(line) if lines else line)


def _bold_first(synopsis: str, words: int = 1) -> str:
    parts = synopsis.split(" ")
    return f"\\fB{_plain(' '.join(parts[:words]))}\\fR {_plain(' '.join(parts[words:]))}".rstrip()


def _no_links(text: str) -> str:
    return re.sub(r" ?\(\[[^\]]*\]\([^)]*\)\)|`", "", text)


_SIGNS = {
    "\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "~": "\\(ti", "^": "\\(ha",
    "→": "\\(->", "…": "...", "–": "\\(en", "·": "\\(bu", "≤": "\\(<=", "≥": "\\(>=", "×": "\\(mu", "│": "|",
}  # fmt: skip


def _plain(text: str) -> str:
    """Return text, in ASCII and escaped so that roff prints it unchanged."""
    for sign, name in _SIGNS.items():
        text = text.replace(sign, name)
    return "".join(one if one.isascii() else f"\\[u{ord(one):04X}]" for one in text)


def _word(text: str) -> str:
    return text.replace("-", "\\-")


def _line(text: str) -> str:
    """Return a line escaped so that roff never reads its beginning as a request."""
    return f"\\&{text}" if text.startswith((".", "'")) else text


def write() -> None:
    """Write all pages to docs/man and remove pages of commands that no longer exist."""
    found = pages()
    for path in PAGES.glob("man*/*"):
        if str(path.relative_to(PAGES)) not in found:
            path.unlink()
    for name, text in found.items():
        (PAGES / name).parent.mkdir(parents=True, exist_ok=True)
        (PAGES / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
