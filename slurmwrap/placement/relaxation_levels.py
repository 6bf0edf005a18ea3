"""The ordered levels of what a job insists on, with their deadlines and the updates that loosen them. Pure.

these nodes → fewest nodes, one domain → one domain → any place with the tuned CPUs and memory → as it asked

A level's `wait_s` counts from the moment when the job became eligible, so it grows from level to level.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.placement_plan import Level
from slurmwrap.placement.locality import SHARE_OF_TIME
from slurmwrap.placement.slurm_options import LocalityStep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.config import Config
    from slurmwrap.sbatch.request import JobRequest, OptionChange


def make_levels(steps: Sequence[LocalityStep]) -> tuple[Level, ...]:
    """One level per step, and the last where nothing is insisted on any more."""
    levels: list[Level] = []
    waited, updates, reason = 0, tuple[tuple[str, str], ...](), ""
    for step in _name_steps(steps):
        waited += step.wait_s
        levels.append(Level(name=step.name, wait_s=waited, updates=updates, reason=reason))
        updates, reason = step.updates, step.reason
    last = "CPUs and memory as asked" if steps and steps[-1].name == "any" else "any"
    return (*levels, Level(name=last, wait_s=0, updates=updates, reason=reason))


def make_tuned_step(request: JobRequest, tuned: Sequence[OptionChange], config: Config) -> tuple[LocalityStep, ...]:
    """What was raised above the request goes back to it, when waiting for it took too long: then it is no help."""
    if not tuned:
        return ()
    from slurmwrap.placement.retune import list_restoring_updates  # only a job with a profile is tuned

    updates = list_restoring_updates(tuned, request)
    wait = config.placement.switch_wait_s
    if request.shape.time_limit_s is not None:
        wait = min(wait, int(SHARE_OF_TIME * request.shape.time_limit_s))
    if not updates:
        return ()
    return (
        LocalityStep(
            name="any", wait_s=wait, updates=updates, reason="more CPUs or memory than asked did not come free"
        ),
    )


def _name_steps(steps: Sequence[LocalityStep]) -> list[LocalityStep]:
    """A domain is "fewest nodes, one switch" while the number of nodes is firm too."""
    places = [step.name for step in steps if step.name not in ("these nodes", "fewest nodes", "any")]
    return [
        replace(step, name=f"{step.name}, {places[0]}") if step.name == "fewest nodes" and places else step
        for step in steps
    ]
