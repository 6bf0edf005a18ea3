"""The log or Slurm record that a failing job of each category leaves; classified once by the real classifier."""

from __future__ import annotations

from functools import cache

from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.model.evidence import Diagnosis, Evidence, KernelLine, LogTail, RunKey

NODE, PATH, LOG = "gpu0000", "/data/sets/shard-000.tar", "/home/user000/run/slurm-0.out"
_PID = "pid=41234, name=python"
_XID = "NVRM: Xid (PCI:0000:4b:00):"
GPU_LINES = {
    "gpu_hardware": f"{_XID} 79, {_PID}, GPU has fallen off the bus.",
    "gpu_ecc_error": f"{_XID} 48, {_PID}, An uncorrectable double bit error (DBE) has been detected on GPU.",
}
_LOGS = {
    "semantic_error": "RuntimeError: mat1 and mat2 shapes cannot be multiplied (256x1024 and 768x512)",
    "incorrect_inputs": f"FileNotFoundError: [Errno 2] No such file or directory: '{PATH}'",
    "core_dump": "train.sh: line 12: 41234 Aborted                 (core dumped) python train.py",
    "invalid_memory_access": "RuntimeError: CUDA error: an illegal memory access was encountered",
    "checkpoint_error": "RuntimeError: PytorchStreamWriter failed writing file data/12: file write failed",
    "cuda_failure": "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    "syntax_error": '  File "train.py", line 88\n    if x = 1:\nSyntaxError: invalid syntax',
    "traceback_from_crash": 'Traceback (most recent call last):\n  File "train.py", line 141, in <module>\n    main()\n'
    '  File "train.py", line 99, in main\n    raise KeyError(name)\nKeyError: "dropout"',
    "mpi_error": "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\nwith errorcode 1.",
    "gpu_oom": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "79.15 GiB of which 1.02 GiB is free.",
    "mpi_runtime_failure": "ORTE has lost communication with a remote daemon.",
    "permission_error": "PermissionError: [Errno 13] Permission denied: '/data/shared/out/run7'",
    "import_error": "ModuleNotFoundError: No module named 'flash_attn'",
    "cuda_init_failed": "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
    "model_diverged": "ValueError: loss is NaN at step 1210, stopping",
    "cuda_version_mismatch": "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
    "cannot_load_libs": "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory",
    "no_signature": "worker ended early, see above",
    "network_error": "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub.example', port=443): Max "
    "retries exceeded",
    "storage_io": "OSError: [Errno 5] Input/output error: '/scratch/run/ckpt.pt'",
}
_STATES = {
    "success": "COMPLETED",
    "cancelled": "CANCELLED",
    "cpu_oom": "OUT_OF_MEMORY",
    "time_limit": "TIMEOUT",
    "node_failure": "NODE_FAIL",
    "job_preempted": "PREEMPTED",
}
CATEGORIES = (*_LOGS, *_STATES, *GPU_LINES)


def state_of(category: str) -> str:
    """Return Slurm's final state of a run of this category."""
    return _STATES.get(category, "FAILED")


def log_of(category: str) -> str:
    """Return the end of the run's output."""
    steps = "".join(f"epoch 1 step {step} loss 2.{step % 97:02d} lr 3.0e-04\n" for step in range(100, 3100, 100))
    return steps + _LOGS.get(category, "Training done." if category == "success" else "slurmstepd: error: ended") + "\n"


@cache
def diagnosis_of(category: str) -> Diagnosis:
    """Return the classifier's diagnosis; its evidence has NODE, PATH and LOG, which the caller replaces."""
    text, line = _LOGS.get(category), GPU_LINES.get(category)
    found = diagnose_run(
        Evidence(
            attempt=RunKey(cluster="ada", job_id=1, submit_time=1),
            state=state_of(category),
            exit_code=1 if text or line else 0,
            logs=(LogTail(name=LOG, text=f"epoch 1 step 200 loss 2.31\n{text}\n", first_line=4211),) if text else (),
            kernel=(KernelLine(text=line, node=NODE, at=1.0),) if line else (),
            nodes=(NODE,),
            gpus=1,
            run_s=300.0,
        )
    )
    if found.category != category:
        raise ValueError(f"the sample of {category} is judged to be {found.category}")
    return found
