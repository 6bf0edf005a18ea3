"""Fake adapters in memory for tests; to the stages they behave like the real adapters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from slurmwrap.errors import SlurmError, SlurmUnreachable
from slurmwrap.model.cluster import Node, Snapshot
from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.model.evidence import LogTail
from slurmwrap.model.gate_permit import Gate
from slurmwrap.model.hostlist import expand
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import ActionRecord, JobRun
from slurmwrap.model.lowered_limit import LoweredLimit
from slurmwrap.model.observation import Observation, RejectedEntry, SpoolEntry
from slurmwrap.model.queue_priority import PriorityScheme
from slurmwrap.model.running_job import GpuUse
from slurmwrap.model.topology import Topology
from slurmwrap.protocols import PartitionTest, Published, SbatchCall, SbatchResult

START = 1_790_000_000  # a fixed time, so that tests give the same result every day


class FakeClock:
    """A clock whose time advances only in `sleep`."""

    def __init__(self, now: float = START) -> None:
        self.time = float(now)

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += max(0.0, seconds)


def node(name: str, **changes: object) -> Node:
    """An idle node with 8 GPUs, 32 CPUs and 256,000 MiB in partition "gpu"."""
    plain = Node(name=name, state="IDLE", cpus=32, mem_mib=256_000, gpus=8, gpu_type="a100", partitions=("gpu",))
    return replace(plain, **changes)  # type: ignore[arg-type]


def job(job_id: int, **changes: object) -> JobRecord:
    """A job of alice (uid 1001) that failed with exit code 1 after a minute on n1."""
    plain = JobRecord(
        job_id=job_id,
        name="train",
        user="alice",
        uid=1001,
        partition="gpu",
        state="FAILED",
        reason="NonZeroExitCode",
        requeue=True,
        exit_code=1,
        submit_time=START - 100,
        eligible_time=START - 100,
        start_time=START - 90,
        end_time=START - 30,
        time_limit_s=3600,
        nodes=("n1",),
        num_nodes=1,
        cpus=8,
        gpus=2,
        mem_mib_per_node=4000,
        work_dir="/home/alice",
        std_out=f"/home/alice/slurm-{job_id}.out",
        std_err=f"/home/alice/slurm-{job_id}.out",
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


@dataclass
class FakeSlurm:
    """A controller with jobs and nodes; requeue, hold, update and drain behave as observed with Slurm 22.05."""

    clock: FakeClock = field(default_factory=FakeClock)
    nodes: dict[str, Node] = field(default_factory=lambda: {f"n{i}": node(f"n{i}") for i in range(8)})
    records: dict[int, JobRecord] = field(default_factory=dict)
    calls: list[SlurmAction] = field(default_factory=list)  # requested changes, also refused ones
    owners: list[int | None] = field(default_factory=list)  # the owner given for each of `calls`
    submitted: list[SbatchCall] = field(default_factory=list)
    away: bool = False
    topology: Topology = field(default_factory=Topology)
    scheme: PriorityScheme = field(default_factory=PriorityScheme)
    terms: dict[str, dict[int, int]] = field(default_factory=lambda: {"Nice": {}, "SiteFactor": {}})

    def add(self, *jobs: JobRecord) -> None:
        """Add jobs to those that the controller knows."""
        self.records.update({job.job_id: job for job in jobs})

    def cluster_name(self) -> str:
        self._answer()
        return "lab"

    def snapshot(self) -> Snapshot:
        self._answer()
        return Snapshot(taken_at=self.clock.now(), nodes=tuple(self.nodes.values()), topology=self.topology)

    def sbatch(self, call: SbatchCall) -> SbatchResult:
        self._answer()
        self.submitted.append(call)
        job_id = max(self.records, default=0) + 1
        return SbatchResult(exit_code=0, stdout=f"Submitted batch job {job_id}\n", stderr="", job_id=job_id)

    def test_partitions(self, call: SbatchCall, names: Sequence[str]) -> dict[str, PartitionTest]:
        self._answer()
        return {name: PartitionTest(start=int(self.clock.now())) for name in names}

    def job(self, address: str) -> JobRecord | None:
        self._answer()
        return next(
            (job for job in self.records.values() if address in (job.address, str(job.job_id), job.waiting_address)),
            None,
        )

    def jobs(self, user: str | None = None) -> tuple[JobRecord, ...]:
        self._answer()
        return tuple(job for job in self.records.values() if user in (None, job.user))

    def priority_scheme(self) -> PriorityScheme:
        self._answer()
        return self.scheme

    def priority_terms(self, key: str, user: str | None = None) -> dict[int, int]:
        self._answer()
        waiting = [job for job in self.records.values() if job.pending and user in (None, job.user)]
        shown = [job for job in waiting if key == "Nice" or job.priority]
        return {job.job_id: self.terms[key].get(job.job_id, 0) for job in shown}

    def apply(self, action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        for one in (action, *also):
            self._apply(one, owner)

    def _apply(self, action: SlurmAction, owner: int | None) -> None:
        self._answer()
        self.calls.append(action)
        self.owners.append(owner)
        if action.key == "TimeLimit" and owner is not None:
            self._refuse_to_raise(action)
        if action.verb in (Verb.DRAIN, Verb.RESUME):
            self._node(action)
            return
        found = self.job(action.target)
        if found is None:
            raise SlurmError(f"Invalid job id specified for job {action.target}")
        self.records[found.job_id] = self._changed(found, action)

    def _answer(self) -> None:
        if self.away:
            raise SlurmUnreachable("Unable to contact slurm controller (connect failure)")

    def _node(self, action: SlurmAction) -> None:
        found = self.nodes[action.target]
        drain = action.verb is Verb.DRAIN
        flags = found.flags | {"DRAIN"} if drain else found.flags - {"DRAIN"}
        self.nodes[action.target] = replace(found, flags=flags, reason=action.value if drain else "")

    def _changed(self, found: JobRecord, action: SlurmAction) -> JobRecord:
        if action.verb in (Verb.REQUEUE, Verb.REQUEUEHOLD):
            return self._requeued(found, held=action.verb is Verb.REQUEUEHOLD)
        if action.verb is Verb.RELEASE:
            return replace(found, reason="None")
        if action.verb is Verb.CANCEL:
            return replace(found, state="CANCELLED")
        if action.verb is Verb.SIGNAL:
            return found
        if not found.pending and (found.ended or action.key not in _RUNNING_KEYS):
            raise SlurmError(f"Job has already finished for job {action.target}")
        return self._updated(found, action)

    def _refuse_to_raise(self, action: SlurmAction) -> None:
        """The owner of a running job may lower its time limit, not raise it (22.05.8)."""
        found = self.job(action.target)
        if found is not None and not found.pending and int(action.value) * 60 > (found.time_limit_s or 0):
            raise SlurmError(f"Access/permission denied for job {action.target}")

    def start(self, job_id: int) -> None:
        """Start a pending job."""
        now = int(self.clock.now())
        self.records[job_id] = replace(
            self.records[job_id], state="RUNNING", reason="None", start_time=now, priority=0, nodes=("n1",)
        )

    def end_jobs(self, run_s: Callable[[JobRecord], float]) -> None:
        """End the running jobs that completed after `run_s`, or reached their time limit before."""
        for found in [one for one in self.records.values() if one.state == "RUNNING"]:
            assert found.start_time is not None and found.time_limit_s is not None
            lasts = min(run_s(found), found.time_limit_s)
            if self.clock.now() - found.start_time >= lasts:
                state = "TIMEOUT" if lasts < run_s(found) else "COMPLETED"
                end = found.start_time + int(lasts)
                self.records[found.job_id] = replace(
                    found, state=state, reason="TimeLimit" if state == "TIMEOUT" else "None", exit_code=0, end_time=end
                )

    def _requeued(self, found: JobRecord, *, held: bool) -> JobRecord:
        if found.pending:
            raise SlurmError(f"Job is pending execution for job {found.address}")
        if not found.requeue:
            raise SlurmError(f"Requested operation is presently disabled for job {found.address}")
        return replace(
            found,
            state="PENDING",
            reason="job requeued in held state" if held else "BeginTime",
            restarts=found.restarts + 1,
            submit_time=int(self.clock.now()),
            eligible_time=int(self.clock.now()) + 121,
            start_time=None,
            end_time=None,
            nodes=(),
        )

    def _updated(self, found: JobRecord, action: SlurmAction) -> JobRecord:
        value = action.value
        if action.key == "StartTime":
            return replace(found, eligible_time=int(self.clock.now()) + int(value.partition("+")[2] or 0))
        if action.key in ("ExcNodeList", "ReqNodeList"):
            unknown = set(expand(value)) - self.nodes.keys()
            if unknown:
                raise SlurmError(f"Invalid node name specified for job {found.address}")
            return replace(found, **{"exc_nodes" if action.key == "ExcNodeList" else "req_nodes": value})
        if action.key == "NumNodes":
            least, _, most = value.partition("-")
            return replace(found, num_nodes=int(least), max_nodes=int(most or least))
        change = {
            "Features": lambda: {"features": value},
            "Switches": dict,
            "CPUsPerTask": lambda: {"cpus_per_task": int(value)},
            "MinCPUsNode": lambda: {"min_cpus": int(value), "cpus": int(value) * found.num_nodes},
            "StdOut": lambda: {"std_out": value},
            "MinMemoryNode": lambda: {"mem_mib_per_node": int(value)},
            "MinMemoryCPU": lambda: {"mem_mib_per_cpu": int(value)},
            "TimeLimit": lambda: {"time_limit_s": int(value) * 60},
            "Comment": lambda: {"comment": value},
            "TimeMin": dict,
        }
        if action.key in self.terms:
            gained = int(value) - self.terms[action.key].get(found.job_id, 0)
            self.terms[action.key][found.job_id] = int(value)
            if action.key == "Nice":
                gained = -gained if found.priority or self.scheme.plugin == "multifactor" else 2
            return replace(found, priority=found.priority + gained)
        if action.key not in change:
            raise SlurmError(f"Update of this parameter is not supported: {action.key}={value}")
        return replace(found, **change[action.key]())


# What `scontrol update` may change of a running job.
_RUNNING_KEYS = ("TimeLimit", "Comment")


class MemoryLimits:
    """The lowered time limits, in memory."""

    def __init__(self) -> None:
        self.lowered: tuple[LoweredLimit, ...] = ()

    def read(self) -> tuple[LoweredLimit, ...]:
        return self.lowered

    def write(self, lowered: Sequence[LoweredLimit]) -> None:
        self.lowered = tuple(lowered)


class MemorySpool:
    """A spool that keeps its files in a dict."""

    def __init__(self, *items: Observation | RejectedEntry) -> None:
        self.files: dict[str, Observation | RejectedEntry] = {}
        self.rejected: dict[str, Observation | RejectedEntry] = {}
        for item in items:
            self.put(item)

    def put(self, item: Observation | RejectedEntry) -> None:
        """Add a file."""
        self.files[f"{len(self.files) + len(self.rejected):06d}.obs"] = item

    def collect(self, limit: int = 1000) -> list[SpoolEntry]:
        return [SpoolEntry(name=name, item=item) for name, item in sorted(self.files.items())[:limit]]

    def discard(self, collected: Sequence[SpoolEntry]) -> None:
        for one in collected:
            self.files.pop(one.name, None)
            if isinstance(one.item, RejectedEntry):
                self.rejected[one.name] = one.item


class FakeLogs:
    """Output files by the raw job id of the run."""

    def __init__(self, texts: dict[int, str] | None = None) -> None:
        self.texts = texts or {}

    def tails(self, run: JobRun, named: Sequence[str] = ()) -> tuple[LogTail, ...]:
        text = self.texts.get(run.attempt.job_id)
        return () if text is None else (LogTail(name=run.std_out, text=text),)


class FakePublisher:
    """Stores what was published and which owners were notified."""

    def __init__(self) -> None:
        self.published: Published | None = None
        self.gate: Gate | None = None
        self.told: dict[int, tuple[JobRun, tuple[ActionRecord, ...]]] = {}

    def publish(self, published: Published) -> None:
        self.published = published

    def tell_gate(self, gate: Gate) -> None:
        self.gate = gate

    def end_pass(self) -> None:
        """Does nothing."""

    def tell_owner(self, run: JobRun, actions: Sequence[ActionRecord], gpu_use: Sequence[GpuUse] = ()) -> None:
        self.told[run.attempt.job_id] = (run, tuple(actions))


class Killed(BaseException):
    """Raised where a Fuse kills the process."""


_CHANGES = ("apply", "done", "intend", "ingest", "settle", "save", "discard", "publish", "tell", "write")


class Fuse:
    """Records the calls of all wrapped adapters and raises Killed before or after one of them."""

    def __init__(self, at: int | None = None, *, after: bool = False) -> None:
        self.at, self.after = at, after
        self.kinds: list[str] = []  # for each call: its method, and the change requested of Slurm

    @property
    def count(self) -> int:
        """Number of calls so far."""
        return len(self.kinds)

    def of_each_kind(self) -> list[tuple[int, bool]]:
        """Points to fail, as (number, after): after each kind of changing call, once per preceding kind."""
        changes = self._changes()
        last = {(before, kind): at for (_, before), (at, kind) in pairwise([(0, ""), *changes])}
        return [(at, True) for at in sorted(last.values())]

    def after_each_change(self) -> list[tuple[int, bool]]:
        """Points to fail: after every changing call; a failure elsewhere leaves the same state."""
        return [(at, True) for at, _ in self._changes()]

    def _changes(self) -> list[tuple[int, str]]:
        return [(at, kind) for at, kind in enumerate(self.kinds, 1) if kind.startswith(_CHANGES)]

    def everywhere(self) -> list[tuple[int, bool]]:
        """Points to fail: before and after every call."""
        return [(at, after) for at in range(1, self.count + 1) for after in (False, True)]

    def through(self, edge: object) -> object:
        """Wrap `edge`, so that this fuse records and may interrupt each of its methods."""
        return _Fused(edge, self)

    def burn(self, kind: str, call: Callable[[], object]) -> object:
        """Make one call, unless it is the one to fail at."""
        self.kinds.append(kind)
        mine = self.count == self.at
        if mine and not self.after:
            raise Killed
        try:
            return call()
        finally:
            if mine:
                raise Killed


class _Fused:
    def __init__(self, edge: object, fuse: Fuse) -> None:
        self._edge, self._fuse = edge, fuse

    def __getattr__(self, name: str) -> object:
        found = getattr(self._edge, name)
        if not callable(found):
            return found

        def call(*args: object, **kwargs: object) -> object:
            asked = [f"{one.verb.value} {one.key}" for one in args if isinstance(one, SlurmAction)]
            return self._fuse.burn(" ".join([name, *asked]), lambda: found(*args, **kwargs))

        return call
