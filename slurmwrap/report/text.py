"""Turns a NightReport into a page of text, 80 columns wide, by templates/report/night.txt.j2.

Commands to paste are the only lines that may be longer: a cut command is none.
"""

from __future__ import annotations

from datetime import UTC, tzinfo
from typing import TYPE_CHECKING

from slurmwrap.cluster.hostlist import fold
from slurmwrap.report import words
from slurmwrap.report.record import NightReport
from slurmwrap.shipped import shipped

if TYPE_CHECKING:
    from jinja2 import Environment


def render(report: NightReport, zone: tzinfo | None = UTC) -> str:
    """The page; times are shown in `zone`."""
    text = (
        _environment()
        .get_template("night.txt.j2")
        .render(
            report=report,
            zone=zone,
            period=words.duration(report.until - report.since),
            zone_name=zone_name(report.until, zone),
        )
    )
    return text.rstrip() + "\n"


def zone_name(at: float, zone: tzinfo | None) -> str:
    """ "UTC", "CET"."""
    from datetime import datetime

    return datetime.fromtimestamp(at, zone).astimezone(zone).tzname() or "local time"


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=FileSystemLoader(shipped("templates") / "report"),
        undefined=StrictUndefined,
        autoescape=select_autoescape(),  # for HTML templates; a .txt is made harmless by words.visible
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        visible=words.visible, duration=words.duration, hours=words.hours, percent=words.percent, fit=words.fit
    )
    environment.globals.update(
        table=words.table, wrapped=words.wrapped, count=words.count, moment=words.moment, fold=fold
    )
    return environment
