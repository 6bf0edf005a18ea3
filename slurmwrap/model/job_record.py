"""JobRecord: Slurm's own record on one job, from squeue. Record only."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One run of a job as Slurm shows it. Times in Unix seconds, None when Unknown; exit codes already split."""

    # Raw id: the key together with cluster and submit_time.
    job_id: int
    array_job_id: int | None = None
    array_task_id: int | None = None
    name: str = ""  # user text
    user: str = ""
    uid: int = -1
    account: str = ""
    partition: str = ""
    # Base state, "COMPLETING" while hooks run.
    state: str = ""
    reason: str = ""
    requeue: bool = False
    restarts: int = 0
    exit_code: int = 0
    signal: int = 0
    derived_exit_code: int = 0
    derived_signal: int = 0
    submit_time: int = 0
    eligible_time: int | None = None
    start_time: int | None = None
    end_time: int | None = None
    time_limit_s: int | None = None
    nodes: tuple[str, ...] = ()  # allocated, in Slurm's order
    req_nodes: str = ""
    exc_nodes: str = ""
    num_nodes: int = 0
    cpus: int = 0
    gpus: int = 0
    mem_mib_per_node: int | None = None
    mem_mib_per_cpu: int | None = None
    # 0: held, or it no longer waits
    priority: int = 0
    # As asked for by --constraint.
    features: str = ""
    qos: str = ""
    het_job_id: int | None = None
    # On each node: scontrol's MinCPUsNode.
    min_cpus: int = 0
    cpus_per_task: int = 0
    max_nodes: int = 0  # 0: as many as it likes
    array_tasks: str = ""  # of a pending array: the tasks that this record stands for, "2-5"; "" one job or unknown
    work_dir: str = ""  # user text from here on
    std_out: str = ""
    std_err: str = ""
    comment: str = ""
    command: str = ""

    @property
    def address(self) -> str:
        """What scontrol must be given: a bare array master id would mean every task (facts/slurm.md 3)."""
        if self.array_job_id is not None and self.array_task_id is not None:
            return f"{self.array_job_id}_{self.array_task_id}"
        return str(self.job_id)

    @property
    def waiting_address(self) -> str:
        """What scontrol must be given to update what waits: of an array its pending tasks. "" where they are unknown.

        The bare array id is refused for the tasks that run and changes what it may of them (measured, 22.05.8).
        """
        if self.array_job_id is None or self.array_task_id is not None:
            return self.address
        return f"{self.array_job_id}_[{self.array_tasks}]" if self.array_tasks else ""

    @property
    def pending(self) -> bool:
        """Not started, or already requeued."""
        return self.state == "PENDING"

    @property
    def ended(self) -> bool:
        """True in a final state; COMPLETING and PENDING are none."""
        return self.state in FINAL_STATES

    @property
    def refused(self) -> bool:
        """A submission that Slurm refused: it keeps a record of it, FAILED at the moment of its submission and without
        a node (22.05.8, "Requested node configuration is not available"). sbatch printed no id: it was never a job."""
        if self.state != "FAILED" or self.nodes or self.restarts or self.end_time is None:
            return False
        return self.start_time in (None, self.end_time) and self.end_time - self.submit_time <= _AT_ONCE_S


_AT_ONCE_S = 1
FINAL_STATES = frozenset(
    (
        *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL"),
        *("PREEMPTED", "BOOT_FAIL", "DEADLINE", "REVOKED"),
    )
)
