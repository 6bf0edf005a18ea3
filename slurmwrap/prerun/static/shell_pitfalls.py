"""Lines of a batch script that do nothing, or something else than meant: directives that come too late or are misspelt,
a blank behind a backslash, a dash from a word processor. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurmwrap.model.finding import Finding, Severity
from slurmwrap.prerun.static.shell_parser import RawCommand, parse_commands
from slurmwrap.prerun.static.static_context import StaticContext
from slurmwrap.prerun.static.suggestions import find_nearest

_DIRECTIVE = re.compile(r"#SBATCH\s+-")
_ALMOST = re.compile(r"\s*#([A-Za-z]{4,8}):?\s+--?[a-zA-Z]")


def check_script_text(text: str, desk: StaticContext) -> Iterator[Finding]:
    """One finding for each such line."""
    found = parse_commands(text)
    inside = _find_quoted_lines(found)
    lines = text.split("\n")
    first = min((c.line for c in found), default=len(lines) + 1)
    for number, line in enumerate(lines, 1):
        if number in inside:
            continue
        if number > first and _DIRECTIVE.match(line):
            yield _make_late_directive_finding(number, first, desk)
        elif number < first and (almost := _ALMOST.match(line)) and not _DIRECTIVE.match(line):
            yield from _check_misspelt_directive(number, line, almost[1], desk)
        elif number >= first and not line.lstrip().startswith("#"):
            yield from _check_odd_letters(number, line, lines, desk)


def _find_quoted_lines(found: tuple[RawCommand, ...]) -> frozenset[int]:
    """Lines inside here-documents and behind the first of a quoted word of several lines."""
    inside: set[int] = set()
    for command in found:
        if command.heredoc is not None and command.heredoc.line:
            inside.update(range(command.heredoc.line, command.heredoc.line + command.heredoc.body.count("\n") + 1))
        for word in command.words:
            breaks = sum(value.count("\n") for _, value, _ in word.parts)
            inside.update(range(word.line + 1, word.line + breaks + 1))
    return frozenset(inside)


def _make_late_directive_finding(number: int, first: int, desk: StaticContext) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        message=f"sbatch ignores this #SBATCH line: it stands behind the first command (line {first})",
        file=desk.script,
        line=number,
        fix=f"move it above line {first}",
    )


def _check_misspelt_directive(number: int, line: str, word: str, desk: StaticContext) -> Iterator[Finding]:
    if word == "SBATCH" and line[0] in " \t":
        message = "sbatch takes this line for a comment: blanks stand before #SBATCH"
    elif word not in ("SBATCH", "GSUB", "SLURM") and find_nearest(word.upper(), ("SBATCH",), 0.75):
        message = f"sbatch takes #{word} for a comment"
    else:
        return
    yield Finding(
        severity=Severity.WARNING, message=message, file=desk.script, line=number, fix="did you mean #SBATCH?"
    )


def _check_odd_letters(number: int, line: str, lines: list[str], desk: StaticContext) -> Iterator[Finding]:
    if re.search(r"[^\\]\\[ \t]+$", line) and number < len(lines) and lines[number].strip() and "#" not in line:
        yield Finding(
            severity=Severity.WARNING,
            message="a blank stands behind the backslash: the command ends here, the next line is another one",
            file=desk.script,
            line=number,
            fix="remove the blanks at the end of the line",
            category="syntax_error",
        )
    code = re.sub(r"'[^']*'|\"[^\"]*\"|(^|\s)#.*", " ", line)
    if found := re.search(r"\s([\u2010-\u2015\u2212]{1,2}\w[\w-]*)", code):
        yield Finding(
            severity=Severity.WARNING,
            message=f"{found[1]} begins with a typographic dash, which no program takes for an option",
            file=desk.script,
            line=number,
            fix=f"did you mean --{found[1].lstrip('‐‑‒–—―−')}?",
            category="syntax_error",
        )
    elif "\u00a0" in code or re.search(r"[\u201c\u201d\u2018\u2019]", code):
        yield Finding(
            severity=Severity.WARNING,
            message="a typographic quote or a no-break space, which the shell takes for a letter",
            file=desk.script,
            line=number,
            fix="type it again as \", ' or a blank",
            category="syntax_error",
        )
