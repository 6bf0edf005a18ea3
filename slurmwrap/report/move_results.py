"""Compare each move of a running job (rule `move`), done or only advised, with what came next. Pure.

    done, feedback or fragmentation   right if the other job started sooner than it would have without the move, by
                                      more than the move cost, before the moved job began again, and the moved job then
                                      continued at its checkpoint; wrong if one of these was not so
    done, slow                        right if the next run made steps faster and continued at its checkpoint
    advised, feedback, fragmentation  right if the other job then waited longer than the move would have cost; wrong if
                                      it started sooner
    advised, slow                     right if another run of the same job on other nodes made steps faster; wrong if
                                      none of these did

What has not happened yet, is not measured or was given up is open or no case. How long the moved job waited for its
GPUs is not counted. Ends of leases are their users' choice and no cases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.decision import Verb
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import MOVE_RULE, ActionRecord, JobRun
from slurmwrap.policy.move_choice import FEEDBACK, FRAGMENTATION, MOVE_OCCASIONS, SLOW
from slurmwrap.policy.moved_run import COST, RESTARTED, WAITS
from slurmwrap.report.agreement import AGREE, DISAGREE, OPEN
from slurmwrap.report.failure_counts import group_by
from slurmwrap.report.night_report import Agreement

# A run was faster elsewhere if it made so many times as many steps per second: half of what the rule needs (1.3).
_FASTER = 1.15


@dataclass(frozen=True, slots=True)
class _Later:
    """The runs, in order of time: by job, by its address, and by key; and runs that began again after a move."""

    by_job: Mapping[tuple[str, int], Sequence[JobRun]]
    by_address: Mapping[tuple[str, str], Sequence[JobRun]]
    restarted: frozenset[RunKey | None]

    def next_run(self, run: JobRun) -> JobRun | None:
        """Return the job's next run."""
        mine = self.by_job.get((run.attempt.cluster, run.attempt.job_id), ())
        return next((one for one in mine if one.restarts > run.restarts and one.uid == run.uid), None)

    def find_waiting(self, move: ActionRecord) -> JobRun | None:
        """Return the run that waited when this move was decided, for which it made room."""
        assert move.attempt is not None
        name, bracket, _ = move.value.partition("[")
        same = (
            [run for (_, address), runs in self.by_address.items() if address.startswith(name) for run in runs]
            if bracket
            else self.by_address.get((move.attempt.cluster, name), ())
        )
        waited = [one for one in same if one.attempt.submit_time <= move.intended_at <= (one.start_time or 1e18)]
        return min(waited, key=lambda one: one.start_time or 1e18, default=None)


def compare_moves(actions: Iterable[ActionRecord], runs: Iterable[JobRun]) -> tuple[Agreement, ...]:
    """Return the row of rule `move`; () if it moved and advised nothing. `runs`: also of the jobs that waited."""
    moves = [one for one in actions if one.rule == MOVE_RULE and one.verb == Verb.MOVE.value and one.attempt]
    cases = [one for one in moves if one.key in MOVE_OCCASIONS and not one.error]
    if not cases:
        return ()
    ordered = sorted(runs, key=lambda run: run.attempt.submit_time)
    by_key = {run.attempt: run for run in ordered}
    later = _Later(
        by_job=group_by(ordered, lambda run: (run.attempt.cluster, run.attempt.job_id)),
        by_address=group_by(ordered, lambda run: (run.attempt.cluster, run.address or str(run.attempt.job_id))),
        restarted=frozenset(one.attempt for one in moves if one.key == RESTARTED),
    )
    found = [
        (_compare_done if one.mode == "act" else _compare_advised)(one, run, later)
        for one in cases
        if one.attempt is not None and (run := by_key.get(one.attempt)) is not None
    ]
    counts = {outcome: found.count(outcome) for outcome in (AGREE, DISAGREE, OPEN)}
    return (Agreement(rule=MOVE_RULE, agree=counts[AGREE], disagree=counts[DISAGREE], open=counts[OPEN]),)


def _compare_done(move: ActionRecord, run: JobRun, later: _Later) -> str:
    after = later.next_run(run)
    if after is not None and after.attempt in later.restarted:
        return DISAGREE
    outcome = _compare_speed(run, () if after is None else (after,))
    if move.key in (FEEDBACK, FRAGMENTATION):
        outcome = _compare_start(move, after, later.find_waiting(move))
    # As long as the job has not run again to an end, it may still begin at its start.
    return OPEN if outcome == AGREE and (after is None or after.end_time is None) else outcome


def _compare_start(move: ActionRecord, after: JobRun | None, waiting: JobRun | None) -> str:
    began_again = None if after is None else after.start_time
    if waiting is None or waiting.start_time is None:
        ended = waiting is not None and waiting.end_time is not None
        return DISAGREE if began_again is not None and waiting is not None and not ended else OPEN
    if began_again is not None and began_again < waiting.start_time:
        return DISAGREE
    figures = dict(move.figures)
    if WAITS not in figures:
        return OPEN
    return AGREE if move.intended_at + figures[WAITS] - waiting.start_time > figures[COST] else DISAGREE


def _compare_advised(move: ActionRecord, run: JobRun, later: _Later) -> str:
    if move.key == SLOW:
        mine = later.by_job.get((run.attempt.cluster, run.attempt.job_id), ())
        return _compare_speed(run, [one for one in mine if not set(one.nodes) & set(run.nodes)])
    waiting, cost_s = later.find_waiting(move), dict(move.figures).get(COST)
    if waiting is None or waiting.start_time is None or cost_s is None:
        return OPEN
    return AGREE if waiting.start_time - move.intended_at > cost_s else DISAGREE


def _compare_speed(run: JobRun, others: Sequence[JobRun]) -> str:
    """Return whether one of the other runs made steps faster. OPEN if no steps were counted."""
    here, speeds = _get_speed(run), [speed for one in others if one.gpus == run.gpus and (speed := _get_speed(one))]
    if not here or not speeds:
        return OPEN
    return AGREE if max(speeds) >= _FASTER * here else DISAGREE


def _get_speed(run: JobRun) -> float | None:
    return run.measurement.steps_per_s if run.measurement is not None else None
