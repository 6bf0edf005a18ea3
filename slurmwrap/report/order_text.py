"""Texts about a job's class in the queue order (rule `order`): made for actions, `why` and `watch`, and read back."""

from __future__ import annotations

import re

from slurmwrap.model.run_time import RunTimeEstimate
from slurmwrap.policy.queue_order import OrderSettings, PendingOrder
from slurmwrap.report.text_format import duration

_CLASS = re.compile(r"class ([0-9]+) of ([0-9]+)")


def format_order_class(job: PendingOrder, order_class: int, settings: OrderSettings) -> str:
    """Return "class 2 of 6: usually runs 20 min on 4 GPUs". `order_class`: 0 is the first."""
    return f"class {order_class + 1} of {settings.classes}: {_explain_class(job, settings)}"


def _explain_class(job: PendingOrder, settings: OrderSettings) -> str:
    if job.waited_s >= settings.most_wait_s:
        return f"it has waited {duration(job.waited_s)}"
    on = f"on {job.gpus} {'GPU' if job.gpus == 1 else 'GPUs'}" if job.gpus else "without GPUs"
    if settings.index == "las":
        return f"its earlier runs took {duration(job.attained_s)} {on}" if job.attained_s else "it has not run yet"
    if job.estimate is None:
        return "nothing is known about its run time"
    if job.overran:
        return f"its last run took longer than expected; 9 of 10 take less than {duration(job.estimate.p90_s)} {on}"
    return f"{format_source(job.estimate)} {duration(job.estimate.p50_s)} {on}"


def format_source(estimate: RunTimeEstimate) -> str:
    """Return who usually runs so long: the job itself, or jobs of its size."""
    return "usually runs" if estimate.specific else f"jobs of its {estimate.source} usually run"


def parse_order_class(text: str) -> tuple[int, int] | None:
    """Return (class, number of classes) of a text of format_order_class(), 0 for the first class; None without one."""
    match = _CLASS.search(text)
    return (int(match[1]) - 1, int(match[2])) if match else None
