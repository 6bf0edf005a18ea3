"""CPU curves as text bars."""

from __future__ import annotations

import pytest

from slurmwrap.cli.profile.profile_output import ProfileBar, format_bars, list_cpu_points
from slurmwrap.model.resource_profile import CurvePoint, ResourceProfile

CURVE = ResourceProfile(
    key="k",
    cpu_curve=(
        CurvePoint(cpus=1, steps_per_s=5.0, spread=0.1),
        CurvePoint(cpus=2, steps_per_s=9.9),
        CurvePoint(cpus=16, steps_per_s=10.0),
    ),
)


def test_bars_fill_the_width_and_the_chosen_point_is_marked() -> None:
    assert format_bars(list_cpu_points(CURVE), head=("CPUs", "steps/s"), columns=49, unicode=True) == [
        "  CPUs     steps/s",
        "     1  5.00 ±10 %  ██████████",
        "     2        9.90  ███████████████████▊ ◀ chosen",
        "    16        10.0  ████████████████████",
    ]


def test_without_unicode_the_output_is_ascii() -> None:
    lines = format_bars(list_cpu_points(CURVE), head=("CPUs", "steps/s"), columns=50, unicode=False)
    assert lines[2] == "     2         9.90  ################### <- chosen"
    assert "\n".join(lines).isascii()


@pytest.mark.parametrize("columns", [1, 40, 80, 200])
@pytest.mark.parametrize("value", [0.0, 1e-9, 1.0, 12345.6, 1e12])
def test_no_line_is_wider_than_the_terminal(columns: int, value: float) -> None:
    points = [ProfileBar(label="1", value=value), ProfileBar(label="2", value=1.0, chosen=True)]
    lines = format_bars(points, head=("CPUs", "steps/s"), columns=columns, unicode=True)
    least = 50  # label, value and mark with a bar of eight columns
    assert max(map(len, lines)) <= max(columns, least)


def test_only_the_chosen_bar_is_coloured() -> None:
    lines = format_bars(
        list_cpu_points(CURVE), head=("CPUs", "steps/s"), columns=50, unicode=False, style=lambda t, s: f"<{s}>"
    )
    assert ["<green>" in line for line in lines] == [False, False, True, False]


def test_no_bars_without_measured_points() -> None:
    assert format_bars(list_cpu_points(ResourceProfile(key="k")), head=("a", "b"), columns=80, unicode=True) == []
