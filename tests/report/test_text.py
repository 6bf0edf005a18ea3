"""The page: golden text of the composed day, 80 columns, nothing of a user's that speaks to the terminal."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

from slurmwrap.report.build import build
from slurmwrap.report.record import Blocked, Counted, Estimate
from slurmwrap.report.text import render
from slurmwrap.report.words import width
from slurmwrap.retry.blocked import BlockedInput


def test_the_composed_day_gives_the_golden_page(day: dict[str, Any], data: Path) -> None:
    page = render(build(**day))
    golden = data / "night.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(page, encoding="utf-8")
    assert page == golden.read_text(encoding="utf-8")


def test_only_commands_are_wider_than_80_columns_and_nothing_is_a_control_character(day: dict[str, Any]) -> None:
    evil = "\x1b]0;owned\x07\n\r\t\u202e" + "x" * 300
    attempts = tuple(replace(a, name=evil, user="u" * 100, address="\n1") for a in day["attempts"])
    strikes = tuple(replace(s, node="n" * 90, text=evil) for s in day["strikes"])
    blocked = tuple(replace(b, path=evil, reason=evil) for b in day["blocked"])
    page = render(build(**{**day, "attempts": attempts, "strikes": strikes, "blocked": blocked}))
    assert "\\x1b]0;owned\\x07\\n\\r\\t\\u202e" in page
    assert all(character.isprintable() or character == "\n" for character in page)
    wide = [line for line in page.splitlines() if width(line) > 80 and " " in line.strip()]
    assert [line for line in wide if "scontrol" not in line] == []


def test_a_quiet_night_is_said_in_three_lines() -> None:
    report = build((), (), (), (), (), (), since=1_795_240_800, until=1_795_327_200)
    assert render(report) == (
        "slurmwrap night report\n2026-11-21 06:00 to 2026-11-22 06:00 UTC (24 h)\n\nNothing ended in this time.\n"
    )


def test_times_are_shown_in_the_zone_of_the_reader() -> None:
    report = build((), (), (), (), (), (), since=1_795_240_800, until=1_795_244_400)
    assert "2026-11-21 07:00 to 2026-11-21 08:00 CET (60 min)" in render(report, timezone(timedelta(hours=1), "CET"))


def test_savings_are_printed_with_their_cases(day: dict[str, Any]) -> None:
    report = build(**day)
    estimate = Estimate(gpu_hours=1234.5, n=21, needed=20, formula="")
    page = render(replace(report, preruns=replace(report.preruns, saved=estimate)))
    assert "Saved: about 1,234.5 GPU-hours (n = 21)." in page.replace("\n", " ")


def test_an_input_blocked_for_an_unknown_user_is_named_by_uid() -> None:
    report = build((), (), (), (), (), (), since=1_795_240_800, until=1_795_327_200)
    blocked = BlockedInput(digest="d", path="/p", uid=4242, reason="r", at=1_795_240_800)
    page = render(replace(report, blocked=(Blocked(input=blocked, user="", new=False),)))
    assert page.endswith("BLOCKED INPUTS\n  /p\n    for uid 4242 since 2026-11-21 06:00: r\n")


def test_effective_training_time_is_told_where_jobs_counted_steps(day: dict[str, Any]) -> None:
    page = render(replace(build(**day), counted=Counted(jobs=2, ettr=0.8712))).replace("\n", " ")
    told = "Effective training time: 87.1 % of the time since they could run (ETTR), of 2 jobs that counted steps."
    assert told in page
