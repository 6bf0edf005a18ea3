"""Whether a job asks for more GPUs than made its earlier runs faster, for --explain."""

from __future__ import annotations

from slurmwrap.errors import StoreError
from slurmwrap.gsub.planning_inputs import find_known_profile
from slurmwrap.gsub.submit_context import PreparedJob, SubmitContext
from slurmwrap.gsub.user_state import UserStateStore
from slurmwrap.profiling.gpu_scaling import ScalingPoint, describe_scaling, find_enough_gpus, list_scaling


def explain_gpus(prepared: PreparedJob, context: SubmitContext) -> str:
    """Return a sentence if fewer GPUs would do by complete runs of the same script; "" if not, or if it is unknown."""
    script, gpus = prepared.request.script.path, prepared.request.shape.gpus
    if not script or gpus < 2 or not isinstance(context.memory, UserStateStore):
        return ""
    try:
        keys = {prepared.profile_key, *context.memory.state.profile_keys_of(script)}
        known = [find_known_profile(key, context) for key in sorted(keys)]
    except StoreError:
        # The advice is optional. What else needs the database reports its fault.
        return ""
    return describe_enough_gpus(list_scaling(speed for one in known if one is not None for speed in one.speeds), gpus)


def describe_enough_gpus(points: tuple[ScalingPoint, ...], gpus: int) -> str:
    """Return the sentence about a request of `gpus` GPUs; "" if it is fine."""
    found = find_enough_gpus(points, gpus)
    if found is None:
        return ""
    fewer, more = found
    return (
        f"it asks for {gpus} GPUs, but {more.gpus} were only {more.speed / fewer.speed:.1f} times as fast as"
        f" {fewer.gpus} in its earlier runs ({describe_scaling(points)}): ask for {fewer.gpus}, or measure it again"
    )
