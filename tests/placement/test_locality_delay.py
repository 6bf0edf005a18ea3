"""How long a job waits for locality: the rule of Tiresias, and the bounds of the deadline."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.placement.locality import LocalityDelay, compute_keenness, compute_locality_delay


def compute_delay(
    skew: float | None = None, nodes: int = 8, room: float = 1.0, time_s: int | None = None
) -> LocalityDelay:
    return compute_locality_delay(skew=skew, limit=0.3, nodes=nodes, room=room, base_s=300, run_s=time_s)


@pytest.mark.parametrize(
    ("found", "wait_s", "firm"),
    [
        (compute_delay(), 150, False),  # unknown skew: a medium wait
        (compute_delay(skew=0.06), 0, False),  # ResNet-101: starts on any free nodes
        (compute_delay(skew=0.3), 0, False),
        (compute_delay(skew=0.72), 240, True),  # VGG
        (compute_delay(skew=1.0), 300, True),
        (compute_delay(skew=1.0, nodes=2), 150, True),
        (compute_delay(skew=1.0, nodes=4), 225, True),
        (compute_delay(skew=1.0, nodes=500), 300, True),
        (compute_delay(skew=1.0, room=0.0), 75, True),
        (compute_delay(skew=1.0, room=0.5), 187, True),
        (compute_delay(skew=1.0, time_s=600), 60, True),
    ],
)
def test_the_wait_depends_on_skew_nodes_free_room_and_time_limit(found: LocalityDelay, wait_s: int, firm: bool) -> None:
    assert (found.wait_s, found.firm) == (wait_s, firm)


def test_the_reason_names_skew_and_limit() -> None:
    reason = compute_delay(skew=0.72).reason
    assert reason == "its largest tensor is 72 % of the model, above 30 %: distant nodes slow it down"


@settings(max_examples=60)
@given(
    skew=st.one_of(st.none(), st.floats(0, 1)),
    limit=st.floats(0, 1),
    nodes=st.integers(1, 10_000),
    room=st.floats(0, 1),
    base=st.integers(0, 100_000),
    time=st.one_of(st.none(), st.integers(60, 10**7)),
)
def test_the_wait_stays_within_its_bounds(
    skew: float | None, limit: float, nodes: int, room: float, base: int, time: int | None
) -> None:
    found = compute_locality_delay(skew=skew, limit=limit, nodes=nodes, room=room, base_s=base, run_s=time)
    assert 0 <= found.wait_s <= min(base, base if time is None else time / 10)
    assert found.firm == (skew is not None and skew > limit)
    assert 0 <= compute_keenness(skew, limit) <= 1
