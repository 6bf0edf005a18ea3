"""The worlds that are compared: which of slurmwrap's parts is at work in each. Records only."""

from __future__ import annotations

from dataclasses import dataclass

PLAIN = "plain"
BLIND, BY_HAND, NONE, OURS = "blind", "by hand", "none", "production"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryArm:
    """`retries`: who runs a failed job again. BLIND: Philly, whatever the reason; BY_HAND: its user; NONE: no one,
    what a dump shows is all that happened; OURS: retry.policy.decide."""

    name: str
    title: str
    trial: bool = False
    retries: str = BLIND
    exclusion: bool = False
    base: str = BLIND  # what the plain world does


def arms_of(*, dump: bool) -> tuple[RetryArm, ...]:
    """`plain` first: the others are measured against it. A dump needs no second plain world: it is one."""
    base = NONE if dump else BLIND
    plain = RetryArm(name=PLAIN, title="as it was" if dump else "plain, blind retries (Philly)", retries=base)
    hand = RetryArm(name="by-hand", title="plain, resubmitted by hand", retries=BY_HAND)
    return (
        plain,
        *(() if dump else (hand,)),
        RetryArm(name="pre-run", title="+ pre-run", trial=True, retries=base),
        RetryArm(name="retry", title="+ adaptive retry", retries=OURS, base=base),
        RetryArm(name="exclusion", title="+ node exclusion", retries=base, exclusion=True),
        RetryArm(name="all", title="all three", trial=True, retries=OURS, exclusion=True, base=base),
    )
