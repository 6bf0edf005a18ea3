"""The HTML page and mail: they load no external resources, and text from users is never parsed as HTML."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import nights
import pytest

from slurmwrap.package_files import shipped
from slurmwrap.report import report_html
from slurmwrap.report.headline import build_page
from slurmwrap.report.night_report import NightReport, ShareRow
from slurmwrap.report.report_page import Column, ReportTable
from slurmwrap.report.report_plots import draw
from slurmwrap.report.text_format import visible

VOID = frozenset({"meta", "link", "br", "hr", "img", "input"})


class PageParser(HTMLParser):
    """Parse a page into elements, attributes and text; every element must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: set[str] = set()
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.attributes |= {name for name, _ in attrs}
        self.ids += [str(value) for name, value in attrs if name == "id"]
        self.links += [str(value) for name, value in attrs if name in ("href", "src", "xlink:href", "action", "data")]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@cache
def draw_cached(make: Callable[[], NightReport]) -> dict[str, str] | None:
    return draw(make())


@cache
def page(make: Callable[[], NightReport]) -> str:
    return report_html.render(build_page(make()), draw_cached(make), made_by="slurmwrap 1")


def mail(make: Callable[[], NightReport]) -> str:
    return report_html.mail(build_page(make()), made_by="slurmwrap 1")


def make_report_with_long_names() -> NightReport:
    return nights.hostile("x" * 100_000)


@pytest.mark.parametrize("make", [nights.full, nights.hostile, nights.empty, nights.own])
def test_the_page_is_self_contained(make: Callable[[], NightReport]) -> None:
    parsed = PageParser(page(make))
    assert {"script", "link", "img", "iframe", "object", "form"} & set(parsed.elements) == set()
    assert [name for name in parsed.attributes if name.startswith("on")] == []
    assert [link for link in parsed.links if not link.startswith("#")] == []
    assert {link[1:] for link in parsed.links} <= set(parsed.ids)
    assert [one for one, times in Counter(parsed.ids).items() if times > 1] == []
    assert parsed.elements["h1"] == 1


@pytest.mark.parametrize("written", [page, mail])
def test_hostile_names_are_parsed_as_text_only(written: Callable[..., str]) -> None:
    quiet, hostile = PageParser(written(nights.full)), PageParser(written(nights.hostile))
    assert hostile.elements["script"] == 0
    assert hostile.attributes == quiet.attributes
    text = "".join(hostile.text)
    assert visible(nights.HOSTILE) in text
    assert [
        character for character in text if not (character.isprintable() or character in "\n\N{NO-BREAK SPACE}")
    ] == []


@pytest.mark.parametrize("written", [page, mail])
def test_long_names_do_not_make_the_page_large(written: Callable[..., str]) -> None:
    assert len(written(make_report_with_long_names).replace("x" * 100_000, "")) < 400_000


def test_a_mail_stays_below_gmails_limit_of_102_kilobytes() -> None:
    assert len(mail(nights.full).encode()) < 60_000
    assert "var(--" not in mail(nights.full)


def test_further_rows_are_collapsed_and_the_rest_is_counted() -> None:
    rows = tuple(
        ShareRow(name=f"user{i:03}", jobs=1, attempts=1, gpu_hours=1.0, failed_attempts=0, failed_gpu_hours=0.0,
                 cancelled_attempts=0) for i in range(100)
    )  # fmt: skip
    report = replace(nights.full(), users=rows)
    text = report_html.render(build_page(report), {}, made_by="slurmwrap 1")
    assert "<summary>60 more</summary>" in text
    assert "and 30 more: slurmwrap report --format csv" in text
    assert [name for name in (f"user{i:03}" for i in range(100)) if name in text] == [f"user{i:03}" for i in range(70)]


def test_without_matplotlib_the_page_says_that_charts_are_left_out() -> None:
    text = report_html.render(build_page(nights.full()), None, made_by="slurmwrap 1")
    assert "Drawings are left out: matplotlib is not installed here" in text
    assert PageParser(text).elements["svg"] == 0


def test_column_group_heads_span_their_columns() -> None:
    columns = (Column(key="a", head="a"), Column(key="b", head="b", group="g"), Column(key="c", head="c", group="g"))
    assert report_html.list_column_groups(ReportTable(key="t", title="t", columns=columns, rows=())) == (
        ("", 1),
        ("g", 2),
    )
    assert report_html.list_column_groups(ReportTable(key="t", title="t", columns=columns[:1], rows=())) == ()


def test_a_number_and_its_unit_are_joined_by_a_no_break_space() -> None:
    assert (
        report_html.join_number_and_unit("15.1 % of 11 GPU-hours in 3 min")
        == "15.1\xa0% of 11\xa0GPU-hours in 3\xa0min"
    )


def test_charts_use_only_colour_variables_of_the_page() -> None:
    drawings = "".join((draw_cached(nights.full) or {}).values())
    assert re.findall(r"#[0-9a-fA-F]{6}", drawings) == []
    css = (shipped("templates") / "report" / "page.css").read_text(encoding="utf-8")
    used = set(re.findall(r"var\((--[a-z]+)\)", drawings + css))
    light, dark, paper = (set(re.findall(r"(--[a-z]+):", part)) for part in re.findall(r":root \{(.*?)\}", css, re.S))
    assert used <= light
    assert light == dark == paper
