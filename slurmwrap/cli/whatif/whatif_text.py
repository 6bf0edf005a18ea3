"""What `slurmwrap whatif` says on the terminal: the headline, how far to believe it, one table. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from pathlib import Path

from slurmwrap.cli.whatif.whatif_sentences import ARMS, believe, brief, cluster_words, headline, lost_words
from slurmwrap.report.job_report.job_report_text import Paint, plain
from slurmwrap.report.text_format import count, moment, percent, table, visible, wrapped
from slurmwrap.sim.whatif.arm_measures import FEW
from slurmwrap.sim.whatif.whatif_study import Study, StudyWorld

_WIDE, _FIRST = 78, (0, 1, 3, 4, 5)  # columns of a terminal; what one that is narrower gets of the table
_COLOURS = {"close": "green", "fair": "yellow", "far": "red"}


def told(study: Study, page: Path, *, width: int = 80, paint: Paint = plain) -> str:
    """A screenful. `width`: columns that a line may have."""
    return "\n\n".join(part for part in _parts(study, page, width, paint)) + "\n"


def _parts(study: Study, page: Path, width: int, paint: Paint) -> Iterator[str]:
    since, until = moment(study.window.since, UTC), moment(study.window.until, UTC)
    head = f"{count(study.jobs, 'job')} of {count(study.users, 'user')}, {since} to {until}, on {cluster_words(study)}"
    yield wrapped(head, columns=width)
    yield paint(wrapped(headline(study), columns=width), "bold")
    verdict = believe(study)[0] if study.jobs >= FEW else " ".join(believe(study)[:2])
    yield paint(wrapped(verdict, columns=width), _COLOURS[study.trust.word])
    yield _table(study, width)
    yield wrapped(lost_words(study), columns=width)
    yield wrapped(f"The page: {visible(str(page))}", columns=max(width, len(str(page)) + 10))


def _table(study: Study, width: int) -> str:
    head = ("", ">delay: mean", ">median", ">p95", ">JCT: mean", ">p95", ">GPUs")
    shown = range(len(head)) if width >= _WIDE else _FIRST
    rows = ([_row(arm)[place] for place in shown] for arm in study.arms)
    return table([head[place] for place in shown], rows, columns=width)


def _row(arm: StudyWorld) -> tuple[str, ...]:
    wait, jct = arm.all.queueing, arm.all.jct
    seconds = (wait.mean, wait.median, wait.p95, jct.mean, jct.p95)
    return (ARMS[arm.name], *(brief(value) for value in seconds), percent(arm.gpu_utilisation))
