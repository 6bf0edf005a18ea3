"""Compare the predicted traffic of data-parallel training with what real processes send, for ten public architectures.

    bench/allreduce.py                         all of them with 2 and 4 processes (some minutes, 8 GB of memory)
    bench/allreduce.py --models VGG-16,GPT-2 --processes 2

For each architecture a process trains alone under the counter of a pre-run, which records the layers. Their bytes give
the prediction, 2(n-1)/n times the bytes from each process. Then n processes with DistributedDataParallel on gloo make
the same steps in a network namespace of their own (unshare -rn), whose loopback carries nothing else; its byte counter
is read before and after the second and third step. Not included in a prediction: headers and acknowledgements of TCP,
and the buffers of batch normalisation, which DistributedDataParallel sends from rank 0 at each step. Exit code 1 if a
prediction is off by more than --most (10 %), or a model has another number of parameters than its authors publish.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from traffic.models import MODELS

from slurmwrap.prerun.trial.step_detection import read_steps
from slurmwrap.profiling.communication import compute_allreduce_mib

BENCH = Path(__file__).resolve().parent
WORKER = BENCH / "traffic" / "worker.py"
STEPS = 2
MIB = 1 << 20


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    options.add_argument("--processes", default="2,4")
    options.add_argument("--most", type=float, default=0.10, help="largest relative error")
    asked = options.parse_args()
    counts = [int(one) for one in asked.processes.split(",")]
    print("| architecture | parameters | gradients, MiB |" + "".join(f" {n}: sent, MiB | error |" for n in counts))
    print("|---|---|---|" + "---|---|" * len(counts), flush=True)
    worst, wrong = 0.0, []
    for name in asked.models.split(","):
        number = sum(one.numel() for one in MODELS[name].make().parameters())
        if MODELS[name].published not in (0, number):
            wrong.append(f"{name}: {number:,} parameters instead of {MODELS[name].published:,}")
        mib = record_layers(name)
        cells = [name, f"{number:,}", f"{mib:,.1f}"]
        for processes in counts:
            sent = measure_sent(name, processes)
            error = processes * compute_allreduce_mib(mib, processes) / sent - 1
            worst = max(worst, abs(error))
            cells += [f"{sent:,.1f}", f"{100 * error:+.1f} %"]
        print("| " + " | ".join(cells) + " |", flush=True)
    print(f"largest error: {100 * worst:.1f} %")
    print(*wrong, sep="\n")
    return 1 if wrong or worst > asked.most else 0


def record_layers(name: str) -> float:
    """Return the MiB of all layers, as the counter of a pre-run records them."""
    with tempfile.TemporaryDirectory() as directory:
        own = {"SLURMWRAP_STEP_DIR": directory, "SLURMWRAP_PRERUN": "1"}
        path = f"{BENCH.parent / 'slurmwrap' / 'inject'}:{BENCH}"
        subprocess.run(
            [sys.executable, str(WORKER), name, "1"], env={**os.environ, **own, "PYTHONPATH": path}, check=True
        )
        return sum(layer.mib for layer in read_steps(directory).layers)


def measure_sent(name: str, processes: int) -> float:
    """Return the MiB that all processes together send in one step."""
    lines = " & ".join(f'"$0" "$1" "$2" {STEPS} {rank} {processes}' for rank in range(processes))
    done = subprocess.run(
        ["unshare", "-rn", "sh", "-c", f"ip link set lo up; {lines} & wait", sys.executable, str(WORKER), name],
        env={**os.environ, "PYTHONPATH": str(BENCH)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(done.stdout) / MIB


if __name__ == "__main__":
    sys.exit(main())
