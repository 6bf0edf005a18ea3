"""The charts: deterministic bytes, titles and descriptions for screen readers, no chart without data."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import nights
import pytest

from slurmwrap.report.report_plots import draw

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    """The charts of a full night."""
    return draw(nights.full()) or {}


def test_a_full_night_has_five_charts_with_title_and_description(drawn: dict[str, str]) -> None:
    titles = {key: [ElementTree.fromstring(svg).findtext(f"{SVG}{tag}") for tag in ("title", "desc")]
            for key, svg in drawn.items()}  # fmt: skip
    assert titles == {
        "categories": [
            "GPU-hours by category of failure",
            "gpu_hardware 812.4; traceback_from_crash 401.7; nccl_error 377.9; gpu_oom 96.3; incorrect_inputs 41.8; "
            "cpu_oom 33.2; no_signature 19.9; import_error 4.10",
        ],
        "held": ["GPU-hours over time", "Completed 10,740.0, cancelled 670.0, failed 2,560.0."],
        "runtimes": [
            "How long runs lasted",
            "Most runs that failed did so between 98 s and 5 min (20 % of them).",
        ],
        "gpu_use": [
            "GPU use by size, spread and neighbours",
            "GPUs of the job and use: 1: 52.0 %; 5–8: 56.0 %; 17+: 41.0 %",
        ],
        "savings": [
            "GPU-hours saved, with 95 % intervals",
            "Pre-runs 204.1 (121.0 to 318.5); Placement not estimated; Tuning 33.0 (12.0 to 51.0)",
        ],
    }


def test_the_same_night_gives_identical_charts(drawn: dict[str, str]) -> None:
    assert draw(nights.full()) == drawn


def test_charts_keep_text_elements_and_set_no_styles_or_fonts(drawn: dict[str, str]) -> None:
    for svg in drawn.values():
        root = ElementTree.fromstring(svg)
        assert root.findall(f".//{SVG}style") == []
        assert len(root.findall(f".//{SVG}text")) > 5
        assert "font-family" not in svg


@pytest.mark.parametrize(
    ("most", "least", "labels", "marks"),
    [
        (0.05, 0.0067, {"0.050", "0.007"}, {"0.00", "0.01", "0.02", "0.03", "0.04", "0.05"}),
        (0.2, 0.05, {"0.20", "0.05"}, {"0.00", "0.05", "0.10", "0.15", "0.20"}),
        (8.0, 0.5, {"8.0", "0.5"}, {"0", "2", "4", "6", "8"}),
        (812.4, 96.3, {"812", "96"}, {"0", "200", "400", "600", "800"}),
    ],
)
def test_labels_have_as_many_digits_as_the_scale_needs(
    most: float, least: float, labels: set[str], marks: set[str]
) -> None:
    """Earlier, bars below half a GPU-hour were all labelled 0, and the axis showed 0, 0.0, 0.1, 0.1, 0.1."""
    rows = nights.full().categories[:2]
    categories = tuple(
        replace(row, gpu_hours=value, gpu_hours_before=0.0) for row, value in zip(rows, (most, least), strict=True)
    )
    svg = (draw(replace(nights.empty(), categories=categories)) or {})["categories"]
    texts = [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    numbers = [text for text in texts if text[:1].isdecimal()]
    assert labels <= set(numbers) and marks <= set(numbers)
    ticks = numbers[: len(numbers) - len(labels)]
    assert len(set(ticks)) == len(ticks)


def test_charts_without_data_are_not_drawn() -> None:
    assert draw(nights.empty()) == {}
    assert list(draw(replace(nights.empty(), categories=nights.full().categories)) or {}) == ["categories"]
