"""`slurmwrap queue`: why the pending jobs of a cluster wait, those first for which a person can do something."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from slurmwrap.cli import list_options, terminal
from slurmwrap.config.load_config import load
from slurmwrap.fast_dataclasses import replace
from slurmwrap.gsub.partition_user import find_partition_user
from slurmwrap.model.cluster import Snapshot
from slurmwrap.model.job_record import JobRecord
from slurmwrap.placement.expected_start import find_starts_in_partitions
from slurmwrap.placement.partition_choice import find_earlier_partition, find_other_partitions
from slurmwrap.report import text_format
from slurmwrap.report.fold_rows import fold_jobs, group_alike
from slurmwrap.report.queue_problems import NEED_A_PERSON, ExplainedJob, PendingJob, QueueProblem, explain_queue
from slurmwrap.slurm.commands import SlurmCommands

# Groups of similar jobs that are shown of each kind without --all.
_GROUPS = 10
_JOBS_WIDTH = 60
# Kinds of the caller's jobs for which other partitions are compared.
_MOST_ADVISED = 8


def queue(
    user: list_options.User = "",
    account: list_options.Account = "",
    partition: list_options.Partition = "",
    stuck: Annotated[
        bool, typer.Option("--stuck", help="Only jobs that do not start unless a person does something.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Every group of jobs.")] = False,
    as_json: list_options.AsJson = False,
) -> None:
    """Explain why the pending jobs wait, and what can be done: first those that never start as they are.

    Compares each request with its partition and nodes, and follows dependencies to the job that holds up the others.
    Jobs that wait for the same reason share a line. Users see the jobs that squeue shows them.

    \b
    Examples:
      slurmwrap queue
      slurmwrap queue --stuck                  what a person has to look at
      slurmwrap queue --partition gpu --all
      slurmwrap queue --user ada --json
    """
    config = load(os.environ)
    commands = SlurmCommands(os.environ, timeout_s=config.slurm_timeout_s)
    snapshot, rows = commands.snapshot(), commands.queue()
    pending = [
        PendingJob(record=row.record, dependency=row.dependency, expected_start=row.expected_start)
        for row in rows
        if row.record.pending
    ]
    wanted = list_options.make_run_filter(user=user, account=account, partition=partition)
    listed = [
        one
        for one in explain_queue(pending, snapshot)
        if (not wanted.users or one.job.record.user in wanted.users)
        and (not wanted.accounts or one.job.record.account in wanted.accounts)
        and (not wanted.partitions or set(wanted.partitions) & set(one.job.record.partition.split(",")))
        and (not stuck or one.problem in NEED_A_PERSON)
    ]
    listed = _advise_partitions(listed, snapshot, [row.record for row in rows], config.prerun.partition)
    if as_json:
        list_options.print_json_rows("queue", {"rows": (_make_row(one) for one in listed), "more": 0})
        return
    typer.echo("\n".join(_format_page(listed, time.time(), everything, private=snapshot.private_jobs)))


def _advise_partitions(
    listed: Sequence[ExplainedJob], snapshot: Snapshot, jobs: Sequence[JobRecord], reserved: str
) -> list[ExplainedJob]:
    """Name, for the caller's own jobs that wait for their turn, a partition in which they would start earlier.

    Both starts assume that jobs use their time limits, as Slurm's forecast does.
    """
    now, uid = time.time(), os.geteuid()
    found: dict[tuple[object, ...], str] = {}
    advised = []
    for one in listed:
        record, start = one.job.record, one.job.expected_start
        if one.problem is QueueProblem.TURN and record.uid == uid and start is not None:
            key = (record.partition, record.account, record.qos, record.gpus, record.num_nodes, record.time_limit_s)
            if key not in found and len(found) < _MOST_ADVISED:
                user = find_partition_user(record.account, record.qos)
                others = find_other_partitions(record, snapshot, user, (reserved,))
                starts = find_starts_in_partitions(record, others, snapshot.nodes, jobs, lambda job: None, now)
                found[key] = find_earlier_partition(start, starts, now)
            if name := found.get(key):
                command = f"scontrol update JobId={record.waiting_address} Partition={record.partition},{name}"
                advice = f"partition {name} would start it earlier: {command}"
                one = replace(one, way_out="; ".join(filter(None, (advice, one.way_out))))
        advised.append(one)
    return advised


def _make_row(one: ExplainedJob) -> dict[str, Any]:
    record = one.job.record
    return {
        "job": record.address,
        "user": record.user,
        "account": record.account,
        "partition": record.partition,
        "name": record.name,
        "nodes": record.num_nodes,
        "gpus": record.gpus,
        "submitted": record.submit_time,
        "priority": record.priority,
        "reason": record.reason,
        "problem": one.problem.name.lower(),
        "needs_a_person": one.problem in NEED_A_PERSON,
        "words": one.words,
        "way_out": one.way_out,
        "expected_start": one.job.expected_start,
    }


def _format_page(listed: Sequence[ExplainedJob], now: float, everything: bool, *, private: bool) -> Iterator[str]:
    stuck = [one for one in listed if one.problem in NEED_A_PERSON]
    seen = " that you may see" if private else ""
    if not listed:
        yield f"No pending job{seen}."
        return
    yield (
        f"{text_format.count(len(listed), 'pending job')}{seen} for {_count_gpus(listed)}; "
        + (
            f"{len(stuck):,} of them {'does' if len(stuck) == 1 else 'do'} not start unless a person does something"
            if stuck
            else "none needs a person"
        )
    )
    paint = terminal.choose_painter()
    for problem in QueueProblem:
        same = [one for one in listed if one.problem is problem]
        if not same:
            continue
        style = "yellow" if problem in NEED_A_PERSON else "bold"
        yield ""
        yield paint(f"{problem.value}: {text_format.count(len(same), 'job')}, {_count_gpus(same)}", style)
        yield from _format_groups(same, now, everything)


def _count_gpus(jobs: Sequence[ExplainedJob]) -> str:
    return text_format.count(sum(one.job.record.gpus for one in jobs), "GPU")


def _format_groups(jobs: Sequence[ExplainedJob], now: float, everything: bool) -> Iterator[str]:
    groups = group_alike(jobs, lambda one: (one.job.record.user, one.job.record.partition, one.words))
    shown = groups if everything else groups[:_GROUPS]
    columns = terminal.columns()
    for group in shown:
        first = group[0].job.record
        oldest = min(one.job.record.submit_time for one in group)
        ids = fold_jobs(one.job.record.address for one in group)
        starts = min((one.job.expected_start for one in group if one.job.expected_start), default=None)
        parts = [
            f"{text_format.fit(ids, _JOBS_WIDTH)} of {first.user}, {first.partition}",
            _count_gpus(group),
            f"for {text_format.span(now - oldest)}",
        ]
        if starts and starts > now and group[0].problem in (QueueProblem.TURN, QueueProblem.LATER):
            parts.append(f"the next expected {text_format.clock(starts, now, terminal.get_local_zone())}")
        yield text_format.wrapped(", ".join(parts), indent="  ", hanging="    ", columns=columns)
        yield text_format.wrapped(group[0].words, indent="    ", hanging="    ", columns=columns)
        if group[0].way_out:
            yield text_format.wrapped(f"-> {group[0].way_out}", indent="    ", hanging="       ", columns=columns)
    if len(groups) > len(shown):
        left = sum(len(group) for group in groups[len(shown) :])
        yield f"  and {text_format.count(left, 'job')} more (--all shows them)"
