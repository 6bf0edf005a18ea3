"""Find programs that a script with exit code 0 did not prove: they never ran, or still ran at its end. Pure.

A shell goes on after a redirection that fails, and does not wait for a command in the background. A script that ends
that way has not passed: the same job would do nothing, and Slurm would report it as COMPLETED.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from itertools import takewhile

from slurmwrap.prerun.static.command_wrappers import HARMLESS, PYTHON
from slurmwrap.prerun.static.shell_words import UNKNOWN
from slurmwrap.prerun.static.started_program import EntryPoint, StartedProgram

# bash and dash: `script: line 4: out/log.txt: No such file or directory`, `script: 4: cannot create out/log.txt: ...`.
_REFUSED = re.compile(
    r"(?:line )?(\d+): (?:cannot create )?([^:\n]+): (No such file or directory|Directory nonexistent|Permission denied"
    r"|Is a directory|Read-only file system)$",
    re.MULTILINE,
)
_MAX_CHARACTERS = 80


def find_unproven_reason(
    commands: Sequence[StartedProgram],
    starts: Sequence[tuple[int, Sequence[str]]],
    alive: Collection[int],
    output: str,
) -> str:
    """Return why the end of the script proves nothing; "" if one of its programs ended, or if it names none.

    `commands`: all commands of the script. `starts`: (pid, words) of each Python process that started. `alive`: the
    pids that still ran when the script had ended. `output`: what the script printed.
    """
    # Only programs that would report their start can be missed. One of them that ended is proof enough.
    named = [one for one in commands if one.entry is not None and one.entry.kind != "shell" and _can_be_seen(one)]
    ended = [words for pid, words in starts if pid not in alive]
    if any(_may_be_program(one.entry, words) for one in named for words in ended):
        return ""
    refused = _find_failed_redirections(commands, output)
    for one in named:
        if (why := refused.get(one.line)) is not None:
            return f"{_format_program(one)} did not run: {why}"
    if named and any(pid in alive and _may_be_program(one.entry, words) for one in named for pid, words in starts):
        return _describe_unwaited(named[0])
    if named:
        last = named[0]
        in_background = (
            last.raw is not None and last.raw.then == "&" and not any(one.words[:1] == ("wait",) for one in commands)
        )
        return _describe_unwaited(last) if in_background else f"{_format_program(last)} was not seen to run"
    lost = (
        f"{_format_program(one)} did not run: {refused[one.line]}" for one in commands if _was_not_run(one, refused)
    )
    return next(lost, "")


def _can_be_seen(program: StartedProgram) -> bool:
    """Return whether the program would report its start.

    It does not in a container or with `python -I`, `-E`, `-S` or `env -i`.
    """
    isolated = bool(_find_isolating_option(program))
    whole = program.entry.whole if program.entry is not None else ()
    return not (program.contained or isolated or ("env" in whole and "-i" in whole))


def _find_isolating_option(program: StartedProgram) -> str:
    """Return the option with which Python does not read PYTHONPATH or imports no sitecustomize; "" if none is given."""
    if not program.words or not PYTHON.fullmatch(os.path.basename(program.words[0])):  # noqa: PTH119
        return ""
    options = takewhile(lambda word: word.startswith("-") and word not in ("-c", "-m"), program.words[1:])
    found = (re.fullmatch(r"-[bBdOPqRsuvx]*([IES])[A-Za-z]*", word) for word in options)
    return next((f"-{match[1]}" for match in found if match), "")


def find_uncounted_reason(commands: Sequence[StartedProgram]) -> str:
    """Return why the steps of the script's first program of this kind cannot be counted; "" if there is none.

    The step counter is found by PYTHONPATH and begins as sitecustomize.
    """
    found = ((one, _find_isolating_option(one)) for one in commands if one.entry is not None)
    return next(
        (
            f"with {option}, Python does not load the step counter ({_format_program(one)}): leave {option} out,"
            " or print the number of the step with the loss"
            for one, option in found
            if option
        ),
        "",
    )


def _find_failed_redirections(commands: Sequence[StartedProgram], output: str) -> dict[int, str]:
    """Return, by line number, the shell's message about a file that it could not open for a command."""
    targets = {(one.line, target) for one in commands for target in one.targets}
    messages = {}
    for match in _REFUSED.finditer(output):
        line, path = int(match[1]), match[2]
        known = (line, path) in targets or any(at == line and UNKNOWN in target for at, target in targets)
        if known:
            messages[line] = f"{path}: {match[3]}"
    return messages


def _was_not_run(program: StartedProgram, refused: dict[int, str]) -> bool:
    """Return whether a failed redirection kept this command from running, and it is not only a harmless one."""
    return program.line in refused and bool(program.words) and os.path.basename(program.words[0]) not in HARMLESS  # noqa: PTH119


def _describe_unwaited(program: StartedProgram) -> str:
    name = _format_program(program)
    return f"{name} ran in the background, and Slurm ends it with the script: add `wait` as its last line"


def _may_be_program(entry: EntryPoint | None, words: Sequence[str]) -> bool:
    """Return whether a Python process with these words on its command line may be this program."""
    if entry is None or entry.code is not None or UNKNOWN in entry.path:
        return True
    name = os.path.basename(entry.path) if entry.path else entry.module  # noqa: PTH119
    return not name or name in words or (bool(entry.path) and name.removesuffix(".py") in _list_last_parts(words))


def _list_last_parts(words: Sequence[str]) -> list[str]:
    """Return the last part of each word, as in the names of modules that `python -m` runs."""
    return [word.rpartition(".")[2] for word in words]


def _format_program(program: StartedProgram) -> str:
    text = " ".join(word.replace(UNKNOWN, "...") for word in program.words)
    return f"'{text[:_MAX_CHARACTERS]}' (line {program.line})"
