"""GPU-hours that runs held and that ended without a result, by Slurm's state and by user. Pure.

A run that was stopped by its limit or its owner may have left checkpoints: what it held is counted as lost only in the
sense that the run did not complete. Slurm's record is all there is; a script that hides its error ends COMPLETED.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.trace.trace_load import Actual
from slurmwrap.sim.whatif.whatif_study import Lost, UserLoss, Waste

GOOD = frozenset({"COMPLETED", "RUNNING", "SUSPENDED", "COMPLETING", "PENDING", ""})
_HOUR = 3600.0


def waste_of(runs: Iterable[tuple[SimJob, Actual]]) -> Waste:
    """Of runs with GPUs that ended. The estimates of who could have caught them are not its part."""
    by_state: dict[str, list[float]] = defaultdict(list)
    by_user: dict[str, list[float]] = defaultdict(list)
    held_by: dict[str, float] = defaultdict(float)
    for job, actual in runs:
        hours = gpu_hours(job, actual)
        held_by[job.user] += hours
        if job.status not in GOOD:
            by_state[job.status].append(hours)
            by_user[job.user].append(hours)
    lost = [Lost(state=state, runs=len(all_of), gpu_hours=sum(all_of)) for state, all_of in by_state.items()]
    users = [
        UserLoss(user=user, runs=len(all_of), gpu_hours=sum(all_of), share=sum(all_of) / max(1e-9, held_by[user]))
        for user, all_of in by_user.items()
    ]
    return Waste(
        gpu_hours=sum(held_by.values()),
        lost=tuple(sorted(lost, key=lambda one: (-one.gpu_hours, one.state))),
        users=tuple(sorted(users, key=lambda one: (-one.gpu_hours, one.user))),
    )


def gpu_hours(job: SimJob, actual: Actual) -> float:
    """What the run really held; 0 where it has not ended."""
    return 0.0 if actual.end_s is None else job.gpus * max(0.0, actual.end_s - actual.start_s) / _HOUR


def anonymize_users(jobs: Sequence[SimJob]) -> tuple[SimJob, ...]:
    """Users as u1, u2, … in the order in which they first appear. Who has no name gets none: they may be several."""
    names = {"": ""}
    return tuple(replace(job, user=names.setdefault(job.user, f"u{len(names)}")) for job in jobs)
