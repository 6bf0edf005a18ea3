"""How often what a rule advised or did agreed with what happened afterwards. Pure.

Cases are counted alike in every mode: later events, not the mode, show whether someone followed the advice. If nothing
has happened yet, the case is open and is not counted as right or wrong. A rule's actions show that it applied; a
`stop` has no action and is read from the decision.

    retry            the next run succeeded: agree; failed of the same root cause: disagree
    retry_elsewhere  the next run, on other nodes, succeeded, or the left node failed another job: agree; the next run
                     failed of the same root cause elsewhere: disagree
    resize           the next run succeeded with more memory or time than before: agree; failed of the same: disagree
    stop             the very same ran again and failed again: agree; succeeded: disagree
    drain            a person took the node out, or another job failed there of hardware within a week: agree;
                     three other jobs ran well there: disagree
    order            of the jobs of other classes in the sample, more took longer if their class is later, or shorter if
                     it is earlier (run time x GPUs): agree; fewer: disagree
    block_input      the very same ran again and failed of its input: agree; succeeded with it: disagree
    early, move      see early_results.py and move_results.py
    limit            the run ran longer than the advised time limit: disagree; it succeeded within it: agree;
                     --time-min: it wrote its first checkpoint within it: agree; later, or not before: disagree
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.decision import Verb
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import ActionRecord, JobRun, StrikeRecord
from slurmwrap.model.submission import Submission
from slurmwrap.policy.checkpoint_limit import AT_CHECKPOINT
from slurmwrap.policy.time_limit import RESTORED
from slurmwrap.report.night_report import Agreement
from slurmwrap.report.order_text import parse_predicted_class

WEEK_S = 7 * 86400.0
# Number of other jobs that must run well on a node to show that a drain was wrong.
WELL = 3
_HARDWARE = frozenset({"gpu_hardware", "gpu_ecc_error", "node_failure", "cuda_init_failed"})
# Categories that neither confirm nor refute a rule.
_INDECISIVE = frozenset({"cancelled", "job_preempted", "completed_with_error"})

AGREE, DISAGREE, OPEN = "agree", "disagree", "open"
_Key = tuple[object, ...]
_Comparison = Callable[["_History", JobRun], str]


@dataclass(frozen=True, slots=True)
class _History:
    """All records that are compared. Lists are in order of time."""

    strikes: tuple[StrikeRecord, ...]
    by_node: dict[str, list[JobRun]]
    # Diagnosed runs by job, and by the key that identical submissions share.
    by_job: dict[_Key, list[JobRun]]
    # Job -> key that identical submissions share.
    same: dict[_Key, _Key]

    def next_run(self, record: JobRun) -> JobRun | None:
        """Return the job's next diagnosed run, else the run of the same user's next identical submission."""
        job = _make_job_key(record)
        runs = [run for run in self._after(job, record) if run.restarts > record.restarts]
        mine = self.same.get(job)
        runs += self._after(mine, record) if mine is not None else []
        # Slurm reuses job ids, so runs of other users are excluded.
        own = [run for run in runs if run.uid == record.uid]
        return min(own, key=lambda run: run.attempt.submit_time, default=None)

    def _after(self, key: _Key, record: JobRun) -> list[JobRun]:
        runs = self.by_job.get(key, [])
        return runs[bisect_right(runs, record.attempt.submit_time, key=lambda run: run.attempt.submit_time) :]


def compare_rules_with_outcomes(
    attempts: Iterable[JobRun],
    actions: Iterable[ActionRecord],
    strikes: Iterable[StrikeRecord],
    submissions: Iterable[Submission],
    *,
    out_of_service: Iterable[str] = (),
) -> tuple[Agreement, ...]:
    """Return one row per rule that applied, by name. `out_of_service`: nodes that people took out of service."""
    records = tuple(sorted(attempts, key=lambda r: r.attempt.submit_time))
    same = _group_same_jobs(submissions)
    history = _History(tuple(strikes), _group_by_node(records), _group_by_job(records, same), same)
    by_key = {record.attempt: record for record in records}
    actions = tuple(actions)
    taken = frozenset(out_of_service)
    found: dict[str, list[str]] = {}
    limits = [
        (record, limit_s) for key, limit_s in _find_advised_limits(actions).items() if (record := by_key.get(key))
    ]
    time_mins = _find_advised_limits(actions, "TimeMin").items()
    compared = [_compare_limit(record, limit_s) for record, limit_s in limits]
    compared += [_compare_time_min(record, least_s) for key, least_s in time_mins if (record := by_key.get(key))]
    if compared:
        found["limit"] = compared
    for rule, record, node in _list_applied_rules(actions, by_key):
        found.setdefault(rule, []).append(
            _compare_drain(history, record, node, taken) if rule == "drain" else _COMPARISONS[rule](history, record)
        )
    if ordered := _compare_orders(actions, by_key):
        found["order"] = ordered
    stopped = [record for record in records if record.decision == "stop" and _is_stopped_by_itself(record)]
    if stopped:
        found["stop"] = [_compare_stop(history, record) for record in stopped]
    rows = (_make_agreement(rule, found[rule]) for rule in sorted(found))
    return tuple(replace(row, freed_hours=_count_freed_hours(limits)) if row.rule == "limit" else row for row in rows)


def _make_agreement(rule: str, outcomes: Sequence[str]) -> Agreement:
    return Agreement(
        rule=rule, agree=outcomes.count(AGREE), disagree=outcomes.count(DISAGREE), open=outcomes.count(OPEN)
    )


def _find_advised_limits(actions: Iterable[ActionRecord], key: str = "TimeLimit") -> dict[RunKey, int]:
    """Return the time limit in seconds that rule `limit` first advised or set for each run, not those it restored.

    `key`: "TimeMin" for --time-min.
    """
    found: dict[RunKey, int] = {}
    for action in actions:
        advised = action.rule == "limit" and action.key == key and not action.error and action.value.isdecimal()
        if advised and action.attempt is not None and not action.reason.endswith((RESTORED, AT_CHECKPOINT)):
            found.setdefault(action.attempt, int(action.value) * 60)
    return found


def _compare_limit(run: JobRun, limit_s: int) -> str:
    if run.run_s > limit_s:
        return DISAGREE
    return AGREE if _is_success(run) else OPEN


def _compare_time_min(run: JobRun, least_s: int) -> str:
    """Return whether a run that resumed wrote a further checkpoint within the --time-min that was advised or set."""
    if run.saved_after_s is None:
        return DISAGREE if run.run_s > least_s else OPEN
    return AGREE if run.saved_after_s <= least_s else DISAGREE


def _count_freed_hours(limits: Iterable[tuple[JobRun, int]]) -> float:
    """Return the requested hours beyond the advised limits, of the runs for which these were long enough."""
    right = [(run, limit_s) for run, limit_s in limits if _compare_limit(run, limit_s) == AGREE]
    return sum(max(0, (run.time_limit_s or 0) - limit_s) for run, limit_s in right) / 3600


def _list_applied_rules(
    actions: Iterable[ActionRecord], by_key: Mapping[RunKey, JobRun]
) -> Iterable[tuple[str, JobRun, str]]:
    """Yield (rule, run, node) once per run and rule, because one decision may need several changes in Slurm."""
    seen = dict.fromkeys(
        (a.rule, a.attempt, a.target if a.verb == Verb.DRAIN.value else "")
        for a in actions
        if a.rule == "drain" or a.rule in _COMPARISONS
    )
    for rule, attempt, node in seen:
        record = by_key.get(attempt) if attempt is not None else None
        if record is not None and record.diagnosis is not None:
            yield rule, record, node


def _compare_orders(actions: Iterable[ActionRecord], by_key: Mapping[RunKey, JobRun]) -> list[str]:
    """Compare the last class of each run with how much it used. A failed run says nothing, nor does one that waits."""
    classes: dict[RunKey, int] = {}
    for action in sorted(actions, key=lambda action: action.intended_at):
        found = parse_predicted_class(action.reason) if action.rule == "order" else None
        if found is not None and action.attempt is not None:
            classes[action.attempt] = found
    used = {key: run.run_s * max(1, run.gpus) for key, run in by_key.items() if key in classes and _is_complete(run)}
    return [
        _compare_order(classes[key], used[key], [(classes[other], used[other]) for other in used])
        if key in used
        else OPEN
        for key in classes
    ]


def _compare_order(order_class: int, used: float, others: Iterable[tuple[int, float]]) -> str:
    right = wrong = 0
    for other_class, other_used in others:
        if other_class != order_class and other_used != used:
            as_expected = (other_class > order_class) == (other_used > used)
            right, wrong = right + as_expected, wrong + (not as_expected)
    return OPEN if right == wrong else AGREE if right > wrong else DISAGREE


def _is_complete(run: JobRun) -> bool:
    return _get_category(run) in ("success", "time_limit")


def _compare_retry(history: _History, run: JobRun) -> str:
    after = history.next_run(run)
    if after is None:
        return OPEN
    return AGREE if _is_success(after) else DISAGREE if _get_category(after) == _get_category(run) else OPEN


def _compare_retry_elsewhere(history: _History, run: JobRun) -> str:
    left = run.nodes if len(run.nodes) == 1 else _list_blamed_nodes(run)
    if any(_has_failed_another(history, run, node) for node in left):
        return AGREE
    after = history.next_run(run)
    if after is None or set(after.nodes) & set(left):
        return OPEN
    return AGREE if _is_success(after) else DISAGREE if _get_category(after) == _get_category(run) else OPEN


def _compare_resize(history: _History, run: JobRun) -> str:
    after = history.next_run(run)
    if after is None or not _is_larger(after, run):
        return OPEN
    return AGREE if _is_success(after) else DISAGREE if _get_category(after) == _get_category(run) else OPEN


def _compare_stop(history: _History, run: JobRun) -> str:
    after = history.next_run(run)
    if after is None:
        return OPEN
    return DISAGREE if _is_success(after) else AGREE


def _compare_block_input(history: _History, run: JobRun) -> str:
    after = history.next_run(run)
    if after is None:
        return OPEN
    if _is_success(after):
        return DISAGREE
    assert after.diagnosis is not None and run.diagnosis is not None
    return AGREE if after.diagnosis.input_path == run.diagnosis.input_path else OPEN


def _compare_drain(history: _History, run: JobRun, node: str, taken: frozenset[str]) -> str:
    if node in taken or _has_failed_another(history, run, node):
        return AGREE
    end = run.end_time or run.attempt.submit_time
    well = {_make_job_key(r) for r in history.by_node.get(node, ()) if _is_started_after(r, end) and _is_success(r)}
    return DISAGREE if len(well) >= WELL else OPEN


_COMPARISONS: dict[str, _Comparison] = {
    "retry": _compare_retry,
    "retry_elsewhere": _compare_retry_elsewhere,
    "resize": _compare_resize,
    "block_input": _compare_block_input,
}


def _has_failed_another(history: _History, run: JobRun, node: str) -> bool:
    """Whether hardware on `node` failed another job within a week after `run`: by a diagnosis, or by a strike."""
    end = float(run.end_time or run.attempt.submit_time)
    own = run.attempt.job_id
    struck = any(s.node == node and s.job_id != own and end < s.at <= end + WEEK_S for s in history.strikes)
    return struck or any(
        _make_job_key(other) != _make_job_key(run)
        and _get_category(other) in _HARDWARE
        and (len(other.nodes) == 1 or node in _list_blamed_nodes(other))
        and end < float(other.end_time or 0) <= end + WEEK_S
        for other in history.by_node.get(node, ())
    )


def _is_larger(after: JobRun, before: JobRun) -> bool:
    pairs = (
        (after.mem_mib_per_node, before.mem_mib_per_node),
        (after.mem_mib_per_cpu, before.mem_mib_per_cpu),
        (after.time_limit_s, before.time_limit_s),
    )
    return any(new is not None and old is not None and new > old for new, old in pairs)


def _group_same_jobs(submissions: Iterable[Submission]) -> dict[_Key, _Key]:
    """Return (cluster, job) -> (cluster, uid, script, code and arguments) of submissions with a known fingerprint."""
    ordered = sorted(submissions, key=lambda s: s.at)
    return {(s.cluster, s.job_id): (s.cluster, s.uid, s.script_sha256, s.fingerprint) for s in ordered if s.fingerprint}


def _group_by_node(attempts: Iterable[JobRun]) -> dict[str, list[JobRun]]:
    found: dict[str, list[JobRun]] = {}
    for record in attempts:
        for node in record.nodes:
            found.setdefault(node, []).append(record)
    return found


def _group_by_job(attempts: Iterable[JobRun], same: Mapping[_Key, _Key]) -> dict[_Key, list[JobRun]]:
    found: dict[_Key, list[JobRun]] = {}
    for record in attempts:
        if _has_category(record):
            job = _make_job_key(record)
            found.setdefault(job, []).append(record)
            if job in same:
                found.setdefault(same[job], []).append(record)
    return found


def _make_job_key(run: JobRun) -> _Key:
    return run.attempt.cluster, run.attempt.job_id


def _is_stopped_by_itself(run: JobRun) -> bool:
    """Whether the diagnosis decided to stop. A stop for lack of consent or budget is not advice."""
    return run.diagnosis is not None and run.diagnosis.decision == "stop"


def _list_blamed_nodes(run: JobRun) -> tuple[str, ...]:
    return (run.diagnosis.node,) if run.diagnosis is not None and run.diagnosis.node else ()


def _is_started_after(run: JobRun, moment: float) -> bool:
    return run.start_time is not None and run.start_time >= moment


def _has_category(run: JobRun) -> bool:
    return run.diagnosis is not None and run.diagnosis.category not in _INDECISIVE


def _is_success(run: JobRun) -> bool:
    return _get_category(run) == "success"


def _get_category(run: JobRun) -> str:
    return run.diagnosis.category if run.diagnosis is not None else ""
