"""Finding, Measurement and Verdict: what a pre-run says. Records only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from slurmwrap.diagnosis.evidence import Citation


class Outcome(Enum):
    """`inconclusive` is what one GPU cannot show: it never stops a job."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class Severity(Enum):
    """An ERROR finding refuses the job before anything is submitted; a WARNING is printed."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One remark of the static stage: what, where, and how to mend it."""

    severity: Severity
    message: str
    file: str = ""
    line: int = 0
    fix: str = ""
    category: str = ""  # taxonomy id, where one fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What the trial or an Epilog measured. None: not measured. Memory in MiB, of the whole tree on one node."""

    seconds: float = 0.0
    steps: int | None = None
    steps_per_s: float | None = None
    cpu_s: float | None = None  # user + system CPU time
    cpus_used: float | None = None  # mean cores busy over the measured window
    cpus_allocated: int | None = None
    mem_peak_mib: int | None = None  # anonymous + shared memory where the kernel tells, else PSS/RSS
    mem_source: str = ""  # "cgroup" | "pss" | "rss"
    gpus: int = 1
    gpu_mem_peak_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The sum of a pre-run. `layer` names what decided: "static", "step", "exit", "timeout", "supervisor"."""

    outcome: Outcome
    layer: str
    reason: str  # one sentence
    steps: int = 0
    seconds: float = 0.0
    category: str = ""
    findings: tuple[Finding, ...] = ()
    evidence: tuple[Citation, ...] = ()
    measurement: Measurement | None = None
    input_path: str = ""  # blamed input, read and found broken by ourselves
    input_fault: str = ""  # what our own read of it said, "" when only the log names it


def verdict_to_json(verdict: Verdict) -> dict[str, Any]:
    """A dict of JSON types; `verdict_from_json` gives the same Verdict back."""
    plain = asdict(verdict)
    plain["outcome"] = verdict.outcome.value
    for finding, record in zip(plain["findings"], verdict.findings, strict=True):
        finding["severity"] = record.severity.value
    return plain


def verdict_from_json(plain: dict[str, Any]) -> Verdict:
    """Raises KeyError, TypeError or ValueError on anything but `verdict_to_json`'s output."""
    findings = tuple(Finding(**{**f, "severity": Severity(f["severity"])}) for f in plain["findings"])
    evidence = tuple(Citation(**c) for c in plain["evidence"])
    measured = Measurement(**plain["measurement"]) if plain["measurement"] else None
    rest = {**plain, "outcome": Outcome(plain["outcome"]), "findings": findings, "evidence": evidence}
    return Verdict(**{**rest, "measurement": measured})
