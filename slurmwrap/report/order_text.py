"""The text about a class in the queue order (rule `order`): for actions, `why` and `watch`, and read back. Pure."""

from __future__ import annotations

import re

from slurmwrap.policy.queue_order import OrderSettings, PendingOrder, has_waited_enough
from slurmwrap.report.text_format import duration

_PREDICTED_CLASS = re.compile(r"class ([0-9]+) of [0-9]+: (?:usually runs|probably runs|its (?:last|earlier) run)")


def format_order_class(job: PendingOrder, order_class: int, settings: OrderSettings) -> str:
    """Return "class 2 of 6: usually runs 20 min on 4 GPUs". `order_class`: 0 is the first."""
    return f"class {order_class + 1} of {settings.classes}: {_explain_class(job, settings)}"


def _explain_class(job: PendingOrder, settings: OrderSettings) -> str:
    if has_waited_enough(job, settings):
        return f"it has waited {duration(job.waited_s)}"
    on = f"on {job.gpus} {'GPU' if job.gpus == 1 else 'GPUs'}" if job.gpus else "without GPUs"
    if settings.index == "las":
        return f"its earlier runs took {duration(job.attained_s)} {on}" if job.attained_s else "it has not run yet"
    if job.estimate is None:
        return "nothing is known about its run time"
    if job.overran:
        return f"its last run took longer than expected; 9 of 10 take less than {duration(job.estimate.p90_s)} {on}"
    verb = "usually runs" if job.estimate.specific else "probably runs"
    usual, most = duration(job.estimate.p50_s), duration(job.estimate.p80_s)
    within = "" if most == usual else f" (8 of 10 within {most})"
    return f"{verb} {usual}{within} {on}"


def parse_predicted_class(text: str) -> int | None:
    """Return the class, 0 for the first, in a text of format_order_class(); None unless it follows from run times."""
    match = _PREDICTED_CLASS.match(text)
    return int(match[1]) - 1 if match else None
