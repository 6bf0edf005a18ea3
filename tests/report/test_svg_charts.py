"""SVG charts embedded in a page: references stay inside, colours are CSS variables, none without matplotlib."""

from __future__ import annotations

import re
import sys
from typing import Any
from xml.etree import ElementTree

import pytest

from slurmwrap.report.svg_charts import (
    OURS,
    PLAIN,
    REAL,
    SAVED,
    Chart,
    IntervalRow,
    add_legend,
    draw_charts,
    plot_intervals,
)

SVG = "{http://www.w3.org/2000/svg}"


def _plot_lines(axes: Any) -> str:
    axes.stairs([1, 2], [0, 1, 2], fill=True, color=REAL, alpha=0.2)
    axes.plot([0, 1, 5], [1, 2, 9], "o--", color=PLAIN, label="plain")
    axes.fill_between([0, 1], [1, 2], color=OURS)
    axes.set_xlim(0, 1)
    add_legend(axes, 1)
    return "rises <quickly> & \u202e"


def _plot_estimates(axes: Any) -> str:
    rows = [
        IntervalRow(name="first", mean=5.0, low=-1.0, high=9.0, label="5.0"),
        IntervalRow(name="second", mean=None, low=None, high=None, label="not estimated"),
        IntervalRow(name="third", mean=2.0, low=None, high=None, label="2.0"),
    ]
    plot_intervals(axes, rows, SAVED, "GPU-hours")
    return ""


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    """Two charts that use the same elements as the pages."""
    charts = {"a": Chart(title="A", plot=_plot_lines), "b": Chart(title="B", plot=_plot_estimates, size=(9, 3))}
    return draw_charts(charts) or {}


def test_references_stay_within_a_chart_and_ids_have_its_prefix(drawn: dict[str, str]) -> None:
    for key, svg in drawn.items():
        elements = list(ElementTree.fromstring(svg).iter())
        ids = [element.get("id") or key for element in elements]
        targets = {value for element in elements for name, value in element.attrib.items() if name.endswith("href")}
        assert {one for one in ids if not one.startswith(key)} == set()
        assert {one for one in targets if one[1:] not in ids or one[0] != "#"} == set()
        assert targets
        assert "url(" not in svg


def test_colours_are_css_variables_of_the_page(drawn: dict[str, str]) -> None:
    used = {key: set(re.findall(r"var\((--[a-z]+)\)", svg)) for key, svg in drawn.items()}
    assert used == {
        "a": {"--ink", "--soft", "--rule", "--real", "--slurm", "--slurmwrap"},
        "b": {"--ink", "--soft", "--rule", "--saved"},
    }
    assert re.findall(r"#[0-9a-fA-F]{6}\b", "".join(drawn.values())) == []


def test_title_and_description_are_text(drawn: dict[str, str]) -> None:
    root = ElementTree.fromstring(drawn["a"])
    assert root.findtext(f"{SVG}title") == "A"
    assert root.findtext(f"{SVG}desc") == "rises <quickly> & \\u202e"
    assert root.get("aria-labelledby") == "a-title a-desc"


def test_intervals_are_drawn_top_down_with_their_labels(drawn: dict[str, str]) -> None:
    root = ElementTree.fromstring(drawn["b"])
    texts = [(text.text or "").strip() for text in root.iter(f"{SVG}text")]
    assert [text for text in texts if text in ("first", "second", "third")] == ["third", "second", "first"]
    assert {"5.0", "not estimated", "2.0"} <= set(texts)


def test_the_view_box_has_the_size_of_the_chart(drawn: dict[str, str]) -> None:
    assert [ElementTree.fromstring(svg).get("viewBox") for svg in drawn.values()] == ["0 0 374.4 230.4", "0 0 648 216"]


def test_without_matplotlib_no_charts_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert draw_charts({"a": Chart(title="A", plot=_plot_lines)}) is None
