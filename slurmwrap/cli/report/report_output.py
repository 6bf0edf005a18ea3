"""Where a report goes: a terminal, files, mail. Formats are chosen here, made in slurmwrap/report/."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from pathlib import Path

from slurmwrap import __version__
from slurmwrap.config import Config
from slurmwrap.errors import StoreError, UsageError
from slurmwrap.report.headline import build_page
from slurmwrap.report.job_report.job_report_text import Paint, plain
from slurmwrap.report.night_report import NightReport
from slurmwrap.report.report_page import Page
from slurmwrap.store.atomic_write import put

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
        from slurmwrap.report import report_json

        return report_json.render_json(report, made_by=MADE_BY)
    page = build_page(report, zone)
    if kind == "html":
        return whole_page(report, page)
    if kind == "md":
        from slurmwrap.report import report_markdown

        return report_markdown.render_markdown(page)
    if kind == "csv":
        from slurmwrap.report import report_csv

        return report_csv.render_main_file(page)
    from slurmwrap.report import report_text as text

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
        put(path, render_report(report, kind, zone))
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or path}: {error.strerror}", exit_code=1) from error
    return (path,)


def _is_directory(output: str) -> bool:
    return output.endswith("/") or Path(output).is_dir()


def _write_tables(page: Page, path: Path) -> tuple[Path, ...]:
    """One file per table, in a directory or a ZIP."""
    from slurmwrap.report.report_csv import render_files

    found = render_files(page)
    if path.suffix == ".zip" and not path.is_dir():
        put(path, _zip_tables(found))
        return (path,)
    path.mkdir(parents=True, exist_ok=True)
    for name, text in found.items():
        put(path / name, text)
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
    from slurmwrap.report import report_html
    from slurmwrap.report import report_text as text

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
