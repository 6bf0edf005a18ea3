"""The night report in a browser: every width, dark, on paper, by keyboard; nothing is fetched, nothing runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import nights
import pytest
from waiting import allow

from slurmwrap.cli.report import render_report
from slurmwrap.report.headline import build_page
from slurmwrap.report.report_html import index, mail

pytestmark = pytest.mark.early

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Shown = Callable[..., "Page"]
PROBE = (Path(__file__).parent / "probe.js").read_text(encoding="utf-8")
WIDTHS = (1280, 768, 390, 320)
SECTIONS = [
    "todo", "failed", "saved", "wrong", "nodes", "inputs", "idle", "requests", "queueing", "large", "users", "accounts",
    "notes", "glossary",
]  # fmt: skip


@pytest.fixture(scope="module")
def window(browser: Browser) -> Iterator[tuple[Page, list[str]]]:
    """One page for all tests, and what it said or asked for: a new one takes a second."""
    heard: list[str] = []
    context = browser.new_context()
    context.set_default_timeout(allow(60) * 1000)
    page = context.new_page()
    page.on("console", lambda message: heard.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: heard.append(f"error: {error}"))
    page.on("dialog", lambda dialog: heard.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: heard.append(f"request: {request.url}"))
    yield page, heard
    context.close()


@pytest.fixture
def shown(window: tuple[Page, list[str]], tmp_path: Path) -> Iterator[Shown]:
    """`shown(text, width, scheme)` shows a page; at the end nothing may have been said or asked for."""
    page, heard = window
    heard.clear()

    def show(text: str, width: int = 1280, scheme: str = "light") -> Page:
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme, media="screen")  # type: ignore[arg-type]
        page.goto((tmp_path / "page.html").as_uri())
        page.evaluate(PROBE)
        return page

    yield show
    assert set(heard) <= {f"request: {(tmp_path / 'page.html').as_uri()}"}


@pytest.fixture(scope="module")
def full() -> str:
    return render_report(nights.full(), "html", None)


@pytest.fixture(scope="module")
def hostile() -> str:
    return render_report(nights.hostile(nights.HOSTILE + "W" * 500), "html", None)


def wider(page: Page) -> dict[int, object]:
    """Width → how wide the page is there and what sticks out, where either is wrong."""
    found = {}
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        seen = page.evaluate("[document.documentElement.scrollWidth, sticking()]")
        if seen != [width, []]:
            found[width] = seen
    return found


def test_a_full_night_is_readable_at_every_width_in_light_and_dark(shown: Shown, full: str) -> None:
    page = shown(full)
    assert wider(page) == {}
    assert page.evaluate("texts()") > 300
    faint = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            faint[scheme, width] = page.evaluate("faint(4.5)")
    assert {where: texts for where, texts in faint.items() if texts} == {}


def test_hostile_names_run_nothing_and_stay_readable(shown: Shown, hostile: str) -> None:
    page = shown(hostile, 390, "dark")
    assert page.evaluate("document.scripts.length") == 0
    assert page.get_by_text("<script>alert(1)</script>").count() > 20
    assert wider(page) == {}


def test_dark_is_dark_and_paper_is_white_on_a_few_sheets(shown: Shown, full: str) -> None:
    page = shown(full, scheme="dark")
    context = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(context) == "rgb(16, 21, 26)"
    page.emulate_media(media="print")
    assert page.evaluate(context) == "rgb(255, 255, 255)"
    assert page.evaluate("faint(4.5)") == []
    printed = page.pdf(format="A4")
    assert printed.startswith(b"%PDF-")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 8


def test_the_structure_is_told_to_those_who_do_not_see_it(shown: Shown, full: str) -> None:
    page = shown(full)
    assert page.evaluate("[...document.querySelectorAll('section')].map(s => s.id)") == SECTIONS
    links = page.get_by_role("navigation", name="Sections").get_by_role("link")
    assert links.evaluate_all("all => all.map(a => a.getAttribute('href'))") == [f"#{key}" for key in SECTIONS]
    boxes = "[...document.querySelectorAll('section')].map(s => s.getBoundingClientRect().height)"
    assert min(page.evaluate(boxes)) > 0
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert [(above, below) for above, below in pairwise(levels) if below > above + 1] == []
    assert page.evaluate("[...document.querySelectorAll('th:not([scope])')].length") == 0
    assert page.evaluate("document.documentElement.lang") == "en"


def test_drawings_and_tables_have_names_at_every_width(shown: Shown, full: str) -> None:
    page = shown(full)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        drawings = page.get_by_role("img")
        assert drawings.locator("title").all_text_contents() == [
            "GPU-hours by category of failure", "GPU-hours over time", "How long runs lasted",
            "GPU-hours saved, with 95 % intervals",
        ]  # fmt: skip
        assert page.get_by_role("img", name="GPU-hours over time").count() == 1
        table = page.get_by_role("region", name="What failed").get_by_role("table")
        assert table.get_by_role("rowheader", name="GPU hardware fault").count() == 1
        assert table.get_by_role("columnheader").count() > 8


def test_a_phone_shows_rows_as_cards_and_readable_drawings(shown: Shown, full: str) -> None:
    page = shown(full, 390)
    cell = page.locator("#failed td[data-head='jobs']").first
    assert page.evaluate("e => getComputedStyle(e, '::before').content", cell.element_handle()) == '"jobs"'
    heights = page.evaluate("[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height)")
    assert min(heights) >= 9


def test_the_keyboard_reaches_what_scrolls(shown: Shown, full: str) -> None:
    page = shown(full, 768)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    assert page.evaluate("unreachable()") == []


def test_mail_and_index_are_readable_on_a_phone(shown: Shown) -> None:
    night = type("Night", (), {"day": "2026-11-22", "word": "act", "sentence": "Much to do. " * 20})
    mails = [mail(build_page(report), made_by="slurmwrap 1") for report in (nights.empty(), nights.full())]
    for text in (*mails, index([night] * 40, "cluster aurora")):
        page = shown(text, 390)
        assert page.evaluate("faint(4.5)") == []
    assert page.evaluate("document.documentElement.scrollWidth") == 390
