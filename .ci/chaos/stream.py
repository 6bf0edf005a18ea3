"""The stream of jobs of a fault run: a script, an sbatch or gsub command line and later events for each kind of job."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

GSUB = (sys.executable, "-m", "slurmwrap.gsub.gsub_main")
LINES = "lines.txt"
_NCCL = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
_HEAD = """#!/bin/bash
#SBATCH --mem=200 -c1 --time=15 --open-mode=append
note() { echo "$1|MARKER|${SLURM_ARRAY_TASK_ID:-}|${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}|$SLURM_JOB_ID|\
${SLURM_RESTART_COUNT:-0}|$(date +%s.%N)" >> LINES_FILE; }
note start
"""
_TAIL = "note end\n"
_SLEEP = "sleep SECONDS\n"
_TRAIN = """srun --overlap python3 -c '
import time
try:
    import slurmwrap_step
except ImportError:
    slurmwrap_step = None
for step in range(SECONDS * 4):
    time.sleep(0.25)
    slurmwrap_step and slurmwrap_step.step()
' || exit 1
"""
_BUG = "srun python3 -c 'raise KeyError(1)' || exit 1\n"
_FAILS_ONCE = 'if [ -z "$SLURM_RESTART_COUNT" ]; then sleep SECONDS; echo "MESSAGE" >&2; exit 1; fi\n'
_REQUEUES = (
    'if [ -z "$SLURM_RESTART_COUNT" ]; then sleep SECONDS; scontrol requeue $SLURM_JOB_ID; sleep 60; exit 1; fi\n'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJob:
    """One job to submit. `after`: what happens to it later: "cancel", "xid", "power" or ""."""

    marker: str
    kind: str
    user: str
    argv: tuple[str, ...]
    script: str
    after: str = ""
    depends: bool = False  # on the job before it, of the same user


_KINDS: dict[str, tuple[int, Callable[[Random], tuple[tuple[str, ...], str, str]]]] = {
    # kind: (weight, (arguments, body, later event)); plain sbatch first
    "plain": (5, lambda dice: (("sbatch", f"--gres=gpu:{dice.randint(0, 3)}"), _SLEEP + _TAIL, "")),
    "nodes": (1, lambda dice: (("sbatch", "-N2", "--gres=gpu:2"), "srun true\n" + _SLEEP + _TAIL, "")),
    "array": (2, lambda dice: (("sbatch", "--array=0-3", "--gres=gpu:1"), _SLEEP + _TAIL, "")),
    "chain": (2, lambda dice: (("sbatch", "--gres=gpu:1"), _SLEEP + _TAIL, "")),
    "cancelled": (2, lambda dice: (("sbatch", "--gres=gpu:1"), "sleep 300\n", "cancel")),
    "limit": (1, lambda dice: (("sbatch", "--gres=gpu:1", "--time=1"), "sleep 400\n", "")),
    "requeue-self": (1, lambda dice: (("sbatch", "--gres=gpu:1"), _REQUEUES + _TAIL, "")),
    "failed": (1, lambda dice: (("sbatch", "--gres=gpu:1"), _BUG, "")),
    "trained": (3, lambda dice: ((*GSUB, "--gres=gpu:1"), _TRAIN + _TAIL, "")),
    "bug": (1, lambda dice: ((*GSUB, "--gres=gpu:2"), _BUG, "")),
    "gsub-cancelled": (1, lambda dice: ((*GSUB, "--gres=gpu:1"), _TRAIN.replace("SECONDS", "300"), "cancel")),
    "pack": (
        2,
        lambda dice: ((*GSUB, "--pack=2", "--requeue", "--array=0-3", "--gres=gpu:1"), _TRAIN + _TAIL, ""),
    ),
    "retry-nccl": (
        2,
        lambda dice: ((*GSUB, "--prerun=off", "--retry", "--gres=gpu:1"), _fails_once(_NCCL) + _TAIL, ""),
    ),
    "retry-xid": (
        2,
        lambda dice: (
            (*GSUB, "--prerun=off", "--retry", "--gres=gpu:1"),
            _fails_once("RuntimeError: CUDA error: unspecified launch failure") + _TAIL,
            "xid",
        ),
    ),
    "retry-power": (1, lambda dice: ((*GSUB, "--prerun=off", "--retry", "--gres=gpu:1"), _SLEEP + _TAIL, "power")),
}


def _fails_once(message: str) -> str:
    return _FAILS_ONCE.replace("MESSAGE", message)


def draw_job(dice: Random, number: int, users: tuple[str, ...], homes: Path) -> StreamJob:
    """Draw the next job of the stream. Its output and its lines are in its user's home."""
    names = list(_KINDS)
    kind = dice.choices(names, [_KINDS[name][0] for name in names])[0]
    user = dice.choice(users)
    marker = f"c{number:04d}-{kind}"
    arguments, body, after = _KINDS[kind][1](dice)
    seconds = dice.randint(8, 20) if after in ("xid", "power") else dice.randint(1, 12)
    head = _HEAD.replace("MARKER", marker).replace("LINES_FILE", str(homes / user / LINES))
    output = "%x-%A_%a.out" if "array" in " ".join(arguments) else "%x-%j.out"
    name = (f"--job-name={marker}", f"--output={output}")
    script = (head + body).replace("SECONDS", str(seconds))
    argv = (*arguments, *name)
    return StreamJob(
        marker=marker, kind=kind, user=user, argv=argv, script=script, after=after, depends=kind == "chain"
    )


def parse_job_id(output: str) -> int | None:
    """Return the job id that sbatch or gsub printed; None without one."""
    found = re.search(r"Submitted batch job (\d+)", output)
    return int(found[1]) if found else None
