"""--preemptible and --lease: what they accept, and what a wrong value says."""

from __future__ import annotations

import pytest

from slurmwrap.sbatch.move_options import Preemptible, parse_lease, parse_preemptible


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", None),
        ("yes", Preemptible()),
        ("USR1@120", Preemptible(signal="USR1", seconds=120)),
        ("B:SIGTERM@60", Preemptible(signal="TERM", batch=True, seconds=60)),
        ("10@5", Preemptible(signal="10", seconds=5)),
    ],
)
def test_consent_with_and_without_a_signal(text: str, wanted: Preemptible | None) -> None:
    assert parse_preemptible(text) == wanted


@pytest.mark.parametrize("text", ["USR1", "USR1@", "USR1@0", "USR1@99999", "USR1@5@5", "@5", "a b@5", "USR1@-5", "no"])
def test_other_texts_are_no_consent(text: str) -> None:
    with pytest.raises(ValueError, match="is no signal with seconds"):
        parse_preemptible(text)


def test_leases() -> None:
    assert [parse_lease(text) for text in ("2h", "90m", "60s", "1d", "2:00:00", "30")] == [
        7200, 5400, 60, 86400, 7200, 1800,
    ]  # fmt: skip
    for text in ("0", "59s", "h", "1w", "UNLIMITED", "-5", "400d", ""):
        with pytest.raises(ValueError):
            parse_lease(text)
