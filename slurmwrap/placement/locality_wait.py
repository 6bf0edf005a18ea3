"""How long a job waits for close nodes if the time that it would lose on distant ones is known. Pure.

While a job waits although distant nodes are free, it may win `lost_s`, the time that it would run longer there, and
loses the time that it waits. With P(t), the probability that close nodes come free within t, it goes on waiting while
P(t) x lost_s > t for some t. P comes from the scenarios of the start forecast (start_forecast.py). Waiting costs
nothing as long as distant nodes are not free either.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.placement.start_forecast import NodeGpus, QueuedJob, RunningJob, forecast_starts

# What waits on purpose holds up the jobs behind it and leaves GPUs idle, so the win must be this many times the wait.
WIN_OVER_WAIT = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosenessForecast:
    """When a job is expected to start, in seconds from now: on as few nodes as hold it, and on any nodes.

    `close_s`: one start per scenario, ascending.
    """

    close_s: tuple[float, ...]
    spread_s: float


def find_longest_wait(close_s: Sequence[float], lost_s: float) -> float:
    """Return the longest t with P(close start within t) x lost_s > t, in seconds; 0: there is none."""
    count = len(close_s)
    worth = (at for place, at in enumerate(close_s, 1) if place / count * lost_s > WIN_OVER_WAIT * at)
    return max(worth, default=0.0)


def keeps_waiting(forecast: ClosenessForecast, lost_s: float, waited_s: float) -> bool:
    """Return whether the job goes on insisting on close nodes.

    `waited_s`: since when it could have started on distant nodes. It never waits longer than it can win.
    """
    if forecast.spread_s > 0:
        return True
    return waited_s < lost_s and find_longest_wait(forecast.close_s, lost_s) > 0


def forecast_closeness(
    job: QueuedJob,
    fewest: int,
    nodes: Sequence[NodeGpus],
    running: Sequence[RunningJob],
    ahead: Sequence[QueuedJob],
) -> ClosenessForecast:
    """Return when `job` starts on `fewest` nodes, and on any. `ahead`: the queue before it, highest priority first."""
    close = forecast_starts(nodes, running, [*ahead, replace(job, nodes=fewest)])[job.job]
    spread = forecast_starts(nodes, running, [*ahead, replace(job, nodes=None)])[job.job]
    return ClosenessForecast(close_s=close.starts_s, spread_s=spread.p50_s)
