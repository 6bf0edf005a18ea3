"""The kinds of request that the planning benchmark plans, as gsub parses them."""

from __future__ import annotations

from slurmwrap.sbatch.job_request import JobRequest
from slurmwrap.sbatch.parse_request import parse_request

REQUESTS = {
    "1 GPU": "--gres=gpu:1 --cpus-per-task=8 --mem=64G",
    "8 GPUs": "--gres=gpu:8 --cpus-per-task=64 --mem=400G",
    "8 nodes x 8 GPUs": "--nodes=8 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-task=64 --mem=400G",
    "--gpus=16": "--gpus=16 --cpus-per-gpu=8 --mem-per-gpu=60G",
}


def request(options: str) -> JobRequest:
    """Return a batch script of one srun with `options` on one #SBATCH line."""
    script = f"#!/bin/bash\n#SBATCH {options}\nsrun python train.py\n".encode()
    return parse_request(
        ["train.sbatch"], environ={}, cwd="/home/a", read_script=lambda path: script, read_stdin=lambda: b""
    )
