"""Moves in the night report and in `slurmwrap why`."""

from __future__ import annotations

from typing import Any

from slurmwrap.model.job_run import ActionRecord
from slurmwrap.report.action_counts import count_moves
from slurmwrap.report.job_report.run_text import describe_move
from slurmwrap.report.night_report import MoveTotals


def move(key: str = "feedback", mode: str = "act", done: float | None = 5.0, **changes: Any) -> ActionRecord:
    return ActionRecord(
        action_id=1, attempt=None, rule="move", mode=mode, verb="move", target="81", key=key, value="90",
        reason="job 90 waits less", intended_at=1.0, done_at=done, **changes,
    )  # fmt: skip


def test_moves_are_counted_with_what_they_gained_and_lost() -> None:
    found = count_moves(
        [
            move("fragmentation", figures=(("gained_gpu_s", 7200.0), ("lost_gpu_s", 1800.0))),
            move("lease"),
            move(error="job 90 no longer waits", figures=(("gained_gpu_s", 9e9),)),
            move(mode="advise", done=None, figures=(("gained_gpu_s", 9e9),)),
            move("restarted", figures=(("lost_gpu_s", 3600.0),)),
            move(done=None),
        ]
    )
    assert found == MoveTotals(
        moved=2,
        leases=1,
        given_up=1,
        advised=1,
        gained_gpu_hours=2.0,
        lost_gpu_hours=1.5,
        unexpected_gpu_hours=1.0,
        restarted=1,
    )


def test_what_why_says() -> None:
    assert describe_move(move()) == "Moved: job 90 waits less."
    assert describe_move(move(done=None)) == "Being moved: job 90 waits less."
    assert describe_move(move(mode="advise", done=None)) == "A move is advised: job 90 waits less."
    assert (
        describe_move(move(error="job 90 no longer waits")) == "Not moved: job 90 no longer waits (job 90 waits less)."
    )
