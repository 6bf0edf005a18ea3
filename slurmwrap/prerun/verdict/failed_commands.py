"""Find commands that failed while their script went on, in what its shells printed during a pre-run. Pure.

A line counts only if it has the form in which bash, dash, ksh or zsh report an error of the batch script or a file
that it sources, in which a basic command named in the script reports one, or in which module and conda do. Other lines
prove nothing, because a user's program may print anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from slurmwrap.model.verdict import FailedCommand
from slurmwrap.prerun.static.shell_parser import parse_commands

# Failed commands that are kept of one pre-run, and that are shown in one sentence.
_MAX_KEPT = 20
_MAX_SHOWN = 3
# Characters that are kept of one message.
_MAX_CHARACTERS = 200

# "F: line 6: T" (bash, ksh; "line" in the user's language), "F: 6: T" (dash), "F:6: T" (zsh), "F[6]: T" (ksh).
_SCRIPT_MESSAGE = re.compile(r"(?P<file>[^\s:\[][^:\[\n]*)(?:: ?(?:\S{1,12} )?|\[)(?P<line>\d{1,6})\]?: (?P<text>\S.*)")
_SOURCED_FILE_MESSAGE = re.compile(
    r"(?P<file>[^\s:]+): line (?P<line>\d{1,6}): "
    r"(?P<text>\S.*(?:command not found|No such file or directory|Permission denied|Is a directory|Not a directory))"
)
# No failures: a warning of setlocale, and the message that a background job has ended.
_NO_FAILURE = re.compile(r"warning:|\d+ [A-Z]")
_BASIC_COMMAND_MESSAGE = re.compile(
    r"(?P<name>cp|mv|ln|mkdir|touch|cat|chmod|tar|tee|rsync|unzip): +\S.*(?:No such|annot|denied).*"
)
# Printed by the shims for Slurm's commands, Python, conda and rm if the real command does not exist either.
_COMMAND_NOT_FOUND = re.compile(r"(?P<name>[\w.+-]+): command not found")
_NOT_STARTED = re.compile(r"slurmstepd: error: (?P<text>execve\(\): .*)")
# Lmod 8, Environment Modules 3 to 5, conda 4 to 25.
_MODULE = re.compile(
    r"(?:.*error: *)?(Lmod has detected the following error: .*|.*Unable to locate a modulefile for .*)"
)
_CONDA = re.compile(r"(?:CondaError|EnvironmentNameNotFound|EnvironmentLocationNotFound): .*")
_ACTIVATES = re.compile(
    r"(module|ml|conda|mamba|micromamba|source|activate|workon|spack)(: |$)"
    r"|.*(/activate|conda\.sh|mamba\.sh|modulefile|Lmod)|CondaError|Environment\w+NotFound"
    r"|command not found: (module|ml|conda|mamba|micromamba|spack)"
)


def find_failed_commands(
    output: str,
    script: str,
    *,
    names: Mapping[str, str],
    is_file: Callable[[str], bool],
) -> tuple[FailedCommand, ...]:
    """Return the commands that failed according to `output`, in order, each once.

    `script` is the script's text. `names` maps the name that the shell prints for a file to the name for the user.
    """
    lines = {word.literal or "" for command in parse_commands(script) for word in command.words}
    found: dict[FailedCommand, None] = {}
    own = next(iter(names.values()), "")
    for line in output.splitlines():
        for failed in _parse_line(line[:2000].rstrip(), names, is_file):
            found.setdefault(failed)
        for pattern in (_BASIC_COMMAND_MESSAGE, _COMMAND_NOT_FOUND):
            if (message := pattern.fullmatch(line)) and message["name"] in lines:
                at = _find_line(message["name"], line, script)
                found.setdefault(FailedCommand(file=own, line=at, text=line[:_MAX_CHARACTERS]))
        if message := _MODULE.fullmatch(line) or _CONDA.fullmatch(line):
            found.setdefault(FailedCommand(file=own, line=0, text=line.strip()[:_MAX_CHARACTERS]))
        if len(found) >= _MAX_KEPT:
            break
    return tuple(found)


def _parse_line(line: str, names: Mapping[str, str], is_file: Callable[[str], bool]) -> Iterator[FailedCommand]:
    own = _SCRIPT_MESSAGE.fullmatch(line)
    if own and own["file"] in names:
        # dash prints its own name twice.
        text = own["text"].removeprefix(f"{own['file']}: ")
        if not _NO_FAILURE.match(text):
            yield FailedCommand(file=names[own["file"]], line=int(own["line"]), text=text[:_MAX_CHARACTERS])
    elif (
        (other := _SOURCED_FILE_MESSAGE.fullmatch(line))
        and not other["file"].endswith(".py")
        and is_file(other["file"])
    ):
        yield FailedCommand(file=other["file"], line=int(other["line"]), text=other["text"][:_MAX_CHARACTERS])
    elif started := _NOT_STARTED.fullmatch(line):
        yield FailedCommand(file=next(iter(names.values()), ""), line=0, text=started["text"][:_MAX_CHARACTERS])


def _find_line(name: str, message: str, script: str) -> int:
    """Return the line of the script that called `name` with a word of the message; 0 if several lines may have."""
    calls = [c for c in parse_commands(script) if name in [w.literal for w in c.words]]
    named = set(re.split(r"['\"‘’:\s]+", message)) - {name}
    close = [c for c in calls if named & {w.literal for w in c.words}]
    lines = {c.line for c in close or calls}
    return lines.pop() if len(lines) == 1 else 0


def describe_failed_commands(found: tuple[FailedCommand, ...], *, passed: bool) -> tuple[str, ...]:
    """Return the sentences that report these failures to the user; () if there are none."""
    if not found:
        return ()
    own = found[0].file
    shown = "; ".join(_format_failed_command(one, own) for one in found[:_MAX_SHOWN])
    more = f"; and {len(found) - _MAX_SHOWN} more" if len(found) > _MAX_SHOWN else ""
    count = "1 command" if len(found) == 1 else f"{len(found)}{'+' * (len(found) >= _MAX_KEPT)} commands"
    first = f"{'passed, but ' if passed else ''}{count} of the script failed: {shown}{more}"
    not_activated = next((one for one in found if _ACTIVATES.match(one.text)), None)
    if not_activated is None:
        return (first,)
    which = _format_failed_command(not_activated, own)
    second = f"its environment was not activated ({which}): the job will run with whatever Python is first on PATH"
    return (first, second)


def _format_failed_command(one: FailedCommand, own: str) -> str:
    if not one.line:
        return one.text
    return f"line {one.line}: {one.text}" if one.file == own else f"{one.file} line {one.line}: {one.text}"
