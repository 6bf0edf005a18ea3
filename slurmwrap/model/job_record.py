"""JobRecord: Slurm's own record of one job, as squeue shows it."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One run of a job as Slurm shows it.

    Times are in Unix seconds, None for "Unknown". Exit codes are already split into code and signal.
    """

    # Raw job id. It is the key together with cluster and submit_time.
    job_id: int
    array_job_id: int | None = None
    array_task_id: int | None = None
    name: str = ""  # user text
    user: str = ""
    uid: int = -1
    account: str = ""
    partition: str = ""
    state: str = ""  # base state; "COMPLETING" while Epilogs run
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
    priority: int = 0  # 0: held, or no longer pending
    features: str = ""  # as requested with --constraint
    qos: str = ""
    het_job_id: int | None = None
    min_cpus: int = 0  # per node; scontrol calls it MinCPUsNode
    cpus_per_task: int = 0
    max_nodes: int = 0  # 0: no maximum
    # For a pending array, the tasks that this record stands for, e.g. "2-5"; "" for a single job or if unknown.
    array_tasks: str = ""
    # Text of the user, from here on.
    work_dir: str = ""
    std_out: str = ""
    std_err: str = ""
    comment: str = ""
    command: str = ""

    @property
    def address(self) -> str:
        """Return the job id or array task to pass to scontrol.

        A bare array id would address every task (facts/slurm.md 3).
        """
        if self.array_job_id is not None and self.array_task_id is not None:
            return f"{self.array_job_id}_{self.array_task_id}"
        return str(self.job_id)

    @property
    def waiting_address(self) -> str:
        """Return what to pass to scontrol to update the job, or the pending tasks of an array; "" if they are unknown.

        For running tasks Slurm refuses an update of the bare array id, or changes what it may of them (measured,
        22.05.8).
        """
        if self.array_job_id is None or self.array_task_id is not None:
            return self.address
        return f"{self.array_job_id}_[{self.array_tasks}]" if self.array_tasks else ""

    @property
    def submitted_id(self) -> int:
        """Return the job id that sbatch printed: of an array's task that of the array."""
        return self.job_id if self.array_job_id is None else self.array_job_id

    @property
    def pending(self) -> bool:
        """Return True if the job has not started, or was requeued already."""
        return self.state == "PENDING"

    @property
    def ended(self) -> bool:
        """Return True in a final state. COMPLETING and PENDING are not final."""
        return self.state in FINAL_STATES

    @property
    def requeueing(self) -> bool:
        """Return True while a run that was requeued, or whose node was lost, is COMPLETING.

        SubmitTime is still that of this run, but the restart is counted already, StartTime is the present time, and
        EndTime is the time limit after that, or unknown without a limit (pack_job and job_requeue in slurmctld's
        job_mgr.c, 22.05 to 26.05).
        """
        if self.state != "COMPLETING" or not self.restarts:
            return False
        if self.start_time is None or self.end_time is None:
            return True
        return self.end_time - self.start_time == self.time_limit_s and self.reason != "TimeLimit"

    @property
    def refused(self) -> bool:
        """Return True for a submission that Slurm refused: sbatch printed no id, so it was never a job.

        Slurm keeps a record of it: FAILED at the moment of its submission and without a node (22.05.8, "Requested node
        configuration is not available").
        """
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
