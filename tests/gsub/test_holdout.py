"""prerun.holdout: the same is drawn once a week, a sweep is one draw, and who asks for a pre-run has it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from slurmwrap.config.load_config import Config, Prerun
from slurmwrap.gsub.prepare import WEEK_S, draw

MONDAY = 1_699_833_600.0  # 13 November 2023, 00:00 UTC


def context(share: float, at: float = MONDAY, uid: int = 1000) -> Any:
    clock = SimpleNamespace(now=lambda: at)
    return SimpleNamespace(config=Config(prerun=Prerun(holdout=share)), clock=clock, uid=uid, cluster="lab")


def test_the_same_is_drawn_once_a_week() -> None:
    first = draw("auto", None, "script", context(0.5))
    assert draw("gate", None, "script", context(0.5, MONDAY + WEEK_S - 1)) == first
    others = {
        draw("auto", None, "script", context(0.5, MONDAY + WEEK_S))[0],
        draw("auto", None, "script", context(0.5, uid=1001))[0],
        draw("auto", None, "another", context(0.5))[0],
    }
    assert len({first[0], *others}) == 4


@pytest.mark.parametrize(
    ("share", "mode", "asked"),
    [(0.0, "auto", None), (0.5, "off", None), (0.5, "wait", None), (0.5, "auto", "auto"), (0.5, "gate", "gate")],
)
def test_no_draw_where_none_is_due(share: float, mode: str, asked: str | None) -> None:
    assert draw(mode, asked, "script", context(share)) == ("", False)


def test_about_as_many_are_held_out_as_are_to_be() -> None:
    held = sum(draw("auto", None, str(number), context(0.05))[1] for number in range(4000))
    assert 160 <= held <= 240


def test_a_larger_share_holds_out_who_was_held_out_before() -> None:
    few = {n for n in range(500) if draw("auto", None, str(n), context(0.05))[1]}
    many = {n for n in range(500) if draw("auto", None, str(n), context(0.2))[1]}
    assert few < many
