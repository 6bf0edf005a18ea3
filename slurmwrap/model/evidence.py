"""Evidence: all that is known of an attempt; and the Diagnosis made of it. Records only."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTail:
    """The end of one output file. Text has had invalid UTF-8 replaced; nothing else is changed."""

    name: str  # path, or "stdout"
    text: str
    # Line number of the text's first line in the file, 1 when unknown.
    first_line: int = 1
    truncated: bool = False
    size: int | None = None  # bytes of the file when it was read; None when not known
    mark: str = ""  # digest of the bytes before its end, to know the same file again
    modified: float | None = None  # when the file was last written, Unix seconds; None when not known


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLine:
    """A line of a node's kernel log within the job's window."""

    text: str
    node: str = ""
    at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKey:
    """The key of one run of a job."""

    cluster: str
    job_id: int
    submit_time: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All facts of one attempt, joined. Everything but the log tails is Slurm's, the kernel's or root's record."""

    attempt: RunKey | None = None
    # Final Slurm state, "" when unknown.
    state: str = ""
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    # Highest exit code of a step, where Slurm says it.
    derived_exit_code: int | None = None
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
    # "NVML on n3: GPU 0 (0000:05:00.0) asks for recovery action gpu_reset"
    nvml: tuple[str, ...] = ()
    # What the nodes' own hooks reported: "prolog on n3: refused: GPU 0 has a fault".
    hooks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """A line that the diagnosis rests on."""

    source: str  # LogTail.name, "kernel:n3", "nvml:n3", "slurm"
    # 1-based; 0 where lines have no numbers
    line: int
    text: str
    # root: the cause itself · support: agrees with it · cascade: follows from it
    role: str = "root"
    # Lines of the log just before it, for people (cited_context.py).
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Category with its evidence. `category` is an id of taxonomy.py, "success", or "no_signature".

    Of "completed_with_error", that is no failure, `error` is the category of the error with which the output ends.
    """

    category: str
    domain: str  # "U" | "AE" | "IF" | "RS" | ""
    decision: str  # an id of the taxonomy's decisions
    confidence: float  # 0..1
    signature: str  # id of the signature that decided, "" for none
    evidence: tuple[Citation, ...] = ()
    advice: str = ""  # one sentence to the researcher
    node: str = ""  # the node that kernel, Slurm or NVML blame, "" for none
    conclusive: bool = False  # the fault drains the node by itself (Xid table)
    input_path: str = ""  # the file named by the evidence (the user's claim), for incorrect_inputs
    step: int | None = None  # furthest training step seen (the user's claim)
    resumed: bool = False  # it was seen to go on from a checkpoint (the user's claim)
    checkpoint_step: int | None = None  # step of the newest checkpoint it wrote (the user's claim)
    remaining_s: float | None = None  # of a run that its time limit ended: seconds to go, by its log (the user's claim)
    error: str = ""  # of a job that Slurm calls COMPLETED: the category of the error in its output
