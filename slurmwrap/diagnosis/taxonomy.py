"""The failure categories as data: a public contract shared by reports, the database and the JSON output. Pure.

They are Philly's categories (USENIX ATC 2019, table 7) plus what newer GPU clusters added. A category states what
failed and what is done about it by default; a signature may override the decision where it is more specific. A category
never drains a node: the Xid table does (xid.py).
"""

from __future__ import annotations

from types import MappingProxyType

from slurmwrap.fast_dataclasses import dataclass

SUCCESS = "success"
NO_SIGNATURE = "no_signature"
COMPLETED_WITH_ERROR = "completed_with_error"

DECISIONS = ("stop", "blacklist_input", "retry", "retry_elsewhere", "resize", "none")
DOMAINS = MappingProxyType(
    {"U": "user program", "AE": "MPI / framework", "IF": "infrastructure", "RS": "resource scheduler"}
)
# Titles for people; programs use the ids.
TITLES = MappingProxyType(
    {
        "syntax_error": "syntax error or unknown command",
        "import_error": "missing Python module",
        "cannot_load_libs": "missing shared library",
        "semantic_error": "wrong use of a library",
        "incorrect_inputs": "input file missing or damaged",
        "permission_error": "access denied",
        "traceback_from_crash": "error in the program",
        "gpu_oom": "out of GPU memory",
        "cpu_oom": "out of host memory",
        "model_diverged": "training diverged (NaN)",
        "checkpoint_error": "checkpoint not written or read",
        "storage_full": "no space left",
        "core_dump": "program aborted",
        "invalid_memory_access": "invalid memory access",
        "cuda_failure": "CUDA error",
        "cuda_init_failed": "GPU not initialized",
        "cuda_version_mismatch": "CUDA version mismatch",
        "mpi_error": "MPI error",
        "mpi_runtime_failure": "MPI process lost",
        "nccl_error": "NCCL error",
        "address_in_use": "network port in use",
        "gpu_ecc_error": "GPU memory fault (ECC)",
        "gpu_hardware": "GPU hardware fault",
        "node_failure": "node failure",
        "storage_io": "file system error",
        "network_error": "network error",
        "job_preempted": "preempted",
        "time_limit": "time limit reached",
        "cancelled": "cancelled",
        NO_SIGNATURE: "unknown cause",
        SUCCESS: "completed",
        COMPLETED_WITH_ERROR: "completed, error in output",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Category:
    """One failure category. `overrides` are the decisions that a signature may choose instead of `decision`."""

    id: str
    domain: str  # "U", "AE", "IF", "RS" or ""
    decision: str  # one of DECISIONS
    meaning: str
    # What the researcher can do about it, unless a signature has more specific advice.
    advice: str
    overrides: tuple[str, ...] = ()


def _make_category(
    id: str, domain: str, decision: str, meaning: str, advice: str, overrides: tuple[str, ...] = ()
) -> Category:
    return Category(id=id, domain=domain, decision=decision, meaning=meaning, advice=advice, overrides=overrides)


_ALL_CATEGORIES = (
    _make_category(
        "syntax_error",
        "U",
        "stop",
        "Python or shell syntax error, or a command that the batch script does not find",
        "Fix the line that is named; `bash -n` and `python -m py_compile` find it without a GPU.",
    ),
    _make_category(
        "import_error",
        "U",
        "stop",
        "a Python module or name that cannot be imported",
        "Install the module into the environment that the job activates, or pin the version that still has the name.",
    ),
    _make_category(
        "cannot_load_libs",
        "AE",
        "stop",
        "a shared library is missing, too old or lacks a symbol",
        "Rebuild the extension against this environment, or load the module or image that provides the library.",
    ),
    _make_category(
        "semantic_error",
        "U",
        "stop",
        "a library or the program's own configuration is misused: shape, dtype, device, argument, option",
        "Fix the call or option that the error names; check it against the installed version of the library.",
    ),
    _make_category(
        "incorrect_inputs",
        "U",
        "blacklist_input",
        "a data or model file is missing, truncated, corrupt or in the wrong format",
        "Check the named file (does it exist, is it complete?), fetch or write it again, then resubmit.",
    ),
    _make_category(
        "permission_error",
        "U",
        "stop",
        "access is denied: file mode, read-only file system, or a token that a service refused",
        "Fix the mode or owner of the path, choose a writable directory, or renew the token or licence that is named.",
    ),
    _make_category(
        "traceback_from_crash",
        "U",
        "stop",
        "the program raised an exception of its own",
        "Fix the exception at the line that the traceback names.",
    ),
    _make_category(
        "gpu_oom",
        "U",
        "stop",
        "the job itself exhausted GPU memory",
        "Lower the batch size or sequence length, use activation checkpointing or sharding, or ask for larger GPUs.",
    ),
    _make_category(
        "cpu_oom",
        "U",
        "resize",
        "host memory or /dev/shm was exhausted",
        "Ask for more memory (--mem), or use fewer or leaner data-loader workers.",
    ),
    _make_category(
        "model_diverged",
        "U",
        "stop",
        "loss or gradients became NaN or Inf, or the loss scale hit its floor",
        "Lower the learning rate, clip gradients, use bf16, or resume from before the divergence and skip that data.",
    ),
    _make_category(
        "checkpoint_error",
        "U",
        "retry",
        "a checkpoint could not be written, or the job's own checkpoint cannot be resumed from",
        "Check the checkpoint directory; if the newest checkpoint is incomplete, resume from the one before.",
        ("stop",),
    ),
    _make_category(
        "storage_full",
        "IF",
        "stop",
        "no space, inodes or quota left",
        "Free space or raise the quota of the file system that is named, then resubmit.",
        ("retry_elsewhere",),
    ),
    _make_category(
        "core_dump",
        "AE",
        "stop",
        "the process aborted (SIGABRT, std::terminate, glibc) with no more specific cause",
        "Run once with PYTHONFAULTHANDLER=1 or a core file to see the native stack; suspect a compiled extension.",
    ),
    _make_category(
        "invalid_memory_access",
        "AE",
        "stop",
        "an invalid memory access on host or GPU (SIGSEGV, SIGBUS, CUDA illegal address, Xid 31)",
        "Run once with CUDA_LAUNCH_BLOCKING=1 (or compute-sanitizer) to find the kernel; suspect custom extensions.",
    ),
    _make_category(
        "cuda_failure",
        "AE",
        "stop",
        "another CUDA, cuDNN or cuBLAS runtime error",
        "Run once with CUDA_LAUNCH_BLOCKING=1 to see the failing call; for asserts check indices and label ranges.",
    ),
    _make_category(
        "cuda_init_failed",
        "AE",
        "retry_elsewhere",
        "the GPU or its driver could not be initialised on this node",
        "Nothing to fix in the program if --gres and the container's --nv flag are right; another node will do.",
    ),
    _make_category(
        "cuda_version_mismatch",
        "AE",
        "stop",
        "driver, CUDA runtime, libraries and GPU architecture do not fit together",
        "Install a build of the framework that matches the driver and the GPU's compute capability.",
    ),
    _make_category(
        "mpi_error",
        "AE",
        "stop",
        "the application's ranks failed in MPI, or MPI was asked for the impossible",
        "Fix the MPI call or the rank count; launch with the MPI and PMI type that the program was built for.",
    ),
    _make_category(
        "mpi_runtime_failure",
        "AE",
        "retry",
        "an MPI daemon or a PMIx, ORTE, PRTE or UCX peer was lost",
        "Nothing to fix in the program unless it repeats on the same nodes; submit it again.",
    ),
    _make_category(
        "nccl_error",
        "AE",
        "retry",
        "collective communication among the job's own ranks failed",
        "Look for the first rank that stopped; if none did, run with NCCL_DEBUG=INFO and check the named interface.",
    ),
    _make_category(
        "address_in_use",
        "AE",
        "retry",
        "the rendezvous port was taken",
        "Derive MASTER_PORT from the job id, or let torchrun choose one with --rdzv-endpoint=host:0.",
    ),
    _make_category(
        "gpu_ecc_error",
        "IF",
        "retry_elsewhere",
        "uncorrectable GPU memory errors",
        "Nothing to fix in the program: the GPU's memory is at fault; the job must run on another node.",
    ),
    _make_category(
        "gpu_hardware",
        "IF",
        "retry_elsewhere",
        "the GPU, its link or its firmware failed",
        "Nothing to fix in the program: the GPU or its link failed; the job must run on another node.",
    ),
    _make_category(
        "node_failure",
        "IF",
        "retry_elsewhere",
        "the node went down, or launch, prolog or container start failed on it",
        "Nothing to fix in the program: the node failed; the job must run on another node.",
    ),
    _make_category(
        "storage_io",
        "IF",
        "retry",
        "the file system returned errors or hung",
        "Nothing to fix in the program: the file system failed; tell the administrators if it repeats.",
    ),
    _make_category(
        "network_error",
        "IF",
        "retry",
        "an outside service could not be resolved, reached or read",
        "Fetch models and data before the job (HF_HUB_OFFLINE=1, WANDB_MODE=offline) if nodes have no way out.",
    ),
    _make_category(
        "job_preempted",
        "RS",
        "retry",
        "a job of higher priority took the nodes, or spot capacity was reclaimed",
        "Nothing to fix; write checkpoints often enough that the repeated part is cheap.",
    ),
    _make_category(
        "time_limit",
        "RS",
        "resize",
        "the job ran into its time limit",
        "Ask for more time, or write checkpoints and resume; if it had finished, look for a hang at exit.",
        ("stop", "retry"),
    ),
    _make_category("cancelled", "RS", "none", "scancel by the user or an administrator", "Nothing failed."),
    _make_category(
        NO_SIGNATURE,
        "",
        "retry",
        "failed with nothing recognisable",
        "Look at the last lines of the output; run with PYTHONFAULTHANDLER=1 and unbuffered output (python -u).",
        ("stop",),
    ),
    _make_category(SUCCESS, "", "none", "the job completed, whatever alarming words its log holds", ""),
    _make_category(
        COMPLETED_WITH_ERROR,
        "",
        "none",
        "the job ended with exit code 0, but its output ends with an error",
        "Let the script end with the program's exit code: `set -eo pipefail` at its start, and no `|| true`.",
    ),
)

CATEGORIES = MappingProxyType({category.id: category for category in _ALL_CATEGORIES})
FAILURES = tuple(category.id for category in _ALL_CATEGORIES if category.id not in (SUCCESS, COMPLETED_WITH_ERROR))


DECISION_TITLES = MappingProxyType(
    {
        "stop": "not run again",
        "blacklist_input": "the input file is blocked",
        "retry": "run again",
        "retry_elsewhere": "run again on other nodes",
        "resize": "run again with more",
        "none": "nothing to do",
    }
)


def get_title(category: str) -> str:
    """Return the category in plain words; an unknown id (of a newer version) unchanged."""
    return TITLES.get(category, category)


def list_decisions(category: str) -> tuple[str, ...]:
    """Return the decisions that are right for `category`: its default first, then a signature's allowed overrides."""
    return (CATEGORIES[category].decision, *CATEGORIES[category].overrides)
