"""Finds in the daemons' logs the one line that reports why a lab did not come up."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable

from slurmwrap.lab.lab_directories import LabDirectories

_COMPLAINT = re.compile(r"\bfatal\b|\berror:|\bError:|Traceback|refused|denied", re.IGNORECASE)


def cause(layout: LabDirectories, names: Iterable[str]) -> str:
    """': NAME said LINE' for an error message; "" when the daemons said nothing."""
    chosen = telling([(name, line) for name in names for line in _log_lines(layout, name)])
    return "" if chosen is None else f": {described(chosen[0])} said '{chosen[1]}'"


def telling(lines: list[tuple[str, str]]) -> tuple[str, str] | None:
    """Of (daemon, line): the first fatal one, else the last that complains, else the last; None of none. Pure."""
    complaints = [pair for pair in lines if _COMPLAINT.search(pair[1])]
    # Slurm complains about much that is harmless (missing PMIx, no accounting), but only one thing is fatal.
    fatal = [pair for pair in complaints if "fatal" in pair[1].lower()]
    return next(iter(fatal[:1] or complaints[-1:] or lines[-1:]), None)


def described(name: str) -> str:
    """A daemon's name for people: a node's name stands for its slurmd."""
    return name if name in ("munged", "mariadbd", "slurmdbd", "slurmctld", "reconcile") else f"slurmd of {name}"


def _log_lines(layout: LabDirectories, name: str) -> list[str]:
    lines: list[str] = []
    for path in dict.fromkeys((layout.errors(name), layout.log(name))):
        with contextlib.suppress(OSError):
            lines += path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip()]
