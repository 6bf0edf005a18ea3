"""What the systemd timer calls: the night's pages in their directory, mail, and the mark that says that all went well.

    reports/2026-11-22.html .json .txt     one night; pruned after [report].keep_d days
    reports/latest.html                    a copy of the newest
    reports/index.html                     all of them with their verdicts
    reports/covered                        Unix seconds: from when to when the newest night goes
    reports/last                           Unix seconds: when the last report was made whole, mail included

The mark is written last. A watchdog or `slurmwrap doctor` needs nothing but its age. The next night begins where the
last one ended, so that a timer that is late loses no hour and counts none twice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import date, datetime, timedelta, tzinfo
from html.parser import HTMLParser
from pathlib import Path

from slurmwrap.config import Config
from slurmwrap.errors import UsageError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.report.night_report import NightReport
from slurmwrap.store.atomic_write import put

MARK, COVERED = "last", "covered"
NIGHT_S, LONGEST_S = 86_400.0, 2 * 86_400.0
FILES = 0o640  # names, paths and log lines of users
_DAY = re.compile(r"(\d{4}-\d{2}-\d{2})\.(?:html|json|txt)")
_HEAD = 4096  # bytes of a page that hold its verdict


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
    from slurmwrap.cli.report import report_output
    from slurmwrap.report.headline import build_page

    page = build_page(report, zone)
    folder = directory_of(config)
    try:
        _make_folder(folder, config)
        for kind in ("json", "text", "html"):
            put(
                folder / f"{page.day}{report_output.ENDINGS[kind]}",
                report_output.render_report(report, kind, zone),
                FILES,
            )
        put(folder / "latest.html", max(_list_pages(folder)).read_bytes(), FILES)
        prune_nights(folder, page.day, config.report.keep_d)
        put(folder / "index.html", _render_index(folder, page.whose), FILES)
        to = report_output.split_addresses(config.report.to)
        if to:
            report_output.send_report(report, page, to, config)
        put(folder / COVERED, f"{report.since!r} {report.until!r}\n", 0o644)
        put(folder / MARK, f"{now:.0f}\n", 0o644)
    except OSError as error:
        raise report_output.make_write_error("the night report could not be written:", error) from error
    return folder / f"{page.day}.html"


def _make_folder(folder: Path, config: Config) -> None:
    """The directory, for anyone who owns the site's state: root may be the first to call."""
    if folder.is_dir():
        return
    folder.mkdir(parents=True, mode=0o750)
    if os.geteuid() == 0 and config.site.state_dir:
        with suppress(FileNotFoundError):
            owner = Path(config.site.state_dir).stat()
            os.chown(folder, owner.st_uid, owner.st_gid)


def prune_nights(folder: Path, today: str, keep_d: int) -> None:
    """Takes away the nights of more than `keep_d` days before `today`; files of other names stay."""
    oldest = str(date.fromisoformat(today) - timedelta(days=keep_d))
    for path in folder.iterdir():
        named = _DAY.fullmatch(path.name)
        if named and named[1] < oldest:
            path.unlink()


# ---- the index


def _render_index(folder: Path, whose: str) -> str:
    from slurmwrap.report.report_html import index

    return index(sorted(_list_nights(folder), key=lambda night: night.day, reverse=True), whose)


def _list_nights(folder: Path) -> Iterator[Night]:
    for path in _list_pages(folder):
        word, sentence = _read_verdict(path)
        yield Night(day=path.stem, word=word, sentence=sentence)


def _list_pages(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob("????-??-??.html") if _DAY.fullmatch(path.name))


def _read_verdict(path: Path) -> tuple[str, str]:
    """As the page's own head tells it: four hundred pages are listed in milliseconds."""
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
