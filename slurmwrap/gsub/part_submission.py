"""Submit an array that is split into parts, since its indices are beyond MaxArraySize (sbatch/array_parts.py).

All parts are submitted first, each with the --begin that makes it wait. Then the first part's pre-run is submitted, and
the others attach to it as the jobs of a sweep do: the same verdict releases or cancels all of them, and if the pre-run
is lost, each part starts by itself after the grace period.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from slurmwrap.digest import sha256_hex
from slurmwrap.errors import SlurmwrapError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.gsub.pack_submission import write_part_script
from slurmwrap.gsub.sbatch_call import (
    WITH_TRIAL,
    call_sbatch,
    make_gate,
    remember,
    select_shown_result,
    start_own_retry_job,
)
from slurmwrap.gsub.submit_context import MakeTrial, PreparedJob, SubmitContext, SubmitResult
from slurmwrap.protocols import SbatchResult
from slurmwrap.sbatch.array_indices import fold_task_indices
from slurmwrap.sbatch.array_parts import make_part_changes
from slurmwrap.store.pack_results import PART_JOBS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.sbatch.pack_option import PackPlan


def send_parts(
    prepared: PreparedJob,
    context: SubmitContext,
    make_trial: MakeTrial,
    now: float,
    meanwhile: Callable[[], None] | None = None,
) -> SubmitResult:
    """Submit all parts, then their pre-run. After a refusal or an unclear answer no further part is submitted.

    The result has the output of all calls of sbatch, the job id of the first part, and the exit code of the last call.
    """
    plan = prepared.pack
    assert plan is not None
    begin, release_at = make_gate(prepared, context.config, now)
    sent: list[tuple[PreparedJob, SubmitResult]] = []
    jobs: list[int] = []
    for number in range(len(plan.parts)):
        try:
            part = _prepare_part(prepared, plan, number, jobs)
        except OSError as error:
            failed = SbatchResult(exit_code=1, stdout="", stderr=f"gsub: {error}\n", job_id=None)
            sent.append((prepared, SubmitResult(result=failed, batch=prepared.batch)))
            break
        added = (*part.added, *(() if begin is None else (begin,)))
        try:
            batch, result = call_sbatch(part, added, context, None, None if number else meanwhile)
        except (SlurmwrapError, KeyboardInterrupt) as error:
            if not jobs:
                raise
            # The user must still get the ids of the parts that Slurm has accepted.
            reason = f"gsub: {str(error) or 'interrupted'}\n"
            batch, result = part.batch, SbatchResult(exit_code=1, stdout="", stderr=reason, job_id=None, timed_out=True)
        sent.append((part, SubmitResult(result=select_shown_result(part, result), batch=batch)))
        if result.job_id is None:
            break
        jobs.append(result.job_id)
        _write_jobs(prepared.pack_dir, jobs, context)
    accepted = [(part, one) for part, one in sent if one.result.job_id is not None]
    started = [_start_trial(part, one, release_at, context, make_trial) for part, one in accepted]
    for (part, _), one in zip(accepted, started, strict=True):
        remember(part, one, context, now)
        start_own_retry_job(part, one.result, context)
    first = started[0] if started else sent[0][1]
    last = sent[-1][1].result
    joined = replace(
        first.result,
        exit_code=last.exit_code,
        stdout="".join(one.result.stdout for _, one in sent),
        stderr="".join(one.result.stderr for _, one in sent),
        timed_out=last.timed_out,
    )
    return replace(first, result=joined, jobs=tuple(jobs))


def _prepare_part(prepared: PreparedJob, plan: PackPlan, number: int, jobs: Sequence[int]) -> PreparedJob:
    """Return the part as a job of its own. OSError: its batch script cannot be written."""
    added = tuple(one for one in prepared.added if one not in plan.changes)
    part = replace(
        prepared,
        added=(*added, *make_part_changes(prepared.request, plan, number, jobs)),
        # Without a group, each part would get a pre-run of its own.
        group=prepared.group or sha256_hex(prepared.pack_dir.encode("utf-8", "surrogateescape")),
    )
    if number == 0:
        return part
    # The first part's pre-run measures the resource profile.
    mode = "auto" if prepared.prerun == "profile" else prepared.prerun
    return replace(part, prerun=mode, pack_script=write_part_script(prepared, number, jobs[0]))


def _start_trial(
    part: PreparedJob, sent: SubmitResult, release_at: str, context: SubmitContext, make_trial: MakeTrial
) -> SubmitResult:
    if part.prerun not in WITH_TRIAL or sent.result.job_id is None:
        return sent
    from slurmwrap.gsub.start_prerun import start_trial

    return start_trial(part, sent, sent.result.job_id, release_at, context, make_trial)


def _write_jobs(directory: str, jobs: Sequence[int], context: SubmitContext) -> None:
    """Write the ids of the parts, which `slurmwrap why` and `gsub --again` read as one array."""
    path = Path(directory) / PART_JOBS
    new = path.with_suffix(".new")
    try:
        new.write_text(json.dumps({"cluster": context.cluster, "jobs": list(jobs)}), encoding="ascii")
        new.replace(path)
    except OSError as error:
        context.say(f"the parts of the array cannot be recorded ({error}): slurmwrap why shows each by itself")


# Parts that a dry run shows.
_MOST_SHOWN = 8


def describe_plan(plan: PackPlan, max_array_size: int) -> list[str]:
    """Return how an array would be submitted, as lines for the user."""
    lines = [f"MaxArraySize={max_array_size}: it would be submitted as {len(plan.parts)} arrays"]
    for number, part in enumerate(plan.parts[:_MOST_SHOWN]):
        after = "" if part.after is None else f", when part {part.after + 1} has ended"
        lines.append(f"part {number + 1}: --array={part.array} runs {fold_task_indices(part.indices)}{after}")
    more = len(plan.parts) - _MOST_SHOWN
    return [*lines, *([f"and {more} more"] if more > 0 else [])]


def describe_parts(plan: PackPlan, sent: SubmitResult, max_array_size: int, reason: str) -> list[str]:
    """Return what was submitted, as lines for the user. `reason`: why Slurm refused the next part."""
    jobs = sent.jobs
    each = ", ".join(
        f"{fold_task_indices(part.indices)} in job {job}" for part, job in zip(plan.parts, jobs, strict=False)
    )
    what = "first members of tasks" if plan.members > 1 else "indices"
    lines = [f"MaxArraySize={max_array_size}: the array is submitted as {len(plan.parts)} arrays; {what} {each}"]
    if len(jobs) < len(plan.parts):
        rest = fold_task_indices([i for i in plan.indices if i >= plan.parts[len(jobs)].indices[0]])
        unclear = sent.result.timed_out
        lines.append(
            f"it is not known whether part {len(jobs) + 1} was submitted: look with squeue --me"
            if unclear
            else f"the indices {rest} are not submitted: {reason}"
        )
        lines.append(f"{'if it was not, ' if unclear else ''}submit the rest: gsub --again {jobs[0]} --array={rest}")
    else:
        lines.append(f"slurmwrap why {jobs[0]}, watch and gsub --again treat them as one array: {jobs[0]}_INDEX")
    return lines
