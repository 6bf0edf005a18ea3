"""The charts of a what-if study: the three worlds in each chart, complete curves, colours of the page."""

from __future__ import annotations

import re
import sys
from datetime import UTC
from functools import cache
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from whatif.month import month

from slurmwrap.cli.whatif.whatif_page import _find_last_mark, list_charts, render_page
from slurmwrap.package_files import shipped
from slurmwrap.report.svg_charts import draw_charts
from slurmwrap.sim.trace.read_trace import parse_trace
from slurmwrap.sim.whatif.cluster_shape import cluster_shape_from_dump
from slurmwrap.sim.whatif.whatif_replay import StudyOptions, make_whatif_study
from slurmwrap.sim.whatif.whatif_study import Study

SVG = "{http://www.w3.org/2000/svg}"
WORLDS = ["really happened", "plain Slurm", "slurmwrap", "slurmwrap with order"]


@cache
def study() -> Study:
    load = parse_trace(month(jobs=200, nodes=3, seed=3).splitlines(), "month.psv")
    return make_whatif_study(load, cluster_shape_from_dump(load), {}, StudyOptions())


@cache
def drawn_charts() -> dict[str, str]:
    return draw_charts(list_charts(study(), UTC)) or {}


def plot_axes(key: str) -> Any:
    """Return the axes of a chart."""
    axes = Figure().subplots()
    list_charts(study(), UTC)[key].plot(axes)
    return axes


def test_each_job_class_has_a_chart_and_all_jobs_have_three() -> None:
    classes = study().arms[0].classes
    assert {key: chart.title for key, chart in list_charts(study(), UTC).items()} == {
        **{f"wait-{place}": f"{one.label}, {one.jobs} jobs" for place, one in enumerate(classes)},
        "jct": f"All {study().jobs} jobs",
        "busy": "GPUs held over the window",
        "savings": "GPU-hours saved, with 95 % intervals",
    }


def test_every_chart_shows_and_describes_all_worlds_or_arms() -> None:
    for key, svg in drawn_charts().items():
        root = ElementTree.fromstring(svg)
        texts = [text.text for text in root.iter(f"{SVG}text")]
        if key != "savings":
            assert [text for text in texts if text in WORLDS] == WORLDS, key
            assert all(re.search(rf"{world} \d+%", root.findtext(f"{SVG}desc") or "") for world in WORLDS), key
        else:
            arms = [arm.title for arm in study().failures.arms[1:]]
            assert [text for text in texts if text in arms] == arms[::-1]
            assert all(arm in (root.findtext(f"{SVG}desc") or "") for arm in arms)


def test_curves_span_the_x_axis_and_end_at_100_percent() -> None:
    for key in [key for key in drawn_charts() if key == "jct" or key.startswith("wait-")]:
        axes = plot_axes(key)
        curves = [patch.get_data() for patch in axes.patches]
        assert len(curves) == len(WORLDS)
        for curve in curves:
            assert (curve.edges[0], curve.edges[-1]) == pytest.approx(axes.get_xlim()), key
            assert curve.values[-1] == pytest.approx(100), key


def test_the_x_axis_ends_at_the_first_mark_by_which_all_curves_are_complete() -> None:
    for key in [key for key in drawn_charts() if key == "jct" or key.startswith("wait-")]:
        axes = plot_axes(key)
        *_, before, last = axes.get_xticks()
        assert last == pytest.approx(axes.get_xlim()[1]), key
        curves = [patch.get_data() for patch in axes.patches]
        shares = [curve.values[curve.edges[:-1] <= before * 1.001][-1] for curve in curves]
        assert last == 60 or min(shares) < 100, key


@pytest.mark.parametrize(
    ("curves", "expected"),
    [
        ([[0.5, 1.0, 1.0], [1.0, 1.0, 1.0]], 3600.0),
        ([[1.0, 1.0, 1.0]], 60.0),
        ([[0.5, 0.9, 1.0]], 86_400.0),
        ([[0.5, 0.8, 0.9]], 86_400.0),
    ],
)
def test_the_axis_of_an_incomplete_curve_ends_with_the_grid(curves: list[list[float]], expected: float) -> None:
    assert _find_last_mark([60.0, 3600.0, 86_400.0], curves) == expected


def test_the_chart_of_held_gpus_covers_the_window() -> None:
    axes = plot_axes("busy")
    window = (study().window.since / 86400, study().window.until / 86400)
    steps = [patch.get_data() for patch in axes.patches if patch.get_label() in WORLDS]
    assert [(step.edges[0], step.edges[-1]) for step in steps] == [pytest.approx(window)] * len(WORLDS)
    means = [100 * arm.gpu_utilisation for arm in study().arms]
    assert [step.values.mean() for step in steps] == pytest.approx(means)


def test_every_colour_of_a_chart_is_defined_in_all_page_themes() -> None:
    css = (shipped("templates") / "whatif" / "page.css").read_text(encoding="utf-8")
    used = set(re.findall(r"var\((--[a-z]+)\)", "".join(drawn_charts().values()) + css))
    light, dark, paper = (set(re.findall(r"(--[a-z]+):", part)) for part in re.findall(r":root \{(.*?)\}", css, re.S))
    assert used == light == dark == paper


def test_without_matplotlib_the_page_has_a_note_and_all_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, charts = render_page(study(), source="month.psv", made_by="1"), len(drawn_charts())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = render_page(study(), source="month.psv", made_by="1")
    assert "<li>Drawings are left out: matplotlib is not installed here" in text
    assert "Drawings are left out" not in whole
    assert [page.count("<svg") for page in (whole, text)] == [charts, 0]
    assert whole.count("<table") == text.count("<table")
