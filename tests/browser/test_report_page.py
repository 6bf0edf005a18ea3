"""The night report in a browser: all widths, dark, printed, by keyboard; it fetches nothing and runs no script."""

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

OpenPage = Callable[..., "Page"]
PROBE = (Path(__file__).parent / "probe.js").read_text(encoding="utf-8")
WIDTHS = (1280, 768, 390, 320)
SECTIONS = [
    "todo", "failed", "saved", "wrong", "nodes", "inputs", "gpu_use", "idle", "requests", "limits", "queueing", "large",
    "users", "accounts", "notes", "glossary",
]  # fmt: skip


@pytest.fixture(scope="module")
def shared_page(browser: Browser) -> Iterator[tuple[Page, list[str]]]:
    """One page for all tests, because a new one takes a second; and the list of its messages and requests."""
    events: list[str] = []
    context = browser.new_context()
    context.set_default_timeout(allow(60) * 1000)
    page = context.new_page()
    page.on("console", lambda message: events.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: events.append(f"error: {error}"))
    page.on("dialog", lambda dialog: events.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: events.append(f"request: {request.url}"))
    yield page, events
    context.close()


@pytest.fixture
def open_page(shared_page: tuple[Page, list[str]], tmp_path: Path) -> Iterator[OpenPage]:
    """Return a function that opens a page; after the test no message and no other request may have occurred."""
    page, events = shared_page
    events.clear()

    def show(text: str, width: int = 1280, scheme: str = "light") -> Page:
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme, media="screen")  # type: ignore[arg-type]
        page.goto((tmp_path / "page.html").as_uri())
        page.evaluate(PROBE)
        return page

    yield show
    assert set(events) <= {f"request: {(tmp_path / 'page.html').as_uri()}"}


@pytest.fixture(scope="module")
def full_report() -> str:
    return render_report(nights.full(), "html", None)


@pytest.fixture(scope="module")
def hostile_report() -> str:
    return render_report(nights.hostile(nights.HOSTILE + "W" * 500), "html", None)


def find_overflows(page: Page) -> dict[int, object]:
    """Map each width with an overflow to the width of the page and the overflowing elements."""
    found = {}
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        seen = page.evaluate("[document.documentElement.scrollWidth, sticking()]")
        if seen != [width, []]:
            found[width] = seen
    return found


def test_a_full_night_is_readable_at_every_width_in_light_and_dark(open_page: OpenPage, full_report: str) -> None:
    page = open_page(full_report)
    assert find_overflows(page) == {}
    assert page.evaluate("texts()") > 300
    faint = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            faint[scheme, width] = page.evaluate("faint(4.5)")
    assert {where: texts for where, texts in faint.items() if texts} == {}


def test_hostile_names_run_no_script_and_stay_readable(open_page: OpenPage, hostile_report: str) -> None:
    page = open_page(hostile_report, 390, "dark")
    assert page.evaluate("document.scripts.length") == 0
    assert page.get_by_text("<script>alert(1)</script>").count() > 20
    assert find_overflows(page) == {}


def test_dark_scheme_is_dark_and_print_is_white_on_few_sheets(open_page: OpenPage, full_report: str) -> None:
    page = open_page(full_report, scheme="dark")
    context = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(context) == "rgb(16, 21, 26)"
    page.emulate_media(media="print")
    assert page.evaluate(context) == "rgb(255, 255, 255)"
    assert page.evaluate("faint(4.5)") == []
    printed = page.pdf(format="A4")
    assert printed.startswith(b"%PDF-")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 8


def test_sections_links_and_headings_are_accessible_to_screen_readers(open_page: OpenPage, full_report: str) -> None:
    page = open_page(full_report)
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


def test_charts_and_tables_have_accessible_names_at_every_width(open_page: OpenPage, full_report: str) -> None:
    page = open_page(full_report)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        drawings = page.get_by_role("img")
        assert drawings.locator("title").all_text_contents() == [
            "GPU-hours by category of failure", "GPU-hours over time", "How long runs lasted",
            "GPU-hours saved, with 95 % intervals", "GPU use by size, spread and neighbours",
        ]  # fmt: skip
        assert page.get_by_role("img", name="GPU-hours over time").count() == 1
        table = page.get_by_role("region", name="What failed").get_by_role("table")
        assert table.get_by_role("rowheader", name="GPU hardware fault").count() == 1
        assert table.get_by_role("columnheader").count() > 8


def test_a_narrow_page_shows_rows_as_cards_and_readable_charts(open_page: OpenPage, full_report: str) -> None:
    page = open_page(full_report, 390)
    cell = page.locator("#failed td[data-head='jobs']").first
    assert page.evaluate("e => getComputedStyle(e, '::before').content", cell.element_handle()) == '"jobs"'
    heights = page.evaluate("[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height)")
    assert min(heights) >= 9


def test_scrollable_elements_can_be_reached_by_keyboard(open_page: OpenPage, full_report: str) -> None:
    page = open_page(full_report, 768)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    assert page.evaluate("unreachable()") == []


def test_mail_and_index_are_readable_at_390_pixels(open_page: OpenPage) -> None:
    night = type("Night", (), {"day": "2026-11-22", "word": "act", "sentence": "Much to do. " * 20})
    mails = [mail(build_page(report), made_by="slurmwrap 1") for report in (nights.empty(), nights.full())]
    for text in (*mails, index([night] * 40, "cluster aurora")):
        page = open_page(text, 390)
        assert page.evaluate("faint(4.5)") == []
    assert page.evaluate("document.documentElement.scrollWidth") == 390
