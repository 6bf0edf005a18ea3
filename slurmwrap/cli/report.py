"""`slurmwrap report`: the night report for the terminal, as files and by mail.

The site's database is read where it lies. What a user may know (their own database, their spool, what the site sealed
for them) is put into a database in memory and read by the same queries.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date, datetime, timedelta, tzinfo
from html.parser import HTMLParser
from pathlib import Path
from typing import Annotated

import typer

from slurmwrap import __version__
from slurmwrap.cli import terminal
from slurmwrap.cli.list_options import nothing_is_garbage
from slurmwrap.cli.record_access import JobRecords, RecordSource, of_period, place_of
from slurmwrap.config.load_config import Config, load
from slurmwrap.errors import RefusedError, SlurmError, StoreError, UsageError
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.report.build_report import build
from slurmwrap.report.headline import build_page
from slurmwrap.report.job_report.job_report_text import Paint, plain
from slurmwrap.report.night_report import NightReport
from slurmwrap.report.report_page import Page
from slurmwrap.report.user_report import own_report
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.store import record_rows
from slurmwrap.store.atomic_write import write_output_file
from slurmwrap.store.database import Database
from slurmwrap.store.report_figures import DETAIL_S, open_in_memory, read
from slurmwrap.store.report_reader import Period, ReportReader


def build_report_of_night(
    source: RecordSource, config: Config, since: float, until: float, *, user: str = "", account: str = ""
) -> NightReport:
    """The report of what ended within [since, until), Unix seconds; of `user` or `account` alone where one is named.

    Who is neither root nor SlurmUser gets their own whatever is asked. StoreError.
    """
    period = Period(since=since, until=until, user=user, account=account)
    with nothing_is_garbage(), _open_database(source, period) as (database, reader, known):
        notes = known.notes if known else ()
        figures = read(
            database, reader, config, site=source.site, switch_of=lambda: _read_switches(config), notes=notes
        )
        report = build(figures, config.nodes)
    if known is None:
        return report
    return own_report(report, known.attempts, known.submissions, known.preruns)


def get_report_user(source: RecordSource, user: str) -> str:
    """The user whose report is meant: "me" is who asks. RefusedError where someone asks for another one's."""
    try:
        own = pwd.getpwuid(source.uid).pw_name
    except KeyError:
        own = ""
    if user == "me" and not own:
        raise UsageError(f"--user me: uid {source.uid} has no name")
    if user not in ("", "me", own) and not source.site:
        raise RefusedError(f"--user {user}: only root and SlurmUser see the jobs of others", hint="--user me")
    return own if user == "me" else user


@contextmanager
def _open_database(source: RecordSource, period: Period) -> Iterator[tuple[Database, ReportReader, JobRecords | None]]:
    """`Known`: what a user may know; None of the site's database."""
    if source.site:
        with Database.open(source.database, readonly=True) as database, ReportReader(source.database, period) as reader:
            yield database, reader, None
        return
    length = max(2 * (period.until - period.since), DETAIL_S)
    known = of_period(source, period.until - length)
    with of_records(known) as database, ReportReader(database.path, period, database.connection) as reader:
        yield database, reader, known


def of_records(records: JobRecords) -> Database:
    """A database in memory of what someone may know."""
    return open_in_memory(
        (record_rows.ATTEMPTS, records.attempts),
        (record_rows.PRERUNS, records.preruns),
        (record_rows.SUBMISSIONS, records.submissions),
        (record_rows.ACTIONS, records.actions),
        (record_rows.STRIKES, records.strikes),
        (record_rows.BLOCKED_INPUTS, records.blocked),
        (record_rows.INCIDENTS, records.incidents),
        (record_rows.DELAYS, records.delays),
    )


def _read_switches(config: Config) -> Mapping[str, str]:
    """Node -> the closest domain of the network it is in, by what Slurm knows now; {} where it does not answer."""
    try:
        topology = SlurmCommands(os.environ, timeout_s=config.slurm_timeout_s).snapshot().topology
    except SlurmError:
        return {}
    return {node: domain.name for domain in topology.domains if domain.level == 0 for node in domain.nodes}


# Where a report goes: a terminal, files, mail. Formats are chosen here, made in slurmwrap/report/.
FORMATS = ("text", "html", "md", "json", "csv")
_OF_ENDING = {
    ".txt": "text",
    ".html": "html",
    ".htm": "html",
    ".md": "md",
    ".json": "json",
    ".csv": "csv",
    ".zip": "csv",
}
ENDINGS = {"text": ".txt", "html": ".html", "md": ".md", "json": ".json", "csv": ".csv"}
MADE_BY = f"slurmwrap {__version__}"


def format_of(asked: str, output: str) -> str:
    """The format that was asked for, else the one that the file's ending names, else text. UsageError."""
    named = _OF_ENDING.get(Path(output).suffix.lower(), "") if output and not _is_directory(output) else ""
    chosen = asked or named or "text"
    if chosen not in FORMATS:
        raise UsageError(f"--format '{chosen}': one of {', '.join(FORMATS)} is wanted")
    return chosen


def is_named(file: str) -> bool:
    """Whether a file's ending names a format, or it is a directory."""
    return Path(file).suffix.lower() in _OF_ENDING or _is_directory(file)


def render_report(report: NightReport, kind: str, zone: tzinfo | None, paint: Paint = plain) -> str:
    """The report in one of FORMATS; of CSV the main table."""
    if kind == "json":
        from slurmwrap.report import report_formats

        return report_formats.render_json(report, made_by=MADE_BY)
    page = build_page(report, zone)
    if kind == "html":
        return whole_page(report, page)
    if kind == "md":
        from slurmwrap.report import report_formats

        return report_formats.render_markdown(page)
    if kind == "csv":
        from slurmwrap.report import report_formats

        return report_formats.render_main_file(page)
    from slurmwrap.report import report_formats as text

    return text.render_text(page, paint)


def whole_page(report: NightReport, page: Page) -> str:
    """The page with its drawings, where matplotlib is installed."""
    from slurmwrap.report import report_html, report_plots

    return report_html.render(page, report_plots.draw(report, page.zone), made_by=MADE_BY)


# ---- files


def write_report(report: NightReport, kind: str, output: str, zone: tzinfo | None) -> tuple[Path, ...]:
    """Writes what was asked for and names the files. A directory gets `night-DATE.html`, or one CSV per table.
    UsageError where the place cannot be written."""
    path = Path(output)
    try:
        if kind == "csv" and (_is_directory(output) or path.suffix == ".zip"):
            return _write_tables(build_page(report, zone), path)
        if _is_directory(output):
            path.mkdir(parents=True, exist_ok=True)
            path /= f"night-{build_page(report, zone).day}{ENDINGS[kind]}"
        write_output_file(path, render_report(report, kind, zone))
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or path}: {error.strerror}", exit_code=1) from error
    return (path,)


def _is_directory(output: str) -> bool:
    return output.endswith("/") or Path(output).is_dir()


def _write_tables(page: Page, path: Path) -> tuple[Path, ...]:
    """One file per table, in a directory or a ZIP."""
    from slurmwrap.report.report_formats import render_files

    found = render_files(page)
    if path.suffix == ".zip" and not path.is_dir():
        write_output_file(path, _zip_tables(found))
        return (path,)
    path.mkdir(parents=True, exist_ok=True)
    for name, text in found.items():
        write_output_file(path / name, text)
    return tuple(path / name for name in found)


def _zip_tables(found: dict[str, str]) -> bytes:
    """The same tables give the same bytes: no time of day is inside."""
    from io import BytesIO
    from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

    out = BytesIO()
    with ZipFile(out, "w", ZIP_DEFLATED) as archive:
        for name, text in found.items():
            archive.writestr(ZipInfo(name), text, ZIP_DEFLATED)
    return out.getvalue()


# ---- mail


def split_addresses(text: str) -> tuple[str, ...]:
    """ "a@example.org, b@example.org" -> both."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def send_report(report: NightReport, page: Page, to: Sequence[str], config: Config) -> None:
    """Text and HTML, the whole page attached. UsageError without a mail server, StoreError where it refuses."""
    from slurmwrap.host.mail import Attachment, Mailer
    from slurmwrap.report import report_formats as text
    from slurmwrap.report import report_html

    wrong = [one for one in to if not one.isprintable() or any(c in one for c in ' ,;<>"')]
    if wrong:
        raise UsageError(f"--mail '{wrong[0]}' is not an address")
    if not config.mail.server:
        raise UsageError("no mail server is set", hint='set server = "host:port" below [mail] in config.toml')
    Mailer(server=config.mail.server, sender=config.mail.sender).send(
        to,
        f"slurmwrap, {page.whose}: {page.verdict.sentence}",
        text.render_text(page),
        html=report_html.mail(page, made_by=MADE_BY),
        attached=(Attachment(name=f"night-{page.day}.html", subtype="html", text=whole_page(report, page)),),
    )


def make_write_error(what: str, error: OSError) -> StoreError:
    """An error of the file system, in words."""
    return StoreError(
        f"{what} {error.filename or ''}: {error.strerror}".replace(" :", ":"), hint="see report.directory"
    )


# What the systemd timer calls: the night's pages in their directory, mail, and the mark that says that all went well.
#
#     reports/2026-11-22.html .json .txt     one night; pruned after [report].keep_d days
#     reports/latest.html                    a copy of the newest
#     reports/index.html                     all of them with their verdicts
#     reports/covered                        Unix seconds: from when to when the newest night goes
#     reports/last                           Unix seconds: when the last report was made whole, mail included
#
# The mark is written last. A watchdog or `slurmwrap doctor` needs nothing but its age. The next night begins where the
# last one ended, so that a timer that is late loses no hour and counts none twice.
MARK, COVERED = "last", "covered"
NIGHT_S, LONGEST_S = 86_400.0, 2 * 86_400.0
# Names, paths and log lines of users.
FILES = 0o640
_DAY = re.compile(r"(\d{4}-\d{2}-\d{2})\.(?:html|json|txt)")
# bytes of a page that hold its verdict
_HEAD = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """One line of the index."""

    day: str
    word: str  # of the verdict
    sentence: str


def directory_of(config: Config) -> Path:
    """Where the pages are. UsageError where nothing says so."""
    if config.report.directory:
        return Path(config.report.directory)
    if config.site.state_dir:
        return Path(config.site.state_dir) / "reports"
    raise UsageError("--nightly needs a site", hint="set state_dir below [site], or directory below [report]")


def last_made(config: Config) -> float | None:
    """When the last whole report was made, Unix seconds; None: never, or no one can read it."""
    try:
        return float((directory_of(config) / MARK).read_text(encoding="ascii"))
    except (OSError, ValueError, UsageError):
        return None


def find_night_start(config: Config, end: float, zone: tzinfo | None) -> float:
    """Where the night that ends at `end` begins, Unix seconds: where the last whole one ended, 48 hours ago at most.

    Made again on the same day it begins as before, since its page takes the other's place. 24 hours where none was.
    """
    covered = _find_covered_time(config)
    if covered is None or covered[1] > end:
        return end - NIGHT_S
    again = _get_day(covered[1], zone) == _get_day(end, zone)
    return max(covered[0] if again else covered[1], end - LONGEST_S)


def list_left_out_hours(config: Config, start: float, zone: tzinfo | None) -> tuple[str, ...]:
    """A line about the hours before `start` that no night has, where there are any."""
    covered = _find_covered_time(config)
    if covered is None or covered[1] >= start:
        return ()
    begin, end = (datetime.fromtimestamp(moment, zone).strftime("%Y-%m-%dT%H:%M") for moment in (covered[1], start))
    return (f"No night has what ended before: slurmwrap report --since {begin} --until {end}",)


def _find_covered_time(config: Config) -> tuple[float, float] | None:
    try:
        start, end = map(float, (directory_of(config) / COVERED).read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return None
    return (start, end) if start < end else None


def _get_day(moment: float, zone: tzinfo | None) -> date:
    return datetime.fromtimestamp(moment, zone).date()


def write_night(report: NightReport, config: Config, zone: tzinfo | None, now: float) -> Path:
    """Writes, prunes, mails, leaves the mark; returns the page. StoreError or UsageError names what did not work."""
    from slurmwrap.report.headline import build_page

    page = build_page(report, zone)
    folder = directory_of(config)
    try:
        _make_folder(folder, config)
        for kind in ("json", "text", "html"):
            write_output_file(
                folder / f"{page.day}{ENDINGS[kind]}",
                render_report(report, kind, zone),
                FILES,
            )
        write_output_file(folder / "latest.html", max(_list_pages(folder)).read_bytes(), FILES)
        prune_nights(folder, page.day, config.report.keep_d)
        write_output_file(folder / "index.html", _render_index(folder, page.whose), FILES)
        to = split_addresses(config.report.to)
        if to:
            send_report(report, page, to, config)
        write_output_file(folder / COVERED, f"{report.since!r} {report.until!r}\n", 0o644)
        write_output_file(folder / MARK, f"{now:.0f}\n", 0o644)
    except OSError as error:
        raise make_write_error("the night report could not be written:", error) from error
    return folder / f"{page.day}.html"


def _make_folder(directory: Path, config: Config) -> None:
    """The directory, for anyone who owns the site's state: root may be the first to call."""
    if directory.is_dir():
        return
    directory.mkdir(parents=True, mode=0o750)
    if os.geteuid() == 0 and config.site.state_dir:
        with suppress(FileNotFoundError):
            owner = Path(config.site.state_dir).stat()
            os.chown(directory, owner.st_uid, owner.st_gid)


def prune_nights(directory: Path, today: str, keep_d: int) -> None:
    """Takes away the nights of more than `keep_d` days before `today`; files of other names stay."""
    oldest = str(date.fromisoformat(today) - timedelta(days=keep_d))
    for path in directory.iterdir():
        named = _DAY.fullmatch(path.name)
        if named and named[1] < oldest:
            path.unlink()


# ---- the index


def _render_index(directory: Path, whose: str) -> str:
    from slurmwrap.report.report_html import index

    return index(sorted(_list_nights(directory), key=lambda night: night.day, reverse=True), whose)


def _list_nights(directory: Path) -> Iterator[Night]:
    for path in _list_pages(directory):
        word, sentence = _read_verdict(path)
        yield Night(day=path.stem, word=word, sentence=sentence)


def _list_pages(directory: Path) -> Iterator[Path]:
    return (path for path in directory.glob("????-??-??.html") if _DAY.fullmatch(path.name))


def _read_verdict(path: Path) -> tuple[str, str]:
    """By the page's own head: four hundred pages are listed in milliseconds."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD).decode("utf-8", "replace")
    except OSError:
        return "", "cannot be read"
    reader = _Head()
    reader.feed(head)
    return reader.found.get("slurmwrap-verdict", ""), reader.found.get("description", "")


class _Head(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag == "meta" and named.get("name"):
            self.found[str(named["name"])] = str(named.get("content") or "")


# `slurmwrap report`: the night report. Flags in, one NightReport read, one page out.
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
    from slurmwrap.cli.reconcile_user_jobs import look_first
    from slurmwrap.report.headline import build_page

    output = _find_output_place(file, output)
    if as_html and as_json:
        raise UsageError("--html and --json are two formats", hint="give one of them")
    kind = "html" if as_html else "json" if as_json else kind
    if as_html and not output and not mail and sys.stdout.isatty():
        output = "./"
    if nightly and (output or mail or kind or user or account):
        raise UsageError("--nightly takes its places from the configuration", hint="give --since and --until alone")
    chosen = format_of(kind, output)
    now = time.time()
    end = terminal.since(until, now) if until else now
    config = load(os.environ)
    place = place_of(config, os.environ, os.geteuid())
    if nightly and not place.site:
        raise UsageError("--nightly is the site's: root's or SlurmUser's", hint="slurmwrap report shows your own jobs")
    if nightly and not since:
        start = find_night_start(config, end, terminal.local_zone())
    else:
        start = terminal.since(since or "24h", now)
    if start >= end:
        raise UsageError(f"--since {since or '24h'} is not before --until {until or 'now'}")
    asked_for = get_report_user(place, user)
    unseen = look_first(place, config)
    page = build_report_of_night(place, config, start, end, user=asked_for, account=account)
    if unseen:
        typer.echo(f"slurmwrap: {unseen}", err=True)
        page = replace(page, notes=(*page.notes, unseen))
    if not place.site and not page.user:
        page = replace(page, user=_get_user_name(place.uid))
    if nightly:
        if not since:
            page = replace(page, notes=(*page.notes, *list_left_out_hours(config, start, terminal.local_zone())))
        typer.echo(write_night(page, config, terminal.local_zone(), now))
        return
    if output:
        for path in write_report(page, chosen, output, terminal.local_zone()):
            typer.echo(path)
    if mail:
        send_report(page, build_page(page, terminal.local_zone()), mail, config)
        typer.echo(f"sent to {', '.join(mail)}")
    if not output and not mail:
        typer.echo(render_report(page, chosen, terminal.local_zone(), terminal.painter()), nl=False)


def _find_output_place(file: str, output: str) -> str:
    """Where it is written. A FILE without a known ending may be a job id or a user: nothing is written then."""

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
