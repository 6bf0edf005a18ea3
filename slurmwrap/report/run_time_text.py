"""Describe an expected run time in words. Pure."""

from __future__ import annotations

from slurmwrap.model.run_time import (
    FROM_ACCOUNT,
    FROM_OTHER_RUNS,
    FROM_PARTITION,
    FROM_PRERUN,
    FROM_RUNS,
    FROM_SCALED_RUNS,
    FROM_USER,
    RunTimeEstimate,
)
from slurmwrap.report.text_format import count, duration

_SOURCES = {
    FROM_RUNS: "{runs} of this job",
    FROM_SCALED_RUNS: "{runs} of this job with another number of epochs or steps",
    FROM_PRERUN: "the speed of its pre-run",
    FROM_OTHER_RUNS: "{runs} of this program with other settings",
    FROM_USER: "your last {jobs} {gpus}",
    FROM_ACCOUNT: "the last {jobs} of the account {gpus}",
    FROM_PARTITION: "the last {jobs} of the partition {gpus}",
}


def describe_run_time(estimate: RunTimeEstimate, gpus: int) -> str:
    """Return the expected run time and its source: "usually runs 2 h (nine of ten within 3 h), by 14 runs ..."."""
    source = _SOURCES.get(estimate.source, estimate.source).format(
        runs=count(estimate.n, "run"),
        jobs=count(estimate.n, "job") if estimate.n > 1 else "job",
        gpus=f"with {count(gpus, 'GPU')}" if gpus else "without GPUs",
    )
    within = f"(nine of ten within {duration(estimate.p90_s)})"
    verb = "usually runs" if estimate.specific else "probably runs"
    return f"{verb} {duration(estimate.p50_s)} {within}, by {source}"
