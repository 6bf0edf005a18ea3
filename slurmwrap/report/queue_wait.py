"""What gsub's jobs waited for: figures for the report's section, and the sentence of `slurmwrap why`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, fsum

from slurmwrap.model.job_run import QueueDelay
from slurmwrap.report.night_report import Queueing, WaitedLongest
from slurmwrap.report.text_format import duration

LONGEST = 5


def compute_queueing(delays: Sequence[QueueDelay], *, since: float, until: float) -> Queueing:
    """Return the figures of runs that waited in [since, until), with their whole wait, also before. Seconds per run."""
    mine = [delay for delay in delays if delay.seen_at >= since and delay.eligible_at < until and delay.total_s > 0]
    fair, fragmented = [d.fair_share_s for d in mine], [d.fragmentation_s for d in mine]
    longest = sorted(mine, key=lambda delay: (-delay.total_s, delay.address))[:LONGEST]
    return Queueing(
        runs=len(mine),
        fair_share_mean_s=fsum(fair) / len(mine) if mine else 0.0,
        fair_share_p95_s=_find_p95(fair),
        fragmentation_mean_s=fsum(fragmented) / len(mine) if mine else 0.0,
        fragmentation_p95_s=_find_p95(fragmented),
        unknown_s=fsum(d.unknown_s for d in mine),
        gpu_hours=fsum(d.gpus * d.total_s for d in mine) / 3600,
        longest=tuple(_make_wait_row(delay) for delay in longest),
    )


def format_wait(delay: QueueDelay) -> str:
    """Format "Waited 12 min: 4 min for its turn (fair share), 8 min for GPUs that were scattered (fragmentation)." """
    parts = (
        (delay.fair_share_s, "for its turn (fair share)"),
        (delay.fragmentation_s, "for GPUs that were scattered (fragmentation)"),
        (delay.unknown_s, "not known"),
    )
    shown = ", ".join(f"{duration(seconds)} {name}" for seconds, name in parts if seconds >= 0.5)
    going_on = "" if delay.over else " so far"
    return f"Waited {duration(delay.total_s)}{going_on}{': ' if shown else ''}{shown}."


def _find_p95(values: Sequence[float]) -> float:
    """Return the least value that 95 % of the values do not exceed (nearest rank)."""
    return sorted(values)[ceil(0.95 * len(values)) - 1] if values else 0.0


def _make_wait_row(delay: QueueDelay) -> WaitedLongest:
    return WaitedLongest(
        address=delay.address,
        user=delay.user,
        gpus=delay.gpus,
        total_s=delay.total_s,
        fair_share_s=delay.fair_share_s,
        fragmentation_s=delay.fragmentation_s,
        waits=not delay.over,
    )
