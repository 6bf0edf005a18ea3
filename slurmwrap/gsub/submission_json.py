"""What `gsub --json` prints of a submission, in the place of sbatch's line. Standard library only."""

from __future__ import annotations

import json

from slurmwrap.gsub.submit_context import get_last_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slurmwrap.gsub.submit_context import PreparedJob, SubmitResult
    from slurmwrap.model.finding import Finding

SCHEMA = 1  # as in list_options.py: grows when a field changes its meaning or goes away


def format_submission_json(prepared: PreparedJob, sent: SubmitResult, cluster: str) -> str:
    """One JSON object; `job_id` is null where Slurm refused the job or its answer was lost (`error` says which)."""
    return json.dumps(_submission_to_json_dict(prepared, sent, cluster), indent=1)


def _submission_to_json_dict(prepared: PreparedJob, sent: SubmitResult, cluster: str) -> dict[str, Any]:
    trial_id = sent.attached_to or (sent.trial.job_id if sent.trial is not None else None)
    result = sent.result
    return {
        "kind": "slurmwrap.submission",
        "schema": SCHEMA,
        "job_id": result.job_id,
        "cluster": cluster,
        "exit_code": result.exit_code,
        "error": "" if result.job_id is not None else get_last_line(result.stderr),
        "prerun": {
            "mode": prepared.prerun,
            "reason": prepared.prerun_reason,
            "job_id": trial_id,
            "shared": sent.attached_to is not None,
        },
        "changes": [
            {"option": c.option, "old": c.old, "new": c.new, "reason": c.reason}
            for c in sent.batch.changes
            if c.old != c.new
        ],
        "warnings": [_finding_to_json_dict(one) for one in prepared.warnings],
        "forced": list(prepared.forced),
    }


def _finding_to_json_dict(one: Finding) -> dict[str, Any]:
    return {"message": one.message, "file": one.file, "line": one.line, "fix": one.fix}
