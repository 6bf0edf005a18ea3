"""Show the members of a packed array (gsub --pack) as runs of their own: each has its own output, end and diagnosis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise

from slurmwrap.cli.record_access import JobRecords, RecordSource, read_job_records
from slurmwrap.config.load_config import Config
from slurmwrap.diagnosis.classifier import make_classifier
from slurmwrap.fast_dataclasses import replace
from slurmwrap.host.read_user_file import UserLogs
from slurmwrap.model.evidence import Diagnosis, Evidence, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.pack_member import PackMember
from slurmwrap.model.submission import PackedArray, Submission
from slurmwrap.policy.run_filter import state_of
from slurmwrap.policy.run_from_slurm import is_submission_of_run
from slurmwrap.report.job_report.timeline import JobTimeline
from slurmwrap.sbatch.array_indices import expand_indices
from slurmwrap.store.pack_results import (
    find_array_address,
    find_member_task,
    find_slurm_state,
    read_folded_array,
    read_members,
)

# Failed members whose output is read for a list; those after them are diagnosed by how they ended alone.
_MOST_LOGS = 100


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
    members, attempts = _count_as_user(pack, members, timeline.attempts)
    known = {run.address for run in attempts}
    lost = {one.task: _make_task_run(one, asked) for one in members if one.task not in known}
    runs = split_tasks((*attempts, *lost.values()), members, _MemberDiagnosis(config))
    if address.partition("_")[2]:
        runs = tuple(run for run in runs if run.address == address)
    return replace(timeline, address=address, attempts=runs) if members and runs else timeline


def split_packed_runs(records: JobRecords, source: RecordSource, config: Config) -> JobRecords:
    """Return the records of a user with the runs of members in place of those of their tasks.

    The site's records stay as they are: the files of the members are read only for their own user, and count for
    nothing else.
    """
    newest = {(one.cluster, one.job_id): one for one in sorted(records.submissions, key=lambda one: one.at)}
    packed = {key: one for key, one in newest.items() if one.pack is not None and one.uid == source.uid}
    if source.site or not packed:
        return records
    diagnose, runs = _MemberDiagnosis(config), list[JobRun]()
    tasks = {key: list[JobRun]() for key in packed}
    for run in records.attempts:
        head = run.address.partition("_")[0] if "_" in run.address else ""
        key = (run.attempt.cluster, int(head)) if head.isdecimal() else None
        mine = tasks[key] if key in tasks and is_submission_of_run(packed[key], run) else runs
        mine.append(run)
    for key, of_array in tasks.items():
        pack = packed[key].pack
        if pack is None or not of_array:
            continue
        pack = read_folded_array(pack)
        members, attempts = _count_as_user(pack, read_members(pack), of_array)
        runs += split_tasks(attempts, members, diagnose)
    return replace(records, attempts=tuple(runs))


def _count_as_user(
    pack: PackedArray, members: Sequence[PackMember], runs: Sequence[JobRun]
) -> tuple[tuple[PackMember, ...], tuple[JobRun, ...]]:
    """Return members and runs with the addresses of the array as its user wrote it, if gsub has split it."""
    if not pack.parts:
        return tuple(members), tuple(runs)
    return (
        tuple(replace(one, task=find_array_address(pack, one.task)) for one in members),
        tuple(replace(run, address=find_array_address(pack, run.address)) for run in runs),
    )


def describe_members(records: JobRecords, since: float, until: float) -> tuple[str, ...]:
    """Return a sentence with the states of the members that ended in [since, until); () if there are none."""
    members = [one for one in records.attempts if one.gpu_s is not None and since <= (one.end_time or 0) < until]
    states = Counter(state_of(one).lower().replace("_", " ") for one in members)
    counted = ", ".join(f"{number:,} {state}" for state, number in states.most_common())
    said = f"Members of packed arrays, of which each task is counted as one run: {counted}."
    return (said,) if members else ()


def split_tasks(
    runs: Sequence[JobRun], members: Sequence[PackMember], diagnose: Callable[[JobRun], Diagnosis | None]
) -> tuple[JobRun, ...]:
    """Return a run for each member in place of the runs of its task, among which their GPU time is divided.

    `runs`: of one array. The runs of a task without members stay, unless its only member ran in another task.
    """
    groups: dict[str, list[JobRun]] = {}
    for run in sorted(runs, key=lambda one: one.attempt.submit_time):
        groups.setdefault(run.address, []).append(run)
    own = {f"{one.task.partition('_')[0]}_{one.index}": one for one in members if one.task in groups}
    found: list[JobRun] = []
    for address, mine in groups.items():
        if inside := [one for one in own.values() if one.task == address]:
            found += _split_task(mine, inside, diagnose)
        elif address not in own:
            found += mine
    return tuple(found)


def _split_task(
    runs: Sequence[JobRun], members: Sequence[PackMember], diagnose: Callable[[JobRun], Diagnosis | None]
) -> Iterator[JobRun]:
    """Yield the members' runs. `runs`: all of the task, the newest last; those before it were of all members alike."""
    task = runs[-1]
    before_s = sum(run.gpus * run.run_s for run in runs[:-1]) / len(members)
    if task.start_time is None or task.end_time is None:
        parts = [0.0] * len(members)
    else:
        parts = divide_time(task.start_time, task.end_time, [(one.begin, one.end) for one in members])
    for member, part in zip(members, parts, strict=True):
        run = _make_run(member, task, len(members))
        run = replace(run, gpu_s=before_s + task.gpus * part)
        # One that ended with its task, or has not ended, has the diagnosis of the task.
        yield run if member.state in ("running", "stopped") else replace(run, diagnosis=diagnose(run))


def divide_time(begin: float, end: float, spans: Sequence[tuple[float | None, float | None]]) -> list[float]:
    """Return the seconds of [begin, end] divided among `spans`: each moment is that of those that run then.

    A moment at which none runs is that of all. None: a span has no such end. The sum is end - begin.
    """
    if not spans:
        return []
    cut = [(max(begin, a or begin), min(end, end if b is None else b)) for a, b in spans]
    parts = [0.0] * len(cut)
    moments = sorted({begin, end, *(min(max(one, begin), end) for span in cut for one in span)})
    for a, b in pairwise(moments):
        running = [number for number, span in enumerate(cut) if span[0] <= a and b <= span[1]]
        for number in running or range(len(cut)):
            parts[number] += (b - a) / len(running or cut)
    return parts


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


def _make_run(member: PackMember, task: JobRun, members: int) -> JobRun:
    """Return the run of a member: its own files, times and end; the rest is that of its task, or a part of it."""
    return replace(
        task,
        address=f"{task.address.partition('_')[0]}_{member.index}",
        state=find_slurm_state(member, task.state),
        exit_code=member.exit_code,
        signal=member.signal or None,
        derived_exit_code=None,
        start_time=None if member.begin is None else int(member.begin),
        end_time=task.end_time if member.end is None else int(member.end),
        reason=describe_member(member) or task.reason,
        cpus=len(member.cpus) or task.cpus // members,
        mem_mib_per_node=task.mem_mib_per_node and task.mem_mib_per_node // members,
        std_out=member.output,
        std_err=member.error or member.output,
        # What was measured is of all members together.
        measurement=None,
        planned=(),
    )


class _MemberDiagnosis:
    """Diagnoses members by their own output, of which a limited number is read. `left`: how many may be read yet."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.left = _MOST_LOGS

    @cached_property
    def _classify(self) -> Callable[[Evidence], Diagnosis]:
        return make_classifier(self._config.diagnosis.signatures)

    def __call__(self, run: JobRun) -> Diagnosis:
        """Return the diagnosis of a member that has ended by itself."""
        reads = run.state not in ("COMPLETED", "CANCELLED") and self.left > 0
        self.left -= reads
        evidence = Evidence(
            attempt=run.attempt,
            state=run.state,
            exit_code=run.exit_code,
            signal=run.signal,
            logs=UserLogs().tails(run) if reads else (),
            nodes=run.nodes,
            gpus=run.gpus,
            run_s=run.run_s,
            time_limit_s=run.time_limit_s,
        )
        return self._classify(evidence)
