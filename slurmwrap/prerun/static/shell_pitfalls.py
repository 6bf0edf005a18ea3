"""Lines of a batch script that do nothing, or something else than meant: directives that come too late or are misspelt,
a blank behind a backslash, a dash from a word processor. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from slurmwrap.model.finding import Finding, Severity
from slurmwrap.nearest_name import find_nearest
from slurmwrap.prerun.static.shell_parser import UNKNOWN, RawCommand, parse_commands
from slurmwrap.prerun.static.started_program import StartedProgram
from slurmwrap.prerun.static.static_context import StaticContext
from slurmwrap.prerun.static.word_tables import split_word_table

_DIRECTIVE = re.compile(r"#SBATCH\s+-")
_ALMOST = re.compile(r"\s*#([A-Za-z]{4,8}):?\s+--?[a-zA-Z]")


def check_script_text(text: str, context: StaticContext) -> Iterator[Finding]:
    """One finding for each such line."""
    found = parse_commands(text)
    inside = _find_quoted_lines(found)
    lines = text.split("\n")
    first = min((c.line for c in found), default=len(lines) + 1)
    for number, line in enumerate(lines, 1):
        if number in inside:
            continue
        if number > first and _DIRECTIVE.match(line):
            yield _make_late_directive_finding(number, first, context)
        elif number < first and (almost := _ALMOST.match(line)) and not _DIRECTIVE.match(line):
            yield from _check_misspelt_directive(number, line, almost[1], context)
        elif number >= first and not line.lstrip().startswith("#"):
            yield from _check_odd_letters(number, line, lines, context)


def _find_quoted_lines(found: tuple[RawCommand, ...]) -> frozenset[int]:
    """Lines inside here-documents and behind the first of a quoted text of several lines."""
    inside: set[int] = set()
    for command in found:
        if command.heredoc is not None and command.heredoc.line:
            inside.update(range(command.heredoc.line, command.heredoc.line + command.heredoc.body.count("\n") + 1))
        for word in command.words:
            breaks = sum(value.count("\n") for _, value, _ in word.parts)
            inside.update(range(word.line + 1, word.line + breaks + 1))
    return frozenset(inside)


def _make_late_directive_finding(number: int, first: int, context: StaticContext) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        message=f"sbatch ignores this #SBATCH line: it comes after the first command (line {first})",
        file=context.script,
        line=number,
        fix=f"move it above line {first}",
    )


def _check_misspelt_directive(number: int, line: str, word: str, context: StaticContext) -> Iterator[Finding]:
    if word == "SBATCH" and line[0] in " \t":
        message = "sbatch takes this line for a comment: blanks stand before #SBATCH"
    elif word not in ("SBATCH", "GSUB", "SLURM") and find_nearest(word.upper(), ("SBATCH",), 0.75):
        message = f"sbatch takes #{word} for a comment"
    else:
        return
    yield Finding(
        severity=Severity.WARNING, message=message, file=context.script, line=number, fix="did you mean #SBATCH?"
    )


def _check_odd_letters(number: int, line: str, lines: list[str], context: StaticContext) -> Iterator[Finding]:
    if re.search(r"[^\\]\\[ \t]+$", line) and number < len(lines) and lines[number].strip() and "#" not in line:
        yield Finding(
            severity=Severity.WARNING,
            message="a blank stands behind the backslash: the command ends here, the next line is another one",
            file=context.script,
            line=number,
            fix="remove the blanks at the end of the line",
            category="syntax_error",
        )
    code = re.sub(r"'[^']*'|\"[^\"]*\"|(^|\s)#.*", " ", line)
    if found := re.search(r"\s([\u2010-\u2015\u2212]{1,2}\w[\w-]*)", code):
        yield Finding(
            severity=Severity.WARNING,
            message=f"{found[1]} begins with a typographic dash, which no program takes for an option",
            file=context.script,
            line=number,
            fix=f"did you mean --{found[1].lstrip('‐‑‒–—―−')}?",
            category="syntax_error",
        )
    elif "\u00a0" in code or re.search(r"[\u201c\u201d\u2018\u2019]", code):
        yield Finding(
            severity=Severity.WARNING,
            message="a typographic quote or a no-break space, which the shell takes for a letter",
            file=context.script,
            line=number,
            fix="type it again as \", ' or a blank",
            category="syntax_error",
        )


# Does a shell script parse: asks its own shell with -n, and looks for line ends that no shell takes.
_SHELLS = ("bash", "sh", "dash", "ksh", "zsh")


def find_shell(text: str) -> str | None:
    """The shell of the #! line, None when it is none we know."""
    words = text.partition("\n")[0].removeprefix("#!").split()
    words = [w for w in words if os.path.basename(w) != "env" and w != "-S"]  # noqa: PTH119
    name = os.path.basename(words[0]) if text.startswith("#!") and words else ""  # noqa: PTH119
    return name if name in _SHELLS else None


def check_shell_syntax(content: bytes, shell: str, name: str, context: StaticContext) -> Iterator[Finding]:
    """At most one finding: what the shell says first."""
    if b"\r\n" in content[: 1 << 20]:
        yield make_dos_line_end_finding(content, name, refused=name == context.script)
        return
    if context.left() <= 0.1:
        return
    # Patterns like !(x) parse only when extglob is on, and `-n` does not run the `shopt` that turns it on.
    options = ["-O", "extglob"] if shell == "bash" and b"extglob" in content else []
    answer = context.run([shell, *options, "-n"], timeout_s=min(1.0, context.left()), stdin=content)
    said = answer.stderr.decode("utf-8", "replace")
    if answer.missing or answer.exit_code is None or not said:
        return
    found = re.search(r"^\S*?: (?:line )?(\d+): (?:[Ss]yntax error: )?(.*)$", said, re.M)
    failed = answer.exit_code != 0
    swallowed = None if failed else _find_indented_delimiter(said, content)
    if swallowed:
        yield Finding(
            severity=Severity.ERROR,
            message="the here-document does not end: its delimiter is not alone at the beginning of the line",
            file=name,
            line=swallowed,
            fix="remove the blanks around the delimiter, or begin with <<- and indent by tabs",
            category="syntax_error",
        )
        return
    yield Finding(
        severity=Severity.ERROR if failed and found else Severity.WARNING,
        message=f"shell syntax: {found[2] if found else said.splitlines()[0]}",
        file=name,
        line=int(found[1]) if found else 0,
        fix=f"{shell} -n {name} shows it",
        category="syntax_error" if failed else "",
    )


def _find_indented_delimiter(said: str, content: bytes) -> int:
    """The line on which a here-document that swallowed the rest of the script should have ended, or 0."""
    found = re.search(r"here-document at line (\d+) delimited by end-of-file \(wanted [`'](.+)'\)", said)
    if found is None:
        return 0
    lines = content.decode("utf-8", "replace").split("\n")
    after = enumerate(lines[int(found[1]) :], int(found[1]) + 1)
    return next((number for number, line in after if line.strip() == found[2]), 0)


def make_dos_line_end_finding(content: bytes, name: str, *, refused: bool) -> Finding:
    """sbatch refuses a batch script with DOS line ends; another script fails on the \\r at the end of each word."""
    return Finding(
        severity=Severity.ERROR if refused else Severity.WARNING,
        message="DOS line ends (\\r\\n): "
        + ("sbatch refuses the script" if refused else "the shell takes \\r as a letter"),
        file=name,
        line=content[: content.index(b"\r\n")].count(b"\n") + 1,
        fix=f"sed -i 's/\\r$//' {name}",
        category="syntax_error",
    )


# Does Slurm learn of it when the program fails: its exit code is the job's, unless a pipe or a later command hides it.
#
# Pure. All are warnings: the job runs, but a crash of it is COMPLETED to Slurm, to dependent jobs and to a retry.
_PIPES = ("|", "|&")
# Commands that end well whatever went before: behind a program their exit code is the script's.
_HARMLESS = split_word_table(
    "echo printf date true : hostname nvidia-smi sleep deactivate uptime free df ls mail sacct seff"
)
_PLUMBING = split_word_table("cat seq find ls yes head tail sort sed awk grep cut tee xargs parallel")
_WHATEVER = split_word_table("true : echo printf date")
# The script looks at exit codes itself.
_LOOKED_AT = re.compile(
    r"\$\?|\$\{?PIPESTATUS|\btrap\b[^\n]*\b(?:ERR|EXIT)\b|^\s*(?:return|exit)\b(?! *0\s*$)", re.MULTILINE
)
_SHEBANG_E = re.compile(r"#!.*\s-\w*e")


def exit_code_findings(text: str, started: Sequence[StartedProgram], context: StaticContext) -> Iterator[Finding]:
    """One finding for each program whose exit code is lost."""
    if _LOOKED_AT.search(text):
        return
    lines = {one.entry.line for one in started if one.entry is not None and one.entry.kind != "shell"}
    found = parse_commands(text)
    options = _find_shell_options(found, text)
    programs = [at for at, one in enumerate(found) if one.line in lines and _name(one) not in _HARMLESS | _PLUMBING]
    for at in programs:
        if found[at].sure:
            yield from _check_command(at, found, options, context)
    if "errexit" not in options and programs:
        yield from _check_last_command(max(programs), found, context)


def _check_command(
    at: int, found: Sequence[RawCommand], options: frozenset[str], context: StaticContext
) -> Iterator[Finding]:
    command, following = found[at], found[at + 1 : at + 2]
    name = _name(following[0]) if following else ""
    if (
        command.then in _PIPES
        and name not in ("", "xargs", "parallel")
        and "pipefail" not in options
        and not command.feeds
    ):
        message = f"the exit code of this line is that of '{name}': if the program fails, Slurm calls the job COMPLETED"
        yield _make_lost_finding(command, message, "put 'set -o pipefail' at the start of the script", context)
    elif command.then == "||" and name in _WHATEVER:
        message = f"'|| {name}' hides the exit code: if the program fails, Slurm calls the job COMPLETED"
        yield _make_lost_finding(command, message, f"remove '|| {name}'", context)


def _check_last_command(at: int, found: Sequence[RawCommand], context: StaticContext) -> Iterator[Finding]:
    """The program's is not the last command, and those behind it end well anyway."""
    if not found[at].sure or found[at].then not in ("\n", ";"):
        return
    behind = found[at + 1 :]
    if behind and behind[-1].sure and all(_name(one) in _HARMLESS for one in behind):
        name, line = _name(behind[-1]), behind[-1].line
        message = f"'{name}' in line {line} decides the job's exit code: if the program fails, Slurm calls it COMPLETED"
        yield _make_lost_finding(found[at], message, "put 'set -e' at the start of the script", context)


def _make_lost_finding(command: RawCommand, message: str, fix: str, context: StaticContext) -> Finding:
    return Finding(severity=Severity.WARNING, message=message, file=context.script, line=command.line, fix=fix)


def _find_shell_options(found: Sequence[RawCommand], text: str) -> frozenset[str]:
    """ "errexit" and "pipefail" where the script sets them anywhere."""
    given: set[str] = set()
    for command in found:
        if _name(command) == "set":
            options = [word.literal or "" for word in command.words[1:]]
            given |= {one for one in options if one in ("errexit", "pipefail")}
            given |= {"errexit" for one in options if re.fullmatch(r"-[a-zA-Z]*e[a-zA-Z]*", one)}
    if _SHEBANG_E.match(text.partition("\n")[0]):
        given.add("errexit")
    return frozenset(given)


def _name(command: RawCommand) -> str:
    """What the command is called; "" where the shell alone knows."""
    return (command.words[0].literal or "") if command.words else ""


# Programs that a script starts in the background and does not wait for: Slurm ends them with the script.

# What is over in a moment. Behind any other command the programs in the background have its time.
_SHORT = split_word_table(
    """echo printf date exit : true hostname pwd whoami set unset export declare module ml deactivate conda ls squeue
    sacct scontrol [ [[ test disown cd"""
)


def find_background_programs(started: Sequence[StartedProgram], text: str, context: StaticContext) -> Iterator[Finding]:
    """One finding for the last program in the background, where the script ends right behind it."""
    code = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    if re.search(r"\b(wait|fg|coproc|while|until|trap)\b|\btail\s.*-\w*[fF]", code):
        return
    own = [one for one in started if one.raw is not None and not one.raw.in_function]
    at = max((i for i, one in enumerate(own) if one.raw and one.raw.then == "&" and _is_own_program(one)), default=-1)
    if at < 0 or any(one.words and one.words[0] not in _SHORT for one in own[at + 1 :]):
        return
    what = " ".join(own[at].words[:2]).replace(UNKNOWN, "...")
    yield Finding(
        severity=Severity.WARNING,
        message=f"{what} runs in the background, and nothing waits for it: Slurm ends it when the script ends",
        file=context.script,
        line=own[at].line,
        fix="write `wait` at the end of the script, or remove the &",
    )


def _is_own_program(program: StartedProgram) -> bool:
    """A program of the user's own, or a step: a viewer or a monitor may end with the script."""
    if program.entry is not None:
        return bool(program.entry.path)
    return program.raw is not None and bool(program.raw.words) and program.raw.words[0].literal == "srun"
