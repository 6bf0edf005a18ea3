"""Sections about the site: resources held without use, waiting, large jobs, users and accounts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.model.run_time import (
    FROM_ACCOUNT,
    FROM_OTHER_RUNS,
    FROM_PARTITION,
    FROM_PRERUN,
    FROM_RUNS,
    FROM_SCALED_RUNS,
    FROM_USER,
)
from slurmwrap.report import text_format
from slurmwrap.report.night_report import Fairness, FairnessBin, GpuUseRow, NightReport, ShareRow
from slurmwrap.report.report_page import (
    Column,
    ColumnKind,
    ReportTable,
    Section,
    TableRow,
    format_duration,
    format_hours,
)


def list_site_sections(report: NightReport) -> tuple[Section, ...]:
    """Return the sections in the order of the page."""
    return (
        _make_gpu_use_section(report),
        _make_idle_section(report),
        _make_requests_section(report),
        _make_limits_section(report),
        _make_convergence_section(report),
        _make_queueing_section(report),
        _make_fairness_section(report),
        _make_large_jobs_section(report),
        _make_share_section("users", "Users", "user", report.users),
        _make_share_section("accounts", "Accounts", "account", report.accounts),
    )


# ---- use of the GPUs


def _make_gpu_use_section(report: NightReport) -> Section:
    held = sum(one.gpu_hours for one in report.gpu_use)
    busy = sum(one.gpu_hours * one.use for one in report.gpu_use)
    lead = ""
    if held:
        lead = f"GPUs were busy for {text_format.percent(busy / held)} of {text_format.hours(held)} measured GPU-hours."
    shares = (
        ("use", "mean", "", "mean use"),
        ("median_use", "median", "", "median use"),
        ("use_fewest_nodes", "fewest", "nodes", "fewest nodes"),
        ("use_more_nodes", "more", "nodes", "more nodes"),
        ("use_alone", "alone", "on them", "alone"),
        ("use_beside", "shared", "on them", "beside others"),
    )
    return Section(
        key="gpu_use",
        title="Use of the GPUs",
        lead=(lead,),
        charts=("gpu_use",),
        tables=(
            ReportTable(
                key="gpu_use",
                title="GPU use by size, spread and neighbours",
                lead="Share of the GPU time in which a kernel ran, of measured runs; – for fewer than 5 runs.",
                columns=(
                    Column(key="gpus", head="GPUs"),
                    Column(key="runs", head="runs", kind=ColumnKind.COUNT),
                    Column(key="gpu_hours", head="GPU-hours", kind=ColumnKind.HOURS, data=True),
                    *(
                        Column(
                            key=key,
                            head=head,
                            kind=ColumnKind.SHARE,
                            group=group,
                            alone=alone,
                            data=key == "median_use",
                        )
                        for key, head, group, alone in shares
                    ),
                ),
                rows=tuple(
                    TableRow(
                        (
                            describe_gpu_count(one),
                            one.runs,
                            one.gpu_hours,
                            *(getattr(one, key) for key, *_ in shares),
                        )
                    )
                    for one in report.gpu_use
                ),
            ),
        ),
    )


def describe_gpu_count(one: GpuUseRow) -> str:
    """Return the size of a row: "1", "2–4", "17+"."""
    if one.most_gpus is None:
        return f"{one.least_gpus}+"
    return str(one.least_gpus) if one.least_gpus == one.most_gpus else f"{one.least_gpus}–{one.most_gpus}"


# ---- resources held without use


def _make_idle_section(report: NightReport) -> Section:
    total = sum(one.gpu_hours_idle for one in report.idle)
    lead = f"{text_format.hours(total)} GPU-hours were held by runs that did not use them." if report.idle else ""
    return Section(
        key="idle",
        title="Idle GPUs",
        lead=(lead,),
        tables=(
            ReportTable(
                key="idle",
                title="GPUs held without use",
                columns=(
                    Column(key="user", head="user", kind=ColumnKind.USER),
                    Column(key="name", head="job name", kind=ColumnKind.USER),
                    Column(key="runs", head="runs", kind=ColumnKind.COUNT),
                    Column(key="gpus", head="GPUs", kind=ColumnKind.COUNT),
                    Column(key="gpu_hours_idle", head="GPU-hours idle", kind=ColumnKind.HOURS),
                    Column(key="gpu_util", head="GPU use", kind=ColumnKind.SHARE, none="not measured"),
                    Column(key="process", head="process on the GPU", narrow=False),
                    Column(key="jobs", head="jobs", kind=ColumnKind.NAMES, narrow=False),
                ),
                rows=tuple(
                    TableRow(
                        (
                            one.user,
                            one.name,
                            one.runs,
                            one.gpus,
                            one.gpu_hours_idle,
                            one.gpu_util,
                            "none ever" if one.no_process else "yes",
                            one.jobs,
                        )
                    )
                    for one in report.idle
                ),
            ),
        ),
    )


def _make_requests_section(report: NightReport) -> Section:
    return Section(
        key="requests",
        title="Over-requests",
        tables=(
            ReportTable(
                key="requests",
                title="CPUs and memory asked for and not used",
                lead="Per node, of runs that were measured: CPUs used are the mean, memory is the peak.",
                columns=(
                    Column(key="user", head="user", kind=ColumnKind.USER),
                    Column(key="name", head="job name", kind=ColumnKind.USER),
                    Column(key="runs", head="runs", kind=ColumnKind.COUNT, narrow=False),
                    Column(key="cpus_asked", head="asked", kind=ColumnKind.NUMBER, group="CPUs", alone="CPUs asked"),
                    Column(key="cpus_used", head="used", kind=ColumnKind.NUMBER, group="CPUs", alone="CPUs used"),
                    Column(key="mem_gib_asked", head="asked", kind=ColumnKind.NUMBER, group="GiB", alone="GiB asked"),
                    Column(key="mem_gib_peak", head="peak", kind=ColumnKind.NUMBER, group="GiB", alone="GiB peak"),
                    Column(
                        key="cpu_hours_unused",
                        head="CPU-hours",
                        kind=ColumnKind.HOURS,
                        group="not used",
                        alone="CPU-h unused",
                    ),
                    Column(
                        key="gib_hours_unused",
                        head="GiB-hours",
                        kind=ColumnKind.HOURS,
                        narrow=False,
                        group="not used",
                        alone="GiB-h unused",
                    ),
                ),
                rows=tuple(
                    TableRow(
                        (
                            one.user,
                            one.name,
                            one.runs,
                            one.cpus_asked,
                            one.cpus_used,
                            _convert_to_gib(one.mem_mib_asked),
                            _convert_to_gib(one.mem_mib_peak),
                            one.cpu_hours_unused,
                            one.gib_hours_unused,
                        )
                    )
                    for one in report.requests
                ),
            ),
        ),
    )


def _make_limits_section(report: NightReport) -> Section:
    used = report.limits
    lead = ""
    if used.used_share is not None:
        lead = (
            f"Half of the completed runs used {text_format.percent(used.used_share)} of their time limit or less. What "
            f"was asked for beyond the need adds up to {format_hours(used.gpu_hours_unused)} GPU-hours. No job held "
            "them, but Slurm's backfill planned with them."
        )
    columns = (
        Column(key="runs", head="runs", kind=ColumnKind.COUNT),
        Column(key="used", head="limit used", kind=ColumnKind.SHARE),
        Column(key="gpu_hours_unused", head="GPU-h beyond", kind=ColumnKind.HOURS),
    )
    return Section(
        key="limits",
        title="Run times and time limits",
        lead=(lead,),
        tables=(
            ReportTable(
                key="time_limits",
                title="Time limits beyond the need",
                lead=(
                    "Of completed runs. fits: 1.5 times what nine of ten runs needed, at least the longest run; from "
                    "five runs on."
                ),
                columns=(
                    Column(key="user", head="user", kind=ColumnKind.USER),
                    Column(key="account", head="account", kind=ColumnKind.USER, narrow=False),
                    Column(key="name", head="job name", kind=ColumnKind.USER),
                    *columns,
                    Column(key="limit_s", head="asked", kind=ColumnKind.TIME),
                    Column(key="median_run_s", head="median", kind=ColumnKind.TIME, group="ran", alone="ran"),
                    Column(
                        key="longest_run_s",
                        head="longest",
                        kind=ColumnKind.TIME,
                        group="ran",
                        alone="longest",
                        narrow=False,
                    ),
                    Column(key="fits_s", head="fits", kind=ColumnKind.TIME),
                ),
                rows=tuple(
                    TableRow(
                        (
                            one.user,
                            one.account,
                            one.name,
                            one.runs,
                            one.used_share,
                            one.gpu_hours_unused,
                            one.limit_s,
                            one.median_run_s,
                            one.longest_run_s,
                            one.fits_s,
                        )
                    )
                    for one in used.jobs
                ),
            ),
            ReportTable(
                key="time_limits_accounts",
                title="Time limits, by account",
                columns=(Column(key="account", head="account", kind=ColumnKind.USER), *columns),
                rows=tuple(
                    TableRow((one.account, one.runs, one.used_share, one.gpu_hours_unused)) for one in used.accounts
                ),
            ),
            _make_predictions_table(report),
        ),
    )


def _make_convergence_section(report: NightReport) -> Section:
    found = report.convergence
    lead = ""
    if found.after_share is not None:
        lead = (
            f"{text_format.count(found.runs, 'training')} held {format_hours(found.gpu_hours_after)} GPU-hours "
            f"({text_format.percent(found.after_share)} of theirs) after their loss had come within 0.1 % of its "
            "lowest value, as far as the output shows. slurmwrap convergence JOBID draws one."
        )
    return Section(
        key="convergence",
        title="Trainings after their lowest loss",
        lead=(lead,),
        tables=(
            ReportTable(
                key="convergence",
                title="Trainings after their lowest loss",
                lead="Of runs that passed or were cancelled; the shares are medians (docs/convergence.md).",
                columns=(
                    Column(key="user", head="user", kind=ColumnKind.USER),
                    Column(key="name", head="job name", kind=ColumnKind.USER),
                    Column(key="runs", head="runs", kind=ColumnKind.COUNT),
                    Column(key="time_share", head="near lowest after", kind=ColumnKind.SHARE),
                    Column(
                        key="epoch_share",
                        head="lowest after, of epochs",
                        kind=ColumnKind.SHARE,
                        none="not known",
                        narrow=False,
                    ),
                    Column(key="gpu_hours", head="GPU-hours", kind=ColumnKind.HOURS, narrow=False),
                    Column(key="gpu_hours_after", head="GPU-h after", kind=ColumnKind.HOURS),
                ),
                rows=tuple(
                    TableRow(
                        (
                            one.user,
                            one.name,
                            one.runs,
                            one.time_share,
                            one.epoch_share,
                            one.gpu_hours,
                            one.gpu_hours_after,
                        )
                    )
                    for one in found.jobs
                ),
                limit=12,
            ),
        ),
    )


_SOURCES = {
    FROM_RUNS: "runs of the job",
    FROM_SCALED_RUNS: "runs of the job, scaled",
    FROM_PRERUN: "its pre-run",
    FROM_OTHER_RUNS: "runs of the program",
    FROM_USER: "the user's jobs",
    FROM_ACCOUNT: "the account's jobs",
    FROM_PARTITION: "the partition's jobs",
}


def _make_predictions_table(report: NightReport) -> ReportTable:
    return ReportTable(
        key="run_time_predictions",
        title="Run times predicted at submission",
        lead="Of completed runs of gsub's jobs. Nine of ten should end within the bound.",
        columns=(
            Column(key="source", head="by"),
            Column(key="runs", head="runs", kind=ColumnKind.COUNT),
            Column(key="within_factor_2", head="within a factor of 2", kind=ColumnKind.SHARE),
            Column(key="within_p90", head="within the bound", kind=ColumnKind.SHARE),
            Column(key="median_ratio", head="ran / predicted", kind=ColumnKind.NUMBER),
        ),
        rows=tuple(
            TableRow(
                (_SOURCES.get(one.source, "other"), one.runs, one.within_factor_2, one.within_p90, one.median_ratio)
            )
            for one in report.predictions
        ),
    )


def _convert_to_gib(mib: float | None) -> float | None:
    return None if mib is None else mib / 1024


# ---- waiting and locality


def _make_queueing_section(report: NightReport) -> Section:
    return Section(
        key="queueing",
        title="Waiting and locality",
        lead=(_describe_wait(report), _describe_passed(report)),
        tables=(_make_waits_table(report), _make_longest_waits_table(report), _make_locality_table(report)),
    )


# ---- fairness


def _make_fairness_section(report: NightReport) -> Section:
    """Return the users whose jobs took longest compared with an equal part; nothing if one user had all jobs."""
    found = report.fairness
    shown = found.users > 1
    return Section(
        key="fairness",
        title="Fairness between users",
        lead=(_describe_fairness(found),) if shown else (),
        tables=(
            ReportTable(
                key="fairness",
                title="Users with the highest rho",
                columns=(
                    Column(key="user", head="user", kind=ColumnKind.USER),
                    Column(key="jobs", head="jobs", kind=ColumnKind.COUNT),
                    Column(key="incomplete", head="not completed", kind=ColumnKind.COUNT, narrow=False),
                    Column(key="rho", head="rho", kind=ColumnKind.NUMBER),
                    Column(key="median_rho", head="median", kind=ColumnKind.NUMBER, group="of jobs", alone="median"),
                    Column(key="worst_rho", head="worst", kind=ColumnKind.NUMBER, group="of jobs", alone="worst"),
                    Column(key="above_share", head="above 1", kind=ColumnKind.SHARE, group="of jobs", alone="above 1"),
                    Column(key="held_share", head="held of its part", kind=ColumnKind.SHARE, alone="held of part"),
                    Column(key="worst_job", head="worst job", kind=ColumnKind.USER),
                ),
                rows=tuple(
                    TableRow(
                        (
                            one.user,
                            one.jobs,
                            one.incomplete,
                            one.rho,
                            one.median_rho,
                            one.worst_rho,
                            one.above_share,
                            one.held_share,
                            one.worst_job,
                        )
                    )
                    for one in found.worst
                )
                if shown
                else (),
            ),
            ReportTable(
                key="fairness_users",
                title="All users by rho",
                columns=(
                    Column(key="rho", head="rho"),
                    Column(key="users", head="users", kind=ColumnKind.COUNT),
                    Column(key="jobs", head="jobs with it", kind=ColumnKind.COUNT),
                ),
                rows=tuple(TableRow((_describe_bin(one), one.users, one.jobs)) for one in found.bins)
                if found.users > len(found.worst)
                else (),
            ),
        ),
    )


def _describe_fairness(found: Fairness) -> str:
    counted = (
        f"{text_format.count(found.jobs, 'job')} of {text_format.count(found.users, 'user')} that ended "
        f"({found.incomplete:,} failed or were cancelled): {text_format.percent(found.above_share or 0.0)} took over "
        "5 % longer than on an equal part of the cluster for each user (rho above 1)"
    )
    left = f"; {text_format.count(found.unfinished, 'job')} still there: no rho yet" if found.unfinished else ""
    known = "" if found.gpus_known else f" Slurm did not answer: {found.gpus:,} GPUs, the most in use at once."
    return f"{counted}{left}.{known}"


def _describe_bin(one: FairnessBin) -> str:
    if one.up_to is None:
        return f"above {one.above:g}"
    return f"{one.above:g} to {one.up_to:g}" if one.above else f"up to {one.up_to:g}"


def _describe_wait(report: NightReport) -> str:
    wait = report.queueing
    if not wait.runs:
        return ""
    blind = f"; for {format_duration(wait.unknown_s)} of it the cause was not observed" if wait.unknown_s >= 60 else ""
    together = f"{text_format.hours(wait.gpu_hours)} GPU-hours together{blind}"
    return f"{text_format.count(wait.runs, 'run').capitalize()} of gsub's jobs waited, {together}."


def _describe_passed(report: NightReport) -> str:
    """Say how often jobs not submitted with gsub were passed; "" if none was."""
    wait = report.queueing
    if not wait.passed:
        return ""
    jobs, times = text_format.count(wait.passing, "job"), text_format.count(wait.passed, "time")
    return f"By the queue's order {jobs} of gsub passed waiting jobs of others, {times} in all, each within order.band."


def _make_waits_table(report: NightReport) -> ReportTable:
    wait = report.queueing
    rows = (
        TableRow(("fair share", wait.fair_share_mean_s, wait.fair_share_p95_s)),
        TableRow(("fragmentation", wait.fragmentation_mean_s, wait.fragmentation_p95_s)),
    )
    return ReportTable(
        key="waits",
        title="What jobs waited for",
        columns=(
            Column(key="cause", head="waited for"),
            Column(key="mean_s", head="mean", kind=ColumnKind.TIME),
            Column(key="p95_s", head="p95", kind=ColumnKind.TIME),
        ),
        rows=rows if wait.runs else (),
    )


def _make_longest_waits_table(report: NightReport) -> ReportTable:
    return ReportTable(
        key="longest_waits",
        title="Waited longest",
        columns=(
            Column(key="job", head="job", kind=ColumnKind.USER),
            Column(key="user", head="user", kind=ColumnKind.USER),
            Column(key="gpus", head="GPUs", kind=ColumnKind.COUNT),
            Column(key="total_s", head="waited", kind=ColumnKind.TIME),
            Column(key="fair_share_s", head="fair share", kind=ColumnKind.TIME),
            Column(key="fragmentation_s", head="fragmentation", kind=ColumnKind.TIME),
            Column(key="now", head="now"),
        ),
        rows=tuple(
            TableRow(
                (
                    one.address,
                    one.user,
                    one.gpus,
                    one.total_s,
                    one.fair_share_s,
                    one.fragmentation_s,
                    "waits" if one.waits else "started",
                )
            )
            for one in report.queueing.longest
        ),
        limit=8,
    )


def _make_locality_table(report: NightReport) -> ReportTable:
    return ReportTable(
        key="locality",
        title="Locality of runs on several nodes",
        columns=(
            Column(key="where", head="where they ran"),
            Column(key="runs", head="runs", kind=ColumnKind.COUNT),
            Column(key="failed", head="failed", kind=ColumnKind.COUNT),
            Column(key="share_failed", head="share", kind=ColumnKind.SHARE),
            Column(key="gpu_hours", head="GPU-hours", kind=ColumnKind.HOURS),
        ),
        rows=tuple(
            TableRow((one.where, one.runs, one.failed, one.failed / one.runs if one.runs else None, one.gpu_hours))
            for one in report.locality
        ),
    )


def _make_large_jobs_section(report: NightReport) -> Section:
    return Section(
        key="large",
        title="Large jobs",
        tables=(
            ReportTable(
                key="large_jobs",
                title="ETTR of large jobs",
                lead="Productive time over the time since the job could run.",
                columns=(
                    Column(key="job", head="job", kind=ColumnKind.USER),
                    Column(key="user", head="user", kind=ColumnKind.USER),
                    Column(key="name", head="job name", kind=ColumnKind.USER),
                    Column(key="gpus", head="GPUs", kind=ColumnKind.COUNT),
                    Column(key="runs", head="runs", kind=ColumnKind.COUNT),
                    Column(key="gpu_hours", head="GPU-hours", kind=ColumnKind.HOURS),
                    Column(key="ettr", head="ETTR", kind=ColumnKind.SHARE),
                    Column(key="by", head="measured by"),
                ),
                rows=tuple(
                    TableRow(
                        (
                            one.address,
                            one.user,
                            one.name,
                            one.gpus,
                            one.runs,
                            one.gpu_hours,
                            one.ettr,
                            "steps" if one.counted else "whole runs",
                        )
                    )
                    for one in report.large
                ),
            ),
        ),
    )


# ---- users and accounts


def _make_share_section(key: str, title: str, noun: str, rows: Sequence[ShareRow]) -> Section:
    return Section(
        key=key,
        title=title,
        tables=(
            ReportTable(
                key=key,
                title=title,
                columns=(
                    Column(key=noun, head=noun, kind=ColumnKind.USER),
                    Column(key="jobs", head="jobs", kind=ColumnKind.COUNT),
                    Column(key="runs", head="runs", kind=ColumnKind.COUNT, narrow=False),
                    Column(key="gpu_hours", head="GPU-hours", kind=ColumnKind.HOURS),
                    Column(key="failed", head="runs", kind=ColumnKind.COUNT, group="failed", alone="failed runs"),
                    Column(
                        key="failed_gpu_hours",
                        head="GPU-hours",
                        kind=ColumnKind.HOURS,
                        group="failed",
                        alone="failed GPU-h",
                    ),
                    Column(
                        key="failed_share",
                        head="share",
                        kind=ColumnKind.SHARE,
                        narrow=False,
                        group="failed",
                        alone="failed share",
                    ),
                    Column(key="cancelled", head="cancelled", kind=ColumnKind.COUNT, narrow=False),
                    Column(key="preruns", head="pre-runs", kind=ColumnKind.COUNT, narrow=False),
                    Column(key="stopped_jobs", head="stopped", kind=ColumnKind.COUNT, narrow=False),
                    Column(key="top_category", head="mostly", kind=ColumnKind.CATEGORY),
                ),
                rows=tuple(_make_share_row(one) for one in rows),
            ),
        ),
    )


def _make_share_row(one: ShareRow) -> TableRow:
    return TableRow(
        (
            one.name,
            one.jobs,
            one.attempts,
            one.gpu_hours,
            one.failed_attempts,
            one.failed_gpu_hours,
            one.failed_gpu_hours / one.gpu_hours if one.gpu_hours else None,
            one.cancelled_attempts,
            one.preruns,
            one.stopped_jobs,
            one.top_category or None,
        )
    )
