"""When the watchdog reports: once when a service is overdue, again after a day, and when it is no longer overdue."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slurmwrap.install.service_watchdog import (
    HEARTBEAT,
    LATE_S,
    REMIND_S,
    REPORT_S,
    STATE,
    OverdueState,
    beat,
    is_watched,
    look,
    news,
    since,
)

NOW = 1_800_000_000.0
HINT = "systemctl status slurmwrap-reconcile; journalctl -u slurmwrap-reconcile; slurmwrap doctor"


def write_report_time(reports: Path, at: float) -> None:
    reports.mkdir(exist_ok=True)
    (reports / "last").write_text(f"{at}\n")


def test_nothing_is_overdue_after_a_recent_pass_and_report(tmp_path: Path) -> None:
    beat(tmp_path, NOW - 60)
    write_report_time(tmp_path / "reports", NOW - 3600)
    assert look(tmp_path, tmp_path / "reports", NOW) == ()


def test_a_reconciler_without_a_recent_pass_is_overdue(tmp_path: Path) -> None:
    beat(tmp_path, NOW - 2 * LATE_S)
    write_report_time(tmp_path / "reports", NOW - 3600)
    assert look(tmp_path, tmp_path / "reports", NOW) == (
        OverdueState(what="reconciler", at=NOW - 1800, text="no pass of the reconciler for 30 minutes", hint=HINT),
    )


@pytest.mark.parametrize(("age_s", "text"), [(6000, "100 minutes"), (100 * 3600, "100 hours")])
def test_the_message_gives_the_time_since_the_last_pass(tmp_path: Path, age_s: int, text: str) -> None:
    beat(tmp_path, NOW - age_s)
    write_report_time(tmp_path / "reports", NOW)
    assert [one.text for one in look(tmp_path, tmp_path / "reports", NOW)] == [f"no pass of the reconciler for {text}"]


def test_a_service_that_never_ran_is_overdue(tmp_path: Path) -> None:
    found = look(tmp_path, tmp_path / "reports", NOW)
    assert [(one.what, one.at) for one in found] == [("reconciler", 0.0), ("report", 0.0)]


def test_the_report_of_a_new_installation_is_not_overdue_before_its_first_night(tmp_path: Path) -> None:
    assert since(tmp_path, NOW) == NOW
    found = []
    for hours in (0, 0.1, 1, 25, 27):
        now = NOW + hours * 3600
        late = look(tmp_path, tmp_path / "reports", now, since=since(tmp_path, now))
        news(tmp_path, late, now)
        found.append([one.what for one in late])
    assert found == [[], [], ["reconciler"], ["reconciler"], ["reconciler", "report"]]


def test_a_report_from_the_night_before_last_is_overdue(tmp_path: Path) -> None:
    beat(tmp_path, NOW)
    write_report_time(tmp_path / "reports", NOW - REPORT_S - 3600)
    assert [one.text for one in look(tmp_path, tmp_path / "reports", NOW)] == ["no night report for 27 hours"]


def test_a_message_is_due_once_again_after_a_day_and_at_the_end(tmp_path: Path) -> None:
    late = (OverdueState(what="reconciler", at=0.0, text="t", hint="h"),)
    more = (*late, OverdueState(what="report", at=0.0, text="t", hint="h"))
    messages = [
        news(tmp_path, late, NOW),
        news(tmp_path, late, NOW + 900),
        news(tmp_path, more, NOW + 1800),
        news(tmp_path, more, NOW + 1800 + REMIND_S),
        news(tmp_path, (), NOW + REMIND_S + 2700),
        news(tmp_path, (), NOW + REMIND_S + 3600),
    ]
    assert messages == ["late", "", "late", "late", "well", ""]


def test_the_state_file_exists_while_a_service_is_overdue(tmp_path: Path) -> None:
    news(tmp_path, (OverdueState(what="report", at=0.0, text="t", hint="h"),), NOW)
    assert json.loads((tmp_path / STATE).read_text()) == {"what": "report", "at": 0.0, "text": "t", "hint": "h"}
    news(tmp_path, (), NOW)
    assert not (tmp_path / STATE).exists()


def test_a_link_in_place_of_the_heartbeat_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    before = (tmp_path / "elsewhere").stat().st_mtime
    (tmp_path / HEARTBEAT).symlink_to(tmp_path / "elsewhere")
    beat(tmp_path, NOW)
    assert (tmp_path / "elsewhere").stat().st_mtime == before


@pytest.mark.parametrize(
    ("pass_age_s", "watchdog_age_s", "watched"),
    [(15, 600, True), (299, 1799, True), (301, 600, False), (15, 1801, False), (None, 600, False), (15, None, False)],
)
def test_what_is_changed_for_a_while_is_watched_if_both_services_are_alive(
    tmp_path: Path, pass_age_s: int | None, watchdog_age_s: int | None, watched: bool
) -> None:
    if pass_age_s is not None:
        beat(tmp_path, NOW - pass_age_s)
    if watchdog_age_s is not None:
        news(tmp_path, (), NOW - watchdog_age_s)
        os.utime(tmp_path / "watchdog.json", (NOW - watchdog_age_s, NOW - watchdog_age_s))
    assert is_watched(tmp_path, NOW) is watched
