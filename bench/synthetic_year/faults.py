"""Draw node failures (Kokolis et al.) and incidents that affect several jobs: their effects and their records."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from hashlib import sha256

from slurmwrap.model.job_run import Incident, JobRun
from slurmwrap.policy.node_history import LIFTED, REPAIRED, Removal, Repair
from slurmwrap.sim.failures import published_rates
from slurmwrap.store import record_rows
from synthetic_year import texts
from synthetic_year.calls import DAY_S
from synthetic_year.run import Shape
from synthetic_year.sink import Sink
from synthetic_year.site import CLUSTER, Site

_INSERT_FAULT = "INSERT INTO gpu_faults VALUES (:node, :at, :cluster, :job_id, :uid, :text)"
_INCIDENTS = (
    ("storage_io", "path /scratch"),
    ("network_error", "host hub.example"),
    ("mpi_runtime_failure", "switch leaf0"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A failure of a node; it affects the next run that starts there."""

    at: float
    node: str
    category: str


class NodeFaults:
    """Draws node failures at 6.5 per 1,000 node-days, most of them on lemon nodes."""

    def __init__(self, site: Site, seed: int, sink: Sink) -> None:
        self._site, self._sink, self._dice = site, sink, random.Random(f"faults {seed}")
        self._due: deque[Fault] = deque()

    def between(self, since: float, until: float) -> None:
        rate = len(self._site.nodes) * self._site.rates.node_failures_per_day / DAY_S
        at = since
        while (at := at + self._dice.expovariate(rate)) < until:
            lemon = self._dice.random() < self._site.rates.lemons_cause
            node = self._dice.choice(self._site.lemons if lemon else self._site.nodes)
            self._due.append(Fault(at=at, node=node, category=self._category()))

    def _category(self) -> str:
        causes = list(published_rates.NODE_CAUSES)
        cause = self._dice.choices(causes, list(published_rates.NODE_CAUSES.values()))[0]
        if cause not in published_rates.GPU_CAUSES:
            return "node_failure"
        return "gpu_ecc_error" if self._dice.random() < 0.3 else "gpu_hardware"

    def take(self, start: float) -> Fault | None:
        """Return the fault that affects a run which starts now."""
        return self._due.popleft() if self._due and self._due[0].at <= start else None

    def follow(self, fault: Fault, run: JobRun) -> None:
        """Record kernel lines, a time out of service, and usually a repair."""
        end = float(run.end_time or 0)
        about = {"node": fault.node, "cluster": CLUSTER, "job_id": run.attempt.job_id, "uid": run.uid}
        if line := texts.GPU_LINES.get(fault.category):
            for number in range(self._dice.randint(1, 4)):
                self._sink.row("gpu_faults", _INSERT_FAULT, {**about, "at": end + number / 8, "text": line})
        ours = fault.category in texts.GPU_LINES
        began, ended = end + 20, end + 3600 * self._dice.uniform(2, 40)
        what = fault.category if ours else "Not responding"
        reason = f"slurmwrap: {what}, seen by job {run.attempt.job_id}" if ours else what
        self._sink.add(
            record_rows.REMOVALS, Removal(node=fault.node, began=began, reason=reason, ours=ours, ended=ended)
        )
        if self._dice.random() < 0.6:
            kind = LIFTED if ours and self._dice.random() < 0.5 else REPAIRED
            who = "whoever lifted our drain" if kind == LIFTED else "admin"
            note = reason if kind == LIFTED else "GPU reseated"
            self._sink.add(record_rows.REPAIRS, Repair(node=fault.node, at=ended, who=who, kind=kind, note=note))


@dataclass(slots=True)
class Trouble:
    """One incident that is not over."""

    sink: Sink
    at: float
    category: str
    scope: str
    wanted: int
    records: list[JobRun] = field(default_factory=list)

    @property
    def incident_id(self) -> str:
        return sha256(f"{self.category}|{self.scope}|{self.at:.0f}".encode()).hexdigest()[:12]

    def add(self, run: JobRun) -> None:
        """Add a run that failed because of it; the row is written again each time."""
        self.records.append(run)
        if len(self.records) < 3:
            return
        ends = [float(r.end_time or 0) for r in self.records]
        incident = Incident(
            incident_id=self.incident_id,
            category=self.category,
            scope=self.scope,
            began=min(ends),
            last=max(ends),
            over_at=max(ends) + 600,
            jobs=tuple(sorted({r.attempt.job_id for r in self.records})),
            uids=tuple(sorted({r.uid for r in self.records})),
            nodes=tuple(sorted({node for r in self.records for node in r.nodes})),
        )
        self.sink.add(record_rows.INCIDENTS, incident)


class Troubles:
    """Draws incidents in the order of time."""

    def __init__(self, site: Site, seed: int, sink: Sink) -> None:
        self._site, self._sink, self._dice = site, sink, random.Random(f"incidents {seed}")
        self._due: deque[Trouble] = deque()

    def between(self, since: float, until: float) -> None:
        at = since
        while (at := at + self._dice.expovariate(self._site.rates.incidents_per_week / (7 * DAY_S))) < until:
            category, scope = self._dice.choice(_INCIDENTS)
            self._due.append(Trouble(self._sink, at, category, scope, self._dice.randint(4, 25)))

    def take(self, end: float, shape: Shape) -> Trouble | None:
        """Return the incident that affects a run which would end then; it began at most 20 minutes before."""
        while self._due and (self._due[0].at < end - 5 * DAY_S or len(self._due[0].records) >= self._due[0].wanted):
            self._due.popleft()
        now = self._due[0] if self._due else None
        return now if now is not None and now.at <= end <= now.at + 1200 and shape.nodes else None
