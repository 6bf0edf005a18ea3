"""Commands of a script that failed while the script went on: found in what its shells printed in a pre-run. Pure.

A line counts only in the form that bash, dash, ksh or zsh gives it for the batch script or a file that it sources, that
a basic command named in the script gives it, or that module and conda give it. A user's program may print anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from slurmwrap.model.verdict import FailedCommand
from slurmwrap.prerun.static.shell_parser import parse_commands

_MOST = 20  # kept of one pre-run
_SHOWN = 3  # in one sentence
_TEXT = 200  # characters of one message

# "F: line 6: T" (bash, ksh; the word in the user's language), "F: 6: T" (dash), "F:6: T" (zsh), "F[6]: T" (ksh)
_OWN = re.compile(r"(?P<file>[^\s:\[][^:\[\n]*)(?:: ?(?:\S{1,12} )?|\[)(?P<line>\d{1,6})\]?: (?P<text>\S.*)")
_OTHER = re.compile(
    r"(?P<file>[^\s:]+): line (?P<line>\d{1,6}): "
    r"(?P<text>\S.*(?:command not found|No such file or directory|Permission denied|Is a directory|Not a directory))"
)
# A setlocale; a background job that ended.
_NO_FAILURE = re.compile(r"warning:|\d+ [A-Z]")
_BASIC = re.compile(r"(?P<name>cp|mv|ln|mkdir|touch|cat|chmod|tar|tee|rsync|unzip): +\S.*(?:No such|annot|denied).*")
# What a pre-run's stand-ins for Slurm's commands, Python, conda, rm say where the real command is not there either.
_ABSENT = re.compile(r"(?P<name>[\w.+-]+): command not found")
_NOT_STARTED = re.compile(r"slurmstepd: error: (?P<text>execve\(\): .*)")
# Lmod 8, Environment Modules 3 to 5, conda 4 to 25
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
    """What failed by `output`, in order, each once.

    `script`: its text; `names`: what its shell calls it -> what its user does.
    """
    lines = {word.literal or "" for command in parse_commands(script) for word in command.words}
    found: dict[FailedCommand, None] = {}
    own = next(iter(names.values()), "")
    for line in output.splitlines():
        for failed in _parse_line(line[:2000].rstrip(), names, is_file):
            found.setdefault(failed)
        for pattern in (_BASIC, _ABSENT):
            if (said := pattern.fullmatch(line)) and said["name"] in lines:
                at = _find_line(said["name"], line, script)
                found.setdefault(FailedCommand(file=own, line=at, text=line[:_TEXT]))
        if said := _MODULE.fullmatch(line) or _CONDA.fullmatch(line):
            found.setdefault(FailedCommand(file=own, line=0, text=line.strip()[:_TEXT]))
        if len(found) >= _MOST:
            break
    return tuple(found)


def _parse_line(line: str, names: Mapping[str, str], is_file: Callable[[str], bool]) -> Iterator[FailedCommand]:
    own = _OWN.fullmatch(line)
    if own and own["file"] in names:
        # Dash says its name twice.
        text = own["text"].removeprefix(f"{own['file']}: ")
        if not _NO_FAILURE.match(text):
            yield FailedCommand(file=names[own["file"]], line=int(own["line"]), text=text[:_TEXT])
    elif (other := _OTHER.fullmatch(line)) and not other["file"].endswith(".py") and is_file(other["file"]):
        yield FailedCommand(file=other["file"], line=int(other["line"]), text=other["text"][:_TEXT])
    elif started := _NOT_STARTED.fullmatch(line):
        yield FailedCommand(file=next(iter(names.values()), ""), line=0, text=started["text"][:_TEXT])


def _find_line(name: str, said: str, script: str) -> int:
    """The line of the script that called `name` with a part of what was said; 0 where it may be more than one."""
    calls = [c for c in parse_commands(script) if name in [w.literal for w in c.words]]
    named = set(re.split(r"['\"‘’:\s]+", said)) - {name}
    close = [c for c in calls if named & {w.literal for w in c.words}]
    lines = {c.line for c in close or calls}
    return lines.pop() if len(lines) == 1 else 0


def describe_failed_commands(found: tuple[FailedCommand, ...], *, passed: bool) -> tuple[str, ...]:
    """The sentences for a user; () when nothing failed."""
    if not found:
        return ()
    own = found[0].file
    shown = "; ".join(_place(one, own) for one in found[:_SHOWN])
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    count = "1 command" if len(found) == 1 else f"{len(found)}{'+' * (len(found) >= _MOST)} commands"
    first = f"{'passed, but ' if passed else ''}{count} of the script failed: {shown}{more}"
    not_activated = next((one for one in found if _ACTIVATES.match(one.text)), None)
    if not_activated is None:
        return (first,)
    which = _place(not_activated, own)
    second = f"its environment was not activated ({which}): the job will run with whatever Python is first on PATH"
    return (first, second)


def _place(one: FailedCommand, own: str) -> str:
    if not one.line:
        return one.text
    return f"line {one.line}: {one.text}" if one.file == own else f"{one.file} line {one.line}: {one.text}"
