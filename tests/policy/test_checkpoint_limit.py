"""When a job that resumes is ended after its last checkpoint, extended to the next one, or left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import START

from slurmwrap.policy.checkpoint_limit import CheckpointRun, LimitChange, choose_checkpoint_limit, expect_next_save

HOUR = 3600
# Checkpoints every hour, the last one at 23:00 of 23:30 hours: the next one is not complete before the limit.
RUN = CheckpointRun(
    start=START,
    limit_s=23.5 * HOUR,
    saves=[START + hour * HOUR for hour in (20, 21, 22, 23)],
    remaining_s=50 * HOUR,
    longest_s=0,
)
NOW = START + 23 * HOUR + 20


def change(**changes: object) -> tuple[bool, int] | None:
    found = choose_checkpoint_limit(replace(RUN, **changes), NOW)  # type: ignore[arg-type]
    return None if found is None else (found.ends, found.limit_s)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (True, 23 * HOUR + 60)),
        ({"limit_s": 25 * HOUR}, None),  # one more fits
        ({"limit_s": 24 * HOUR}, (True, 23 * HOUR + 60)),  # it would be complete just after the limit
        ({"limit_s": 23.04 * HOUR}, None),  # it ends anyway
        ({"remaining_s": None}, None),  # it might finish
        ({"remaining_s": 0.6 * HOUR}, None),  # it may finish in time
        ({"remaining_s": 0.65 * HOUR}, (True, 23 * HOUR + 60)),
        ({"saves": RUN.saves[-1:]}, None),  # no interval is known
        ({"longest_s": 24.5 * HOUR}, (False, 24 * HOUR + 20 * 60)),
        ({"longest_s": 24 * HOUR}, (True, 23 * HOUR + 60)),  # the next one needs more than is allowed
        ({"longest_s": 24 * HOUR, "remaining_s": 0.65 * HOUR}, (False, 23 * HOUR + 50 * 60)),  # enough to finish
    ],
)
def test_what_happens_near_the_limit(changes: dict[str, object], expected: tuple[bool, int] | None) -> None:
    assert change(**changes) == expected


def test_the_longest_of_the_last_intervals_counts() -> None:
    assert expect_next_save([0, 5000, 6000, 7000, 8000]) == 8000 + 1100 + 60
    assert expect_next_save([0, 1000, 6000, 7000]) == 7000 + 5500 + 60
    assert expect_next_save([7000]) is None


def test_the_reason_says_what_was_done() -> None:
    assert choose_checkpoint_limit(RUN, NOW) == LimitChange(
        limit_s=23 * HOUR + 60,
        ends=True,
        reason="ended after its last checkpoint, so that no work after its last checkpoint is lost",
    )
