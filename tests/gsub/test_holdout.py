"""prerun.holdout: one draw per script and week, one draw per sweep, no draw if a pre-run is requested."""

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


def test_the_same_script_is_drawn_once_a_week() -> None:
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
def test_nothing_is_drawn_without_holdout_without_prerun_or_for_an_explicit_mode(
    share: float, mode: str, asked: str | None
) -> None:
    assert draw(mode, asked, "script", context(share)) == ("", False)


def test_the_held_out_share_is_close_to_the_configured_share() -> None:
    held = sum(draw("auto", None, str(number), context(0.05))[1] for number in range(4000))
    assert 160 <= held <= 240


def test_a_larger_share_includes_the_jobs_of_a_smaller_share() -> None:
    few = {n for n in range(500) if draw("auto", None, str(n), context(0.05))[1]}
    many = {n for n in range(500) if draw("auto", None, str(n), context(0.2))[1]}
    assert few < many
