"""Pre-runs as the files of their directories tell of them, and Slurm where it has to be asked. Edges by argument."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from slurmwrap.config import find_user_state_dir
from slurmwrap.errors import SlurmError
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.gsub.follow_prerun import LIVE, read_verdict
from slurmwrap.gsub.prerun_sharing import ATTACHED, GONE
from slurmwrap.gsub.submit_context import SubmitContext
from slurmwrap.model.verdict import Verdict
from slurmwrap.prerun.trial.trial_spec import TrialSpec, spec_from_json
from slurmwrap.store.prerun_registry import JOB, PrerunRegistry, read_number


@dataclass(frozen=True, slots=True, kw_only=True)
class PrerunRow:
    """One pre-run. `state`: "pass", "fail", "inconclusive"; Slurm's own in lower case while it lives; "attached" while
    its job waits for another one's; "lost" when it, or the job that waited, ended without a verdict; "unknown" when
    Slurm cannot be asked."""

    directory: Path
    spec: TrialSpec
    at: float  # when it was submitted, Unix seconds
    state: str
    verdict: Verdict | None = None
    prerun_job: int | None = None  # of an attached one: the pre-run that it waits for
    attached: bool = False

    @property
    def real_job(self) -> int | None:
        """The job that waits, or waited, for it; None for --prerun=wait and only."""
        return int(self.spec.real_job) if self.spec.real_job else None


def rows_of(desk: SubmitContext) -> tuple[PrerunRow, ...]:
    """All that left files, newest first."""
    flights = desk.flights or PrerunRegistry(find_user_state_dir(os.environ))
    found = [row for path in flights.trials() if (row := _read_row(path))]
    if any(row.state == "" for row in found):
        word = _slurms_word(desk)
        found = [_with_state(row, word) for row in found]
    return tuple(sorted(found, key=lambda row: row.at, reverse=True))


def _read_row(directory: Path) -> PrerunRow | None:
    """What its files say; `state` "" where Slurm has to be asked."""
    try:
        spec = spec_from_json(json.loads((directory / "spec.json").read_bytes()))
        at = (directory / "spec.json").stat().st_mtime
    except (OSError, ValueError, TypeError):
        return None  # its gsub was killed while it wrote
    verdict = read_verdict(directory)
    host = read_number(directory / ATTACHED)
    state = verdict.outcome.value if verdict else "lost" if (directory / GONE).exists() else ""
    return PrerunRow(
        directory=directory,
        spec=spec,
        at=at,
        state=state,
        verdict=verdict,
        prerun_job=host if host is not None else read_number(directory / JOB),
        attached=host is not None,
    )


def _slurms_word(desk: SubmitContext) -> Callable[[int | None, str], str]:
    """(job id, cluster) -> Slurm's state of it, "" for one that it does not know; asked once, of this cluster."""
    try:
        records, here = desk.slurm.jobs(desk.user), desk.cluster
    except SlurmError as error:
        desk.say(f"how they stand now is not known: {error}")
        return lambda job, cluster: "UNKNOWN"
    tasks = {record.array_job_id: record.state for record in records if record.array_job_id is not None}
    waiting = {record.array_job_id: record.state for record in records if record.array_job_id and record.pending}
    known = {**tasks, **{record.job_id: record.state for record in records}, **waiting}  # an array waits as a task does
    return lambda job, cluster: known.get(job or -1, "") if cluster in ("", here) else "UNKNOWN"


def _with_state(row: PrerunRow, word: Callable[[int | None, str], str]) -> PrerunRow:
    """Of one without a verdict. A job that attached has none to come when it, or that pre-run, is gone."""
    if row.state:
        return row
    state, cluster = word(row.prerun_job, row.spec.cluster), row.spec.cluster
    if state == "UNKNOWN":
        return replace(row, state="unknown")
    if not row.attached:
        return replace(row, state=state.lower() if state in LIVE else "lost")
    submitted = state in LIVE or not row.prerun_job  # 0: that pre-run is being submitted
    return replace(row, state="attached" if submitted and word(row.real_job, cluster) == "PENDING" else "lost")
