"""Life: one job on its way through its runs in one world."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurmwrap.model.run import JobRun
from slurmwrap.sim.failures.draw_failures import FailingJob
from slurmwrap.sim.sim_job import SimJob


@dataclass(slots=True, kw_only=True)
class SimJobState:
    """Changes from run to run. Seconds; `kept_s` of `need_s` are safe in a checkpoint."""

    job: SimJob
    doom: FailingJob
    need_s: float
    mem_mib: int  # on each node
    nodes: int
    run: int = 0
    kept_s: float = 0.0
    met: int = 0  # runs that failed of the job's own cause
    failures: int = 0
    grown: float = 1.0  # times the memory that it asked for
    avoid: frozenset[int] = frozenset()
    before: list[JobRun] = field(default_factory=list)
    lost: list[tuple[str, float]] = field(default_factory=list)  # category, GPU-seconds of the run that are gone
    first_failed_s: float | None = None

    @property
    def ailing(self) -> bool:
        """Its own cause still stands."""
        doom = self.doom
        if not doom.category or doom.by_node:
            return False
        if doom.category == "cpu_oom":
            return self.grown < doom.need
        return not (doom.curable and self.met >= doom.trials)

    @property
    def sound(self) -> bool:
        """Another run would end well, sooner or later."""
        return not self.ailing or self.doom.curable

    @property
    def gpu_s_lost(self) -> float:
        """So far, and what its checkpoint holds."""
        return sum(lost for _, lost in self.lost) + self.kept_s * self.job.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class SimRunEnding:
    """How one run ended. `category`: of the failure; "" none, "killed": by its user."""

    ran_s: float
    category: str = ""
    node: int = -1  # that failed under it
    gpu_fault: bool = False  # the kernel names a GPU for it


KILLED = "killed"
