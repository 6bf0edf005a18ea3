"""Formats of durations, tables, counts and escaped text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.report import text_format


def test_durations_are_formatted() -> None:
    wanted = {
        0: "0 s",
        99.4: "99 s",
        100: "2 min",
        5_969: "99 min",
        5_970: "1 h 40 min",
        7_200: "2 h",
        86_400: "24 h",
        172_799: "2 d",
        187_200: "2 d 4 h",
    }
    assert {given: text_format.duration(given) for given in wanted} == wanted


def test_step_rates_are_per_second_or_if_slow_per_minute() -> None:
    wanted = {12.345: "12.3/s", 0.1: "0.1/s", 0.05: "3/min"}
    assert {given: text_format.format_step_rate(given) for given in wanted} == wanted


def test_control_characters_are_escaped() -> None:
    wanted = {
        "plain ä 研究": "plain ä 研究",
        "a\nb\tc\rd": "a\\nb\\tc\\rd",
        "\x1b[31mred\x07": "\\x1b[31mred\\x07",
        "\u202egnp.exe": "\\u202egnp.exe",
        "bad \udcff byte, \ud800 half": "bad \\xff byte, \\ud800 half",
        "\x9b31m": "\\x9b31m",
    }
    assert {given: text_format.visible(given) for given in wanted} == wanted


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("研究所", 6, "研究所"), ("研究所x", 6, "研究…"), ("a\nb", 3, "a\\…")],
)
def test_text_is_cut_to_a_width_in_columns(text: str, columns: int, shown: str) -> None:
    assert text_format.fit(text, columns) == shown


def test_a_table_is_aligned_and_only_flexible_columns_are_cut() -> None:
    rows = [["研究", "1,000", "a" * 60], ["b", "2", "c"]]
    assert text_format.table(["name", ">count", "~why"], rows, columns=40) == (
        "  name  count  why\n"
        "  研究  1,000  aaaaaaaaaaaaaaaaaaaaaaaa…\n"
        "  b         2  c"
    )  # fmt: skip


def test_wrapping_keeps_whole_words_and_indents_further_lines() -> None:
    assert text_format.wrapped("one two three", indent="- ", hanging="  ", columns=9) == "- one two\n  three"
    assert text_format.wrapped("x" * 30, indent="  ", hanging="  ", columns=9) == "  " + "x" * 30
    assert text_format.wrapped("", indent="  ") == ""


@settings(max_examples=60)
@given(st.text(), st.integers(min_value=1, max_value=40))
def test_fitted_and_wrapped_text_is_printable_and_not_too_wide(text: str, columns: int) -> None:
    fitted = text_format.fit(text, columns)
    assert text_format.width(fitted) <= columns
    assert all(c.isprintable() or c == "\n" for c in fitted + text_format.wrapped(text, columns=columns))


def test_counts_have_singular_and_plural() -> None:
    assert [text_format.count(number, "job") for number in (0, 1, 2, 12_345)] == [
        "no jobs",
        "1 job",
        "2 jobs",
        "12,345 jobs",
    ]
