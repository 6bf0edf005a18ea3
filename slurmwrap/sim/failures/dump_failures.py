"""What is in store for the jobs of a site's own dump: their state and run time are facts, the cause is drawn. Pure.

Slurm keeps no logs. Of a job that it calls FAILED the cause is drawn from table 7 by its GPUs and by how well its run
time agrees with each cause; out of memory, time limit, node failure and preemption are Slurm's record.

Each line of a dump is one run: who submitted again has a line of their own. A line that asks for the very same as
one of the same user and name that had failed within the day before is taken for that job submitted again, each failure
being answered once: by another failure of the same fault, or by the run that ended well. Who ran out of memory may ask
for more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import accumulate

from slurmwrap.sim.failures import published_rates
from slurmwrap.sim.failures.assumptions import FailureSettings
from slurmwrap.sim.failures.draw_failures import Doomed, FailingJob, Maker, curve_of
from slurmwrap.sim.failures.named_random import Purpose, draw_uniform
from slurmwrap.sim.sim_job import SimJob

_SAID = {
    "OUT_OF_MEMORY": "cpu_oom",
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "NODE_FAIL": "node_failure",
    "BOOT_FAIL": "node_failure",
    "PREEMPTED": "job_preempted",
}
# Slurm would have said so, or the kernel.
_NOT_OF_FAILED = frozenset({"cpu_oom", "job_preempted", "gpu_ecc_error"})
Asked = tuple[object, ...]
# Failures that nothing has answered; heaps, by end.
Open = dict[Asked, list[tuple[float, int, SimJob, FailingJob]]]


def draw_dump(jobs: Sequence[SimJob], settings: FailureSettings, seed: int) -> Doomed:
    """By the jobs' own `status`; what Slurm does not call a failure ended well."""
    users = {user: at for at, user in enumerate(dict.fromkeys(job.user for job in jobs))}
    made = Maker(settings=settings, seed=seed, scale=1.0)
    last_run = {job.job: job.number for job in sorted(jobs, key=lambda job: job.submit_s)}
    unanswered: Open = {}
    doomed: Doomed = {}
    for job in sorted(jobs, key=lambda job: job.submit_s):
        before = _just_before(job, unanswered, settings)
        found = _find_failure(job, made, before)
        if found is None and before is not None and job.status.upper() == "COMPLETED":
            found = FailingJob(number=job.number, uid=0, chain=before.chain)
        if found is None:
            continue
        doomed[job.number] = found = replace(
            found, uid=users[job.user], requeued=bool(job.job) and last_run[job.job] != job.number
        )
        if before is not None and found.chain == before.chain:
            heappop(unanswered[_make_request_key(job)])
        if found.category:
            heappush(
                unanswered.setdefault(_make_request_key(job), []), (job.submit_s + job.work_s, job.number, job, found)
            )
    return doomed


def _just_before(job: SimJob, unanswered: Open, settings: FailureSettings) -> FailingJob | None:
    """The failure that this job may be another try of: the one that has waited longest for its answer."""
    known = unanswered.get(_make_request_key(job), [])
    while known and job.submit_s - known[0][0] > settings.same_fault_s:
        heappop(known)
    if not known or known[0][0] > job.submit_s:
        return None
    _, _, earlier, failed = known[0]
    more = failed.category == "cpu_oom" and (job.mem_mib or 0) > (earlier.mem_mib or 0)
    return failed if more or (job.cpus, job.mem_mib) == (earlier.cpus, earlier.mem_mib) else None


def _make_request_key(job: SimJob) -> Asked:
    """What a user asks for each time that they submit the same; without users no job is another one again."""
    who = job.user or job.number
    return (who, job.model, job.gpus, job.nodes, job.limit_s, job.partition)


def _find_failure(job: SimJob, made: Maker, before: FailingJob | None) -> FailingJob | None:
    state = job.status.split(" ")[0].upper()  # "CANCELLED by 1000"
    if state == "CANCELLED":
        return FailingJob(number=job.number, uid=0, killed=True)
    if state == "FAILED":
        drawn_before = before is not None and before.row >= 0 and before.category not in _NOT_OF_FAILED
        row = before.row if before is not None and drawn_before else _draw_likely_row(job, made.seed)
        return _chain_failures(made.of_row(job, row, run_s=job.work_s), before)
    said = _SAID.get(state)
    return _chain_failures(_as_said(job, said, made), before) if said else None


def _chain_failures(found: FailingJob, before: FailingJob | None) -> FailingJob:
    """With the number of the first one of those that are one fault."""
    again = before is not None and before.category == found.category
    first = before.chain if before is not None and again else found.number
    return replace(found, chain=first, fault=first if found.category == "incorrect_inputs" else -1)


def _draw_likely_row(job: SimJob, seed: int) -> int:
    """Row of table 7, by the trials of its column times the density of its run times at this one."""
    column = published_rates.demand_class(job.gpus)
    weights = [
        0.0
        if cause.category in _NOT_OF_FAILED
        else cause.by_demand[column] / cause.repetition * curve_of(cause).density(job.work_s)
        for cause in published_rates.PHILLY
    ]
    sums = list(accumulate(weights))
    wanted = draw_uniform(seed, job.number, 0, Purpose.CAUSE) * sums[-1]
    return next(at for at, total in enumerate(sums) if total > wanted)


def _as_said(job: SimJob, category: str, made: Maker) -> FailingJob:
    row = next((at for at, cause in enumerate(published_rates.PHILLY) if cause.category == category), -1)
    if row >= 0:
        return replace(made.of_row(job, row, run_s=job.work_s), trials=1)
    by_node = category == "node_failure"
    return FailingJob(
        number=job.number, uid=0, category=category, reason=job.status, run_s=job.work_s, curable=by_node,
        by_node=by_node,
    )  # fmt: skip
