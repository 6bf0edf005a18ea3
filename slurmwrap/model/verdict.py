"""Verdict: the outcome of a pre-run, and its JSON form."""

from __future__ import annotations

from enum import Enum
from typing import Any

from slurmwrap.fast_dataclasses import asdict, dataclass
from slurmwrap.model.evidence import Citation
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.model.resource_profile import Measurement


class Outcome(Enum):
    """Outcome of a pre-run. `inconclusive` means that one GPU cannot show it; it never stops a job."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCommand:
    """One command of the script that failed while the script continued.

    `file` is the script as its user calls it, or a file that it sourced; `line` is 0 if unknown.
    """

    file: str
    line: int
    # Message of the shell, without file and line.
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Summary of a pre-run. `layer` names what decided.

    It is "static", "exit" (the script ended), "timeout", "no_training" (no training step is expected), "no_activity"
    (it stood still), "supervisor", or, if steps decided, how they were counted: "explicit", "optimizer", "keras",
    "deepspeed", "megatron", "jax", "backward", "dataloader", "text" or "gpu".
    """

    outcome: Outcome
    layer: str
    reason: str  # one sentence
    steps: int = 0
    seconds: float = 0.0
    category: str = ""
    findings: tuple[Finding, ...] = ()
    evidence: tuple[Citation, ...] = ()
    measurement: Measurement | None = None
    input_path: str = ""  # the input that slurmwrap itself read and found broken
    input_fault: str = ""  # the fault that slurmwrap found in it, "" if only the log names it
    lasting: bool = False  # `inconclusive` for a reason that another pre-run of the same program would meet again
    input_digest: str = ""  # inputs.digest() of the file, "" if it could not be read
    failed_commands: tuple[FailedCommand, ...] = ()  # commands of the script that failed while it continued


def verdict_to_json(verdict: Verdict) -> dict[str, Any]:
    """Return a dict of JSON types from which `verdict_from_json` restores an equal Verdict."""
    plain = asdict(verdict)
    plain["outcome"] = verdict.outcome.value
    for finding, record in zip(plain["findings"], verdict.findings, strict=True):
        finding["severity"] = record.severity.value
    return plain


def verdict_from_json(plain: dict[str, Any]) -> Verdict:
    """Restore a Verdict. Raises KeyError, TypeError or ValueError for anything but `verdict_to_json`'s output."""
    findings = tuple(Finding(**{**f, "severity": Severity(f["severity"])}) for f in plain["findings"])
    around = ("before", "after")
    evidence = tuple(Citation(**{**c, **{name: tuple(c.get(name, ())) for name in around}}) for c in plain["evidence"])
    measured = Measurement(**plain["measurement"]) if plain["measurement"] else None
    rest = {**plain, "outcome": Outcome(plain["outcome"]), "findings": findings, "evidence": evidence}
    failed = tuple(FailedCommand(**one) for one in plain.get("failed_commands", ()))  # none before 2026-12
    return Verdict(**{**rest, "measurement": measured, "failed_commands": failed})
