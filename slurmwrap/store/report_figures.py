"""Read all figures of one night report from a database, with the queries of report_sql.py (adapter)."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from slurmwrap.config.load_config import Config
from slurmwrap.model.decision import BlockedInput, Verb
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import MOVE_RULE, JobRun
from slurmwrap.policy.incident import Incident
from slurmwrap.policy.move_choice import FEEDBACK, FRAGMENTATION
from slurmwrap.report.failure_counts import NEWEST, ROWS
from slurmwrap.report.report_inputs import (
    ActionSteps,
    BlamedInput,
    Delayed,
    Drawn,
    Figures,
    FoundRun,
    Key,
    Often,
    Passed,
    PredictedRun,
    RequestedAndUsed,
    RetriedRun,
    RunGroup,
    StayingRun,
    TimeAskedFor,
    TrainedRuns,
)
from slurmwrap.report.usage_totals import LEAST_S, LOW
from slurmwrap.store import record_rows
from slurmwrap.store import report_reader as rows_as
from slurmwrap.store import report_sql as sql
from slurmwrap.store.database import Database
from slurmwrap.store.db_creation import prepare
from slurmwrap.store.migrations import MIGRATIONS
from slurmwrap.store.report_reader import Period, ReportReader, Rows, decode_text

_IN_MEMORY = Path(":memory:")
RECENT_S, DETAIL_S = 7 * rows_as.DAY_S, 28 * rows_as.DAY_S
# Number of newest actions per rule from which the agreement of the rule is computed.
_ACTIONS_PER_RULE = 100

SwitchOf = Callable[[], Mapping[str, str]]
CountGpus = Callable[[], int | None]


def read(
    database: Database,
    reader: ReportReader,
    config: Config,
    *,
    site: bool,
    switch_of: SwitchOf,
    count_gpus: CountGpus = lambda: None,
    notes: Sequence[str] = (),
) -> Figures:
    """Return all figures. `site`: include the assessment of nodes, and the comparison of users. Raises StoreError.

    `count_gpus`: GPUs of the cluster as Slurm reports them; None: it does not answer.
    """
    period = reader.period
    since, until = period.since, period.until
    recent, detail = max(since, until - RECENT_S), max(since, until - DETAIL_S)
    # Start of the period in which times to failure are examined.
    failures_since = min(since, until - DETAIL_S)
    restricted = bool(period.user or period.account)
    incidents = _list_incidents(database, since, until)
    struck = {"incidents": _format_ids(incidents)}
    cells = reader.sums(sql.CELLS, since, until, **struck)
    times_to_failure = reader.sum(sql.LASTED, looked=failures_since, **struck)
    often = reader.sum(sql.OFTEN, rows=ROWS, **struck)
    incident_gpu_s = reader.ask(sql.INCIDENT_GPU_S, "r") if incidents else None
    earlier = 2 * since - until
    before = reader.sums(sql.CELLS, earlier, since, incidents=_format_ids(_list_incidents(database, earlier, since)))
    steps = rows_as.compute_edges(since, until)
    moments = [reader.ask(sql.MOMENT, "r", since=low, until=high) for low, high in pairwise(steps)]
    spills = [reader.ask(sql.SPILLS, "r", since=low, until=high) for low, high in pairwise(steps)]
    repeats = reader.ask(sql.REPEATS, "r", **struck)
    repeats_before = reader.ask(sql.REPEATS, "r", since=earlier, until=since, **struck)
    blamed = reader.ask(sql.BLAMED, "a", since=detail)
    gsub = reader.ask(sql.GSUB_CALLS, "s")
    outcomes = reader.ask(sql.OUTCOMES, "p")
    used = reader.ask(sql.PRERUN_S, "p"), reader.ask(sql.TRIALS_S, "r")
    caught, tried = reader.ask(sql.CAUGHT, "p"), reader.ask(sql.TRIED, "p")
    delayed = reader.ask(sql.DELAYED, "p", detail=detail)
    passed = reader.ask(sql.PASSED, "p", detail=detail)
    refused = reader.ask(sql.REFUSED, "p", since=detail)
    retried, rules = reader.ask(sql.AGAIN, "a"), reader.ask(sql.STEPS, "x", since=detail)
    drawn = reader.ask(sql.DRAWN, "s")
    paced = reader.ask(sql.PACED, "s", week=until - RECENT_S)
    tuned = reader.ask(sql.TUNED, "s", detail=detail) if database._rows(sql.CURVES) else None
    idle = reader.parts(sql.IDLE, "r", since, until, low=LOW, least=LEAST_S)
    asked = reader.ask(sql.ASKED, "a", recent=recent, least=LEAST_S)
    limits = reader.ask(sql.TIME_LIMITS, "r", recent=recent)
    predicted = reader.ask(sql.PREDICTED, "s", recent=recent)
    trained = reader.ask(sql.TRAINED, "a") if database._has_table("loss_curves") else None
    found_early = reader.ask(sql.FOUND_EARLY, "a", detail=detail) if database._has_table("early_findings") else None
    spread = reader.ask(sql.SPREAD, "r", detail=detail)
    large = reader.ask(sql.LARGE, "r")
    overtaken = reader.ask(sql.OVERTAKEN, "a")
    delays = reader.ask(sql.DELAYS, "d", since=recent)
    spoken = _read_newest_actions(database, reader, recent)
    period_lasted, runtimes = rows_as.collect_failure_times(times_to_failure.result(), reader.names)
    runs, paced_runs = (
        rows_as.make_multi_node_runs(spread.result()),
        [rows_as.make_paced_run(row) for row in paced.result()],
    )
    found = reader.cells(cells)
    cells_before = reader.cells(before)
    blocked = database.blocked_inputs()
    failed_trials = [rows_as.make_caught_failure(*row) for row in caught.result()]
    stopped = Counter(one.uid for one in failed_trials if one.job_id is not None)
    held = [one.result()[0] for one in moments]
    measured_runs = sum(row[3] for row in held)
    # In the records of one user the neighbours are missing.
    with_neighbours = measured_runs and site and not restricted
    gpu_runs = reader.ask(sql.GPU_RUNS, "a", detail=detail, least=LEAST_S) if with_neighbours else None
    failed_of = {name: float(gpu_s) for name, gpu_s in incident_gpu_s.result()} if incident_gpu_s else {}
    if period.clusters:
        incidents = [one for one in incidents if one.incident_id in failed_of]
    staying = _read_staying_runs(reader, recent) if site and not restricted else ()
    return Figures(
        since=since,
        until=until,
        user=period.user,
        account=period.account,
        clusters=_list_clusters(reader, {number for row in held for number in row[4:] if number is not None}),
        cells=found,
        cells_before=cells_before or None,
        repeats=rows_as.sum_counts(((reader.names[u], reader.names[a]), n) for u, a, _, n, _ in repeats.result()),
        repeats_before=sum(row[3] for row in repeats_before.result()),
        gsub_jobs=gsub.result()[0][0],
        moments=rows_as.compute_moments(steps, held, [one.result() for one in spills]) if found else (),
        lasted=period_lasted,
        runtimes=runtimes,
        failed_repeats=rows_as.sum_counts(
            ((reader.names[u], reader.names[c]), n) for u, _, c, _, n in repeats.result() if n
        ),
        often=_list_often_failing(often.result(), reader, struck),
        incidents=() if restricted else incidents,
        incident_gpu_s=failed_of,
        blamed=[BlamedInput(decode_text(path), decode_text(user), *rest) for path, user, *rest in blamed.result()],
        details=reader.details,
        outcomes=dict(outcomes.result()),
        prerun_gpu_s=max(float(one.result()[0][0]) for one in used),
        tried={decode_text(user or uid): (runs, stopped[uid]) for user, uid, runs in tried.result()},
        caught=failed_trials,
        delayed=rows_as.scale_to_period(Delayed(*delayed.result()[0]), outcomes.result(), since, detail),
        again=[
            RetriedRun(category or "", was or "", float(one))
            for was, category, gpu_s in retried.result()
            for one in json.loads(gpu_s)
        ],
        tuned=[one for row in (tuned.result() if tuned else ()) if (one := rows_as.make_tuned_run(*row)) is not None],
        paced=paced_runs,
        drawn=[
            Drawn(holdout_group, bool(out), float(waste), float(trial))
            for holdout_group, out, waste, trial in drawn.result()
        ],
        holdout=config.prerun.holdout,
        passed=[Passed(float(seconds), category, float(run_s)) for seconds, category, run_s in passed.result()],
        refused=refused.result()[0][0],
        refused_falsely=refused.result()[0][1],
        steps=[ActionSteps(rule, mode, bool(no), bool(done), n) for rule, mode, no, done, n in rules.result()],
        drains=_read_drains(database, reader),
        moves=() if reader.period.account else database._read(record_rows.ACTIONS, *reader.bound(sql.MOVES, "x")),
        removals=database.removals() if site and not restricted else (),
        strikes=[s for s in database.strikes(since=since) if not restricted or s.uid == reader.uid],
        history=database.node_history(until - config.nodes.window_days * rows_as.DAY_S)
        if site and not restricted
        else None,
        **spoken,
        overtaken=(int(overtaken.result()[0][0]), int(overtaken.result()[0][1])),
        delays=[rows_as.make_queue_delay(row) for row in delays.result()],
        blocked=[one for one in blocked if not restricted or one.uid in (-1, reader.uid)],
        names=_find_names(database, blocked),
        counting=_read_counting_runs(database, reader, recent),
        large=_read_runs_of_jobs(database, large.result()),
        idle=[rows_as.make_idle_run(row, reader.names) for part in idle for row in part.result()],
        gpu_measured=measured_runs,
        asked=[RequestedAndUsed(decode_text(row[0]), decode_text(row[1]), *row[2:]) for row in asked.result()],
        limits=[
            TimeAskedFor(reader.names[user], reader.names[account], decode_text(name), json.loads(runs_of_job))
            for user, account, name, runs_of_job in limits.result()
        ],
        predicted=[PredictedRun(str(source), *times) for source, *times in predicted.result()],
        trained=[
            TrainedRuns(decode_text(user), decode_text(name), json.loads(runs_of_job))
            for user, name, runs_of_job in (trained.result() if trained else ())
        ],
        found_early=[_make_found_run(row) for row in (found_early.result() if found_early else ())],
        spread=runs,
        gpu_runs=[rows_as.make_gpu_run(row) for row in (gpu_runs.result() if gpu_runs else ())],
        staying=staying,
        staying_since=recent,
        total_gpus=count_gpus() if staying else None,
        switch_of=switch_of() if runs or any(len(run.nodes) > 1 for run in paced_runs) else {},
        notes=(*notes, *_list_notes(since, recent, detail, found, measured_runs)),
    )


def _read_staying_runs(reader: ReportReader, since: float) -> Sequence[StayingRun]:
    """Return the runs that were there since `since`, and in the week before it: their users shared the cluster."""
    before, until, names = since - RECENT_S, reader.period.until, reader.names
    ended = reader.ask(sql.STAYING, "r", before=before)
    present = (reader.ask(sql.STAYING_NOW, "a"), reader.ask(sql.STAYING_WAITING, "d", before=before))
    return [
        *(
            rows_as.make_staying_run(names[cluster], names[user], row, until)
            for cluster, user, *row in json.loads(ended.result()[0][0])
        ),
        *(
            rows_as.make_staying_run(decode_text(cluster), decode_text(user), row, until)
            for part in present
            for cluster, user, *row in part.result()
        ),
    ]


def _make_found_run(row: Sequence[Any]) -> FoundRun:
    kind, action, at, gone_at, address, user, name, gpus, state, category, end_time, evidence = row
    texts = (decode_text(address), decode_text(user), decode_text(name))
    return FoundRun(kind, action, at, gone_at, *texts, gpus, state, category, end_time, decode_text(evidence))


def _list_notes(since: float, recent: float, detail: float, cells: Sequence[RunGroup], measured: int) -> list[str]:
    notes = []
    if detail > since:
        notes.append(
            "Of the newest 28 days alone: inputs, what rules did, locality, pre-runs that missed and false refusals; "
            "of the newest 7 days: the wait in queues, fairness, over-requests, time limits, counted steps, what "
            "placement saved and how often rules were right."
        )
    elif recent > since:
        notes.append(
            "Of the newest 7 days alone: the wait in queues, fairness, over-requests, time limits, counted steps, what "
            "placement saved, how often rules were right."
        )
    if cells and not measured:
        notes.append(
            "GPU use is not measured: it needs NVML's accounting mode on the nodes (nvidia-smi --accounting-mode=1) "
            "and slurmwrap's Epilog."
        )
    return notes


# ----------------------------------------------------------------------------------------- rows to figures


def _list_often_failing(rows: Rows, reader: ReportReader, struck: Mapping[str, str]) -> list[Often]:
    """Return the frequent failures with the newest runs of each; runs are read backwards until each has enough."""
    newest: dict[tuple[int, int, int], list[Key]] = {tuple(row[:3]): [] for row in rows}
    missing = sum(min(row[3], NEWEST) for row in rows)
    for user, name, category, cluster, job_id, submit_time in reader.stream(sql.NEWEST, "r", **struck):
        if not missing:
            break
        keys = newest.get((user, name, category))
        if keys is not None and len(keys) < NEWEST:
            keys.append((reader.names[cluster], job_id, submit_time))
            missing -= 1
    return [
        Often(decode_text(user), decode_text(name), category, runs, float(gpu_s), tuple(newest[u, n, c][::-1]))
        for u, n, c, runs, gpu_s, name, user, category in rows
    ]


def _list_incidents(database: Database, since: float, until: float) -> list[Incident]:
    return [one for one in database.incidents(since=since) if one.began < until]


def _format_ids(incidents: Iterable[Incident]) -> str:
    return json.dumps([one.incident_id for one in incidents])


def _list_clusters(reader: ReportReader, ends: set[int]) -> tuple[str, ...]:
    """Return the clusters of the period. `ends`: lowest and highest cluster number; there may be others in between."""
    numbers = {row[0] for row in reader.ask(sql.CLUSTERS, "r").result()} if len(ends) > 1 else ends
    tried = {decode_text(row[0]) for row in reader.ask(sql.PRERUN_CLUSTERS, "p").result()}
    return tuple(sorted({reader.names[number] for number in numbers} | tried))


# ------------------------------------------------------------------------------------------ whole records


def _read_drains(database: Database, reader: ReportReader) -> Sequence[Any]:
    if reader.period.account:
        return ()
    rows = database._read(record_rows.ACTIONS, *reader.bound(sql.DRAINS, "x"))
    return [action for action in rows if action.verb == Verb.DRAIN.value]


def _read_newest_actions(database: Database, reader: ReportReader, recent: float) -> dict[str, Any]:
    """Return the data to compute the agreement of rules: newest actions of each rule, their runs, and later runs."""
    bound = partial(reader.bound, recent=recent, sample=_ACTIONS_PER_RULE)
    spoken = database._read(record_rows.ACTIONS, *bound(sql.SPOKEN, "x"))
    stopped = database._read(record_rows.ATTEMPTS, *bound(sql.STOPPED, "a"))
    base = {(one.cluster, one.job_id) for one in (a.attempt for a in (*spoken, *stopped)) if one is not None}
    submitted = database._read(record_rows.SUBMISSIONS, sql.SAME, [_format_keys(base)])
    jobs = base | {(one.cluster, one.job_id) for one in submitted}
    runs = {run.attempt: run for run in _read_runs_of_jobs(database, jobs)}
    runs |= {run.attempt: run for run in database._read(record_rows.ATTEMPTS, *bound(sql.HARDWARE, "r"))}
    runs |= {run.attempt: run for run in stopped}
    waiting = json.dumps(sorted(_list_waiting_addresses(spoken)))
    runs |= {run.attempt: run for run in database._read(record_rows.ATTEMPTS, sql.OF_ADDRESSES, [waiting])}
    for node, end in _list_newest_drains(spoken, runs):
        well = database._read(record_rows.ATTEMPTS, sql.WELL, [end, end, f"%{json.dumps(node)}%"])
        runs |= {run.attempt: run for run in well}
    return {"judged": list(runs.values()), "spoken": spoken, "submitted": submitted}


def _list_waiting_addresses(spoken: Iterable[Any]) -> set[tuple[str, int, str, str]]:
    """Return cluster, job id, first and last address of the jobs for which moves made room; "" if it is no array."""
    found = set()
    for action in spoken:
        job_id, array, task = action.value.partition("_")
        if action.rule == MOVE_RULE and action.key in (FEEDBACK, FRAGMENTATION) and job_id.isdecimal():
            low = "" if not array else f"{job_id}_" if task.startswith("[") else action.value
            # "`" comes after "_".
            high = f"{job_id}`" if low.endswith("_") else low
            found.add((action.attempt.cluster, int(job_id), low, high))
    return found


def _list_newest_drains(spoken: Iterable[Any], runs: Mapping[RunKey, JobRun]) -> list[tuple[str, float]]:
    """Return the newest drains: node, and the end of the run that caused the drain."""
    found = {
        action.target: float(runs[action.attempt].end_time or 0)
        for action in spoken
        if action.verb == Verb.DRAIN.value and action.attempt in runs
    }
    return sorted(found.items(), key=lambda one: -one[1])[:20]


def _read_counting_runs(database: Database, reader: ReportReader, recent: float) -> Sequence[JobRun]:
    rows = reader.ask(sql.COUNTING, "a", recent=recent).result()
    return _read_runs_of_jobs(database, rows)


def _read_runs_of_jobs(database: Database, jobs: Iterable[tuple[Any, ...]]) -> Sequence[JobRun]:
    found: Sequence[JobRun] = database._read(record_rows.ATTEMPTS, sql.OF_JOBS, [_format_keys(jobs)])
    return found


def _format_keys(jobs: Iterable[tuple[Any, ...]]) -> str:
    return json.dumps([[cluster, job_id] for cluster, job_id in jobs])


def _find_names(database: Database, blocked: Sequence[BlockedInput]) -> dict[int, str]:
    """Return the users of blocked inputs, found by the submission of a job for which an input was blocked."""
    clusters = [decode_text(row["cluster"]) for row in database._rows(sql.CLUSTERS_EVER)]
    found: dict[int, str] = {}
    for one in blocked:
        for cluster in clusters if one.uid >= 0 and one.uid not in found else ():
            rows = database._rows(sql.NAME_OF, [cluster, one.job_id, one.uid])
            rows = rows or database._rows(sql.RAN_AS, [cluster, one.job_id, one.uid])
            if rows:
                found[one.uid] = decode_text(rows[0]["user"])
    return found


__all__ = ["Period", "read"]


def open_in_memory(*records: tuple[record_rows.RecordTable, Iterable[Any]]) -> Database:
    """Return a database with the newest schema and `records`. Actions may refer to runs that do not exist."""
    connection = prepare(sqlite3.connect(_IN_MEMORY, isolation_level=None, check_same_thread=False))
    connection.execute("PRAGMA foreign_keys = OFF")
    for step in MIGRATIONS:
        for statement in step():
            connection.execute(statement)
    database = Database(_IN_MEMORY, connection)
    with database.transaction():
        for table, found in records:
            connection.executemany(
                record_rows.insert(table, "OR REPLACE"), (record_rows.row_from_record(table, one) for one in found)
            )
    return database
