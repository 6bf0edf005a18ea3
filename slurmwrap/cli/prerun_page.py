"""Turns pre-runs into the table of `prerun list`, the page of `prerun show`, and what programs get of both."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slurmwrap.cli import terminal
from slurmwrap.cli.prerun_rows import PrerunRow
from slurmwrap.cli.record_access import about_job, place_of
from slurmwrap.config import load
from slurmwrap.errors import SlurmwrapError
from slurmwrap.gsub.follow_prerun import describe, read_progress, read_wanted_steps, take_prerun_snapshot
from slurmwrap.gsub.verdict_output import verdict_to_json_dict
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.prerun.verdict.failed_commands import describe_failed_commands
from slurmwrap.report import text_format
from slurmwrap.report.fold_rows import group_alike, label
from slurmwrap.report.job_report.cited_lines import format_citations
from slurmwrap.report.job_report.job_report_text import Paint
from slurmwrap.report.text_style import TextStyle

_TAIL_LINES = 12


def format_preruns(
    rows: Sequence[PrerunRow], now: float, limit: int | None = None, *, columns: int = text_format.WIDTH
) -> tuple[str, int]:
    """One line per pre-run, those of one script that ended alike on one; and how many are left out."""
    if not rows:
        return "No pre-run.", 0
    head = (">job", ">pre-run", "~script", "state", ">steps", ">took", ">age", "~reason")
    groups = group_alike(rows, _make_fold_key)
    lines = [_list_cells(group, now) for group in groups[:limit]]
    note = "\n* waited for the pre-run of an earlier job" if any(row.attached for row in rows) else ""
    left = sum(map(len, groups[len(lines) :]))
    return text_format.table(head, lines, indent=0, columns=columns) + note, left


def _make_fold_key(row: PrerunRow) -> tuple[object, ...]:
    """A sweep's pre-runs: one script, one end."""
    told = (row.verdict.category, row.verdict.reason) if row.verdict else ()
    own = () if row.verdict or row.attached else (row.directory,)
    return (row.spec.script_name, row.state, told, row.attached, *own)


def _list_cells(group: Sequence[PrerunRow], now: float) -> list[str]:
    row = group[0]
    steps = [one.verdict.steps for one in group if one.verdict]
    took = [one.verdict.seconds for one in group if one.verdict]
    jobs = [str(one.real_job) for one in group if one.real_job]
    return [
        label(jobs) if jobs else "-",
        f"{row.prerun_job or '-'}{'*' * row.attached}",
        Path(row.spec.script_name).name,
        row.state,
        str(max(steps)) if steps else "",
        text_format.duration(max(took)) if took else "",
        text_format.duration(max(0.0, now - row.at)),
        row.verdict.reason if row.verdict else "",
    ]


def format_prerun(row: PrerunRow, changes: list[Mapping[str, Any]], paint: Paint, now: float) -> str:
    """Everything about one pre-run, 80 columns wide where the text is ours."""
    head = f"PRE-RUN {row.prerun_job or ''} of {text_format.visible(row.spec.script_name)}"
    if row.real_job is not None:
        head += f", for job {row.real_job} ({text_format.count(row.spec.gpus, 'GPU')})"
    style = {"pass": "green", "fail": "red"}.get(row.state, "yellow")
    lines = [
        paint(head, "bold"),
        "  " + paint(row.state, style) + f", submitted {text_format.duration(now - row.at)} ago",
    ]
    if row.attached:
        lines.append("  it waited for the pre-run of an earlier job of the same script and code")
    if row.verdict is not None:
        lines += _verdict_lines(row.verdict)
    elif row.state in ("running", "completing"):
        lines.append(
            "  "
            + describe(
                take_prerun_snapshot(
                    row.state.upper(), "", 0.0, read_progress(row.directory), read_wanted_steps(row.directory)
                )
            )
        )
    if changes:
        lines += ["", paint("WHAT IT DID", "bold")]
        lines += [text_format.wrapped(_format_change(change), indent="  ", hanging="    ") for change in changes]
    if output := output_of(row):
        lines += ["", paint("ITS OUTPUT ENDS", "bold"), *(f"  | {text_format.visible(line)}" for line in output)]
    lines += ["", f"  files  {text_format.visible(str(row.directory))}"]
    if row.verdict is None and row.prerun_job is not None and row.state not in ("lost", "unknown"):
        lines.append(f"  follow  slurmwrap prerun show {row.real_job or row.prerun_job} --follow")
    return "\n".join(lines)


def _verdict_lines(verdict: Verdict) -> list[str]:
    steps = f", {text_format.count(verdict.steps, 'step')}" if verdict.steps else ""
    category = f"{verdict.category}: " if verdict.category else ""
    lines = [
        f"  after {text_format.duration(verdict.seconds)}{steps}, decided by layer {verdict.layer}",
        text_format.wrapped(f"{category}{verdict.reason}", indent="  ", hanging="    "),
    ]
    for sentence in describe_failed_commands(verdict.failed_commands, passed=verdict.outcome is Outcome.PASS):
        lines.append(text_format.wrapped(sentence, indent="  ", hanging="    "))
    for finding in verdict.findings:
        place = f"{finding.file}:{finding.line} " if finding.line else f"{finding.file} ".lstrip()
        fix = f" ({finding.fix})" if finding.fix else ""
        text = f"{finding.severity.value}: {place}{finding.message}{fix}"
        lines.append(text_format.wrapped(text, indent="  ", hanging="    "))
    return [*lines, *format_citations(verdict.evidence, TextStyle(columns=terminal.columns()))]


def _format_change(change: Mapping[str, Any]) -> str:
    asked = f"{change.get('option')}={change.get('new')}" if change.get("option") else ""
    refused = f"; Slurm refused: {change['error']}" if change.get("error") else ""
    return f"{change.get('verb')} {change.get('target')} {asked}".rstrip() + f" ({change.get('reason')}){refused}"


def changes_of(row: PrerunRow) -> list[Mapping[str, Any]]:
    """What was asked of Slurm for the waiting job; empty where that is not known any more."""
    try:
        known = about_job(place_of(load(os.environ), os.environ, os.geteuid()), str(row.real_job or row.prerun_job))
    except SlurmwrapError:
        return []
    mine = [p for p in known.preruns if p.job_id == row.real_job and p.changes]
    return list(max(mine, key=lambda p: p.at).changes) if mine else []


def output_of(row: PrerunRow) -> list[str]:
    """The last lines of what the script printed."""
    from slurmwrap.prerun.trial.supervisor import read_tail

    if not Path(row.spec.output).is_file():
        return []
    return read_tail(row.spec.output).text.replace("\r", "\n").rstrip().splitlines()[-_TAIL_LINES:]


def plain_row(row: PrerunRow) -> dict[str, Any]:
    about = {
        "job_id": row.real_job,
        "prerun_job_id": row.prerun_job,
        "attached": row.attached,
        "state": row.state,
        "script": row.spec.script_name,
        "args": list(row.spec.args),
        "mode": row.spec.mode,
        "gpus": row.spec.gpus,
        "fingerprint": row.spec.fingerprint,
        "at": row.at,
        "directory": str(row.directory),
        "progress": read_progress(row.directory) or None,
    }
    return {**about, **(verdict_to_json_dict(row.verdict) if row.verdict else {"verdict": None})}
