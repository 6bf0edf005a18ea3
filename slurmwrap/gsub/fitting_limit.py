"""The time limit and --time-min that would fit a job's earlier runs, as advice of gsub --explain and --json. Pure."""

from __future__ import annotations

from slurmwrap.gsub.time_request import make_time_request
from slurmwrap.policy.checkpoint_limit import choose_time_min
from slurmwrap.policy.resize import round_up_time
from slurmwrap.policy.time_limit import WORTH, compute_lower_limit, format_limit
from slurmwrap.report.text_format import duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.config.load_config import Limit
    from slurmwrap.gsub.submit_context import PreparedJob


def find_fitting_limit(prepared: PreparedJob, settings: Limit) -> int | None:
    """Return a clearly lower time limit in seconds that all earlier runs suggest; None if there is none to advise."""
    asked = prepared.request.shape.time_limit_s
    if asked is None or prepared.request.setting("time-min") is not None:
        return None
    limit = compute_lower_limit(prepared.run_time, asked, settings, warn_s=make_time_request(prepared.request).warn_s)
    rounded = None if limit is None else round_up_time(limit)
    return rounded if rounded is not None and rounded < WORTH * asked else None


def describe_fitting_limit(prepared: PreparedJob, fitting_s: int) -> str:
    """Return the advice without its subject; it follows the line about the earlier runs."""
    asked = duration(prepared.request.shape.time_limit_s or 0)
    return f"asks for {asked}: --time={format_limit(fitting_s)} would fit these runs, and let it start in a gap"


def describe_time_min(prepared: PreparedJob) -> str:
    """Return advice about --time-min without its subject; "" if no earlier run resumed, or the user decided."""
    profile, asked = prepared.profile, prepared.request.shape.time_limit_s
    time = make_time_request(prepared.request)
    if profile is None or profile.saved_after_s is None or asked is None or time.fixed or time.warn_s:
        return ""
    least = choose_time_min([profile.saved_after_s], asked)
    if least is None:
        return ""
    return (
        f"resumes from checkpoints, and saves within {duration(profile.saved_after_s)}: "
        f"--time-min={format_limit(round_up_time(least))} would let it start in a shorter gap, and end sooner"
    )
