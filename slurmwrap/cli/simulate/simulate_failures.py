"""`slurmwrap simulate --failures`: what failures cost in a load, and how much of it slurmwrap saves. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slurmwrap.errors import UsageError
from slurmwrap.fast_dataclasses import asdict
from slurmwrap.placement.demand import Server
from slurmwrap.report import text_format
from slurmwrap.sim.failures.failure_study import run_failure_study
from slurmwrap.sim.failures.study_output import format_study_table
from slurmwrap.sim.failures.study_result import FailureStudy
from slurmwrap.sim.sim_job import SimJob

# Value of the option → source of the study.
KINDS = {"published": "drawn", "dump": "dump"}


def check_study_kind(kind: str) -> None:
    """Raise UsageError for an unknown kind."""
    if kind not in KINDS:
        raise UsageError(f"--failures '{kind}' is none of {', '.join(KINDS)}")


def run_study(
    kind: str,
    jobs: Sequence[SimJob],
    servers: Sequence[Server],
    seeds: Sequence[int],
    progress: Callable[[int, int], None],
) -> FailureStudy:
    """Run the failure study. `published`: failures are drawn at published rates; `dump`: those in the trace."""
    return run_failure_study(jobs, servers=servers, seeds=seeds, progress=progress, source=KINDS[kind])


def study_to_json_dict(trace: str, found: FailureStudy, remarks: Sequence[str]) -> dict[str, Any]:
    """Return the object for --json."""
    return {"trace": trace, "failures": asdict(found), "remarks": list(remarks)}


def format_study(trace: str, found: FailureStudy, columns: int) -> str:
    """Return the study as text: tables unchanged, sentences wrapped to `columns`."""
    lines = (_fold_line(line, columns) for line in format_study_table(found).splitlines())
    return "\n".join([text_format.visible(trace), "no queue is simulated: GPU time only", *lines])


def _fold_line(line: str, columns: int) -> str:
    row = "  " in line
    return line if row else text_format.wrapped(line, hanging="  " if line.startswith("- ") else "", columns=columns)
