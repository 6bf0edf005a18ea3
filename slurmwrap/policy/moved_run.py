"""What the rule `move` did about one run, from its recorded actions, and what follows when that run ends. Pure.

A move is one action with the verb MOVE, which is never sent to Slurm, and those that carry it out: SIGNAL if the user
named one, then requeuehold, updates, release and StartTime as for every other requeue (policy/requeue.py). MOVE stays
unfinished as long as the move goes on, so a reconciler that was killed continues it from the records alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from slurmwrap.config.config_defaults import Move
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.decision import Verb
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import MOVE_RULE, ActionRecord, JobRun
from slurmwrap.model.submission import Submission
from slurmwrap.policy.move_choice import FEEDBACK, FRAGMENTATION
from slurmwrap.policy.requeue import RequeueSpec, retry_output
from slurmwrap.sbatch.move_options import Preemptible, parse_preemptible

# Keys of MOVE besides the occasions of move_choice: the end of a lease, and a run that began again from its start.
LEASE, RESTARTED = "lease", "restarted"
# Figures of MOVE: the furthest step of the run, that of its newest checkpoint, GPU-seconds that the move gains and
# loses, how long the job that starts instead would wait without it, and what the move costs all moved jobs, in seconds.
REACHED, SAVED, GAINED, LOST = "reached_step", "saved_step", "gained_gpu_s", "lost_gpu_s"
WAITS, COST = "waits_s", "cost_s"
# Value of MOVE for a job that is to run below one switch. Else it is the job that starts instead, or nodes to avoid.
ONE_SWITCH = "one switch"
# Beginning of the reason of the decision about a run that was moved.
MOVED = "moved: "
# A job that ends so long after the time for its checkpoint may still have ended because of the signal: it was being
# requeued, and Slurm reports its end later.
_LATE_S = 120.0
# How long a job waits for nodes below one switch, as --switches takes it.
_SWITCH_WAIT = "00:05:00"
# A run began again if its first steps are below this share of the step that the job had reached: the checkpoint may be
# somewhat older.
_FROM_START = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMove:
    """The newest move of one run."""

    begun: ActionRecord
    signal: ActionRecord | None = None
    requeue: ActionRecord | None = None

    @property
    def signalled_at(self) -> float | None:
        """Return when the job got its signal, or may have got it, Unix seconds; None: it got none."""
        one = self.signal
        return None if one is None or one.error else one.done_at or one.intended_at


def find_consent(submission: Submission) -> Preemptible | None:
    """Return what --preemptible said; None without it, or if gsub cannot have written it: the record is the user's."""
    try:
        return parse_preemptible(submission.preemptible)
    except ValueError:
        return None


def find_run_move(actions: Iterable[ActionRecord]) -> RunMove | None:
    """Return the newest move that was begun about the run of these actions; None if there is none."""
    mine = [one for one in actions if one.rule == MOVE_RULE and one.mode == "act"]
    moves = [one for one in mine if one.verb == Verb.MOVE.value and one.key != RESTARTED]
    if not moves:
        return None
    begun = max(moves, key=lambda one: one.intended_at)
    by_verb: Mapping[str, ActionRecord] = {one.verb: one for one in mine if one.intended_at >= begun.intended_at}
    return RunMove(begun=begun, signal=by_verb.get(Verb.SIGNAL.value), requeue=by_verb.get(Verb.REQUEUEHOLD.value))


def ended_by_move(move: RunMove, run: JobRun, how: Preemptible, *, requeued: bool) -> bool:
    """Return whether the run ended because it was moved: it was requeued, or ended after its signal.

    `requeued`: Slurm shows a later run. A program may save and then end with any exit code, or requeue its own job
    (submitit, Lightning). Not if its node failed or a person cancelled it.
    """
    if run.state in ("NODE_FAIL", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "BOOT_FAIL", "PREEMPTED"):
        return False
    if move.requeue is not None and not move.requeue.error and (requeued or move.requeue.done_at is not None):
        return True
    at = move.signalled_at
    return at is not None and at - 1 <= (run.end_time or at) <= at + how.seconds + _LATE_S


def make_requeue_spec(move: RunMove, job: JobRecord, settings: Move, *, output_appends: bool) -> RequeueSpec:
    """Return how the job is requeued.

    It stays out of the queue for a while if another one shall start instead.
    """
    begun, makes_room = move.begun, move.begun.key in (FEEDBACK, FRAGMENTATION, LEASE)
    together = begun.value == ONE_SWITCH
    return RequeueSpec(
        rule=MOVE_RULE,
        reason=f"{MOVED}{begun.reason}",
        avoid=() if makes_room or together else tuple(begun.value.split(",")),
        switches=f"1@{_SWITCH_WAIT}" if together else "",
        std_out="" if output_appends else retry_output(job.std_out, job.restarts),
        delay_s=int(settings.headstart_s) if makes_room else 0,
        comment=f"moved at a checkpoint, it continues later (slurmwrap why {job.address})",
    )


def sum_lost_s(actions: Iterable[ActionRecord]) -> float:
    """Return the seconds of work that the job lost because it began again after moves. `actions`: of all its runs."""
    again = (one for one in actions if one.rule == MOVE_RULE and one.key == RESTARTED)
    return sum(float(one.value) for one in again if one.value.isdecimal())


def find_lost_s(first_step: int, move: RunMove, attained_s: float) -> float:
    """Return the seconds of work that are done once more because the run began again; 0 if it continued.

    `first_step`: that the run after the move showed first; `attained_s`: what the job had run before.
    """
    reached = dict(move.begun.figures).get(REACHED, 0.0)
    if reached <= 0 or first_step > _FROM_START * reached:
        return 0.0
    return attained_s * (1 - first_step / reached)


def sum_attained_s(before: Iterable[JobRun], submit_time: int) -> float:
    """Return the seconds that these earlier runs of a job held its GPUs.

    Without hooks and slurmdbd the end of a requeued run is not known: then it is the SubmitTime of the next one, the
    last time `submit_time`.
    """
    ordered = sorted(before, key=lambda one: one.attempt.submit_time)
    following = (*(one.attempt.submit_time for one in ordered[1:]), submit_time)
    ends = ((one.start_time, one.end_time or after) for one, after in zip(ordered, following, strict=False))
    return float(sum(max(0, end - start) for start, end in ends if start is not None))


def get_time_since_move(actions: Iterable[ActionRecord], now: float) -> float:
    """Return the seconds since a move of the job was begun, also one that was given up; inf: never."""
    moves = [
        one
        for one in actions
        if one.rule == MOVE_RULE and one.verb == Verb.MOVE.value and one.mode == "act" and one.key != RESTARTED
    ]
    return min((max(0.0, now - one.intended_at) for one in moves), default=inf)
