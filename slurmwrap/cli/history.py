"""`slurmwrap history`: list runs and how they ended; similar runs share a line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import tzinfo
from typing import Annotated

import typer

from slurmwrap.cli import list_options, terminal
from slurmwrap.cli.reconcile_user_jobs import reconcile_own_jobs_first
from slurmwrap.cli.record_access import RecordSource, find_record_source
from slurmwrap.cli.run_selection import FoundRuns, drop_runs, open_run_selection
from slurmwrap.cli.slurm_lookup import resolve_clusters
from slurmwrap.cli.why import print_notes
from slurmwrap.config.load_config import load
from slurmwrap.diagnosis.taxonomy import COMPLETED_WITH_ERROR, SUCCESS, get_title
from slurmwrap.fast_dataclasses import asdict, dataclass, replace
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import JobRun, PrerunRecord
from slurmwrap.model.running_job import LossCurve
from slurmwrap.policy.run_filter import moment_of, state_of
from slurmwrap.report import text_format
from slurmwrap.report.convergence_text import draw_loss
from slurmwrap.report.fold_rows import group_alike, label
from slurmwrap.report.job_report.timeline import failed
from slurmwrap.store.database import Database
from slurmwrap.store.pack_results import find_array_address, read_split_arrays
from slurmwrap.store.serialize import to_json_dict

HEAD = ("job", "~cluster", "~name", "~user", ">GPUs", "ended", ">h:min", "loss", "~result")
# Number of bars of the loss of a run.
_BARS = 8
_NO_RUN = "No run is known of this time."
_NO_STORED_RUN = "No run is stored of this time; what ended since the last look is not known."
# Number of runs that are read per line of the table, because the tasks of an array are folded into one line.
_PER_LINE = 20


def history(
    since: list_options.Since = "7d",
    until: list_options.Until = "",
    failed: list_options.Failed = False,
    category: list_options.Category = "",
    state: list_options.State = "",
    decision: list_options.Decision = "",
    name: list_options.Name = "",
    user: list_options.User = "",
    account: list_options.Account = "",
    partition: list_options.Partition = "",
    node: list_options.Node = "",
    clusters: list_options.Clusters = "",
    prerun: Annotated[bool, typer.Option("--prerun", help="Only jobs that their pre-run stopped.")] = False,
    each: Annotated[bool, typer.Option("--each", help="A line for each run: nothing is folded.")] = False,
    limit: list_options.Limit = list_options.LIMIT,
    everything: list_options.Everything = False,
    as_json: list_options.AsJson = False,
) -> None:
    """List runs and how they ended, newest first.

    Yours, or everyone's for root and SlurmUser. Tasks of an array that ended alike share a line, and so do failures of
    one name and cause. Your packed arrays (gsub --pack) are listed by their members.

    \b
    Examples:
      slurmwrap history
      slurmwrap history --failed --since 30d
      slurmwrap history --user ada --category gpu_oom --all
      slurmwrap history --node n[1-4] --since 24h
      slurmwrap history -M west,east
      slurmwrap history --json | jq '.runs[] | select(.decision == "stop")'
    """
    config = load(os.environ)
    source = find_record_source(config, os.environ, os.geteuid())
    wanted = list_options.make_run_filter(
        clusters=resolve_clusters(clusters, source, config), user=user, account=account, partition=partition, name=name,
        category=category, decision=decision,
        state=state, node=node, since=since, until=until, failed=failed,
    )  # fmt: skip
    read = None if everything else limit if each or as_json else limit * _PER_LINE
    unseen = reconcile_own_jobs_first(source, config)
    print_notes((unseen,) if unseen else ())
    with (
        list_options.garbage_collection_paused(),
        open_run_selection(source, config, wanted, read, as_listed=not as_json) as found,
    ):
        found = drop_runs(found) if prerun else found
        print_notes(found.notes)
        if as_json:
            _print_json(found, read)
            return
        found = replace(found, runs=_name_as_submitted(found.runs, source))
        shown = None if everything else limit
        text = format_history(
            found,
            terminal.get_local_zone(),
            limit=shown,
            each=each,
            columns=terminal.columns(),
            read_curve=_open_curves(source),
        )
        typer.echo(_NO_STORED_RUN if text == _NO_RUN and unseen else text)


def _name_as_submitted(runs: Iterable[JobRun], source: RecordSource) -> Iterable[JobRun]:
    """Return the runs with the tasks of the user's own split arrays as they count them: "77_1500" for "78_499"."""
    if source.spool is None:
        return runs
    own = list(runs)
    clusters = {run.attempt.cluster for run in own}
    arrays = {cluster: read_split_arrays(source.spool.parent, cluster) for cluster in clusters}
    return [
        replace(run, address=find_array_address(pack, run.address))
        if (pack := arrays[run.attempt.cluster].get(_find_array_id(run))) and run.uid == source.uid
        else run
        for run in own
    ]


def _find_array_id(run: JobRun) -> int:
    head = run.address.partition("_")[0]
    return int(head) if head.isdecimal() else run.attempt.job_id


def _print_json(found: FoundRuns, limit: int | None) -> None:
    """Print the runs as JSON. `limit`: the most runs, and the most stopped jobs, that were read; None: all."""
    totals = {**asdict(found.sums), "stopped": found.stopped_in_all}
    read = found.sums.runs if limit is None else min(limit, found.sums.runs)
    content = {
        "runs": map(to_json_dict, found.runs),
        "stopped": map(to_json_dict, found.stopped),
        "totals": totals,
        "more": found.sums.runs - read + found.stopped_in_all - len(found.stopped),
    }
    list_options.print_json_rows("history", content)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryLine:
    """One run, or a job that its pre-run stopped. Lines with equal `same` are folded into one."""

    at: float
    address: str
    cluster: str
    name: str
    user: str
    gpus: int
    ended: float | None
    # Run time in hours and minutes, such as "1:05".
    took: str
    result: str
    same: tuple[object, ...]
    run: RunKey | None = None  # None: a job that never ran, or a member of a packed array


def format_history(
    found: FoundRuns,
    zone: tzinfo | None,
    *,
    limit: int | None,
    columns: int = text_format.WIDTH,
    each: bool = False,
    read_curve: Callable[[RunKey], LossCurve | None] = lambda key: None,
) -> str:
    """Format the table, newest first, then the sums.

    The columns of users and of losses are shown only if users differ and if a loss is known. `read_curve`: the stored
    loss curve of a run.
    """
    lines = [_make_run_line(run) for run in found.runs] + [_make_stopped_line(p, found) for p in found.stopped]
    if not lines:
        return _NO_RUN
    lines.sort(key=lambda line: line.at, reverse=True)
    groups = [(line,) for line in lines] if each else list(group_alike(lines, lambda line: line.same))
    shown = groups[:limit]
    left = found.sums.runs + found.stopped_in_all - sum(map(len, shown))
    users = len({line.user for line in lines}) > 1
    full = [_make_row(group, zone, read_curve) for group in shown]
    empty = {
        name
        for name, known in (
            ("~user", users),
            ("~cluster", len({line.cluster for line in lines}) > 1),
            ("loss", any(row[HEAD.index("loss")] for row in full)),
        )
        if not known
    }
    keep = [i for i, name in enumerate(HEAD) if name not in empty]
    rows = [[row[i] for i in keep] for row in full]
    table = text_format.table([HEAD[i] for i in keep], rows, indent=0, columns=columns)
    more = f"\nand {text_format.count(left, 'run')} more (--all shows them)" if left > 0 else ""
    return f"{table}{more}\n\n{_format_totals(found)}"


def _format_totals(found: FoundRuns) -> str:
    sums, stopped = found.sums, found.stopped_in_all
    parts = []
    if sums.runs:
        share = f" ({100 * sums.failed / sums.runs:.0f} %)" if sums.failed and sums.runs else ""
        lost = f", {text_format.hours(sums.failed_gpu_hours)} of them in failed runs" if sums.failed else ""
        parts = [text_format.count(sums.runs, "run"), f"{sums.failed:,} failed{share}"]
        parts.append(f"{text_format.hours(sums.gpu_hours)} GPU-hours{lost}")
    if stopped:
        parts.append(f"{text_format.count(stopped, 'job')} stopped by a pre-run")
    return text_format.wrapped(", ".join(parts) + ".")


def _open_curves(source: RecordSource) -> Callable[[RunKey], LossCurve | None]:
    """Return the function that reads the stored loss curve of a run."""
    if not source.database.exists():
        return lambda key: None
    return Database.open(source.database, readonly=True).loss_curve


def _make_row(
    group: Sequence[HistoryLine], zone: tzinfo | None, read_curve: Callable[[RunKey], LossCurve | None]
) -> list[str]:
    newest = group[0]
    curve = read_curve(newest.run) if newest.run is not None and len(group) == 1 else None
    return [
        label([line.address for line in group]),
        newest.cluster,
        newest.name,
        newest.user,
        str(newest.gpus),
        text_format.moment(newest.ended, zone)[5:] if newest.ended else "",
        newest.took,
        _format_loss(curve),
        newest.result,
    ]


def _format_loss(curve: LossCurve | None) -> str:
    """Return the loss as bars, and the share of the run's time after which it was within 0.1 % of its lowest value."""
    if curve is None or curve.time_share is None:
        return ""
    return f"{draw_loss(curve, terminal.can_print_blocks(), _BARS)} {round(100 * curve.time_share)} %".strip()


def _make_run_line(run: JobRun) -> HistoryLine:
    address = run.address or str(run.attempt.job_id)
    result = _describe_result(run)
    # The tasks of an array, and repeated failures of the same kind, may share a line.
    repeats = failed(run) or "_" in address
    head = address.partition("_")[0] if "_" in address else ""
    cluster = run.attempt.cluster
    same = (head, cluster, run.name, run.user, run.gpus, result) if repeats else (address, run.attempt)
    return HistoryLine(
        at=float(moment_of(run)),
        address=address,
        cluster=cluster,
        name=run.name,
        user=run.user,
        gpus=run.gpus,
        ended=run.end_time,
        took=_format_hours(run.run_s) if run.start_time is not None and run.end_time is not None else "",
        result=result,
        same=same,
        # What is stored of the loss is that of the whole task.
        run=run.attempt if run.gpu_s is None else None,
    )


def _make_stopped_line(record: PrerunRecord, found: FoundRuns) -> HistoryLine:
    name, user = found.names.get((record.cluster, record.job_id or 0), ("", ""))
    result = get_title(record.verdict.category) if record.verdict.category else "failed"
    return HistoryLine(
        at=record.at,
        address=str(record.job_id or record.prerun_job_id),
        cluster=record.cluster,
        name=name,
        user=user or list_options.user_name(record.uid),
        gpus=record.gpus,
        ended=record.at,
        took="pre-run",
        result=result,
        same=("pre-run", record.cluster, name, record.uid, record.gpus, result)
        if name
        else (record.prerun_job_id, record.at),
    )


def _format_hours(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60}:{minutes % 60:02d}"


def _describe_result(run: JobRun) -> str:
    """Return the title of the failure, or of the error in the output; otherwise Slurm's state in lower case."""
    if run.diagnosis and (failed(run) or run.diagnosis.category == COMPLETED_WITH_ERROR):
        return get_title(run.diagnosis.category)
    # The run ended, but Slurm had already forgotten its state when the run was diagnosed.
    if not run.state and run.end_time is not None:
        return "completed" if run.diagnosis is not None and run.diagnosis.category == SUCCESS else "ended"
    return state_of(run).lower().replace("_", " ")
