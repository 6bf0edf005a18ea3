"""Times and durations as sacct prints them."""

from __future__ import annotations

import pytest

from slurmwrap.model.sacct_fields import parse_elapsed, parse_limit, parse_stamp


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1793502245", 1793502245.0),
        ("20261101", 20261101.0),
        ("2026-11-01T03:04:05", 1793502245.0),
        ("2026-11-01T04:04:05+01:00", 1793502245.0),
        ("2026-11-01T04:04:05+0100", 1793502245.0),
        ("2026-11-01 03:04:05", 1793502245.0),
        ("Unknown", None),
        ("None", None),
        ("N/A", None),
        ("0", None),
        ("", None),
    ],
)
def test_a_time_is_unix_seconds_or_an_iso_date(text: str, seconds: float | None) -> None:
    assert parse_stamp(text) == seconds


@pytest.mark.parametrize("text", ["03:04:05", "yesterday", "202611-1", "2026-13-01T00:00:00", "-5", "1.5", "Nov 1"])
def test_an_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_stamp(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3600", 3600.0),
        ("01:00:00", 3600.0),
        ("1-02:03:04", 93784.0),
        ("02:03", 123.0),
        ("00:00:01.500", 1.0),
        ("", None),
        ("INVALID", None),
    ],
)
def test_a_duration_is_seconds_or_days_hours_minutes_and_seconds(text: str, seconds: float | None) -> None:
    assert parse_elapsed(text) == seconds


@pytest.mark.parametrize("text", ["1h", "1:2:3:4", "-01:00:00", "1.5"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_elapsed(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 7200.0),
        ("02:00:00", 7200.0),
        ("1-00:00:00", 86400.0),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        ("", None),
    ],
)
def test_a_time_limit_without_unit_is_in_minutes(text: str, seconds: float | None) -> None:
    assert parse_limit(text) == seconds
