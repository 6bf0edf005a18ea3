"""`slurmwrap convergence`: show when the loss of a job, or of each member of a sweep, stopped to improve."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from slurmwrap.cli import terminal
from slurmwrap.cli.list_options import AsJson, Cluster
from slurmwrap.cli.loss_curve_lookup import find_loss_curves
from slurmwrap.cli.record_access import RecordSource, find_record_source
from slurmwrap.cli.slurm_lookup import find_records_of_cluster, find_unrecorded_runs, resolve_cluster
from slurmwrap.cli.why import check_job_id, print_record_notes
from slurmwrap.config.load_config import Config, load
from slurmwrap.errors import SlurmwrapError
from slurmwrap.json_output import format_json_document
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.running_job import LossCurve
from slurmwrap.report.convergence_plot import draw_convergence
from slurmwrap.report.convergence_text import draw_loss, format_convergence
from slurmwrap.report.job_report.timeline import build_timeline
from slurmwrap.report.svg_charts import NO_MATPLOTLIB
from slurmwrap.report.text_format import count, hours, table, wrapped
from slurmwrap.store.atomic_write import write_output_file
from slurmwrap.store.serialize import to_json_dict

# Runs whose output is read now, because their curves are not stored.
_MOST_READ = 64
_HEAD = ("job", "~name", "state", ">near lowest", ">GPU-h after", ">lowest", "loss")


def convergence(
    jobs: Annotated[list[str], typer.Argument(metavar="JOBID...", help="81, 77 for a whole array, or 77_2.")],
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Draw the losses into this file.")] = None,
    as_json: AsJson = False,
    given_cluster: Cluster = "",
) -> None:
    """Show when the loss of a job stopped to improve, by its output (docs/convergence.md).

    Of an array, or of several jobs, each run is a line of the table and of the drawing.

    Exits with 1 if no output shows a loss.

    \b
    Examples:
      slurmwrap convergence 81
      slurmwrap convergence 77 --svg sweep.svg          all tasks of an array
      slurmwrap convergence 81 82 83 --json | jq '.runs[].time_share'
    """
    config = load(os.environ)
    source = find_record_source(config, os.environ, os.geteuid())
    cluster = resolve_cluster(given_cluster, source, config)
    found = [pair for job in dict.fromkeys(jobs) for pair in _find_runs(check_job_id(job), cluster, source, config)]
    if not found:
        raise SlurmwrapError(
            f"no loss was found in the output of job{'s' * (len(jobs) > 1)} {', '.join(jobs)}",
            hint="a run counts from one minute on; docs/convergence.md lists the formats that are read",
        )
    if svg is not None:
        _write_drawing(svg, found)
    if as_json:
        runs = [{"address": run.address, **to_json_dict(curve)} for run, curve in found]
        typer.echo(format_json_document("convergence", {"runs": runs}))
        return
    typer.echo(_format_runs(found))


def _find_runs(address: str, cluster: str, source: RecordSource, config: Config) -> list[tuple[JobRun, LossCurve]]:
    """Return the runs of a job whose loss is known, in the order of the tasks."""
    known = find_records_of_cluster(source, address, config, cluster)
    print_record_notes(known)
    timeline = build_timeline(address, known.submissions, known.preruns, known.attempts, known.actions)
    whose = None if source.site or source.uid == 0 else source.uid
    runs = timeline.attempts or find_unrecorded_runs(address, config, os.environ, whose, cluster)
    curves = {curve.attempt: curve for curve in find_loss_curves(runs, known.curves, source, _MOST_READ)}
    return [(run, curves[run.attempt]) for run in runs if run.attempt in curves]


def _format_runs(found: Sequence[tuple[JobRun, LossCurve]]) -> str:
    unicode = terminal.can_print_blocks()
    if len(found) == 1:
        run, curve = found[0]
        sentence = format_convergence(run, curve) or "too few values to say when it came near its lowest one"
        lowest = "" if curve.lowest is None else f" Lowest loss: {curve.lowest:.5g}."
        points = f"{count(len(curve.points), 'point')}, read as {curve.source or 'plain text'}."
        text = wrapped(f"Job {run.address} {run.name}".rstrip() + f": {sentence}.{lowest} {points}", indent="")
        return f"{text}\n\n  {draw_loss(curve, unicode, 60)}"
    rows = [
        [
            run.address,
            run.name,
            run.state.lower(),
            "" if curve.time_share is None else f"{round(100 * curve.time_share)} %",
            "" if curve.time_share is None else hours(run.gpu_hours * (1 - curve.time_share)),
            "" if curve.lowest is None else f"{curve.lowest:.5g}",
            draw_loss(curve, unicode, 16),
        ]
        for run, curve in sorted(found, key=lambda pair: (pair[1].lowest is None, pair[1].lowest or 0.0))
    ]
    after = sum(run.gpu_hours * (1 - curve.time_share) for run, curve in found if curve.time_share is not None)
    total = (
        f"{count(len(found), 'run')}, the lowest loss first. {hours(after)} GPU-hours came after a loss within 0.1 %."
    )
    return f"{table(_HEAD, rows, indent=0, columns=terminal.columns())}\n\n{wrapped(total, indent='')}"


def _write_drawing(path: Path, found: Sequence[tuple[JobRun, LossCurve]]) -> None:
    drawn = draw_convergence(found)
    if drawn is None:
        raise SlurmwrapError(NO_MATPLOTLIB.replace("left out", "not possible"))
    write_output_file(path, drawn)
