"""Run a small job on chosen nodes to test whether the hooks run and their observations are accepted (adapter)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.cluster import Node
from slurmwrap.model.observation import Context, Observation, RejectedEntry, SpoolEntry
from slurmwrap.protocols import Clock, SbatchCall, Slurm

# Seconds to wait for observations after the end of a job. Epilogs take at most 10 s, and have ended when Slurm reports
# that the job ended.
AFTER_S = 8.0
_ALIVE = frozenset(("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED"))
SCRIPT = b"#!/bin/sh\ntrue\n"
_WANTED = (Context.PROLOG, Context.EPILOG, Context.EPILOG_SLURMCTLD)
_WHERE = {
    Context.PROLOG: "on the node /run/slurmwrap/failed and slurmd's log; are slurm.conf and the files there the same?",
    Context.EPILOG: "on the node: /run/slurmwrap/failed and slurmd's log; does munged run, is the spool mounted there?",
    Context.EPILOG_SLURMCTLD: "slurmctld's log; `controller` in site.state_dir, which must be SlurmUser's",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HookTestResult:
    """The result of one test job.

    `missing`: [(hook without an accepted observation, where to look for the cause)]. `error`: why the job did not run.
    """

    node: str
    job_id: int | None = None
    missing: tuple[tuple[str, str], ...] = ()
    error: str = ""

    @property
    def well(self) -> bool:
        """Whether the observations of all three hooks were accepted."""
        return not self.error and not self.missing

    @property
    def only_controller(self) -> bool:
        """Whether only the observation of EpilogSlurmctld is missing."""
        return not self.error and [hook for hook, _ in self.missing] == [Context.EPILOG_SLURMCTLD.value]


def select_representative_nodes(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return the names of usable nodes, one for each partition; a node may stand for several partitions."""
    found: dict[str, str] = {}
    for node in nodes:
        if node.usable:
            for partition in node.partitions:
                found.setdefault(partition, node.name)
    return tuple(dict.fromkeys(found.values()))


def run_test_jobs(
    names: Sequence[str],
    nodes: Iterable[Node],
    slurm: Slurm,
    heard: Callable[[int], Iterable[Observation]],
    aside: Callable[[], Iterable[SpoolEntry]],
    clock: Clock,
    *,
    user: str = "",
    patience_s: float = 60.0,
) -> tuple[HookTestResult, ...]:
    """Run one job on each of `names`, as `user` ("": root), and return the results.

    `heard(job id)` returns the accepted observations of a job so far; `aside()` returns the spool's entries, from which
    the reasons of rejected ones are taken. Wait at most `patience_s` seconds.
    """
    by_name = {node.name: node for node in nodes}
    jobs = {name: _submit_test_job(by_name.get(name), name, slurm, user) for name in names}
    contexts: dict[int, set[Context]] = {job: set() for job in jobs.values() if isinstance(job, int)}
    deadline, ended = clock.now() + patience_s, dict[int, float]()
    while any(_is_worth_waiting(job, found, ended, clock.now(), deadline) for job, found in contexts.items()):
        clock.sleep(0.3)
        for job in contexts:
            contexts[job].update(one.context for one in heard(job))
        for record in slurm.jobs():
            if record.job_id in contexts and record.state not in _ALIVE:
                ended.setdefault(record.job_id, clock.now())
    reasons = _list_reasons(aside())
    return tuple(_make_result(name, job, contexts, slurm, reasons) for name, job in jobs.items())


def _is_worth_waiting(job: int, found: set[Context], ended: Mapping[int, float], now: float, deadline: float) -> bool:
    """Return whether further observations of a job may still arrive."""
    return not found.issuperset(_WANTED) and now < min(deadline, ended.get(job, now) + AFTER_S)


def _submit_test_job(node: Node | None, name: str, slurm: Slurm, user: str) -> int | str:
    if node is None or not node.partitions:
        return "Slurm knows no such node in a partition"
    options = (
        "--job-name=slurmwrap-test", "--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--mem=16", "--time=2",
        f"--nodelist={name}", f"--partition={','.join(node.partitions)}", "--output=/dev/null", "--error=/dev/null",
        "--chdir=/", "--no-requeue", "--export=NONE", *([f"--uid={user}"] if user else ["--nice=-10000"]),
    )  # fmt: skip
    sent = slurm.sbatch(SbatchCall(options=options, script_path=None, stdin=SCRIPT, environ=dict(os.environ)))
    return sent.job_id if sent.job_id is not None else f"sbatch: {sent.stderr.strip()}"


def _make_result(
    name: str, job: int | str, contexts: dict[int, set[Context]], slurm: Slurm, reasons: tuple[str, ...]
) -> HookTestResult:
    if isinstance(job, str):
        return HookTestResult(node=name, error=job)
    missing = [context for context in _WANTED if context not in contexts.get(job, set())]
    if len(missing) == len(_WANTED):
        record = slurm.job(str(job))
        if record is not None and record.state == "PENDING":
            return HookTestResult(
                node=name, job_id=job, error=f"the test job waits ({record.reason}); it may be tried again"
            )
    suffix = f"; rejected: {'; '.join(reasons)}" if reasons else ""
    return HookTestResult(node=name, job_id=job, missing=tuple((one.value, _WHERE[one] + suffix) for one in missing))


def _list_reasons(aside: Iterable[SpoolEntry]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.item.reason for one in aside if isinstance(one.item, RejectedEntry)))[:3]
