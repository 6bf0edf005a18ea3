"""The night report in a browser: every width, dark, on paper, by keyboard; nothing is fetched, nothing runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nights
import pytest

from slurmwrap.cli.report.output import rendered
from slurmwrap.report.headline import page_of
from slurmwrap.report.html import index, mail
from slurmwrap.report.record import NightReport

pytestmark = pytest.mark.early

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Open = Callable[..., "Page"]
PROBE = Path(__file__).parent / "probe.js"
WIDTHS = (1280, 768, 390, 320)
SECTIONS = [
    "todo", "failed", "saved", "wrong", "nodes", "inputs", "idle", "requests", "queueing", "large", "users", "accounts",
    "notes", "glossary",
]  # fmt: skip


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Any:
    """`opened(text, width, scheme)` shows a page; at the end nothing may have been said or asked for."""
    contexts, heard = [], []

    def show(text: str, width: int = 1280, scheme: str = "light") -> Page:
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: heard.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: heard.append(f"error: {error}"))
        page.on("dialog", lambda dialog: heard.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: heard.append(f"request: {request.url}"))
        page.goto((tmp_path / "page.html").as_uri())
        page.evaluate(PROBE.read_text(encoding="utf-8"))
        return page

    yield show
    for context in contexts:
        context.close()
    assert set(heard) <= {f"request: {(tmp_path / 'page.html').as_uri()}"}


@pytest.fixture(scope="session")
def full() -> str:
    return rendered(nights.full(), "html", None)


@pytest.fixture(scope="session")
def hostile() -> str:
    return rendered(nights.hostile(nights.HOSTILE + "W" * 500), "html", None)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_never_scrolls_sideways(opened: Open, full: str, hostile: str, width: int) -> None:
    for text in (full, hostile):
        page = opened(text, width)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate("sticking()") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_text_has_a_contrast_of_4_5(opened: Open, full: str, width: int, scheme: str) -> None:
    page = opened(full, width, scheme)
    assert page.evaluate("texts()") > 300
    assert page.evaluate("faint(4.5)") == []


def test_dark_is_dark_and_paper_is_white(opened: Open, full: str) -> None:
    page = opened(full, scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(16, 21, 26)"
    page.emulate_media(media="print")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    assert page.evaluate("faint(4.5)") == []


def test_it_prints_on_a_few_pages(opened: Open, full: str) -> None:
    printed = opened(full).pdf(format="A4")
    assert printed.startswith(b"%PDF-")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 8


def test_every_section_is_there_and_every_link_leads_to_one(opened: Open, full: str) -> None:
    page = opened(full)
    assert page.evaluate("[...document.querySelectorAll('section')].map(s => s.id)") == SECTIONS
    links = page.get_by_role("navigation", name="Sections").get_by_role("link")
    assert [link.get_attribute("href") for link in links.all()] == [f"#{key}" for key in SECTIONS]
    for key in SECTIONS:
        assert page.locator(f"#{key}").bounding_box() is not None


def test_headings_are_in_order_and_tables_say_what_their_cells_are(opened: Open, full: str) -> None:
    page = opened(full)
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert [(above, below) for above, below in pairwise(levels) if below > above + 1] == []
    assert page.evaluate("[...document.querySelectorAll('th:not([scope])')].length") == 0
    assert page.evaluate("document.documentElement.lang") == "en"


@pytest.mark.parametrize("width", [1280, 390])
def test_drawings_and_tables_have_names_for_those_who_do_not_see_them(opened: Open, full: str, width: int) -> None:
    page = opened(full, width)
    drawings = page.get_by_role("img")
    assert [one.locator("title").text_content() for one in drawings.all()] == [
        "GPU-hours by category of failure", "GPU-hours over time", "How long runs lasted",
        "GPU-hours saved, with 95 % intervals",
    ]  # fmt: skip
    assert page.get_by_role("img", name="GPU-hours over time").count() == 1
    table = page.get_by_role("region", name="What failed").get_by_role("table")
    assert table.get_by_role("rowheader", name="GPU hardware fault").count() == 1
    assert table.get_by_role("columnheader").count() > 8


def test_a_phone_shows_rows_as_cards_and_readable_drawings(opened: Open, full: str) -> None:
    page = opened(full, 390)
    cell = page.locator("#failed td[data-head='jobs']").first
    assert page.evaluate("e => getComputedStyle(e, '::before').content", cell.element_handle()) == '"jobs"'
    heights = page.evaluate("[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height)")
    assert min(heights) >= 9


def test_the_keyboard_reaches_what_scrolls(opened: Open, full: str) -> None:
    page = opened(full, 768)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    assert page.evaluate("unreachable()") == []


def test_hostile_names_run_nothing_and_stay_readable(opened: Open, hostile: str) -> None:
    page = opened(hostile, 390, "dark")
    assert page.evaluate("document.scripts.length") == 0
    assert page.get_by_text("<script>alert(1)</script>").count() > 20


@pytest.mark.parametrize("report", [nights.empty(), nights.full()], ids=["empty", "full"])
def test_mail_and_index_are_whole_too(opened: Open, report: NightReport) -> None:
    night = type("Night", (), {"day": "2026-11-22", "word": "act", "sentence": "Much to do. " * 20})
    for text in (mail(page_of(report), made_by="slurmwrap 1"), index([night] * 40, "cluster aurora")):
        page = opened(text, 390)
        assert page.evaluate("faint(4.5)") == []
    assert page.evaluate("document.documentElement.scrollWidth") == 390
