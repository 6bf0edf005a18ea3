"""Inputs of a placement plan: the job's known resource profile, and what the site publishes about nodes and queue."""

from __future__ import annotations

from collections.abc import Callable

from slurmwrap.fast_dataclasses import replace
from slurmwrap.placement.slurm_options import PlanningFacts
from slurmwrap.profiling.job_key import derive_published_key, derive_site_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from slurmwrap.gsub.submit_context import SubmitContext
    from slurmwrap.model.cluster import Snapshot
    from slurmwrap.model.resource_profile import ResourceProfile
    from slurmwrap.model.run_time import RunTimeEstimate
    from slurmwrap.sbatch.job_request import JobRequest


def find_known_profile(key: str, context: SubmitContext) -> ResourceProfile | None:
    """Return the resource profile under `key` for the user who submits; None if there is none."""
    return choose_profile(key, context.uid, context.memory.profile(key), context.published.profiles)


def find_run_time(
    request: JobRequest,
    key: str,
    variant: str,
    length: tuple[tuple[str, str], ...],
    snapshot: Snapshot,
    context: SubmitContext,
    prerun_s: float | None = None,
) -> RunTimeEstimate | None:
    """Return the expected run time of the job; None if no earlier run says anything.

    `variant`, `length`: by derive_variant() and derive_length(). `prerun_s`: run time by its pre-run.
    """
    if not context.published.run_times and not context.memory.has_runs() and prerun_s is None:
        return None
    # Imported here because without earlier runs nothing is known.
    from slurmwrap.gsub.expected_run_time import find_expected_run_time
    from slurmwrap.model.run_time import RunTimeQuery

    partition = request.value("partition") or snapshot.default_partition
    job = RunTimeQuery(
        user=str(context.uid),
        key=key,
        variant=variant,
        length=length,
        gpus=request.shape.gpus,
        account=request.value("account") or "",
        partition=partition.partition(",")[0],
    )
    return find_expected_run_time(job, context, prerun_s)


def choose_profile(
    key: str, uid: int, own: ResourceProfile | None, published: Iterable[ResourceProfile]
) -> ResourceProfile | None:
    """Return the user's own profile or the site's profile of the same user, whichever is based on more runs.

    Profiles of other users are never used, because any user may choose any key.
    """
    site_key = derive_published_key(derive_site_key(uid, key))
    known = [replace(p, key=key) for p in published if p.key == site_key] + ([own] if own else [])
    found = max(known, key=lambda p: (p.runs, p.measured_at), default=None)
    # The layers are never published.
    return replace(found, layers=own.layers) if found is not None and own is not None and own.layers else found


def keep(write: Callable[[], None], context: SubmitContext) -> None:
    """Call `write`, and only print a message if it fails.

    Slurm already has the job, so neither a full disk or a missing home directory nor a bug may make the call fail.
    """
    try:
        write()
    except Exception as error:
        context.say(f"this is not remembered for `slurmwrap why`: {error}")


# Slurm may start a job some seconds after it was submitted (batch_sched_delay, sched_interval). A second job planned in
# the meantime would see the same nodes as free and wait for them. So after a job got a list of nodes, jobs submitted
# within this time get none.
PICK_PAUSE_S = 60.0


def read_planning_facts(
    context: SubmitContext, *, starts_now: bool, run_time: RunTimeEstimate | None = None
) -> PlanningFacts:
    """Return the facts about nodes and queue for a plan. `starts_now`: the job is eligible as soon as it is submitted.

    What other jobs with as many GPUs took is no reason to wait less for good nodes, so only a specific run time counts.

    Constraints that must be relaxed later are allowed only if the reconciler runs and learns of the job; otherwise
    nothing would ever relax them.
    """
    now = context.clock.now()
    alone = starts_now and now - context.memory.picked_at() >= PICK_PAUSE_S
    run_s = run_time.p50_s if run_time is not None and run_time.specific else None
    if not context.published.fresh(now):
        return PlanningFacts(starts_now=alone, run_s=run_s)
    return PlanningFacts(
        run_s=run_s,
        loads={load.node: load for load in context.published.loads},
        contention=context.published.contention,
        relaxing=context.published.relaxing and context.memory.site_listens(),
        starts_now=alone,
    )
