"""Verdict: what a pre-run says. Records only."""

from __future__ import annotations

from enum import Enum
from typing import Any

from slurmwrap.fast_dataclasses import asdict, dataclass
from slurmwrap.model.evidence import Citation
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.model.resource_profile import Measurement


class Outcome(Enum):
    """`inconclusive` is what one GPU cannot show: it never stops a job."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCommand:
    """One command of the script that failed while the script went on.

    `file`: the script as its user calls it, or a file that it sourced; line 0: not known.
    """

    file: str
    line: int
    # The shell's words without the place.
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The sum of a pre-run. `layer` names what decided: "static"; where steps did, how they were counted ("explicit",
    "optimizer", "keras", "deepspeed", "megatron", "jax", "backward", "dataloader", "text", "gpu"); "exit" (the script
    ended), "timeout", "no_training" (no step is to come), "supervisor"."""

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
    lasting: bool = False  # `inconclusive` for a reason that another pre-run of the very same would meet again
    input_digest: str = ""  # inputs.digest() of it, "" when it could not be read
    failed_commands: tuple[FailedCommand, ...] = ()  # of the script, which went on


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
    around = ("before", "after")
    evidence = tuple(Citation(**{**c, **{name: tuple(c.get(name, ())) for name in around}}) for c in plain["evidence"])
    measured = Measurement(**plain["measurement"]) if plain["measurement"] else None
    rest = {**plain, "outcome": Outcome(plain["outcome"]), "findings": findings, "evidence": evidence}
    failed = tuple(FailedCommand(**one) for one in plain.get("failed_commands", ()))  # none before 2026-12
    return Verdict(**{**rest, "measurement": measured, "failed_commands": failed})
