"""Programs that a script starts in the background and does not wait for: Slurm ends them with the script. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from slurmwrap.model.finding import Finding, Severity
from slurmwrap.prerun.static.shell_parser import UNKNOWN
from slurmwrap.prerun.static.started_program import StartedProgram
from slurmwrap.prerun.static.static_context import StaticContext
from slurmwrap.prerun.static.word_tables import split_word_table

# What is over in a moment. Behind any other command the programs in the background have its time.
_SHORT = split_word_table(
    """echo printf date exit : true hostname pwd whoami set unset export declare module ml deactivate conda ls squeue
    sacct scontrol [ [[ test disown cd"""
)


def find_background_programs(started: Sequence[StartedProgram], text: str, desk: StaticContext) -> Iterator[Finding]:
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
        file=desk.script,
        line=own[at].line,
        fix="write `wait` at the end of the script, or remove the &",
    )


def _is_own_program(one: StartedProgram) -> bool:
    """A program of the user's own, or a step: a viewer or a monitor may end with the script."""
    if one.entry is not None:
        return bool(one.entry.path)
    return one.raw is not None and bool(one.raw.words) and one.raw.words[0].literal == "srun"
