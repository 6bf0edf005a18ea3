"""A command of Slurm that sends a signal to whoever started it: a kill at a known moment, on a machine of any speed."""

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
    """A directory for the front of PATH. Its `program` is Slurm's, and the caller gets the signal "before" or "after"
    its `nth` call that begins with one of `verbs`. `directory` exists; its name does not hold slurmwrap or gsub."""
    real = shutil.which(program)
    assert real, f"{program} is not installed"
    text = _SCRIPT.format(
        real=real, folder=directory, nth=nth, when=when, signal=number.name.removeprefix("SIG"), verbs="|".join(verbs)
    )
    (directory / program).write_text(text)
    (directory / program).chmod(0o755)
    return str(directory)


def calls_of(directory: Path) -> list[str]:
    """The arguments of each of these calls until now."""
    path = directory / "calls"
    return path.read_text().splitlines() if path.exists() else []
