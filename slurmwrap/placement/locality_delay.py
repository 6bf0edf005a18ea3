"""How much a job insists on lying close together, and how long. Pure.

Tiresias (Gu et al., NSDI 2019): skew is the largest tensor over the model's size; only models above a limit lose enough
by spreading to be worth waiting for. The paper's own limit comes from a classifier over past runs; its published models
fall apart between 0.14 and 0.61, so `placement.skew_limit` = 0.3 gives the paper's split. Everything else here is an
assumption of slurmwrap's, in one place:

    wait = placement.switch_wait_s x keenness x size x room, at most a tenth of the job's time limit

    keenness  0 up to the limit; from 0.5 at the limit to 1 at skew 1; 0.5 where the skew is not known
    size      (1 + log2 nodes) / 4, at most 1: 0.5 for two nodes, 1 for eight. The more nodes, the more traffic
    room      from 0.25 to 1 as the fullest domain's free part of what the job needs goes from 0 to all of it:
              a domain that is nearly free is worth waiting for, a hopeless one is not
"""

from __future__ import annotations

from math import log2

from slurmwrap.fast_dataclasses import dataclass

UNKNOWN = 0.5  # keenness where no one measured the skew
AT_LIMIT = 0.5  # keenness of a skew just above the limit
FULL_SIZE_LOG2 = 3  # 2^3 nodes have the full wait
HOPELESS = 0.25  # what is left of the wait where no domain has any room
SHARE_OF_TIME = 0.1  # of the job's time limit: it never waits longer for a place


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalityDelay:
    """How long a job may wait for locality; 0: it takes what is free. `firm`: it insists where someone loosens."""

    wait_s: int
    firm: bool
    reason: str


def compute_locality_delay(
    *, skew: float | None, limit: float, nodes: int, room: float, base_s: int, time_limit_s: int | None
) -> LocalityDelay:
    """For a job of `nodes` nodes (or that would be spread over so many) when `room` of it fits into one domain now."""
    keen = compute_keenness(skew, limit)
    size = min(1.0, (1 + log2(max(1, nodes))) / (1 + FULL_SIZE_LOG2))
    wait = base_s * keen * size * (HOPELESS + (1 - HOPELESS) * max(0.0, min(1.0, room)))
    if time_limit_s is not None:
        wait = min(wait, SHARE_OF_TIME * time_limit_s)
    return LocalityDelay(
        wait_s=int(wait), firm=skew is not None and skew > limit, reason=_explain_low_skew(skew, limit)
    )


def compute_keenness(skew: float | None, limit: float) -> float:
    """0 (spreading costs it little) to 1."""
    if skew is None:
        return UNKNOWN
    if skew <= limit:
        return 0.0
    return AT_LIMIT + (1 - AT_LIMIT) * min(1.0, (skew - limit) / max(1e-9, 1 - limit))


def _explain_low_skew(skew: float | None, limit: float) -> str:
    if skew is None:
        return "how much it loses on distant nodes is not known"
    if skew > limit:
        found = f"{_format_percent(skew)} of the model, above {_format_percent(limit)}: distant nodes slow it down"
    else:
        found = f"{_format_percent(skew)} of the model, not above {_format_percent(limit)}: distant nodes cost little"
    return f"its largest tensor is {found}"


def _format_percent(share: float) -> str:
    return f"{100 * share:.0f} %"
