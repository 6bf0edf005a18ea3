"""Evidence: the joined facts about one run, and the Diagnosis that is made of it."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTail:
    """The end of one output file. Invalid UTF-8 in `text` is replaced; nothing else is changed."""

    name: str  # path, or "stdout"
    text: str
    # Line number of the first line of `text` in the file; 1 if unknown.
    first_line: int = 1
    truncated: bool = False
    size: int | None = None  # bytes of the file when it was read; None if unknown
    mark: str = ""  # digest of the bytes before its end, to recognise the same file later
    modified: float | None = None  # when the file was last written, Unix seconds; None if unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLine:
    """A line of a node's kernel log that was written while the job ran."""

    text: str
    node: str = ""
    at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKey:
    """The key of one run of a job. SubmitTime changes with each requeue."""

    cluster: str
    job_id: int
    submit_time: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All facts about one run, joined. Everything but the log tails is a record of Slurm, the kernel or root."""

    attempt: RunKey | None = None
    state: str = ""  # final Slurm state, "" if unknown
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    derived_exit_code: int | None = None  # highest exit code of a step, where Slurm reports it
    derived_signal: int | None = None
    logs: tuple[LogTail, ...] = ()
    kernel: tuple[KernelLine, ...] = ()
    nodes: tuple[str, ...] = ()
    gpus: int = 0
    run_s: float | None = None
    time_limit_s: int | None = None
    mem_limit_mib: int | None = None
    mem_peak_mib: int | None = None
    oom_kills: int | None = None
    # For example "NVML on n3: GPU 0 (0000:05:00.0) asks for recovery action gpu_reset".
    nvml: tuple[str, ...] = ()
    # Faults of the nodes' network ports while the job ran, lost links first: "network on n3: InfiniBand port mlx5_0/1
    # went down 2 times while the job ran (link_downed 7)".
    network: tuple[str, ...] = ()
    # Reports of the nodes' own hooks: "prolog on n3: refused: GPU 0 has a fault".
    hooks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """A line on which the diagnosis is based."""

    source: str  # LogTail.name, "kernel:n3", "nvml:n3", "network:n3", "slurm"
    line: int  # 1-based; 0 for a source without line numbers
    text: str
    role: str = "root"  # "root": the cause itself; "support": agrees with it; "cascade": follows from it.
    # Lines of the log just before and after it, for display (cited_context.py).
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Category of a run with its evidence. `category` is an id of taxonomy.py, "success", or "no_signature".

    `error` is set for "completed_with_error", which is not a failure: the category of the error with which the output
    ends.
    """

    category: str
    domain: str  # "U" | "AE" | "IF" | "RS" | ""
    decision: str  # an id of the taxonomy's decisions
    confidence: float  # 0..1
    signature: str  # id of the signature that decided, "" if none did
    evidence: tuple[Citation, ...] = ()
    advice: str = ""  # one sentence for the researcher
    node: str = ""  # the node that kernel, Slurm or NVML blame, "" if none
    conclusive: bool = False  # the fault alone is a reason to drain the node (Xid table)
    input_path: str = ""  # for incorrect_inputs: the file that the evidence names (the user's claim)
    step: int | None = None  # furthest training step seen (the user's claim)
    resumed: bool = False  # the log shows that it continued from a checkpoint (the user's claim)
    checkpoint_step: int | None = None  # step of the newest checkpoint it wrote (the user's claim)
    # For a run that reached its time limit: seconds that it still needed, by its log (the user's claim).
    remaining_s: float | None = None
    error: str = ""  # for a job that Slurm calls COMPLETED: the category of the error in its output
