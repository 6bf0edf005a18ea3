"""The drawings: the same bytes each time, names for those who cannot see them, nothing where there is nothing."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import nights

from slurmwrap.report.plots import draw

SVG = "{http://www.w3.org/2000/svg}"


def test_a_full_night_has_four_drawings_that_say_what_they_show() -> None:
    drawn = draw(nights.full()) or {}
    said = {key: [ElementTree.fromstring(svg).findtext(f"{SVG}{tag}") for tag in ("title", "desc")]
            for key, svg in drawn.items()}  # fmt: skip
    assert said == {
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
        "savings": [
            "GPU-hours saved, with 95 % intervals",
            "Pre-runs 204.1 (121.0 to 318.5); Placement not estimated; Tuning 33.0 (12.0 to 51.0)",
        ],
    }


def test_the_same_night_gives_the_same_bytes() -> None:
    assert draw(nights.full()) == draw(nights.full())


def test_text_stays_text_and_no_drawing_speaks_for_the_page() -> None:
    for svg in (draw(nights.full()) or {}).values():
        root = ElementTree.fromstring(svg)
        assert root.findall(f".//{SVG}style") == []
        assert len(root.findall(f".//{SVG}text")) > 5
        assert "font-family" not in svg


def test_what_there_is_nothing_of_is_not_drawn() -> None:
    assert draw(nights.empty()) == {}
    assert list(draw(replace(nights.empty(), categories=nights.full().categories)) or {}) == ["categories"]
