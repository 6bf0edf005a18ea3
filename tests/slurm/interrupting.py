"""A wrapper of a Slurm command that sends a signal to its parent: a kill at a defined call, at any machine speed."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterable
from pathlib import Path

_SCRIPT = """\
#!/bin/sh
case "$1" in {verbs}) ;; *) exec {real} "$@" ;; esac
echo "$*" >> {folder}/calls
[ "$(wc -l < {folder}/calls)" = {nth} ] || exec {real} "$@"
if [ {when} = before ]; then
    kill -{signal} $PPID
    [ {signal} = KILL ] || exec {real} "$@"
    exit 1
fi
{real} "$@"
code=$?
kill -{signal} $PPID
exit $code
"""


def interrupting(
    directory: Path, program: str, nth: int, when: str, number: signal.Signals, verbs: Iterable[str] = ("*",)
) -> str:
    """Returns a directory that has to come first in PATH. Its `program` calls Slurm's `program`.

    The parent process gets the signal "before" or "after" the `nth` call that begins with one of `verbs`. `directory`
    exists; its name must not contain slurmwrap or gsub.
    """
    real = shutil.which(program)
    assert real, f"{program} is not installed"
    text = _SCRIPT.format(
        real=real, folder=directory, nth=nth, when=when, signal=number.name.removeprefix("SIG"), verbs="|".join(verbs)
    )
    (directory / program).write_text(text)
    (directory / program).chmod(0o755)
    return str(directory)


def calls_of(directory: Path) -> list[str]:
    """The arguments of each counted call so far."""
    path = directory / "calls"
    return path.read_text().splitlines() if path.exists() else []
