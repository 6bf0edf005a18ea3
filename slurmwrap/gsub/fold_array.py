"""Fold a waiting array of --pack=auto by what its pre-run measured, so that each of its tasks runs several members.

The array was submitted with one member in each task. The pre-run's last act, as the user, gives the tasks the CPUs and
the memory of K members, then writes K to spec.json: from then on every Kth task runs K members, and the others end at
once with 0 when they start (inject/slurmwrap_members.py). All of them are the tasks that the user submitted, so job
ids, dependencies and the number of tasks stay. If the pre-run dies before the last write, each task runs its own
member, at worst with more CPUs than it needs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from time import localtime, strftime
from typing import TYPE_CHECKING

from slurmwrap.errors import SlurmError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.gsub.waiting_job import start_action
from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.model.resource_profile import PACK_ENDS, Measurement, ResourceProfile
from slurmwrap.model.trial_result import StepReading, TrialProgress
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.placement.pack_size import choose_members, find_most_members
from slurmwrap.prerun.trial.pack_measurement import measure_members
from slurmwrap.sbatch.job_request import CpuUnit, MemUnit
from slurmwrap.sbatch.pack_option import count_simultaneous, make_pack_plan
from slurmwrap.store.atomic_write import replace_file
from slurmwrap.store.pack_results import SPEC

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slurmwrap.gsub.submit_context import SubmitContext
    from slurmwrap.model.cluster import Snapshot
    from slurmwrap.prerun.trial.trial_spec import TrialSpec
    from slurmwrap.sbatch.job_request import JobRequest
    from slurmwrap.sbatch.pack_option import PackPlan

# No task starts for so many seconds while the array is folded.
_HOLD_S = 300.0


def measure_packing(
    spec: TrialSpec,
    request: JobRequest,
    verdict: Verdict,
    snapshot: Callable[[], Snapshot],
    environ: Mapping[str, str],
    on_progress: Callable[[TrialProgress], None],
) -> Verdict:
    """Run members side by side after a pass, and return the verdict with their speeds in its measurement."""
    if verdict.outcome is not Outcome.PASS or spec.pack_most < 2:
        return verdict
    known = verdict.measurement or Measurement()
    if not StepReading(source=verdict.layer).exact and known.steps_per_s is None:
        return replace(verdict, measurement=replace(known, pack_end="steps"))
    profile = ResourceProfile(
        key="", gpu_util=known.gpu_util, gpu_mem_mib=known.gpu_mem_peak_mib, mem_mib_per_gpu=known.mem_peak_mib
    )
    try:
        most = find_most_members(request, profile, snapshot())
    except SlurmError:
        most = spec.pack_most  # by the request and the nodes at the submission
    found = measure_members(replace(spec, pack_start_s=verdict.seconds), most, environ=environ, on_progress=on_progress)
    return replace(verdict, measurement=replace(known, pack_speeds=found.points, pack_end=found.end))


def plan_fold(
    request: JobRequest, profile: ResourceProfile | None, snapshot: Snapshot, context: SubmitContext
) -> PackPlan | None:
    """Return how the waiting array is folded; None if one member stays on each GPU. Says why.

    Only measured speeds count: what is predicted is no reason to change a job that was submitted already.
    """
    if profile is None or not profile.pack_speeds:
        why = PACK_ENDS.get("" if profile is None else profile.pack_end, "its pre-run did not get so far")
        context.say(f"--pack=auto: one member on each GPU, since no speed was measured: {why}")
        return None
    members, reason = choose_members(request, profile, snapshot, context.config.pack.least_gain)
    plan = make_pack_plan(request, members, reason)
    if plan.members == 1:
        context.say(f"--pack=auto: one member on each GPU: {reason}")
        return None
    shape = request.shape
    # Measured on 22.05.8 with -c and with --mem, --mem-per-cpu and neither: srun runs in tasks that were updated so.
    if shape.cpu_unit is not CpuUnit.PER_TASK or shape.mem_unit is MemUnit.PER_GPU:
        context.say(
            f"--pack=auto: {members} members would share a GPU ({reason}), but Slurm cannot change "
            f"--{shape.cpu_unit.value} and --{shape.mem_unit.value} of a waiting job: the next submission is packed"
        )
        return None
    context.say(f"--pack=auto: {plan.members} members on each GPU: {reason}")
    return plan


def make_hold(address: str, eligible_at: float | None, now: float) -> tuple[SlurmAction, ...]:
    """Return the update after which no task starts while the array is folded, even if its grace period ends.

    () if the job may not start before anyway: a later begin of its user must stay if the pre-run dies now.
    """
    if eligible_at is not None and eligible_at > now + _HOLD_S:
        return ()
    start = strftime("%Y-%m-%dT%H:%M:%S", localtime(now + _HOLD_S))
    return (start_action(address, start, "no task may start while the array is folded"),)


def make_fold_updates(address: str, request: JobRequest, plan: PackPlan) -> tuple[SlurmAction, ...]:
    """Return the updates of CPUs and memory of the waiting tasks; they go into one call."""
    values = [("CPUsPerTask", plan.shape.cpus), ("MinCPUsNode", plan.shape.cpus)]
    if request.shape.mem_unit is MemUnit.PER_NODE and plan.shape.mem_mib:
        values.append(("MinMemoryNode", plan.shape.mem_mib))
    reason = f"--pack=auto: {plan.members} members on each GPU"
    return tuple(
        SlurmAction(verb=Verb.UPDATE_JOB, target=address, key=key, value=str(value), reason=reason)
        for key, value in values
    )


def undo_fold_updates(updates: Sequence[SlurmAction], request: JobRequest) -> tuple[SlurmAction, ...]:
    """Return the updates that give the tasks back what one member needs. Slurm checks the job after each key."""
    values = {"MinMemoryNode": request.shape.mem_mib}
    return tuple(
        replace(one, value=str(values.get(one.key, request.shape.cpus)), reason="the array is not folded")
        for one in reversed(updates)
    )


def make_throttle_update(address: str, request: JobRequest, plan: PackPlan) -> tuple[SlurmAction, ...]:
    """Return the update of --array=...%N: N members at the same time are fewer tasks."""
    limit = count_simultaneous(request)
    if limit is None:
        return ()
    value = str(max(1, limit // plan.members))
    reason = f"--pack=auto: at most {limit} members run at the same time"
    return (SlurmAction(verb=Verb.UPDATE_JOB, target=address, key="ArrayTaskThrottle", value=value, reason=reason),)


def write_members(directory: str, members: int, alone: float) -> None:
    """Write the number of members of each task: the array is folded from now on. OSError, ValueError: it is not.

    `alone`: steps per second of one member alone.
    """
    path = Path(directory, SPEC)
    plain = json.loads(path.read_bytes())
    replace_file(path, json.dumps({**plain, "members": members, "alone": alone}))
