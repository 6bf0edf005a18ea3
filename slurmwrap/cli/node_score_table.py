"""The sum of one node as `slurmwrap nodes show` prints it: its faults, those alike on one line. Text only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from slurmwrap.cli import list_options, terminal
from slurmwrap.config import Nodes
from slurmwrap.policy.node_score import NodeScore, ScoreTerm
from slurmwrap.report import text_format
from slurmwrap.report.fold_rows import fold_jobs, group_alike

_GRADES = {"share": "perhaps"}  # other grades are shown by their names
_JOBS = 60  # characters of the jobs that one line names


def sum_lines(score: NodeScore, nodes: Nodes, verbose: bool) -> Iterator[str]:
    """What it ran, each fault with its weight, the quotient, what does not count, and what people said."""
    zone = terminal.local_zone()
    yield f"  ran      {text_format.count(score.runs, 'run')}, {score.hours:,.1f} h in {nodes.window_days:g} days"
    yield "  sum"
    yield from _format_terms([term for term in score.terms if term.weight], verbose)
    yield f"    {score.weight:6.2f}  against {score.expected:.2f} that the rest of the fleet would have shown"
    yield (
        f"    ({score.prior:.1f} + {score.weight:.2f}) / ({score.prior:.1f} + {score.expected:.2f})"
        f" = {score.ratio:.1f} times the fleet's rate"
    )
    yield f"    suspect from {nodes.suspect_ratio:g}, lemon from {nodes.lemon_ratio:g}; {score.why}"
    void = [term for term in score.terms if not term.weight]
    if void:
        yield "  does not count"
        yield from _format_terms(void, verbose)
    if score.repairs:
        yield "  marks"
    for mark in score.repairs:
        note = f": {text_format.visible(mark.note)}" if mark.note else ""
        yield f"    {text_format.moment(mark.at, zone)}  {mark.kind} by {text_format.visible(mark.who)}{note}"


def _format_terms(terms: Iterable[ScoreTerm], verbose: bool) -> Iterator[str]:
    groups = [(term,) for term in terms] if verbose else group_alike(terms, _make_fold_key)
    for group in groups:
        yield _format_line(group)


def _make_fold_key(term: ScoreTerm) -> tuple[object, ...]:
    return (term.kind, term.grade, term.weight, term.text, term.gpu, term.note, term.why_not)


def _format_line(group: Sequence[ScoreTerm]) -> str:
    """One fault, or several that are alike: their sum, how many, the newest's date and all jobs."""
    term = max(group, key=lambda one: one.at)
    total = sum(one.weight for one in group)
    weight = f"{total:+6.2f}" if term.weight else "     -"
    kind = ", ".join(dict.fromkeys((term.kind.replace("_", " "), _GRADES.get(term.grade, term.grade))))
    times = f"{len(group)} x " if len(group) > 1 else ""
    why = "; ".join(part for part in (term.note, term.why_not) if part)
    parts = [
        text_format.moment(term.at, terminal.local_zone()),
        f"{times}{kind}",
        _format_jobs(group),
        f"({text_format.visible(why)})" if why else "",
    ]
    text = f"\n            {text_format.fit(term.text, terminal.columns() - 12)}" if term.text else ""
    return f"    {weight}  {'  '.join(part for part in parts if part)}{text}"


def _format_jobs(group: Sequence[ScoreTerm]) -> str:
    ids = list(dict.fromkeys(term.job_id for term in group if term.job_id))
    if not ids:
        return ""
    users = list(dict.fromkeys(_format_user(term.uid) for term in group if term.job_id))
    of = users[0] if len(users) == 1 else f"{len(users)} users"
    named = text_format.fit(fold_jobs(map(str, ids)), _JOBS)
    return f"{'job' if len(ids) == 1 else 'jobs'} {named} of {of}"


def _format_user(uid: int) -> str:
    return list_options.user_name(uid) if uid >= 0 else "an unknown user"
