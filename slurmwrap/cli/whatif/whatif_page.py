"""Turns a Study into one HTML page that needs nothing else, by templates/whatif/page.html.j2. Names are untrusted."""

from __future__ import annotations

import re
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING

from slurmwrap.cli.whatif import whatif_sentences as said
from slurmwrap.report import text_format
from slurmwrap.resources import shipped
from slurmwrap.sim.whatif import whatif_charts
from slurmwrap.sim.whatif.whatif_study import Study

if TYPE_CHECKING:
    from jinja2 import Environment

_UNIT = re.compile(r"(?<=\d) (?=(?:%|s|min|h|d|GPU-hours)\b|%)")
TOP_USERS, TOP_CAUSES = 15, 12


def render(study: Study, *, source: str, made_by: str, zone: tzinfo | None = UTC) -> str:
    """The page. `source`: name of the dump; `made_by`: our version. Times of a dump without zones are the site's own,
    and UTC shows them as they were."""
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            study=study,
            source=source,
            made_by=made_by,
            zone=zone,
            span=said.span(study.window.since, study.window.until, zone),
            headline=said.headline(study),
            believe=said.believe(study),
            lost_words=said.lost_words(study),
            cluster=said.cluster_words(study),
            arm_names=said.ARMS,
            states=said.STATES,
            users=study.waste.users[:TOP_USERS],
            delay_charts=whatif_charts.delay_charts(study),
            jct_chart=whatif_charts.jct_chart(study),
            busy_chart=whatif_charts.busy_chart(study, zone),
            savings=whatif_charts.saving_ranges(study.failures),
            pre_run=said.pre_run_words(study.failures),
            causes=said.causes(study.failures)[:TOP_CAUSES],
            locality=whatif_charts.locality_bars(study),
        )
    )


def tied(text: str) -> str:
    """A number keeps its unit on its line."""
    return _UNIT.sub("\N{NO-BREAK SPACE}", text)


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(shipped("templates") / "whatif"),
        undefined=StrictUndefined,
        autoescape=True,  # whatever the file is called: users and jobs choose their names
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        visible=text_format.visible, brief=said.brief, percent=text_format.percent, hours=said.round_hours,
        signed=said.signed,
        minus=said.minus, tied=tied,
    )  # fmt: skip
    environment.globals.update(count=text_format.count, moment=text_format.moment)
    return environment
