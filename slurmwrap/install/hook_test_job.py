"""Edge: a tiny job that shows whether the hooks run, and whether what they say arrives and is believed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.cluster import Node
from slurmwrap.model.observation import Context, Observation, RejectedEntry, SpoolEntry
from slurmwrap.protocols import Clock, SbatchCall, Slurm

# After the end of a job: its Epilogs have 10 s at most, and are done when Slurm says it ended.
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
    """One test job. `missing`: what was not heard of, with where to look; () all is well. `error`: it did not run."""

    node: str
    job_id: int | None = None
    missing: tuple[tuple[str, str], ...] = ()
    error: str = ""

    @property
    def well(self) -> bool:
        """All three hooks were heard and believed."""
        return not self.error and not self.missing

    @property
    def only_controller(self) -> bool:
        """Of the nodes' hooks all was heard, of EpilogSlurmctld nothing."""
        return not self.error and [hook for hook, _ in self.missing] == [Context.EPILOG_SLURMCTLD.value]


def select_representative_nodes(nodes: Iterable[Node]) -> tuple[str, ...]:
    """One usable node per partition; as few nodes as that takes."""
    found: dict[str, str] = {}
    for node in nodes:
        if node.usable:
            for partition in node.partitions:
                found.setdefault(partition, node.name)
    return tuple(dict.fromkeys(found.values()))


def try_out(
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
    """One job on each of `names`, as `user` (root). `heard(job id)`: what is believed of a job by now; `aside()`: what
    the spool holds and no one believes."""
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
    """Whether something may still be heard of a job."""
    return not found.issuperset(_WANTED) and now < min(deadline, ended.get(job, now) + AFTER_S)


def _submit_test_job(node: Node | None, name: str, slurm: Slurm, user: str) -> int | str:
    if node is None or not node.partitions:
        return "Slurm knows no such node in a partition"
    options = (
        "--job-name=slurmwrap-test", "--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--mem=16", "--time=2",
        f"--nodelist={name}", f"--partition={','.join(node.partitions)}", "--output=/dev/null", "--error=/dev/null",
        "--chdir=/", "--no-requeue", "--export=NONE", *([f"--uid={user}"] if user else ["--nice=-10000"]),
    )  # fmt: skip
    told = slurm.sbatch(SbatchCall(options=options, script_path=None, stdin=SCRIPT, environ=dict(os.environ)))
    return told.job_id if told.job_id is not None else f"sbatch: {told.stderr.strip()}"


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
    word = f"; rejected: {'; '.join(reasons)}" if reasons else ""
    return HookTestResult(node=name, job_id=job, missing=tuple((one.value, _WHERE[one] + word) for one in missing))


def _list_reasons(aside: Iterable[SpoolEntry]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.item.reason for one in aside if isinstance(one.item, RejectedEntry)))[:3]
