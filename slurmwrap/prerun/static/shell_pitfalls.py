"""Find mistakes in the text of a shell script. (adapter)

Lines without effect or with another effect than intended (late or misspelt directives, a blank after a backslash,
a typographic dash), syntax errors, exit codes that are lost, and programs in the background that end with the script.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from slurmwrap.model.finding import Finding, Severity
from slurmwrap.nearest_name import find_nearest
from slurmwrap.prerun.static.shell_parser import parse_commands, parse_substitutions
from slurmwrap.prerun.static.shell_words import UNKNOWN, RawCommand
from slurmwrap.prerun.static.started_program import StartedProgram
from slurmwrap.prerun.static.static_context import StaticContext
from slurmwrap.prerun.static.word_tables import split_word_table

_DIRECTIVE = re.compile(r"#SBATCH\s+-")
_ALMOST_DIRECTIVE = re.compile(r"\s*#([A-Za-z]{4,8}):?\s+--?[a-zA-Z]")


def check_script_text(text: str, context: StaticContext) -> Iterator[Finding]:
    """Yield one finding for each line that does nothing, or something else than intended."""
    found = parse_commands(text)
    inside = _find_quoted_lines((*found, *parse_substitutions(text)))
    lines = text.split("\n")
    first = min((c.line for c in found), default=len(lines) + 1)
    for number, line in enumerate(lines, 1):
        if number in inside:
            continue
        if number > first and _DIRECTIVE.match(line):
            yield _make_late_directive_finding(number, first, context)
        elif number < first and (almost := _ALMOST_DIRECTIVE.match(line)) and not _DIRECTIVE.match(line):
            yield from _check_misspelt_directive(number, line, almost[1], context)
        elif number >= first and not line.lstrip().startswith("#"):
            yield from _check_odd_letters(number, line, lines, context)


def _find_quoted_lines(found: tuple[RawCommand, ...]) -> frozenset[int]:
    """Return the lines inside here-documents, and the lines of a quoted text after its first one."""
    inside: set[int] = set()
    for command in found:
        for here in (one.heredoc for one in command.redirections):
            if here is not None and here.line:
                inside.update(range(here.line, here.line + here.body.count("\n") + 1))
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
        message = "sbatch takes this line for a comment: there are blanks before #SBATCH"
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
            message="there is a blank after the backslash: the command ends here, and the next line is another command",
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


# Syntax: the script's own shell parses it with -n. Line ends that no shell accepts are found before.
_SHELLS = ("bash", "sh", "dash", "ksh", "zsh")


def find_shell(text: str) -> str | None:
    """Return the shell in the #! line; None if it is not a known one."""
    words = text.partition("\n")[0].removeprefix("#!").split()
    words = [w for w in words if os.path.basename(w) != "env" and w != "-S"]  # noqa: PTH119
    name = os.path.basename(words[0]) if text.startswith("#!") and words else ""  # noqa: PTH119
    return name if name in _SHELLS else None


def check_shell_syntax(content: bytes, shell: str, name: str, context: StaticContext) -> Iterator[Finding]:
    """Yield at most one finding: the first message of the shell."""
    if b"\r\n" in content[: 1 << 20]:
        yield make_dos_line_end_finding(content, name, refused=name == context.script)
        return
    if context.left() <= 0.1:
        return
    # Patterns like !(x) parse only when extglob is on, and `-n` does not run the `shopt` that turns it on.
    options = ["-O", "extglob"] if shell == "bash" and b"extglob" in content else []
    answer = context.run([shell, *options, "-n"], timeout_s=min(1.0, context.left()), stdin=content)
    stderr_text = answer.stderr.decode("utf-8", "replace")
    if answer.missing or answer.exit_code is None or not stderr_text:
        return
    found = re.search(r"^\S*?: (?:line )?(\d+): (?:[Ss]yntax error: )?(.*)$", stderr_text, re.M)
    failed = answer.exit_code != 0
    swallowed = None if failed else _find_indented_delimiter(stderr_text, content)
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
        message=f"shell syntax: {found[2] if found else stderr_text.splitlines()[0]}",
        file=name,
        line=int(found[1]) if found else 0,
        fix=f"{shell} -n {name} shows it",
        category="syntax_error" if failed else "",
    )


def _find_indented_delimiter(stderr_text: str, content: bytes) -> int:
    """Return the line where an unclosed here-document should have ended, because its delimiter is indented; else 0."""
    found = re.search(r"here-document at line (\d+) delimited by end-of-file \(wanted [`'](.+)'\)", stderr_text)
    if found is None:
        return 0
    lines = content.decode("utf-8", "replace").split("\n")
    after = enumerate(lines[int(found[1]) :], int(found[1]) + 1)
    return next((number for number, line in after if line.strip() == found[2]), 0)


def make_dos_line_end_finding(content: bytes, name: str, *, refused: bool) -> Finding:
    """Return the finding for DOS line ends.

    sbatch refuses a batch script with them. Any other script fails because of the \\r at the end of each word.
    """
    return Finding(
        severity=Severity.ERROR if refused else Severity.WARNING,
        message="DOS line ends (\\r\\n): "
        + ("sbatch refuses the script" if refused else "the shell takes \\r as a letter"),
        file=name,
        line=content[: content.index(b"\r\n")].count(b"\n") + 1,
        fix=f"sed -i 's/\\r$//' {name}",
        category="syntax_error",
    )


# Exit codes: Slurm takes the script's exit code for the job's, so a pipe or a later command may hide that of the
# program.
#
# All findings are warnings. The job runs, but if its program crashes, it is COMPLETED for Slurm, dependent jobs and a
# retry.
_PIPES = ("|", "|&")
# Commands that succeed whatever happened before. After a program, their exit code becomes the script's.
_HARMLESS = split_word_table(
    "echo printf date true : hostname nvidia-smi sleep deactivate uptime free df ls mail sacct seff"
)
_FILTERS = split_word_table("cat seq find ls yes head tail sort sed awk grep cut tee xargs parallel")
_ALWAYS_SUCCEEDING = split_word_table("true : echo printf date")
# Signs that the script checks exit codes itself.
_CHECKED_EXIT_CODE = re.compile(
    r"\$\?|\$\{?PIPESTATUS|\btrap\b[^\n]*\b(?:ERR|EXIT)\b|^\s*(?:return|exit)\b(?! *0\s*$)", re.MULTILINE
)
_SHEBANG_E = re.compile(r"#!.*\s-\w*e")


def find_lost_exit_codes(text: str, started: Sequence[StartedProgram], context: StaticContext) -> Iterator[Finding]:
    """Yield one finding for each program whose exit code is lost."""
    if _CHECKED_EXIT_CODE.search(text):
        return
    lines = {one.entry.line for one in started if one.entry is not None and one.entry.kind != "shell"}
    found = parse_commands(text)
    options = _find_shell_options(found, text)
    programs = [at for at, one in enumerate(found) if one.line in lines and _get_name(one) not in _HARMLESS | _FILTERS]
    for at in programs:
        if found[at].sure:
            yield from _check_command(at, found, options, context)
    if "errexit" not in options and programs:
        yield from _check_last_command(max(programs), found, context)


def _check_command(
    at: int, found: Sequence[RawCommand], options: frozenset[str], context: StaticContext
) -> Iterator[Finding]:
    command, following = found[at], found[at + 1 : at + 2]
    name = _get_name(following[0]) if following else ""
    if (
        command.then in _PIPES
        and name not in ("", "xargs", "parallel")
        and "pipefail" not in options
        and not command.feeds
    ):
        message = f"the exit code of this line is that of '{name}': if the program fails, Slurm calls the job COMPLETED"
        yield _make_lost_finding(command, message, "put 'set -o pipefail' at the start of the script", context)
    elif command.then == "||" and name in _ALWAYS_SUCCEEDING:
        message = f"'|| {name}' hides the exit code: if the program fails, Slurm calls the job COMPLETED"
        yield _make_lost_finding(command, message, f"remove '|| {name}'", context)


def _check_last_command(at: int, found: Sequence[RawCommand], context: StaticContext) -> Iterator[Finding]:
    """Yield a finding if the program is not the last command and all later ones succeed in any case."""
    if not found[at].sure or found[at].then not in ("\n", ";"):
        return
    later_commands = found[at + 1 :]
    if later_commands and later_commands[-1].sure and all(_get_name(one) in _HARMLESS for one in later_commands):
        name, line = _get_name(later_commands[-1]), later_commands[-1].line
        message = f"'{name}' in line {line} decides the job's exit code: if the program fails, Slurm calls it COMPLETED"
        yield _make_lost_finding(found[at], message, "put 'set -e' at the start of the script", context)


def _make_lost_finding(command: RawCommand, message: str, fix: str, context: StaticContext) -> Finding:
    return Finding(severity=Severity.WARNING, message=message, file=context.script, line=command.line, fix=fix)


def _find_shell_options(found: Sequence[RawCommand], text: str) -> frozenset[str]:
    """Return which of "errexit" and "pipefail" the script sets anywhere."""
    given: set[str] = set()
    for command in found:
        if _get_name(command) == "set":
            options = [word.literal or "" for word in command.words[1:]]
            given |= {one for one in options if one in ("errexit", "pipefail")}
            given |= {"errexit" for one in options if re.fullmatch(r"-[a-zA-Z]*e[a-zA-Z]*", one)}
    if _SHEBANG_E.match(text.partition("\n")[0]):
        given.add("errexit")
    return frozenset(given)


def _get_name(command: RawCommand) -> str:
    """Return the name of the command; "" if only the shell knows it."""
    return (command.words[0].literal or "") if command.words else ""


# Background programs: Slurm ends them with the script, unless the script waits for them.

# Commands that end at once. After any other command, programs in the background have time to run.
_SHORT_COMMANDS = split_word_table(
    """echo printf date exit : true hostname pwd whoami set unset export declare module ml deactivate conda ls squeue
    sacct scontrol [ [[ test disown cd"""
)


def find_background_programs(started: Sequence[StartedProgram], text: str, context: StaticContext) -> Iterator[Finding]:
    """Yield a finding for the last program in the background, if the script ends right after it."""
    code = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    if re.search(r"\b(wait|fg|coproc|while|until|trap)\b|\btail\s.*-\w*[fF]", code):
        return
    own = [one for one in started if one.raw is not None and not one.raw.in_function]
    at = max((i for i, one in enumerate(own) if one.raw and one.raw.then == "&" and _is_own_program(one)), default=-1)
    if at < 0 or any(one.words and one.words[0] not in _SHORT_COMMANDS for one in own[at + 1 :]):
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
    """Return whether it is a program of the user's own or a step. A viewer or monitor may end with the script."""
    if program.entry is not None:
        return bool(program.entry.path)
    return program.raw is not None and bool(program.raw.words) and program.raw.words[0].literal == "srun"
