"""slurmwrap report: formats, files, mail, and the files of the nightly timer."""

from __future__ import annotations

import csv
import json
import os
import pwd
import stat
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC
from email.message import Message
from pathlib import Path
from typing import Any

import nights
import pytest
from smtp_server import Server
from typer.testing import Result

from slurmwrap.cli import report as report_nightly
from slurmwrap.cli.report import choose_report_format
from slurmwrap.config.load_config import Config, Mail, Report, SiteSection
from slurmwrap.errors import StoreError, UsageError

Run = Callable[..., Result]
USER_NAME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.close()


# ---- formats and files


def test_the_format_follows_the_file_suffix_unless_it_is_given() -> None:
    cases = {
        ("", ""): "text",
        ("html", ""): "html",
        ("", "night.html"): "html",
        ("", "night.HTM"): "html",
        ("", "night.md"): "md",
        ("", "tables.zip"): "csv",
        ("md", "night.html"): "md",
        ("", "/tmp/"): "text",
        ("", "night"): "text",
    }
    assert {
        (format_option, output): choose_report_format(format_option, output) for format_option, output in cases
    } == cases


def test_an_unknown_format_is_refused_with_the_known_formats() -> None:
    with pytest.raises(UsageError, match="--format 'pdf': one of text, html, md, json, csv is wanted"):
        choose_report_format("pdf", "")


def test_every_format_can_be_printed_to_stdout(slurmwrap: Run) -> None:
    begins = {
        "text": f"Report for {USER_NAME}, this cluster\n",
        "html": "<!DOCTYPE html>",
        "md": f"# Report for {USER_NAME}, `this cluster`\n",
        "json": '{\n  "kind": "slurmwrap.report",\n  "schema": 1,',
        "csv": "category\n",
    }
    printed = {kind: slurmwrap("report", "--format", kind).stdout.lstrip() for kind in begins}
    assert {kind: text[: len(begins[kind])] for kind, text in printed.items()} == begins


def test_output_into_a_directory_is_named_after_the_day(slurmwrap: Run, tmp_path: Path) -> None:
    result = slurmwrap("report", "--until", "2026-11-22T06:00", "--since", "2026-11-21", "-o", f"{tmp_path}/new/")
    assert result.stdout == f"{tmp_path}/new/night-2026-11-22.txt\n"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["night-2026-11-22.txt"]


def test_csv_output_as_directory_and_as_zip_has_the_same_tables(slurmwrap: Run, tmp_path: Path) -> None:
    slurmwrap("report", "--format", "csv", "-o", f"{tmp_path}/tables/")
    slurmwrap("report", "-o", f"{tmp_path}/tables.zip")
    names = sorted(path.name for path in (tmp_path / "tables").iterdir())
    with zipfile.ZipFile(tmp_path / "tables.zip") as archive:
        assert sorted(archive.namelist()) == names == ["figures.csv"]


def test_html_can_be_chosen_by_option_or_by_a_file_name_argument(
    slurmwrap: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert slurmwrap("report", "--html").stdout.startswith("<!DOCTYPE html>")  # standard output is no terminal
    for words, name in ((("--html", "x.html"), "x.html"), (("y.html",), "y.html"), (("--html", "-o", "z"), "z")):
        assert slurmwrap("report", *words).stdout == f"{name}\n"
        assert Path(name).read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    for words, message, hint in (
        (("42",), "'42' is no file of a report", "slurmwrap why 42 explains a job"),
        (("a.html", "-o", "b.html"), "'a.html' and --output 'b.html' are two places", "give one of them"),
        (("--html", "--json"), "--html and --json are two formats", "give one of them"),
    ):
        error = slurmwrap("report", *words).exception
        assert isinstance(error, UsageError)
        assert str(error).startswith(message) and error.hint == hint


def test_an_unwritable_output_path_is_refused(slurmwrap: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = slurmwrap("report", "-o", f"{tmp_path}/file/night.html").exception
    assert isinstance(error, UsageError)
    assert str(error).startswith(f"cannot write {tmp_path}/file/")
    assert str(error).endswith(": Not a directory")
    assert error.exit_code == 1


def test_since_after_until_is_refused(slurmwrap: Run) -> None:
    error = slurmwrap("report", "--since", "1h", "--until", "2h").exception
    assert isinstance(error, UsageError)
    assert str(error) == "--since 1h is not before --until 2h"


# ---- mail


def test_a_mail_has_text_html_and_the_attached_page(
    slurmwrap: Run, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMWRAP_MAIL_SERVER", server.address)
    result = slurmwrap("report", "--mail", "ada@example.org", "--mail", "bob@example.org")
    assert (result.stdout, result.exception) == ("sent to ada@example.org, bob@example.org\n", None)
    (message,) = server.messages()
    assert message["To"] == "ada@example.org, bob@example.org"
    assert message["Subject"] == "slurmwrap, this cluster: Nothing ended in this time."
    assert [part.get_content_type() for part in message.walk()] == [
        "multipart/mixed",
        "multipart/alternative",
        "text/plain",
        "text/html",
        "text/html",
    ]
    *_, plain, html, attached = message.walk()
    assert _text(plain).startswith(f"Report for {USER_NAME}, this cluster\n")
    assert "<svg" not in _text(html)
    assert "Nothing ended in this time." in _text(html)
    assert str(attached.get_filename()).startswith("night-")
    assert _text(attached).lstrip().startswith("<!DOCTYPE html>")


def _text(part: Message) -> str:
    payload = part.get_payload(decode=True)
    assert isinstance(payload, bytes)
    return payload.decode("utf-8").replace("\r\n", "\n")


def test_mail_without_a_server_or_with_an_invalid_address_is_refused(
    slurmwrap: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = slurmwrap("report", "--mail", "ada@example.org").exception
    assert isinstance(none, UsageError)
    assert str(none) == "no mail server is set"
    monkeypatch.setenv("SLURMWRAP_MAIL_SERVER", "127.0.0.1:1")
    wrong = slurmwrap("report", "--mail", "ada\nBcc: x").exception
    assert isinstance(wrong, UsageError)


# ---- nightly

DAY = 86_400.0


def site_config(tmp_path: Path, **changes: Any) -> Config:
    (tmp_path / "state").mkdir(exist_ok=True)
    return replace(Config(), site=SiteSection(state_dir=str(tmp_path / "state")), **changes)


def reports_dir(tmp_path: Path) -> Path:
    return tmp_path / "state" / "reports"


def test_a_night_report_writes_pages_an_index_and_a_marker(tmp_path: Path) -> None:
    config = site_config(tmp_path)
    assert report_nightly.read_last_report_time(config) is None
    page = report_nightly.write_night(nights.full(), config, UTC, nights.UNTIL + 90)
    assert page == reports_dir(tmp_path) / "2026-11-22.html"
    assert sorted(path.name for path in reports_dir(tmp_path).iterdir()) == [
        "2026-11-22.html",
        "2026-11-22.json",
        "2026-11-22.txt",
        "covered",
        "index.html",
        "last",
        "latest.html",
    ]
    assert (reports_dir(tmp_path) / "latest.html").read_bytes() == page.read_bytes()
    assert json.loads((reports_dir(tmp_path) / "2026-11-22.json").read_text())["verdict"]["word"] == "act"
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in reports_dir(tmp_path).iterdir()} == {
        "2026-11-22.html": 0o640, "2026-11-22.json": 0o640, "2026-11-22.txt": 0o640, "covered": 0o644,
        "index.html": 0o640, "last": 0o644, "latest.html": 0o640,
    }  # fmt: skip
    assert report_nightly.read_last_report_time(config) == nights.UNTIL + 90


def test_the_index_lists_night_reports_newest_first_with_verdicts(tmp_path: Path) -> None:
    config = site_config(tmp_path)
    for report in (nights.empty(), shift_days(nights.full(), 1)):
        report_nightly.write_night(report, config, UTC, nights.UNTIL)
    index = (reports_dir(tmp_path) / "index.html").read_text(encoding="utf-8")
    listed = [line for line in index.splitlines() if line.startswith("<tr><th")]
    assert len(listed) == 2
    assert '<a href="2026-11-23.html">' in listed[0]
    assert "to act on" in listed[0]
    assert "up from 9.8\xa0%" in listed[0]
    assert '<a href="2026-11-22.html">' in listed[1]
    assert "Nothing ended in this time." in listed[1]


def test_a_repeated_older_night_report_does_not_become_the_latest(tmp_path: Path) -> None:
    config = site_config(tmp_path)
    for days in (1, 0):
        report_nightly.write_night(shift_days(nights.empty(), days), config, UTC, nights.UNTIL)
    newest = (reports_dir(tmp_path) / "2026-11-23.html").read_bytes()
    assert (reports_dir(tmp_path) / "latest.html").read_bytes() == newest


def test_a_night_report_begins_where_the_last_one_ended(tmp_path: Path) -> None:
    config = site_config(tmp_path)
    # Hours from the last report's end to this end; from the last end to this begin; whether hours are lost.
    cases = [
        (1, -24, False),  # repeated on the same day: its page replaces the earlier page
        (17.9, -24, False),
        (24, 0, False),
        (31, 0, False),  # late: no hour is lost or counted twice
        (48, 0, False),
        (60, 12, True),
        (-30, -54, False),  # an earlier period, given by hand
    ]
    ends = [nights.UNTIL + hours * 3600 for hours, _, _ in cases]
    assert [report_nightly.find_night_start(config, end, UTC) for end in ends] == [end - DAY for end in ends]
    report_nightly.write_night(nights.empty(), config, UTC, nights.UNTIL)  # from 06:00 to 06:00
    begins = [report_nightly.find_night_start(config, end, UTC) for end in ends]
    assert begins == [nights.UNTIL + hours * 3600 for _, hours, _ in cases]
    left_out_text = (
        "No night has what ended before: slurmwrap report --since 2026-11-22T06:00 --until 2026-11-22T18:00",
    )
    left_out = [report_nightly.list_left_out_hours(config, begin, UTC) for begin in begins]
    assert left_out == [left_out_text if lost else () for _, _, lost in cases]


def test_an_unreadable_marker_is_ignored(tmp_path: Path) -> None:
    config = site_config(tmp_path)
    report_nightly.write_night(nights.empty(), config, UTC, nights.UNTIL)
    for text in ("", "x y", "1 2 3", "5 4", "nan nan"):
        (reports_dir(tmp_path) / "covered").write_text(text)
        assert report_nightly.find_night_start(config, nights.UNTIL, UTC) == nights.UNTIL - DAY


def shift_days(report: Any, days: int) -> Any:
    return replace(report, since=report.since + days * DAY, until=report.until + days * DAY)


def test_only_old_night_reports_are_deleted(tmp_path: Path) -> None:
    config = site_config(tmp_path, report=Report(keep_d=2))
    for day in range(5):
        report_nightly.write_night(shift_days(nights.empty(), day), config, UTC, nights.UNTIL)
    (reports_dir(tmp_path) / "2020-01-01.notes").touch()
    report_nightly.write_night(shift_days(nights.empty(), 5), config, UTC, nights.UNTIL)
    kept = sorted(path.name for path in reports_dir(tmp_path).iterdir() if path.suffix in (".html", ".notes"))
    assert kept == [
        "2020-01-01.notes",
        "2026-11-25.html",
        "2026-11-26.html",
        "2026-11-27.html",
        "index.html",
        "latest.html",
    ]


def test_every_night_report_is_mailed_even_an_empty_one(tmp_path: Path, server: Server) -> None:
    mail, to = Mail(server=server.address, sender="night@example.org"), Report(to="a@example.org, b@example.org")
    report_nightly.write_night(nights.empty(), site_config(tmp_path, mail=mail, report=to), UTC, nights.UNTIL)
    (message,) = server.messages()
    assert (message["From"], message["To"]) == ("night@example.org", "a@example.org, b@example.org")
    assert message["Subject"] == "slurmwrap, cluster aurora: Nothing ended in this time."


def test_a_mail_failure_leaves_the_pages_and_writes_no_marker(tmp_path: Path) -> None:
    config = site_config(tmp_path, mail=Mail(server="127.0.0.1:1"), report=Report(to="a@example.org"))
    with pytest.raises(StoreError, match=r"mail to a@example\.org by 127\.0\.0\.1:1"):
        report_nightly.write_night(nights.empty(), config, UTC, nights.UNTIL)
    assert (reports_dir(tmp_path) / "2026-11-22.html").exists()
    assert report_nightly.read_last_report_time(config) is None


def test_an_unwritable_report_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = site_config(tmp_path, report=Report(directory=str(tmp_path / "file" / "reports")))
    with pytest.raises(StoreError, match=r"the night report could not be written: .*/file/reports: Not a directory"):
        report_nightly.write_night(nights.empty(), config, UTC, nights.UNTIL)


def test_nightly_is_refused_for_users_and_with_an_output_path(slurmwrap: Run) -> None:
    as_user = slurmwrap("report", "--nightly").exception
    assert isinstance(as_user, UsageError)
    assert str(as_user) == "--nightly is the site's: root's or SlurmUser's"
    with_output = slurmwrap("report", "--nightly", "-o", "x").exception
    assert isinstance(with_output, UsageError)
    assert str(with_output) == "--nightly takes its places from the configuration"


def test_nightly_writes_the_report_of_the_site(
    slurmwrap: Run, fill: Callable[..., None], day: dict[str, Any], tmp_path: Path
) -> None:
    if os.geteuid():
        pytest.skip("needs root")
    import time

    fill(tmp_path / "site" / "site.db", day, time.time() - day["until"] - 1)
    result = slurmwrap("report", "--nightly", site=True)
    assert result.exception is None
    page = Path(result.stdout.strip())
    assert page.parent == tmp_path / "site" / "reports"
    assert "gpu_hardware" in page.read_text(encoding="utf-8")
    slurmwrap("report", "--format", "csv", "-o", f"{tmp_path}/tables/", site=True)
    with (tmp_path / "tables" / "categories.csv").open(newline="") as file:
        assert next(row["category"] for row in csv.DictReader(file)) == "gpu_hardware"
