"""What a script that ended with exit code 0 did not show: programs of it that never ran, or still ran at its end. Pure.

A shell goes on behind a redirection that fails, and does not wait for what runs in the background. Such an end is no
pass: the same job would do nothing, and Slurm would call it COMPLETED.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from itertools import takewhile

from slurmwrap.prerun.static.command_wrappers import HARMLESS
from slurmwrap.prerun.static.shell_parser import UNKNOWN
from slurmwrap.prerun.static.started_program import EntryPoint, StartedProgram

# bash and dash: `script: line 4: out/log.txt: No such file or directory`, `script: 4: cannot create out/log.txt: ...`
_REFUSED = re.compile(
    r"(?:line )?(\d+): (?:cannot create )?([^:\n]+): (No such file or directory|Directory nonexistent|Permission denied"
    r"|Is a directory|Read-only file system)$",
    re.MULTILINE,
)
_LONGEST = 80


def find_unproven(
    commands: Sequence[StartedProgram],
    starts: Sequence[tuple[int, Sequence[str]]],
    alive: Collection[int],
    output: str,
) -> str:
    """Why the end of the script says nothing; "" when a program of it was seen to run to its end, or it names none.

    `commands`: all of the script. `starts`: (pid, words) of each Python that started. `alive`: what still ran when the
    script had ended. `output`: what it printed.
    """
    named = [one for one in commands if one.entry is not None and one.entry.kind != "shell" and _can_be_seen(one)]
    ended = [words for pid, words in starts if pid not in alive]
    if any(_is_of(one.entry, words) for one in named for words in ended):
        return ""
    refused = _redirections(commands, output)
    for one in named:
        if (why := refused.get(one.line)) is not None:
            return f"{_shown(one)} did not run: {why}"
    if named and any(pid in alive and _is_of(one.entry, words) for one in named for pid, words in starts):
        return _unwaited(named[0])
    if named:
        last = named[0]
        behind = (
            last.raw is not None and last.raw.then == "&" and not any(one.words[:1] == ("wait",) for one in commands)
        )
        return _unwaited(last) if behind else f"{_shown(last)} was not seen to run"
    lost = (f"{_shown(one)} did not run: {refused[one.line]}" for one in commands if _matters(one, refused))
    return next(lost, "")


def _can_be_seen(program: StartedProgram) -> bool:
    """Whether the program would report its start: not in a container, nor behind `python -I`, `-E`, `-S`, `env -i`."""
    options = takewhile(lambda word: word.startswith("-"), program.words[1:])
    alone = any(re.fullmatch(r"-[A-Za-z]*[IES][A-Za-z]*", word) for word in options)
    whole = program.entry.whole if program.entry is not None else ()
    return not (program.contained or alone or ("env" in whole and "-i" in whole))


def _redirections(commands: Sequence[StartedProgram], output: str) -> dict[int, str]:
    """By line: what the shell said of a file that it could not open for a command."""
    targets = {(one.line, target) for one in commands for target in one.targets}
    said = {}
    for match in _REFUSED.finditer(output):
        line, path = int(match[1]), match[2]
        known = (line, path) in targets or any(at == line and UNKNOWN in target for at, target in targets)
        if known:
            said[line] = f"{path}: {match[3]}"
    return said


def _matters(program: StartedProgram, refused: dict[int, str]) -> bool:
    """A command of more than the shell's own that a redirection kept from running."""
    return program.line in refused and bool(program.words) and os.path.basename(program.words[0]) not in HARMLESS  # noqa: PTH119


def _unwaited(program: StartedProgram) -> str:
    return f"{_shown(program)} ran in the background, and Slurm ends it with the script: add `wait` as its last line"


def _is_of(entry: EntryPoint | None, words: Sequence[str]) -> bool:
    """Whether a Python with these words on its command line may be this program."""
    if entry is None or entry.code is not None or UNKNOWN in entry.path:
        return True
    name = os.path.basename(entry.path) if entry.path else entry.module  # noqa: PTH119
    return not name or name in words or (bool(entry.path) and name.removesuffix(".py") in _modules(words))


def _modules(words: Sequence[str]) -> list[str]:
    """Last names of modules that `python -m` runs."""
    return [word.rpartition(".")[2] for word in words]


def _shown(program: StartedProgram) -> str:
    text = " ".join(word.replace(UNKNOWN, "...") for word in program.words)
    return f"'{text[:_LONGEST]}' (line {program.line})"
