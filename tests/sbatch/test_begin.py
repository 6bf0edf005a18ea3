"""sbatch.begin: the forms of --begin, and the begin time of a job that waits for its pre-run."""

from datetime import datetime

import pytest

from slurmwrap.sbatch.begin import parse_begin_time, select_later_begin

NOW = datetime(2026, 11, 21, 14, 30, 0).timestamp()


def at(*parts: int) -> float:
    return datetime(*parts).timestamp()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("now+60", NOW + 60),
        ("now+1hour", NOW + 3600),
        ("now+2days", NOW + 172800),
        ("now + 3 weeks", NOW + 3 * 604800),
        ("16:00", at(2026, 11, 21, 16, 0)),
        ("09:15:30", at(2026, 11, 22, 9, 15, 30)),
        ("3:05pm", at(2026, 11, 21, 15, 5)),
        ("12:10am", at(2026, 11, 22, 0, 10)),
        ("midnight", at(2026, 11, 22)),
        ("teatime", at(2026, 11, 21, 16)),
        ("tomorrow", NOW + 86400),
        ("2027-01-20T12:34:00", at(2027, 1, 20, 12, 34)),
        ("2027-01-20", at(2027, 1, 20)),
        ("01/20/27", at(2027, 1, 20)),
        ("012027", at(2027, 1, 20)),
        ("now+3fortnights", None),
        ("25:00", None),
        ("soonish", None),
    ],
)
def test_begin_time_is_parsed_in_every_form_of_sbatch(text: str, expected: float | None) -> None:
    assert parse_begin_time(text, NOW) == expected


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        (None, ("now+600", "now")),
        ("now", ("now+600", "now")),
        ("now+60", ("now+600", "2026-11-21T14:31:00")),
        ("16:00", ("2026-11-21T16:00:00", "2026-11-21T16:00:00")),
        ("2020-01-01", ("now+600", "now")),
        ("now+3fortnights", ("now+3fortnights", "now+3fortnights")),
    ],
)
def test_the_later_of_grace_period_and_begin_holds_and_release_restores_begin(user, expected) -> None:
    assert select_later_begin(user, 600, NOW) == expected
