"""Does Slurm learn of it when the program fails: its exit code is the job's, unless a pipe or a later command hides it.

Pure. All are warnings: the job runs, but a crash of it is COMPLETED to Slurm, to dependent jobs and to a retry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from slurmwrap.model.finding import Finding, Severity
from slurmwrap.prerun.static.shell_parser import RawCommand, parse_commands
from slurmwrap.prerun.static.started_program import StartedProgram
from slurmwrap.prerun.static.static_context import StaticContext
from slurmwrap.prerun.static.word_tables import split_word_table

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


def exit_code_findings(text: str, started: Sequence[StartedProgram], desk: StaticContext) -> Iterator[Finding]:
    """One finding for each program whose exit code is lost."""
    if _LOOKED_AT.search(text):
        return
    lines = {one.entry.line for one in started if one.entry is not None and one.entry.kind != "shell"}
    found = parse_commands(text)
    options = _find_shell_options(found, text)
    programs = [at for at, one in enumerate(found) if one.line in lines and _name(one) not in _HARMLESS | _PLUMBING]
    for at in programs:
        if found[at].sure:
            yield from _check_command(at, found, options, desk)
    if "errexit" not in options and programs:
        yield from _check_last_command(max(programs), found, desk)


def _check_command(
    at: int, found: Sequence[RawCommand], options: frozenset[str], desk: StaticContext
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
        yield _make_lost_finding(command, message, "put 'set -o pipefail' at the start of the script", desk)
    elif command.then == "||" and name in _WHATEVER:
        message = f"'|| {name}' hides the exit code: if the program fails, Slurm calls the job COMPLETED"
        yield _make_lost_finding(command, message, f"remove '|| {name}'", desk)


def _check_last_command(at: int, found: Sequence[RawCommand], desk: StaticContext) -> Iterator[Finding]:
    """The program's is not the last command, and those behind it end well anyway."""
    if not found[at].sure or found[at].then not in ("\n", ";"):
        return
    behind = found[at + 1 :]
    if behind and behind[-1].sure and all(_name(one) in _HARMLESS for one in behind):
        name, line = _name(behind[-1]), behind[-1].line
        message = f"'{name}' in line {line} decides the job's exit code: if the program fails, Slurm calls it COMPLETED"
        yield _make_lost_finding(found[at], message, "put 'set -e' at the start of the script", desk)


def _make_lost_finding(command: RawCommand, message: str, fix: str, desk: StaticContext) -> Finding:
    return Finding(severity=Severity.WARNING, message=message, file=desk.script, line=command.line, fix=fix)


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
