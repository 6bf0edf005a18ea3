"""`slurmwrap report`: the night report. Flags in, one NightReport read, one page out."""

from __future__ import annotations

import os
import pwd
import sys
import time
from typing import Annotated

import typer

from slurmwrap.cli import terminal
from slurmwrap.cli.record_access import place_of
from slurmwrap.config import load
from slurmwrap.errors import UsageError
from slurmwrap.fast_dataclasses import replace


def report(
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="The same as --output FILE.")] = "",
    since: Annotated[
        str, typer.Option(help="24h, 7d, or a date. With --nightly: the last night's end.", show_default="24h")
    ] = "",
    until: Annotated[
        str, typer.Option(help="The same; the end of the time. Now when left out.", show_default=False)
    ] = "",
    user: Annotated[str, typer.Option(metavar="NAME|me", help="One user's jobs alone.")] = "",
    account: Annotated[str, typer.Option(metavar="NAME", help="One account's jobs alone.")] = "",
    kind: Annotated[
        str, typer.Option("--format", metavar="text|html|md|json|csv", help="By --output's ending, else text.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    as_html: Annotated[
        bool, typer.Option("--html", help="The same as --format html; on a terminal into night-DATE.html.")
    ] = False,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE|DIR", help="With csv, DIR or FILE.zip holds every table.")
    ] = "",
    mail: Annotated[list[str] | None, typer.Option(metavar="ADDRESS", help="Send it; may be given again.")] = None,
    nightly: Annotated[
        bool, typer.Option("--nightly", help="What the timer calls: files, index, mail ([report] of config.toml).")
    ] = False,
) -> None:
    """Sum up what failed, what it cost, what was saved, what to do.

    Of your own jobs, or of the site's for root and SlurmUser.

    \b
    Examples:
      slurmwrap report
      slurmwrap report --since 7d --user me
      slurmwrap report --html
      slurmwrap report --since 2026-11-20 --output night.html
      slurmwrap report --since 30d --format csv --output tables/
      slurmwrap report --json | jq .headline
      slurmwrap report --mail admins@example.org
    """
    from slurmwrap.cli.reconcile_first import look_first
    from slurmwrap.cli.report import nightly as report_nightly
    from slurmwrap.cli.report import report_data
    from slurmwrap.cli.report import report_output as out
    from slurmwrap.report.headline import build_page

    output = _find_output_place(file, output)
    if as_html and as_json:
        raise UsageError("--html and --json are two formats", hint="give one of them")
    kind = "html" if as_html else "json" if as_json else kind
    if as_html and not output and not mail and sys.stdout.isatty():
        output = "./"
    if nightly and (output or mail or kind or user or account):
        raise UsageError("--nightly takes its places from the configuration", hint="give --since and --until alone")
    chosen = out.format_of(kind, output)
    now = time.time()
    end = terminal.since(until, now) if until else now
    config = load(os.environ)
    place = place_of(config, os.environ, os.geteuid())
    if nightly and not place.site:
        raise UsageError("--nightly is the site's: root's or SlurmUser's", hint="slurmwrap report shows your own jobs")
    if nightly and not since:
        start = report_nightly.find_night_start(config, end, terminal.local_zone())
    else:
        start = terminal.since(since or "24h", now)
    if start >= end:
        raise UsageError(f"--since {since or '24h'} is not before --until {until or 'now'}")
    asked_for = report_data.get_report_user(place, user)
    unseen = look_first(place, config)
    page = report_data.build_report_of_night(place, config, start, end, user=asked_for, account=account)
    if unseen:
        typer.echo(f"slurmwrap: {unseen}", err=True)
        page = replace(page, notes=(*page.notes, unseen))
    if not place.site and not page.user:
        page = replace(page, user=_get_user_name(place.uid))
    if nightly:
        if not since:
            page = replace(
                page, notes=(*page.notes, *report_nightly.list_left_out_hours(config, start, terminal.local_zone()))
            )
        typer.echo(report_nightly.write_night(page, config, terminal.local_zone(), now))
        return
    if output:
        for path in out.write_report(page, chosen, output, terminal.local_zone()):
            typer.echo(path)
    if mail:
        out.send_report(page, build_page(page, terminal.local_zone()), mail, config)
        typer.echo(f"sent to {', '.join(mail)}")
    if not output and not mail:
        typer.echo(out.render_report(page, chosen, terminal.local_zone(), terminal.painter()), nl=False)


def _find_output_place(file: str, output: str) -> str:
    """Where it is written. A FILE without a known ending may be a job id or a user: nothing is written then."""
    from slurmwrap.cli.report.report_output import is_named

    if not file:
        return output
    if output:
        raise UsageError(f"'{file}' and --output '{output}' are two places", hint="give one of them")
    if not is_named(file):
        hint = f"slurmwrap why {file} explains a job" if file.replace("_", "").isdecimal() else "--output takes any"
        raise UsageError(f"'{file}' is no file of a report: .html, .md, .txt, .json, .csv or .zip", hint=hint)
    return file


def _get_user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
