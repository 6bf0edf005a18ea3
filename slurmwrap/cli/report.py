"""`slurmwrap report`: make the night report and print it, write it to files or mail it.

The site's database is queried in place. What a user may see (their own database, their spool, what the site sealed for
them) is put into a database in memory and read by the same queries.
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
from functools import cache, partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Annotated

import typer

from slurmwrap import __version__
from slurmwrap.cli import terminal
from slurmwrap.cli.list_options import Clusters, garbage_collection_paused
from slurmwrap.cli.member_runs import describe_members, split_packed_runs
from slurmwrap.cli.record_access import (
    JobRecords,
    RecordSource,
    find_record_source,
    read_period_records,
    select_cluster_records,
)
from slurmwrap.cli.slurm_lookup import resolve_clusters
from slurmwrap.config.load_config import Config, load
from slurmwrap.errors import RefusedError, SlurmError, StoreError, UsageError
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.cluster import Snapshot
from slurmwrap.report.build_report import build
from slurmwrap.report.headline import build_page
from slurmwrap.report.job_report.job_report_text import Paint, plain
from slurmwrap.report.night_report import NightReport
from slurmwrap.report.report_page import Page
from slurmwrap.report.user_report import make_own_report
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.store import record_rows
from slurmwrap.store.atomic_write import write_output_file
from slurmwrap.store.database import Database
from slurmwrap.store.report_figures import DETAIL_S, open_in_memory, read
from slurmwrap.store.report_reader import Period, ReportReader


def build_report_of_night(
    source: RecordSource,
    config: Config,
    since: float,
    until: float,
    *,
    user: str = "",
    account: str = "",
    clusters: tuple[str, ...] = (),
) -> NightReport:
    """Return the report of what ended within [since, until), Unix seconds; only of `user`, `account` and `clusters`.

    A user who is neither root nor SlurmUser gets a report of their own jobs only. Raise StoreError.
    """
    period = Period(since=since, until=until, user=user, account=account, clusters=clusters)
    with garbage_collection_paused(), _open_database(source, period) as (database, reader, known):
        own = split_packed_runs(known, source, config) if known else None
        notes = (*own.notes, *describe_members(own, since, until)) if own else ()
        snapshot = cache(partial(_read_snapshot, config))
        figures = read(
            database,
            reader,
            config,
            site=source.site,
            switch_of=lambda: _list_switches(snapshot()),
            count_gpus=lambda: _count_gpus(snapshot()),
            notes=notes,
        )
        report = build(figures, config.nodes)
    return make_own_report(report, own.attempts, own.submissions, own.preruns) if own is not None else report


def get_report_user(source: RecordSource, user: str) -> str:
    """Return the user whose report is wanted; "me" is the calling user. RefusedError if a user asks for another's."""
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
    """Yield the database, its reader, and the user's records; the records are None for the site's database."""
    if source.site:
        with Database.open(source.database, readonly=True) as database, ReportReader(source.database, period) as reader:
            yield database, reader, None
        return
    length = max(2 * (period.until - period.since), DETAIL_S)
    known = read_period_records(source, period.until - length)
    known = select_cluster_records(known, *period.clusters) if period.clusters else known
    with open_records_in_memory(known) as database, ReportReader(database.path, period, database.connection) as reader:
        yield database, reader, known


def open_records_in_memory(records: JobRecords) -> Database:
    """Return a database in memory that holds these records."""
    database = open_in_memory(
        (record_rows.ATTEMPTS, records.attempts),
        (record_rows.PRERUNS, records.preruns),
        (record_rows.SUBMISSIONS, records.submissions),
        (record_rows.ACTIONS, records.actions),
        (record_rows.STRIKES, records.strikes),
        (record_rows.BLOCKED_INPUTS, records.blocked),
        (record_rows.INCIDENTS, records.incidents),
        (record_rows.DELAYS, records.delays),
    )
    for curve in records.curves:
        database.save_loss_curve(curve)
    return database


def _read_snapshot(config: Config) -> Snapshot | None:
    """Return the cluster's present state; None if Slurm does not answer."""
    try:
        return SlurmCommands(os.environ, timeout_s=config.slurm_timeout_s).snapshot()
    except SlurmError:
        return None


def _list_switches(snapshot: Snapshot | None) -> Mapping[str, str]:
    """Return the lowest-level network domain of each node, from Slurm's present topology; {} if it is not known."""
    domains = snapshot.topology.domains if snapshot is not None else ()
    return {node: domain.name for domain in domains if domain.level == 0 for node in domain.nodes}


def _count_gpus(snapshot: Snapshot | None) -> int | None:
    return None if snapshot is None else sum(node.gpus for node in snapshot.nodes)


# Where a report goes: a terminal, files, mail. The format is chosen here; the functions are in slurmwrap/report/.
FORMATS = ("text", "html", "md", "json", "csv")
_FORMAT_OF_SUFFIX = {
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


def choose_report_format(asked: str, output: str) -> str:
    """Return the format that was asked for, else the one of the file's suffix, else text. Raise UsageError."""
    named = _FORMAT_OF_SUFFIX.get(Path(output).suffix.lower(), "") if output and not _is_directory(output) else ""
    chosen = asked or named or "text"
    if chosen not in FORMATS:
        raise UsageError(f"--format '{chosen}': one of {', '.join(FORMATS)} is wanted")
    return chosen


def is_named(file: str) -> bool:
    """Whether a file's suffix names a format, or the file is a directory."""
    return Path(file).suffix.lower() in _FORMAT_OF_SUFFIX or _is_directory(file)


def render_report(report: NightReport, kind: str, zone: tzinfo | None, paint: Paint = plain) -> str:
    """Return the report in one of FORMATS; in CSV only the main table."""
    if kind == "json":
        from slurmwrap.report import report_formats

        return report_formats.render_json(report, made_by=MADE_BY)
    page = build_page(report, zone)
    if kind == "html":
        return render_whole_page(report, page)
    if kind == "md":
        from slurmwrap.report import report_formats

        return report_formats.render_markdown(page)
    if kind == "csv":
        from slurmwrap.report import report_formats

        return report_formats.render_main_file(page)
    from slurmwrap.report import report_formats as text

    return text.render_text(page, paint)


def render_whole_page(report: NightReport, page: Page) -> str:
    """Return the HTML page, with its charts if matplotlib is installed."""
    from slurmwrap.report import report_html, report_plots

    return report_html.render(page, report_plots.draw(report, page.zone), made_by=MADE_BY)


# ---- files


def write_report(report: NightReport, kind: str, output: str, zone: tzinfo | None) -> tuple[Path, ...]:
    """Write the report and return the files. A directory gets `night-DATE.html`, or one CSV file per table.

    Raise UsageError if a file cannot be written.
    """
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
    """Write one file per table, in a directory or a ZIP file."""
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
    """Return a ZIP file without times, so that the same tables give the same bytes."""
    from io import BytesIO
    from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

    out = BytesIO()
    with ZipFile(out, "w", ZIP_DEFLATED) as archive:
        for name, text in found.items():
            archive.writestr(ZipInfo(name), text, ZIP_DEFLATED)
    return out.getvalue()


# ---- mail


def split_addresses(text: str) -> tuple[str, ...]:
    """Split at commas: "a@example.org, b@example.org" -> both."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def send_report(report: NightReport, page: Page, to: Sequence[str], config: Config) -> None:
    """Mail the report as text and HTML with the whole page attached.

    Raise UsageError without a mail server, StoreError if the server refuses.
    """
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
        attached=(Attachment(name=f"night-{page.day}.html", subtype="html", text=render_whole_page(report, page)),),
    )


def make_write_error(what: str, error: OSError) -> StoreError:
    """Return the StoreError with a readable message for an error of the file system."""
    return StoreError(
        f"{what} {error.filename or ''}: {error.strerror}".replace(" :", ":"), hint="see report.directory"
    )


# --nightly, called by the systemd timer: write the night's pages to their directory, mail them, and write the mark.
#
#     reports/2026-11-22.html .json .txt     one night; pruned after [report].keep_d days
#     reports/latest.html                    a copy of the newest
#     reports/index.html                     all of them with their verdicts
#     reports/covered                        Unix seconds: start and end of the newest night
#     reports/last                           Unix seconds: when the last report was completed, mail included
#
# The mark `last` is written last, so a watchdog or `slurmwrap doctor` needs only its age. The next night begins where
# the last one ended, so that a late timer neither omits an hour nor counts one twice.
MARK, COVERED = "last", "covered"
NIGHT_S, LONGEST_S = 86_400.0, 2 * 86_400.0
# File mode of the pages: they contain names, paths and log lines of users.
FILES = 0o640
_DAY = re.compile(r"(\d{4}-\d{2}-\d{2})\.(?:html|json|txt)")
# Number of bytes at the start of a page that contain its verdict.
_HEAD = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """One line of the index."""

    day: str
    # The word of the verdict.
    word: str
    sentence: str


def find_report_directory(config: Config) -> Path:
    """Return the directory of the pages. Raise UsageError if none is configured."""
    if config.report.directory:
        return Path(config.report.directory)
    if config.site.state_dir:
        return Path(config.site.state_dir) / "reports"
    raise UsageError("--nightly needs a site", hint="set state_dir below [site], or directory below [report]")


def read_last_report_time(config: Config) -> float | None:
    """Return when the last complete report was made, Unix seconds; None if there is none or it cannot be read."""
    try:
        return float((find_report_directory(config) / MARK).read_text(encoding="ascii"))
    except (OSError, ValueError, UsageError):
        return None


def find_night_start(config: Config, end: float, zone: tzinfo | None) -> float:
    """Return the start of the night that ends at `end`, Unix seconds: the end of the last complete night, at most
    48 hours ago.

    A report that is made again on the same day begins where the first one began, because its page replaces the other.
    Without an earlier report: 24 hours before `end`.
    """
    covered = _find_covered_time(config)
    if covered is None or covered[1] > end:
        return end - NIGHT_S
    again = _get_day(covered[1], zone) == _get_day(end, zone)
    return max(covered[0] if again else covered[1], end - LONGEST_S)


def list_left_out_hours(config: Config, start: float, zone: tzinfo | None) -> tuple[str, ...]:
    """Return a note about the hours before `start` that no night report covers; () if there are none."""
    covered = _find_covered_time(config)
    if covered is None or covered[1] >= start:
        return ()
    begin, end = (datetime.fromtimestamp(moment, zone).strftime("%Y-%m-%dT%H:%M") for moment in (covered[1], start))
    return (f"No night has what ended before: slurmwrap report --since {begin} --until {end}",)


def _find_covered_time(config: Config) -> tuple[float, float] | None:
    try:
        start, end = map(float, (find_report_directory(config) / COVERED).read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return None
    return (start, end) if start < end else None


def _get_day(moment: float, zone: tzinfo | None) -> date:
    return datetime.fromtimestamp(moment, zone).date()


def write_night(report: NightReport, config: Config, zone: tzinfo | None, now: float) -> Path:
    """Write, prune and mail the night, then write the mark; return the page. Raise StoreError or UsageError."""
    from slurmwrap.report.headline import build_page

    page = build_page(report, zone)
    folder = find_report_directory(config)
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
    """Create the directory, owned by the owner of the site's state, because root may be the first to call this."""
    if directory.is_dir():
        return
    directory.mkdir(parents=True, mode=0o750)
    if os.geteuid() == 0 and config.site.state_dir:
        with suppress(FileNotFoundError):
            owner = Path(config.site.state_dir).stat()
            os.chown(directory, owner.st_uid, owner.st_gid)


def prune_nights(directory: Path, today: str, keep_d: int) -> None:
    """Remove the nights of more than `keep_d` days before `today`; files with other names are kept."""
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
    """Read (word, sentence) of the verdict from the page's head only: 400 pages are listed in milliseconds."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD).decode("utf-8", "replace")
    except OSError:
        return "", "cannot be read"
    reader = _MetaTagParser()
    reader.feed(head)
    return reader.found.get("slurmwrap-verdict", ""), reader.found.get("description", "")


class _MetaTagParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag == "meta" and named.get("name"):
            self.found[str(named["name"])] = str(named.get("content") or "")


# The command `slurmwrap report`.
def report(
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="The same as --output FILE.")] = "",
    since: Annotated[
        str, typer.Option(help="24h, 7d, or a date. With --nightly: the end of the last night.", show_default="24h")
    ] = "",
    until: Annotated[
        str, typer.Option(help="The same; the end of the time. Now when left out.", show_default=False)
    ] = "",
    user: Annotated[str, typer.Option(metavar="NAME|me", help="One user's jobs alone.")] = "",
    account: Annotated[str, typer.Option(metavar="NAME", help="One account's jobs alone.")] = "",
    clusters: Clusters = "",
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
      slurmwrap report -M west
      slurmwrap report --json | jq .headline
      slurmwrap report --mail admins@example.org
    """
    from slurmwrap.cli.reconcile_user_jobs import reconcile_own_jobs_first
    from slurmwrap.report.headline import build_page

    output = _find_output_place(file, output)
    if as_html and as_json:
        raise UsageError("--html and --json are two formats", hint="give one of them")
    kind = "html" if as_html else "json" if as_json else kind
    if as_html and not output and not mail and sys.stdout.isatty():
        output = "./"
    if nightly and (output or mail or kind or user or account or clusters):
        raise UsageError("--nightly takes its places from the configuration", hint="give --since and --until alone")
    chosen = choose_report_format(kind, output)
    now = time.time()
    end = terminal.since(until, now) if until else now
    config = load(os.environ)
    source = find_record_source(config, os.environ, os.geteuid())
    if nightly and not source.site:
        raise UsageError("--nightly is the site's: root's or SlurmUser's", hint="slurmwrap report shows your own jobs")
    if nightly and not since:
        start = find_night_start(config, end, terminal.get_local_zone())
    else:
        start = terminal.since(since or "24h", now)
    if start >= end:
        raise UsageError(f"--since {since or '24h'} is not before --until {until or 'now'}")
    asked_for = get_report_user(source, user)
    chosen_clusters = resolve_clusters(clusters, source, config)
    unseen = reconcile_own_jobs_first(source, config)
    page = build_report_of_night(source, config, start, end, user=asked_for, account=account, clusters=chosen_clusters)
    if unseen:
        typer.echo(f"slurmwrap: {unseen}", err=True)
        page = replace(page, notes=(*page.notes, unseen))
    if not source.site and not page.user:
        page = replace(page, user=_get_user_name(source.uid))
    if nightly:
        if not since:
            page = replace(page, notes=(*page.notes, *list_left_out_hours(config, start, terminal.get_local_zone())))
        typer.echo(write_night(page, config, terminal.get_local_zone(), now))
        return
    if output:
        for path in write_report(page, chosen, output, terminal.get_local_zone()):
            typer.echo(path)
    if mail:
        send_report(page, build_page(page, terminal.get_local_zone()), mail, config)
        typer.echo(f"sent to {', '.join(mail)}")
    if not output and not mail:
        typer.echo(render_report(page, chosen, terminal.get_local_zone(), terminal.choose_painter()), nl=False)


def _find_output_place(file: str, output: str) -> str:
    """Return the output path. Raise UsageError for a FILE without a known suffix: it may be a job id or a user."""

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
