"""The text report: golden pages, 80 columns, no terminal escapes from users' text, optional colour."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from datetime import UTC, timedelta, timezone
from pathlib import Path
from typing import Any

import nights
import pytest

from slurmwrap.cli.terminal import paint
from slurmwrap.model.decision import BlockedInput
from slurmwrap.report.headline import build_page
from slurmwrap.report.night_report import Blocked, Counted, Estimate, NightReport
from slurmwrap.report.report_formats import render_text
from slurmwrap.report.text_format import visible, width


def render_page(report: NightReport, zone: Any = UTC) -> str:
    return render_text(build_page(report, zone))


def read_golden(path: Path, text: str) -> str:
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8")


def test_a_full_night_gives_the_golden_page(data: Path) -> None:
    text = render_page(nights.full())
    assert text == read_golden(data / "full.txt", text)


@pytest.mark.parametrize(
    "report", [nights.full(), nights.hostile(), nights.hostile("x" * 3000), nights.own(), nights.own("x" * 3000)]
)
def test_only_commands_and_single_words_are_wider_than_80_columns(report: NightReport) -> None:
    commands = {visible(one.command) for one in (*report.to_do, *report.lemons, *report.drains)}
    wide = {line.strip().removeprefix("# ") for line in render_page(report).splitlines() if width(line) > 80}
    assert {line for line in wide if " " in line and line not in commands} == set()


def test_control_characters_in_names_are_escaped() -> None:
    text = render_page(nights.hostile())
    assert "\\x1b[31m\\u202eevil\\u2066" in text
    assert [character for character in text if not character.isprintable() and character != "\n"] == []
    text.encode("utf-8")


def test_a_quiet_night_is_a_page_of_a_few_lines() -> None:
    assert render_page(nights.empty()) == (
        "Night report, cluster aurora\n"
        "2026-11-21 06:00 to 2026-11-22 06:00 UTC (24 h)\n"
        "\n"
        "Nothing ended in this time.\n"
        "\n"
        "NODES\n"
        "No node is under suspicion, and none is drained by slurmwrap.\n"
    )


def test_times_are_shown_in_the_given_time_zone() -> None:
    text = render_page(nights.empty(), timezone(timedelta(hours=1), "CET"))
    assert text.splitlines()[1] == "2026-11-21 07:00 to 2026-11-22 07:00 CET (24 h)"


def test_savings_without_formulas_are_shown_with_their_number_of_cases() -> None:
    report = replace(nights.full(), savings=())
    estimate = Estimate(gpu_hours=1234.5, n=21, needed=20, formula="")
    text = render_page(replace(report, preruns=replace(report.preruns, saved=estimate)))
    assert "Saved: about 1,234.5 GPU-hours (n = 21)." in text.replace("\n", " ")


def test_an_input_blocked_for_an_unknown_user_is_named_by_uid() -> None:
    blocked = BlockedInput(digest="d", path="/p", uid=4242, reason="r", at=1_795_240_800)
    text = render_page(replace(nights.empty(), blocked=(Blocked(input=blocked, user="", new=False),)))
    assert text.endswith(
        "  newest file  files  for       since             state\n"
        "  /p               1  uid 4242  2026-11-21 06:00  known\n"
        "    r\n"
    )


def test_ettr_is_shown_when_jobs_counted_steps() -> None:
    text = render_page(replace(nights.full(), counted=Counted(jobs=2, ettr=0.8712)))
    assert re.search(r"^ +87\.1 %  ETTR \(of 2 jobs that counted steps\)$", text, re.MULTILINE)


def test_colour_does_not_change_the_text() -> None:
    painted = render_text(build_page(nights.full()), paint)
    assert "\033[1mWHAT TO DO\033[0m" in painted
    assert re.sub("\033\\[[0-9]+m", "", painted) == render_page(nights.full())
