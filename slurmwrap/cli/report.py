"""`slurmwrap report`: the night report. Flags in, build and render called, one page out."""

from __future__ import annotations

import json
import os
import time
from typing import Annotated

import typer

from slurmwrap.cli import terminal
from slurmwrap.cli.known import of_period, place_of
from slurmwrap.cli.why import note
from slurmwrap.config import load
from slurmwrap.report.build import build
from slurmwrap.report.text import render
from slurmwrap.store.plain import to_plain


def report(
    since: Annotated[str, typer.Option(help="24h, 7d, or a date.")] = "24h",
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Sum up what failed, what it cost, what to do.

    Of your own jobs, or of the site's for root and SlurmUser.

    \b
    Examples:
      slurmwrap report
      slurmwrap report --since 7d
      slurmwrap report --since 2026-11-20 --json | jq .headline
    """
    now = time.time()
    start = terminal.since(since, now)
    known = of_period(place_of(load(os.environ), os.environ, os.geteuid()), start)
    note(known)
    page = build(
        known.attempts,
        known.preruns,
        known.submissions,
        known.actions,
        known.strikes,
        known.blocked,
        incidents=known.incidents,
        delays=known.delays,
        since=start,
        until=now,
    )
    typer.echo(json.dumps(to_plain(page), indent=2) if as_json else render(page, terminal.local_zone()), nl=as_json)
