"""Finding: one remark on a job. Apart from Verdict: every gsub may make one. Records only."""

from __future__ import annotations

from enum import Enum

from slurmwrap.fast_dataclasses import dataclass


class Severity(Enum):
    """An ERROR finding refuses the job before anything is submitted; a WARNING is printed."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One remark of the static stage: what, where, and how to fix it."""

    severity: Severity
    message: str
    file: str = ""
    line: int = 0
    fix: str = ""
    # Taxonomy id, where one fits.
    category: str = ""
