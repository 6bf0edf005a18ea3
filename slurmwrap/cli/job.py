"""`slurmwrap job`: what one job used of what it asked for, and what to ask for next time (as seff and jobstats do)."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from slurmwrap import __version__
from slurmwrap.cli import list_options, terminal
from slurmwrap.cli.reconcile_user_jobs import reconcile_own_jobs_first
from slurmwrap.cli.record_access import find_record_source, read_gpu_use
from slurmwrap.cli.slurm_lookup import (
    find_local_cluster,
    find_records_of_cluster,
    find_unrecorded_runs,
    resolve_cluster,
)
from slurmwrap.cli.why import build_job_timeline, check_job_id, print_notes, print_record_notes
from slurmwrap.config.load_config import Config, load
from slurmwrap.errors import SlurmError, UsageError
from slurmwrap.fast_dataclasses import asdict, replace
from slurmwrap.json_output import format_json_document
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.running_job import GpuUse
from slurmwrap.model.step_usage import StepUsage
from slurmwrap.report.job_report.efficiency_text import format_job_efficiency
from slurmwrap.report.job_report.job_efficiency import JobEfficiency, RunEfficiency, advise_request, measure_run
from slurmwrap.report.job_report.timeline import JobTimeline, list_tasks
from slurmwrap.report.text_format import TextStyle
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.sacct import Sacct
from slurmwrap.store.atomic_write import write_output_file
from slurmwrap.store.serialize import to_json_dict

# Timeout of the questions to Slurm, in seconds; the page does not depend on the answers.
_SLURM_S = 5.0


def job_command(
    job: Annotated[str, typer.Argument(metavar="JOBID", help="81, 77_2 for an array task, 77 for the whole array.")],
    html: Annotated[str, typer.Option("--html", metavar="FILE", help="Write a page with charts.")] = "",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", "--all", help="Every task, and every GPU.")] = False,
    as_json: list_options.AsJson = False,
    given_cluster: list_options.Cluster = "",
) -> None:
    """Show what a job used of what it asked for: time, CPUs, memory, GPUs over time, energy; and what to ask for next.

    It shows the last run of a job that ended or still runs; of an array, the least, median and most of its tasks. The
    figures are those of the samplers on the nodes, else those of Slurm's accounting (sacct; sstat while it runs). Exit
    code 0: the job is shown; 1: nothing is known of it.

    \b
    Examples:
      slurmwrap job 81
      slurmwrap job 77 -v                   each task of an array by itself
      slurmwrap job 81 --html job81.html
      slurmwrap job 77_2 --json | jq '.runs[0].cpu_share'
    """
    config, address = load(os.environ), check_job_id(job)
    source = find_record_source(config, os.environ, os.geteuid())
    unseen = reconcile_own_jobs_first(source, config)
    print_notes((unseen,) if unseen else ())
    cluster = resolve_cluster(given_cluster, source, config)
    records = find_records_of_cluster(source, address, config, cluster)
    print_record_notes(records)
    timeline = build_job_timeline(address, records, config, source, cluster)
    runs = _select_runs(timeline)
    if not runs:
        # Of a job that runs, its owner has only the submission where a site's reconciler works.
        whose = None if source.site or source.uid == 0 else source.uid
        runs = _select_runs(
            replace(timeline, attempts=find_unrecorded_runs(address, config, os.environ, whose, cluster))
        )
    if not runs:
        raise UsageError(
            f"job {timeline.address} has not started: it used nothing yet",
            hint=f"slurmwrap watch {timeline.address}",
            exit_code=1,
        )
    uses = read_gpu_use(source, [run for run in runs if run.gpus])
    here = cluster in ("", find_local_cluster(config))
    steps = _read_steps(timeline.address, runs, config) if here else {}
    now = time.time()
    measured = tuple(measure_run(run, uses.get(run.attempt, ()), steps.get(run.attempt.job_id), now) for run in runs)
    submissions = {(one.cluster, one.job_id): one for one in (timeline.submission,) if one is not None}
    found = JobEfficiency(address=timeline.address, runs=measured, advice=advise_request(measured, submissions))
    if html:
        _write_page(Path(html), found, uses)
    if as_json:
        typer.echo(format_json_document("job_efficiency", _to_json(found, uses)))
    elif not html:
        style = TextStyle(
            zone=terminal.get_local_zone(), paint=terminal.choose_painter(), columns=terminal.columns(), verbose=verbose
        )
        typer.echo(format_job_efficiency(found, uses, style, unicode=terminal.can_print_blocks()), nl=False)


def _select_runs(timeline: JobTimeline) -> tuple[JobRun, ...]:
    """Return the last run of a job that started, or the last run of each task of an array."""
    tasks = [run for run in list_tasks(timeline) if run.start_time is not None]
    if tasks:
        return tuple(tasks)
    return tuple([run for run in timeline.attempts if run.start_time is not None][-1:])


def _read_steps(address: str, runs: Sequence[JobRun], config: Config) -> Mapping[int, StepUsage]:
    """Return what Slurm's own accounting says, by raw job id; {} where it counts nothing or does not answer.

    sacct shows the last run of a job, which is the one that is shown here.
    """
    timeout_s = min(_SLURM_S, config.slurm_timeout_s)
    sacct = Sacct(os.environ, timeout_s=timeout_s)
    found: dict[int, StepUsage] = {}
    with suppress(SlurmError):
        if Sacct.is_there(SlurmCommands(os.environ, timeout_s=timeout_s).config()):
            found.update(sacct.steps(address))
    for run in runs:
        if not run.state:
            with suppress(SlurmError):
                found.update(sacct.running_steps(str(run.attempt.job_id)))
    return found


def _to_json(found: JobEfficiency, uses: Mapping[RunKey, Sequence[GpuUse]]) -> dict[str, object]:
    return {
        "address": found.address,
        "runs": [_run_to_json(one, uses.get(one.run.attempt, ())) for one in found.runs],
        "advice": [asdict(one) for one in found.advice],
    }


def _run_to_json(one: RunEfficiency, uses: Sequence[GpuUse]) -> dict[str, object]:
    plain: dict[str, object] = to_json_dict(one)
    return {
        **plain,
        "time_share": one.time_share,
        "mem_share": one.mem_share,
        "gpu_use": [to_json_dict(use) for use in uses],
    }


def _write_page(path: Path, found: JobEfficiency, uses: Mapping[RunKey, Sequence[GpuUse]]) -> None:
    from slurmwrap.report.job_report.efficiency_page import render_job_page

    page = render_job_page(found, uses, terminal.get_local_zone(), made_by=f"slurmwrap {__version__}")
    try:
        write_output_file(path, page)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}", exit_code=1) from error
