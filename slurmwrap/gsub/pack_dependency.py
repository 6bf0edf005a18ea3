"""Adapt --dependency to packed jobs of the user (gsub --pack), whose members are no tasks of Slurm's.

Measured on Slurm 22.05.8: a dependency on a task that its array does not have, as afterok:77_5 where 77_4 runs the
member 5, counts as met at once. So gsub names the task that runs the member. With aftercorr a task without a partner
waits for the whole array, but the first tasks of a packed array would find a partner that runs other indices too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from slurmwrap.config.load_config import find_state_dir, load
from slurmwrap.console import Console
from slurmwrap.errors import RefusedError
from slurmwrap.model.submission import PackedArray
from slurmwrap.sbatch.array_indices import expand_indices, fold_indices
from slurmwrap.sbatch.command_line import add_plugin_names, split_command_line
from slurmwrap.sbatch.job_request import JobRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.gsub.submit_context import SubmitContext
    from slurmwrap.sbatch.pack_option import PackPlan

_JOB = re.compile(r"(\d{1,18})(?:_(\d{1,9}))?(\+\d+)?", re.ASCII)
_SEPARATOR = re.compile(r"([,?])")


def adapt_call(
    words: Sequence[str], request: JobRequest, environ: Mapping[str, str], console: Console
) -> list[str] | None:
    """Return the call with a dependency that means what was asked; None if it does so already.

    RefusedError: none means that.
    """
    value = request.value("dependency")
    # Only packed jobs have a directory there, so other users of --dependency pay for nothing else.
    if not value or request.hetjob or not os.path.isdir(f"{find_state_dir(environ)}/pack"):  # noqa: PTH112
        return None
    packs = _read_packs(value, environ, console)
    new, remarks = adapt_dependency(value, packs, request.value("array") or "", packed=request.own.pack is not None)
    for remark in remarks:
        console.say(f"--dependency={value}: {remark}")
    if new == value:
        return None
    command = split_command_line(words, add_plugin_names(request.plugin_options))
    # sbatch takes the last one, and one of the command line before one of the script.
    mine = [one for one in command.given if one.option == "dependency"]
    at = max((max(one.word, one.value_word) + 1 for one in mine), default=0)
    return [*words[:at], f"--dependency={new}", *words[at:]]


def _read_packs(value: str, environ: Mapping[str, str], console: Console) -> dict[int, PackedArray]:
    """Return the packed arrays of this user among the jobs that the dependency names."""
    from slurmwrap.gsub.prefetch import make_slurm_commands

    cluster = make_slurm_commands(load(environ), environ, console).cluster_name()
    return find_packs(list_named_jobs(value), cluster, environ)


def find_packs(job_ids: Sequence[int], cluster: str, environ: Mapping[str, str]) -> dict[int, PackedArray]:
    """Return the packed arrays of this user with these job ids."""
    from slurmwrap.gsub.resubmission import find_submission
    from slurmwrap.store.pack_results import read_folded_array
    from slurmwrap.store.user_state_files import UserState

    state = UserState(find_state_dir(environ))
    found = ((job_id, find_submission(state, cluster, job_id)) for job_id in job_ids)
    return {job_id: read_folded_array(one.pack) for job_id, one in found if one is not None and one.pack is not None}


def list_named_jobs(value: str, kind: str = "") -> tuple[int, ...]:
    """Return the ids of the jobs that a dependency names, of those with the type `kind` only if it is given."""
    parts = (part.strip().split(":") for part in _SEPARATOR.split(value))
    named = (_JOB.fullmatch(job) for type_, *jobs in parts if type_.lower() == (kind or type_.lower()) for job in jobs)
    return tuple(dict.fromkeys(int(found[1]) for found in named if found is not None))


def adapt_dependency(
    value: str, packs: Mapping[int, PackedArray], array: str, *, packed: bool
) -> tuple[str, tuple[str, ...]]:
    """Return the dependency for Slurm, and what to tell the user of it. `packs`: the packed jobs among those named.

    `array`: --array of the job that is submitted; `packed`: it is packed itself, and check_correspondence() checks its
    `aftercorr`. RefusedError: Slurm cannot express what was asked.
    """
    remarks: list[str] = []
    either = "?" if "?" in value else ","

    def adapt(part: str) -> Iterator[str]:
        kind, *jobs = part.split(":")
        whole = [job for job in jobs if job.isdecimal() and int(job) in packs]
        if kind.strip().lower() == "aftercorr" and array and not packed and whole:
            named = ":".join(whole)
            remarks.append(
                f"job {', '.join(whole)} is packed, so its tasks are not those of this array: each task waits for all "
                f"of it (afterok:{named}), and none starts if one of its members fails"
            )
            others = [job for job in jobs if job not in whole]
            yield f"afterok:{named}"
            yield from [f"{kind}:{':'.join(others)}"] if others else []
            return
        yield ":".join((kind, *(_adapt_job(kind.strip().lower(), job, packs, remarks) for job in jobs)))

    adapted = (one if one in (",", "?") else either.join(adapt(one)) for one in _SEPARATOR.split(value))
    return "".join(adapted), tuple(remarks)


def _adapt_job(kind: str, job: str, packs: Mapping[int, PackedArray], remarks: list[str]) -> str:
    """Return the job of a dependency, with the task that runs the member in place of the member."""
    found = _JOB.fullmatch(job)
    pack = packs.get(int(found[1])) if found is not None and found[2] else None
    if found is None or pack is None:
        return job
    member, indices = int(found[2]), expand_indices(pack.array)
    if member not in indices:
        return job
    if pack.members < 2:
        # How its tasks are folded is decided later: only the whole array surely has the member.
        remarks.append(f"which task of {found[1]} runs its member {member} is not known yet; the job waits for all")
        return f"{found[1]}{found[3] or ''}"
    at = indices.index(member) // pack.members * pack.members
    members = indices[at : at + pack.members]
    task = f"{found[1]}_{members[0]}"
    if kind == "afternotok" and member != members[0]:
        raise RefusedError(
            f"--dependency: {job} is a member of the packed task {task}, and Slurm knows only how the whole task ended",
            hint=f"afternotok:{task} is met if any of its members {fold_indices(members)} fails.",
        )
    mine = fold_indices(members)
    remarks.append(f"{found[1]}_{member} is in the packed task {task}; the job waits for all its members, {mine}")
    return f"{task}{found[3] or ''}"


def check_plan(request: JobRequest, plan: PackPlan | None, context: SubmitContext) -> None:
    """Raise RefusedError if `aftercorr` of a job of --pack would pair tasks with other members. `plan` None: K is 1."""
    value = request.value("dependency") or ""
    # A plan with one member is one of which K is decided after the submission.
    members = 1 if plan is None else plan.members if plan.members > 1 else 0
    if jobs := list_named_jobs(value, "aftercorr"):
        packs = find_packs(jobs, context.cluster, context.environ)
        check_correspondence(value, expand_indices(request.value("array") or ""), members, packs)


def check_correspondence(
    dependency: str, indices: tuple[int, ...], members: int, packs: Mapping[int, PackedArray]
) -> None:
    """Raise RefusedError if `aftercorr` would pair a folded task with one that runs other members.

    `indices`, `members`: of the job that is submitted; 0: it is not known yet how many share a GPU. `packs`: the packed
    jobs among those that it names.
    """
    for job_id in list_named_jobs(dependency, "aftercorr"):
        pack = packs.get(job_id)
        if members == 1 and pack is None:
            continue
        if pack is not None and pack.members == members > 1 and expand_indices(pack.array) == indices:
            continue
        what, same = "is not packed by gsub --pack, as far as is known", ""
        if pack is not None and pack.members > 1:
            what = f"has {pack.members} members in each task (--array={pack.array})"
            same = f"--pack={pack.members} --array={pack.array} pairs them; "
        elif pack is not None:
            what = "has a number of members in each task that is not known yet"
        mine = {0: "as many members as its pre-run finds best", 1: "one member"}.get(members, f"{members} members")
        raise RefusedError(
            f"--pack: --dependency=aftercorr:{job_id} pairs tasks of two arrays: each task of this one has {mine}, "
            f"and job {job_id} {what}",
            hint=f"{same}--dependency=afterok:{job_id} waits for the whole array.",
        )
