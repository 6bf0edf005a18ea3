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
    folder: Path, program: str, nth: int, when: str, number: signal.Signals, verbs: Iterable[str] = ("*",)
) -> str:
    """A directory for the front of PATH. Its `program` is Slurm's, and the caller gets the signal "before" or "after"
    its `nth` call that begins with one of `verbs`. `folder` is there and its name does not hold slurmwrap or gsub."""
    real = shutil.which(program)
    assert real, f"{program} is not installed"
    text = _SCRIPT.format(
        real=real, folder=folder, nth=nth, when=when, signal=number.name.removeprefix("SIG"), verbs="|".join(verbs)
    )
    (folder / program).write_text(text)
    (folder / program).chmod(0o755)
    return str(folder)


def calls_of(folder: Path) -> list[str]:
    """The arguments of each of these calls until now."""
    path = folder / "calls"
    return path.read_text().splitlines() if path.exists() else []
