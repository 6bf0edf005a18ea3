"""Turns a Study into one HTML page that needs nothing else, by templates/whatif/page.html.j2. Names are untrusted."""

from __future__ import annotations

import re
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING

from slurmwrap.cli.whatif.whatif_charts import list_charts
from slurmwrap.cli.whatif.whatif_output import (
    ARMS,
    STATES,
    believe,
    brief,
    causes,
    cluster_words,
    headline,
    lost_words,
    minus,
    pre_run_words,
    round_hours,
    signed,
    span,
)
from slurmwrap.report import text_format
from slurmwrap.report.svg_charts import NO_MATPLOTLIB, draw_charts
from slurmwrap.resources import make_template_environment
from slurmwrap.sim.whatif.whatif_study import Study

if TYPE_CHECKING:
    from jinja2 import Environment

_UNIT = re.compile(r"(?<=\d) (?=(?:%|s|min|h|d|GPU-hours)\b|%)")
TOP_USERS, TOP_CAUSES = 15, 12


def render(study: Study, *, source: str, made_by: str, zone: tzinfo | None = UTC) -> str:
    """The page. `source`: name of the dump; `made_by`: our version. Times of a dump without zones are the site's own,
    and UTC shows them as they were."""
    charts = list_charts(study, zone)
    plots = draw_charts(charts)
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            study=study,
            source=source,
            made_by=made_by,
            zone=zone,
            span=span(study.window.since, study.window.until, zone),
            headline=headline(study),
            believe=believe(study),
            lost_words=lost_words(study),
            cluster=cluster_words(study),
            arm_names=ARMS,
            states=STATES,
            users=study.waste.users[:TOP_USERS],
            charts=charts,
            plots=plots or {},
            no_plots="" if plots is not None else NO_MATPLOTLIB,
            pre_run=pre_run_words(study.failures),
            causes=causes(study.failures)[:TOP_CAUSES],
        )
    )


def tied(text: str) -> str:
    """A number keeps its unit on its line."""
    return _UNIT.sub("\N{NO-BREAK SPACE}", text)


def _environment() -> Environment:
    # Users and jobs choose their names.
    environment = make_template_environment("whatif", autoescape=True, keep_trailing_newline=False)
    environment.filters.update(
        visible=text_format.visible, brief=brief, percent=text_format.percent, hours=round_hours,
        signed=signed,
        minus=minus, tied=tied,
    )  # fmt: skip
    environment.globals.update(count=text_format.count, moment=text_format.moment)
    return environment
