"""Show the members of a packed array (gsub --pack) as runs of their own: each has its own output, end and diagnosis."""

from __future__ import annotations

from slurmwrap.cli.record_access import JobRecords, RecordSource, read_job_records
from slurmwrap.config.load_config import Config
from slurmwrap.diagnosis.classifier import make_classifier
from slurmwrap.fast_dataclasses import replace
from slurmwrap.host.read_user_file import UserLogs
from slurmwrap.model.evidence import Evidence, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.pack_member import PackMember
from slurmwrap.model.submission import PackedArray, Submission
from slurmwrap.report.job_report.timeline import JobTimeline
from slurmwrap.sbatch.array_indices import expand_indices
from slurmwrap.store.pack_results import (
    find_array_address,
    find_member_task,
    find_slurm_state,
    read_folded_array,
    read_members,
)


def find_packed_array(records: JobRecords, number: int, uid: int) -> PackedArray | None:
    """Return the packed array of the newest job with this id; None if it is not packed or another user's.

    The files of the members are read only for their own user, also by root.
    """
    mine = [one for one in records.submissions if one.job_id == number]
    newest: Submission | None = max(mine, key=lambda one: one.at, default=None)
    return read_folded_array(newest.pack) if newest is not None and newest.pack and newest.uid == uid else None


def find_task_address(address: str, records: JobRecords, source: RecordSource) -> str:
    """Return the array task that runs a member: "77_4" for "77_5"; else `address` itself."""
    head, _, index = address.partition("_")
    pack = find_packed_array(records, int(head), source.uid) if index else None
    task = None if pack is None else find_member_task(pack, int(head), int(index))
    return address if task is None else task


def find_address_in_array(address: str, records: JobRecords, source: RecordSource) -> str:
    """Return "77_1500" for task "78_499" of a split array whose first part is job 77; else `address` itself."""
    head, _, index = address.partition("_")
    pack = find_packed_array(records, int(head), source.uid)
    is_own = pack is None or (index and find_member_task(pack, int(head), int(index)) == f"{head}_{index}")
    if pack is None or is_own or not pack.parts:
        return address
    # A number after the first part's id is the user's index.
    if index and head == str(pack.parts[0].job_id) and int(index) in expand_indices(pack.array):
        return address
    return find_array_address(pack, address)


def read_task_records(address: str, records: JobRecords, source: RecordSource, cluster: str) -> JobRecords:
    """Return `records`, or those of the array task that runs the member `address`.

    For a split array they include those of all its parts, with the addresses as its user counts.
    """
    head, _, index = address.partition("_")
    pack = find_packed_array(records, int(head), source.uid)
    if pack is None or index or not pack.parts:
        task = find_task_address(address, records, source)
        if task == address:
            return records
        found = read_job_records(source, task, cluster)
        return replace(found, submissions=(*found.submissions, *records.submissions))
    others = [read_job_records(source, str(part.job_id), cluster) for part in pack.parts[1:]]
    attempts = (run for known in (records, *others) for run in known.attempts)
    return replace(
        records,
        attempts=tuple(replace(run, address=find_array_address(pack, run.address)) for run in attempts),
        actions=tuple(action for known in (records, *others) for action in known.actions),
        curves=tuple(curve for known in (records, *others) for curve in known.curves),
    )


def add_members(timeline: JobTimeline, address: str, source: RecordSource, config: Config) -> JobTimeline:
    """Return the timeline with the runs of members in place of those of their tasks, and the address as it was asked.

    Members that were never started have no run; then the run of their task stays. If Slurm's record of a task is lost,
    the member's own record is enough.
    """
    asked = timeline.submission
    if asked is None or asked.pack is None or asked.uid != source.uid:
        return timeline
    pack = read_folded_array(asked.pack)
    members = read_members(asked.pack)
    if pack.parts:
        timeline = replace(timeline, submission=replace(asked, job_id=pack.parts[0].job_id))
    array, _, index = address.partition("_")
    if index:
        members = tuple(one for one in members if one.index == int(index))
    last = {
        find_array_address(pack, run.address): run
        for run in sorted(timeline.attempts, key=lambda run: run.attempt.submit_time)
    }
    tasks = [find_array_address(pack, one.task) for one in members]
    runs = [
        _make_run(one, last.get(task) or _make_task_run(one, asked), config, array)
        for one, task in zip(members, tasks, strict=True)
    ]
    if not runs:
        return timeline
    others = [run for run in timeline.attempts if not index and find_array_address(pack, run.address) not in set(tasks)]
    return replace(timeline, address=address, attempts=(*others, *runs))


def _make_task_run(member: PackMember, asked: Submission) -> JobRun:
    """Return the run of a member's task as far as the member's record shows it."""
    number = int(member.job_id) if member.job_id.isdecimal() else asked.job_id
    return JobRun(
        attempt=RunKey(cluster=asked.cluster, job_id=number, submit_time=int(asked.at)),
        address=member.task,
        restarts=member.restart,
        name=asked.name,
        user=asked.user,
        uid=asked.uid,
        nodes=(member.node,) if member.node else (),
        gpus=1,
    )


def describe_member(member: PackMember) -> str:
    """Return what the wrapper did to a member, as a sentence; "" if nothing."""
    if member.reason:
        return f"The wrapper ended it for its {member.reason}."
    if member.paused:
        return "It waits for the other members of its task: together they were no faster than one alone."
    if member.paused_s:
        return f"It waited {member.paused_s:.0f} s for other members: together they were no faster than one alone."
    return ""


def _make_run(member: PackMember, task: JobRun, config: Config, array: str) -> JobRun:
    """Return the run of a member of `array`: its own files, times and end; the rest is that of its task."""
    run = replace(
        task,
        address=f"{array}_{member.index}",
        state=find_slurm_state(member, task.state),
        exit_code=member.exit_code,
        signal=member.signal or None,
        derived_exit_code=None,
        start_time=None if member.begin is None else int(member.begin),
        end_time=task.end_time if member.end is None else int(member.end),
        reason=describe_member(member) or task.reason,
        std_out=member.output,
        std_err=member.error or member.output,
        planned=(),
    )
    if member.state not in ("completed", "failed"):
        return run
    logs = () if member.state == "completed" else UserLogs().tails(run)
    evidence = Evidence(
        attempt=run.attempt,
        state=run.state,
        exit_code=run.exit_code,
        signal=run.signal,
        logs=logs,
        nodes=run.nodes,
        gpus=run.gpus,
        run_s=run.run_s,
        time_limit_s=run.time_limit_s,
    )
    return replace(run, diagnosis=make_classifier(config.diagnosis.signatures)(evidence))
