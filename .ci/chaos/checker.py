"""Find what a fault run must not leave behind. Pure functions over the records that a run collected.

`check` returns violations, and apart from them what has an excuse: what Slurm itself lost, repeated or drained, and
observations that a full disk cut.
Times are in Unix seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

# Slurm writes whole seconds, and hooks note their own times.
TOLERANCE_S = 5.0
# What slurmctld did in this time before it was killed may be missing in its saved state.
UNSAVED_S = 30.0
# A job that may start this long after the end of the run is stuck.
FAR_S = 600.0
# Faults after which Slurm itself may run a job again, or forget it.
_CONTROLLER_KILLED, _NODE_FAULTS = "kill slurmctld", frozenset({"power", "kill slurmd", "stop slurmd", "end slurmd"})
_ONCE = frozenset({"requeue", "requeuehold", "release", "cancel", "signal", "drain", "resume"})
_OUT_OF_SERVICE = ("DRAIN", "DOWN", "FAIL")
_OF_HOOKS = ("prolog", "epilog")
# Why the reconciler rejects the record of a hook that a full disk cut (slurmwrap/store/spool_reader.py).
NOT_WHOLE = "the record is not whole"
# Why it rejects the submission of a job that a killed slurmctld forgot, or whose id it used again.
NOT_LISTED = "Slurm does not list the job as this user's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """One call of sbatch or gsub. `job_id`: None if it printed none. `marker`: the job's name, unique in the run."""

    marker: str
    kind: str
    at: float
    job_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRun:
    """One record of jobcomp/filetxt. `start`: None if the job never ran."""

    job_id: int
    name: str
    state: str
    submit: float
    start: float | None
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptLine:
    """What a job's script wrote: `what` is "start", or "end" as the last thing before it exits with 0."""

    marker: str
    index: str
    root: int  # the job id that sbatch printed
    job_id: int
    restarts: int
    what: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """One row of `attempts` in the site's database."""

    job_id: int
    name: str
    state: str
    submit: float
    start: float | None
    end: float | None
    reconciled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAction:
    """One row of `actions` in a database. `done_at`: None if it is not finished."""

    job_id: int
    submit: float
    rule: str
    mode: str
    verb: str
    target: str
    key: str
    value: str
    done_at: float | None
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingJob:
    """A job that Slurm still has at the end. `start`: when it may begin; None: unknown."""

    address: str
    name: str
    state: str
    reason: str
    start: float | None
    has_prerun: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSight:
    """A node out of service, as Slurm showed it."""

    at: float
    node: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLine:
    """A line that the run wrote to the kernel log of a node: a reason to drain it."""

    at: float
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """A fault that was caused: kind ("kill slurmctld", "full spool" …), target, beginning and end."""

    kind: str
    target: str
    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecords:
    """All that a fault run collected after everything was healed."""

    ended_at: float
    submitted: tuple[Submitted, ...] = ()
    slurm_runs: tuple[SlurmRun, ...] = ()
    lines: tuple[ScriptLine, ...] = ()
    recorded: tuple[RecordedRun, ...] = ()
    actions: tuple[RecordedAction, ...] = ()
    user_actions: tuple[RecordedAction, ...] = ()
    pending: tuple[PendingJob, ...] = ()
    sights: tuple[NodeSight, ...] = ()
    kernel: tuple[KernelLine, ...] = ()
    faults: tuple[PlannedFault, ...] = ()
    lowered_limits: tuple[str, ...] = ()
    changed_priorities: tuple[str, ...] = ()
    broken_databases: tuple[str, ...] = ()
    unread_files: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class Violation:
    """One thing that must not be, under one of TITLES. With an `excuse` ("Slurm", "full disk") it is not counted."""

    title: str
    text: str
    excuse: str = ""


def check(records: RunRecords) -> tuple[Violation, ...]:
    """Run all checks; return what they found, in the order of CHECKS."""
    return tuple(found for one in CHECKS.values() for found in one(records))


def find_lost_runs(records: RunRecords) -> list[Violation]:
    """Find runs that Slurm recorded and the database lacks, and jobs that nothing records."""
    found = [
        Violation(
            "lost runs",
            f"{_describe(run)} is not in the database",
            _excuse_slurm(_was_repeated_by_slurm(records, run)),
        )
        for run in _list_unmatched(records)
    ]
    known = {run.job_id for run in records.slurm_runs} | {run.job_id for run in records.recorded}
    known |= {line.root for line in records.lines} | {int(job.address.split("_")[0]) for job in records.pending}
    for call in records.submitted:
        if call.job_id is not None and call.job_id not in known:
            text = f"job {call.job_id} ({call.marker}) was submitted at {call.at:.0f} and is recorded nowhere"
            found.append(
                Violation("lost runs", text, _excuse_slurm(_was_killed(records, call.at - 1, call.at + UNSAVED_S)))
            )
    started = {(run.job_id, run.name) for run in records.slurm_runs if run.start is not None}
    for job_id, name in sorted({(line.job_id, line.marker) for line in records.lines} - started):
        found.append(Violation("lost runs", f"job {job_id} ({name}) ran, and jobcomp does not have it", "Slurm"))
    return found


def _list_unmatched(records: RunRecords) -> list[SlurmRun]:
    """Return the runs of Slurm without a row. Each row stands for one run."""
    rows = list(records.recorded)
    unmatched = sorted((run for run in records.slurm_runs if run.start is not None), key=lambda run: run.start or 0.0)
    for is_row_of in (_has_submit_time_of, _overlaps):
        runs, unmatched = unmatched, []
        for run in runs:
            row = next((row for row in rows if row.job_id == run.job_id and is_row_of(row, run)), None)
            if row is None:
                unmatched.append(run)
            else:
                rows.remove(row)
    return unmatched


def _was_repeated_by_slurm(records: RunRecords, run: SlurmRun) -> bool:
    """Return whether a killed slurmctld ran a job again that had the same SubmitTime, so that both are one run."""
    start = run.start or 0.0
    same = (one for one in records.slurm_runs if (one.job_id, one.submit) == (run.job_id, run.submit))
    before = (one for one in same if one.start is not None and one.end <= start)
    return any(_was_killed(records, one.start or 0.0, start) for one in before)


def _has_submit_time_of(row: RecordedRun, run: SlurmRun) -> bool:
    return row.submit == run.submit


def _overlaps(row: RecordedRun, run: SlurmRun) -> bool:
    """Return whether both may be the same run: without Slurm's record, the first observation gives the submit time."""
    begin = row.start if row.start is not None else row.submit
    end = row.end if row.end is not None else float("inf")
    return begin <= run.end + TOLERANCE_S and end >= (run.start or 0.0) - TOLERANCE_S


def find_doubled_runs(records: RunRecords) -> list[Violation]:
    """Find runs with two rows, calls that submitted two jobs, and indices that ran again although they completed."""
    found = []
    rows: dict[tuple[int, float], int] = defaultdict(int)
    for row in records.recorded:
        if row.start is not None:
            rows[row.job_id, row.start] += 1
    for (job_id, start), count in rows.items():
        if count > 1:
            found.append(Violation("doubled actions", f"job {job_id}, started at {start:.0f}: {count} rows"))
    roots: dict[str, set[int]] = defaultdict(set)
    members: dict[tuple[str, str], list[ScriptLine]] = defaultdict(list)
    for line in records.lines:
        roots[line.marker].add(line.root)
        members[line.marker, line.index].append(line)
    for marker, ids in roots.items():
        if len(ids) > 1:
            found.append(Violation("doubled actions", f"{marker} was submitted once and ran as jobs {sorted(ids)}"))
    for (marker, index), lines in members.items():
        ordered = sorted(lines, key=lambda line: line.at)
        ended = next((line for line in ordered if line.what == "end"), None)
        again = next((line for line in ordered if ended and line.what == "start" and line.at > ended.at), None)
        if ended is None or again is None:
            continue
        excused = not _was_end_requeued(records, ended) and _may_slurm_repeat(records, ended.at, again.at)
        text = f"{marker} index {index or '-'}: completed at {ended.at:.0f} and started again at {again.at:.0f}"
        found.append(Violation("doubled actions", text, _excuse_slurm(excused)))
    return found


def find_doubled_actions(records: RunRecords) -> list[Violation]:
    """Find one change of one run that was carried out twice, and a run that was requeued twice."""
    found = []
    for actions in (records.actions, records.user_actions):
        same: dict[tuple[object, ...], int] = defaultdict(int)
        for action in actions:
            if _is_done(action) and action.verb in _ONCE and action.job_id:
                word = "requeue" if action.verb == "requeuehold" else action.verb
                same[action.job_id, action.submit, word, action.target, action.key if word == "signal" else ""] += 1
        for (job_id, submit, verb, target, _), count in same.items():
            if count > 1:
                found.append(
                    Violation("doubled actions", f"{verb} {target}: {count} times for job {job_id} of {submit:.0f}")
                )
    return found


def find_doubled_resumes(records: RunRecords) -> list[Violation]:
    """Find nodes that one rule resumed twice after one drain.

    The rule `resume` starts the command `slurmwrap nodes`, and each of them records the action.
    """
    found, resumed = [], dict[str, set[str]]()
    for action in filter(_is_done, records.actions):
        if action.verb == "drain":
            resumed.pop(action.target, None)
        elif action.verb == "resume":
            rules = resumed.setdefault(action.target, set())
            if action.rule in rules:
                found.append(Violation("doubled actions", f"resume {action.target}: twice after one drain"))
            rules.add(action.rule)
    return found


def find_unexplained_reruns(records: RunRecords) -> list[Violation]:
    """Find runs that follow another one of the same job although nothing requeued it."""
    found = []
    runs: dict[tuple[int, str], list[SlurmRun]] = defaultdict(list)
    for run in records.slurm_runs:
        if run.start is not None:
            runs[run.job_id, run.name].append(run)
    for (job_id, name), ones in runs.items():
        for before, after in pairwise(sorted(ones, key=lambda run: run.start or 0.0)):
            own = "requeue-self" in name or _was_requeued(records, job_id, released=True)
            # Slurm requeues what it could not launch, and jobs of lost nodes.
            own |= before.state in ("NODE_FAIL", "PREEMPTED")
            if not own and not _may_slurm_repeat(records, (before.start or 0.0), after.start or 0.0):
                text = f"{_describe(before)} was followed by a run at {after.start:.0f} that nothing requeued"
                found.append(Violation("doubled actions", text))
    return found


def find_stuck_jobs(records: RunRecords) -> list[Violation]:
    """Find jobs that are left: held, or with a begin time in the far future, or pending although all is idle."""
    found = []
    for job in records.pending:
        far = job.start is not None and job.start > records.ended_at + FAR_S
        if far and job.has_prerun:
            continue
        text = f"job {job.address} ({job.name}) is {job.state}, {job.reason}"
        found.append(Violation("stuck holds", text + (f", and may start at {job.start:.0f}" if far else "")))
    return found


def find_drained_nodes(records: RunRecords) -> list[Violation]:
    """Find nodes that slurmwrap drained without a kernel line, or Slurm because a hook failed."""
    found, seen = [], set[tuple[str, str]]()
    for sight in sorted(records.sights, key=lambda sight: sight.at):
        if (sight.node, sight.reason) in seen or not any(word in sight.state for word in _OUT_OF_SERVICE):
            continue
        seen.add((sight.node, sight.reason))
        text = f"{sight.node} is {sight.state} at {sight.at:.0f}: {sight.reason or 'no reason'}"
        if sight.reason.startswith("slurmwrap:"):
            if not any(line.node == sight.node and line.at <= sight.at for line in records.kernel):
                found.append(Violation("drained nodes", text))
        else:
            own = any(word in sight.reason.lower() for word in _OF_HOOKS)
            found.append(Violation("drained nodes", text, _excuse_slurm(not own)))
    return found


def find_leftovers(records: RunRecords) -> list[Violation]:
    """Find time limits and priorities that were not given back."""
    texts = (*(f"limit of {text}" for text in records.lowered_limits),
             *(f"priority of {text}" for text in records.changed_priorities))  # fmt: skip
    return [Violation("leftover limits", text) for text in texts]


def find_unfinished(records: RunRecords) -> list[Violation]:
    """Find intents without an end, runs that were never finished, and files that were never read or were rejected."""
    found = [
        Violation("unfinished intents", f"{one.rule}: {one.verb} {one.target} {one.key} of job {one.job_id}")
        for one in (*records.actions, *records.user_actions)
        if one.mode == "act" and one.done_at is None and not one.error
    ]
    for row in records.recorded:
        # A run whose launch failed has no end.
        if not row.reconciled or (row.end is None and row.state != "REQUEUED"):
            text = f"job {row.job_id} ({row.name}) of {row.submit:.0f}: state '{row.state}', end {row.end}"
            forgotten = row.reconciled and not _is_known_to_slurm(records, row)
            found.append(Violation("unfinished intents", text, _excuse_slurm(forgotten)))
    found += [Violation("unfinished intents", f"{name} was not read") for name in records.unread_files]
    excuses = {
        NOT_WHOLE: "full disk" if any(one.kind.startswith("full") for one in records.faults) else "",
        NOT_LISTED: _excuse_slurm(_was_killed(records, 0.0, records.ended_at)),
    }
    for text in records.rejected:
        excuse = next((excuse for reason, excuse in excuses.items() if reason in text), "")
        found.append(Violation("unfinished intents", f"rejected: {text}", excuse))
    return found


def _is_known_to_slurm(records: RunRecords, row: RecordedRun) -> bool:
    """Return whether jobcomp has the run, or slurmctld was not killed soon after it was submitted."""
    ended = any(run.job_id == row.job_id and _has_submit_time_of(row, run) for run in records.slurm_runs)
    return ended or not _was_killed(records, row.submit, row.submit + UNSAVED_S)


def find_broken_databases(records: RunRecords) -> list[Violation]:
    """Find damaged databases of the site or of a user."""
    return [Violation("broken databases", text) for text in records.broken_databases]


CHECKS: dict[str, Callable[[RunRecords], list[Violation]]] = {
    one.__name__: one
    for one in (
        *(find_lost_runs, find_doubled_runs, find_doubled_actions, find_doubled_resumes, find_unexplained_reruns),
        *(find_stuck_jobs, find_drained_nodes, find_leftovers, find_unfinished, find_broken_databases),
    )
}
TITLES = (
    *("lost runs", "doubled actions", "stuck holds", "drained nodes"),
    *("leftover limits", "unfinished intents", "broken databases"),
)


def count_by_title(violations: Iterable[Violation]) -> dict[str, int]:
    """Return how many violations without an excuse each title has."""
    counts = dict.fromkeys(TITLES, 0)
    for one in violations:
        counts[one.title] += not one.excuse
    return counts


def _excuse_slurm(by_slurm: bool) -> str:
    return "Slurm" if by_slurm else ""


def _describe(run: SlurmRun) -> str:
    return f"job {run.job_id} ({run.name}) {run.state}, {run.start:.0f} to {run.end:.0f},"


def _is_done(action: RecordedAction) -> bool:
    return action.mode == "act" and action.done_at is not None and not action.error


def _was_requeued(records: RunRecords, job_id: int, *, released: bool = False) -> bool:
    """Return whether slurmwrap requeued this job; `released`: or released it after a launch that failed."""
    verbs = ("requeue", "requeuehold", *(["release"] if released else []))
    return any(_is_done(a) and a.job_id == job_id and a.verb in verbs for a in records.actions)


def _was_end_requeued(records: RunRecords, ended: ScriptLine) -> bool:
    """Return whether slurmwrap requeued the run that ended with this line; any run of the job, if jobcomp lacks it."""
    runs = [run for run in records.slurm_runs if run.job_id == ended.job_id and run.start is not None]
    here = [run for run in runs if (run.start or 0.0) - 1 <= ended.at <= run.end + TOLERANCE_S]
    submits = {run.submit for run in here}
    done = (a for a in records.actions if _is_done(a) and a.job_id == ended.job_id)
    return any(a.verb in ("requeue", "requeuehold") and (not submits or a.submit in submits) for a in done)


def _was_killed(records: RunRecords, begin: float, end: float) -> bool:
    """Return whether slurmctld was killed, or away after that, between the two times."""
    killed = (one for one in records.faults if one.kind == _CONTROLLER_KILLED)
    return any(one.began <= end and one.ended >= begin for one in killed)


def _may_slurm_repeat(records: RunRecords, begin: float, end: float) -> bool:
    """Return whether the controller was killed, or a node failed, between the two times."""
    if _was_killed(records, begin - TOLERANCE_S, end + TOLERANCE_S):
        return True
    faults = (one for one in records.faults if one.kind in _NODE_FAULTS)
    return any(one.began <= end and one.ended >= begin - TOLERANCE_S for one in faults)
