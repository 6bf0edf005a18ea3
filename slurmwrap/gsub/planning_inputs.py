"""What a plan may use: the job's known resource profile, and what the site publishes about nodes and queue."""

from __future__ import annotations

from collections.abc import Callable

from slurmwrap.fast_dataclasses import replace
from slurmwrap.placement.slurm_options import PlanningFacts
from slurmwrap.profiling.job_key import profile_key_of, published_key_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from slurmwrap.gsub.submit_context import SubmitContext
    from slurmwrap.model.resource_profile import ResourceProfile


def find_known_profile(key: str, context: SubmitContext) -> ResourceProfile | None:
    """What is known under `key` for the user who submits."""
    return choose_profile(key, context.uid, context.memory.profile(key), context.published.profiles)


def choose_profile(
    key: str, uid: int, own: ResourceProfile | None, published: Iterable[ResourceProfile]
) -> ResourceProfile | None:
    """The user's own, or the site's of the same user (a key is a user's claim): the one that rests on more runs."""
    site_key = published_key_of(profile_key_of(uid, key))
    known = [replace(p, key=key) for p in published if p.key == site_key] + ([own] if own else [])
    return max(known, key=lambda p: (p.runs, p.measured_at), default=None)


def keep(write: Callable[[], None], context: SubmitContext) -> None:
    """What cannot be remembered (a full disk, no home) must not cost a job that Slurm already has."""
    try:
        write()
    except Exception as error:
        # Nor must a fault of slurmwrap's.
        context.say(f"this is not remembered for `slurmwrap why`: {error}")


# Slurm may start a job some seconds after it was submitted (batch_sched_delay, sched_interval): a second job planned
# meanwhile would see the same nodes free and wait for them. So of a sweep only one gets a list of nodes.
PICK_PAUSE_S = 60.0


def read_planning_facts(context: SubmitContext, *, starts_now: bool) -> PlanningFacts:
    """The outlook of a job. `starts_now`: it is eligible as soon as Slurm has it.

    Firm things are for where the reconciler runs and will hear of the job: else no one would loosen them.
    """
    now = context.clock.now()
    alone = starts_now and now - context.memory.picked_at() >= PICK_PAUSE_S
    if not context.published.fresh(now):
        return PlanningFacts(starts_now=alone)
    return PlanningFacts(
        loads={load.node: load for load in context.published.loads},
        relaxing=context.published.relaxing and context.memory.site_listens(),
        starts_now=alone,
    )
