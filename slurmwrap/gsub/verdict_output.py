"""Print a verdict as text or JSON, for --prerun=only and `slurmwrap prerun show --json`.

The JSON keys are a stable interface. Light imports only, because this is on gsub's fast path.
"""

from __future__ import annotations

from typing import Any

from slurmwrap.errors import PrerunFailed, PrerunInconclusive
from slurmwrap.escape import visible
from slurmwrap.json_output import format_json_document
from slurmwrap.model.verdict import Outcome, Verdict, verdict_to_json

_CODES = {Outcome.PASS: 0, Outcome.FAIL: PrerunFailed.exit_code, Outcome.INCONCLUSIVE: PrerunInconclusive.exit_code}


def verdict_to_json_dict(verdict: Verdict, **more: Any) -> dict[str, Any]:
    """Return the verdict as a JSON object, then the keys of `more`.

    Keys: `verdict` ("pass", "fail", "inconclusive"), `layer`, `reason`, `steps`, `seconds`, `category`, `findings`,
    `evidence`, `measurement`, the blamed input, `failed_commands` (`file`, `line`, `text`).
    """
    plain = verdict_to_json(verdict)
    return {"verdict": plain.pop("outcome"), **plain, **more}


def print_alone(verdict: Verdict, as_json: bool, **more: Any) -> int:
    """Print the verdict on stdout, as one JSON object or in one line, and return the exit code: 0, 3 or 4."""
    if as_json:
        print(format_json_document("verdict", verdict_to_json_dict(verdict, **more)))
    else:
        reason = visible(verdict.reason)
        print(f"{verdict.outcome.value}: {reason}")
    return _CODES[verdict.outcome]


def make_unproven_verdict(reason: str) -> Verdict:
    """Return an inconclusive verdict for a job that had no pre-run."""
    return Verdict(outcome=Outcome.INCONCLUSIVE, layer="supervisor", reason=reason)
