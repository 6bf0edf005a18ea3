"""Finding: one result of a static check. A module of its own, because every gsub call may load it."""

from __future__ import annotations

from enum import Enum

from slurmwrap.fast_dataclasses import dataclass


class Severity(Enum):
    """How serious a finding is: ERROR refuses the job before anything is submitted; WARNING is printed."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One result of a static check: what is wrong, where, and how to fix it."""

    severity: Severity
    message: str
    file: str = ""
    line: int = 0
    fix: str = ""
    category: str = ""  # taxonomy id, where one applies
