"""What --prerun=only prints, and `slurmwrap prerun show --json`: a verdict under the names that programs rely on.

Light imports only: gsub's fast path.
"""

from __future__ import annotations

from typing import Any

from slurmwrap.errors import PrerunFailed, PrerunInconclusive
from slurmwrap.escape import visible
from slurmwrap.json_output import format_json_document
from slurmwrap.model.verdict import Outcome, Verdict, verdict_to_json

_CODES = {Outcome.PASS: 0, Outcome.FAIL: PrerunFailed.exit_code, Outcome.INCONCLUSIVE: PrerunInconclusive.exit_code}


def verdict_to_json_dict(verdict: Verdict, **more: Any) -> dict[str, Any]:
    """`verdict` ("pass", "fail", "inconclusive"), `layer`, `reason`, `steps`, `seconds`, `category`, `findings`,
    `evidence`, `measurement`, the blamed input, `failed_commands` (`file`, `line`, `text`), then `more`."""
    plain = verdict_to_json(verdict)
    return {"verdict": plain.pop("outcome"), **plain, **more}


def print_alone(verdict: Verdict, as_json: bool, **more: Any) -> int:
    """Prints it on stdout, as one JSON object or in a line; returns the exit code: 0, 3 or 4."""
    if as_json:
        print(format_json_document("verdict", verdict_to_json_dict(verdict, **more)))
    else:
        reason = visible(verdict.reason)
        print(f"{verdict.outcome.value}: {reason}")
    return _CODES[verdict.outcome]


def make_unproven_verdict(reason: str) -> Verdict:
    """No pre-run took place."""
    return Verdict(outcome=Outcome.INCONCLUSIVE, layer="supervisor", reason=reason)
