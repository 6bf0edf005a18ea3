"""Read the loss curves of runs that ended, and store when each stopped to improve."""

from __future__ import annotations

import time

from slurmwrap.diagnosis.loss_points import reduce_points
from slurmwrap.errors import StoreError
from slurmwrap.host.read_loss_curve import SHORTEST_S
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.running_job import LossCurve
from slurmwrap.policy.run_from_slurm import REQUEUED
from slurmwrap.profiling.convergence import measure_convergence
from slurmwrap.reconcile.judge_run import find_submission
from slurmwrap.reconcile.reconcile_context import ReconcilePass

# Seconds of a pass for reading; the other runs wait for the next passes, the oldest of too many for ever.
_BUDGET_S = 2.0
_MOST_WAITING = 2000


def read_loss_curves(this_pass: ReconcilePass) -> None:
    """Read and store the curves of the runs that this pass judged, and of those that are left from earlier passes.

    Nothing is decided by a curve: it is the user's claim, for the report, `why` and `history`.
    """
    waiting = this_pass.book.unread_curves
    waiting += [run for run in this_pass.summary.judged if run.run_s >= SHORTEST_S and _has_own_output(run)]
    del waiting[:-_MOST_WAITING]
    began = time.monotonic()
    while waiting and time.monotonic() - began < _BUDGET_S:
        run = waiting.pop(0)
        curve = this_pass.services.curves(run)
        if curve is None or curve.time_share is None:
            curve = _read_counted(run, this_pass) or curve
        if curve is not None:
            try:
                this_pass.services.store.save_loss_curve(curve)
            except StoreError:
                waiting.insert(0, run)
                raise


def _has_own_output(run: JobRun) -> bool:
    """Return False if the next run of the same job may have appended to the output already."""
    return run.state != REQUEUED or bool(run.output_ends)


def _read_counted(run: JobRun, this_pass: ReconcilePass) -> LossCurve | None:
    """Return the curve that the run's step counter recorded (gsub --count-steps); None if it has too few losses."""
    submission = find_submission(run, this_pass)
    if submission is None or not submission.step_dir:
        return None
    counted = this_pass.services.losses(run, submission.step_dir)
    figures = measure_convergence(counted.points, run.run_s) if counted is not None else None
    if counted is None or figures is None:
        return None
    return LossCurve(
        attempt=run.attempt,
        source="counter",
        points=reduce_points(counted.points),
        uid=run.uid,
        end_time=run.end_time,
        lowest=figures.lowest,
        time_share=figures.time_share,
        epoch_share=figures.epoch_share,
    )
