"""What a plan may believe of what the site publishes, and whether the job starts on what is free now."""

from __future__ import annotations

from slurmwrap.placement.slurm_options import PlanningFacts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.gsub.submit_context import SubmitContext

# Slurm may start a job some seconds after it was submitted (batch_sched_delay, sched_interval): a second job planned
# meanwhile would see the same nodes free and wait for them. So of a sweep only one gets a list of nodes.
PICK_PAUSE_S = 60.0


def read_planning_facts(desk: SubmitContext, *, starts_now: bool) -> PlanningFacts:
    """The outlook of a job. `starts_now`: it is eligible as soon as Slurm has it.

    Firm things are for where the reconciler runs and will hear of the job: else no one would loosen them.
    """
    now = desk.clock.now()
    alone = starts_now and now - desk.memory.picked_at() >= PICK_PAUSE_S
    if not desk.published.fresh(now):
        return PlanningFacts(starts_now=alone)
    return PlanningFacts(
        loads={load.node: load for load in desk.published.loads},
        relaxing=desk.published.relaxing and desk.memory.site_listens(),
        starts_now=alone,
    )
