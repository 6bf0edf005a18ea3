"""Describe in a sentence how a job ran on the GPU of another one of its user (gsub --share). Pure."""

from __future__ import annotations

from slurmwrap.model.shared_run import SharedRun
from slurmwrap.report.text_format import flat, span

_NEXT = {
    "stopped": "it was stopped with that job and runs by itself",
    "alone": "they did not fit together, so it runs by itself",
    "cancelled": "it was cancelled",
}


def describe_shared_run(run: SharedRun | None, now: float) -> str:
    """Return "it runs on the GPU of job 12 (n0) since 5 min"; "" if it did not run next to another job."""
    if run is None:
        return ""
    where = f"on the GPU of job {flat(run.by)}{f' ({flat(run.node)})' if run.node else ''}"
    if run.state == "running":
        return f"it runs {where} since {span(max(0.0, now - (run.begin or now)))}"
    lasted = f" for {span(max(0.0, run.end - run.begin))}" if run.begin is not None and run.end is not None else ""
    if run.state in _NEXT:
        return f"it ran {where}{lasted}; {_NEXT[run.state]}"
    how = f"signal {run.signal}" if run.signal else f"exit code {run.exit_code or 0}"
    waits = "" if run.passed_on is not None else "; it waits for its own start, to end with the same"
    return f"it ran {where}{lasted} and ended with {how}{waits}"
