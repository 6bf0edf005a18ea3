"""Find the loss curves of a job's runs: the stored ones, and those that the asking user can read from their output."""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.cli.record_access import RecordSource
from slurmwrap.host.read_loss_curve import SHORTEST_S, LossCurveFiles
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.running_job import LossCurve
from slurmwrap.policy.run_from_slurm import REQUEUED

# Number of runs whose output is read now. Users cannot read the site's database.
_MOST_READ = 2


def find_loss_curves(
    runs: Sequence[JobRun], stored: Sequence[LossCurve], source: RecordSource, most: int = _MOST_READ
) -> tuple[LossCurve, ...]:
    """Return the curves of these runs. Those that are not stored are read from the output of the newest `most` runs."""
    known = {curve.attempt: curve for curve in stored}
    missing = [run for run in runs if run.attempt not in known and run.uid == source.uid and _has_ended(run)]
    read = LossCurveFiles()
    for run in missing[::-1][:most]:
        if (curve := read(run)) is not None:
            known[run.attempt] = curve
    return tuple(known[run.attempt] for run in runs if run.attempt in known)


def _has_ended(run: JobRun) -> bool:
    return run.run_s >= SHORTEST_S and run.state != REQUEUED
