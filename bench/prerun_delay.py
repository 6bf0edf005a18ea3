"""Measure how much later a job's first line runs with gsub than with sbatch, for jobs that train and jobs that do not.

Runs as root, on a lab of 8 free nodes with 8 GPUs. Each kind of job is submitted by sbatch, then by gsub, then by gsub
again without a change; all in one run, since only those can be compared. The first line of the job prints the time, so
the delay is measured from the call to that line. Targets (docs/prerun.md): a job that does not train starts at most 60
s later than with sbatch the first time, and 5 s the next time.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from latency.clusters import cluster

from slurmwrap.fast_dataclasses import dataclass

FIRST_S, NEXT_S = 60.0, 5.0
GIVE_UP_S = 900.0
HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:2 -c 2 --mem=4G --time=30\ndate +started=%s.%N\n"
PYTHON = sys.executable

EVALUATION = """\
import time, torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
model.eval()
data = TensorDataset(torch.rand(100_000, 16), torch.randint(0, 10, (100_000,)))
right = seen = 0
with torch.no_grad():
    for x, y in DataLoader(data, batch_size=16):
        right, seen = right + (model(x).argmax(1) == y).sum().item(), seen + len(y)
        if seen % 320 == 0:
            print(f"evaluated {seen}: accuracy {right / seen:.3f}", flush=True)
        time.sleep(0.1)
"""
GENERATION = """\
import time, torch
model = torch.nn.GRU(32, 32)
head = torch.nn.Linear(32, 96)
with torch.inference_mode():
    token, state = torch.zeros(1, 32), None
    while True:
        out, state = model(token, state)
        print(chr(32 + int(head(out).argmax())), end="", flush=True)
        token = out
        time.sleep(0.05)
"""
TRAINING = """\
import time, torch
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100_000):
    optimizer.zero_grad()
    model(torch.rand(8, 16)).pow(2).mean().backward()
    optimizer.step()
    time.sleep(0.2)
"""
PROGRAMS = {"evaluate.py": EVALUATION, "generate.py": GENERATION, "fit_model.py": TRAINING}
# kind -> (whether it trains, the program that the script starts)
KINDS: Mapping[str, tuple[bool, str]] = {
    "evaluation": (False, f"{PYTHON} evaluate.py"),
    "generation": (False, f"{PYTHON} generate.py"),
    "HTTP server": (False, f"{PYTHON} -m http.server 0"),
    "own server": (False, f"{PYTHON} serve.py"),
    "sleep infinity": (False, "sleep infinity"),
    "molecular dynamics": (False, "while :; do awk 'BEGIN { for (i = 0; i < 3e6; i++) x += sin(i) }'; done"),
    "training": (True, f"{PYTHON} fit_model.py"),
}
SERVER = """\
from http.server import HTTPServer, SimpleHTTPRequestHandler
HTTPServer(("0.0.0.0", 0), SimpleHTTPRequestHandler).serve_forever()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Seconds from the call to the job's first line."""

    kind: str
    sbatch: float
    first: float
    second: float

    @property
    def kept(self) -> bool:
        """Whether both targets hold; for a job that trains the first target applies."""
        return self.first - self.sbatch <= FIRST_S and self.second - self.sbatch <= NEXT_S


def measure(kind: str, environ: Mapping[str, str], place: Path) -> Delays:
    folder = place / re.sub(r"\W", "_", kind)
    folder.mkdir()
    for name, text in {**PROGRAMS, "serve.py": SERVER}.items():
        (folder / name).write_text(text)
    (folder / "job.sbatch").write_text(f"{HEAD}{KINDS[kind][1]}\n")
    plain, first, second = (started_after(program, environ, folder) for program in ("sbatch", "gsub", "gsub"))
    return Delays(kind=kind, sbatch=plain, first=first, second=second)


def started_after(program: str, environ: Mapping[str, str], directory: Path) -> float:
    """Return the seconds until the first line of a job submitted by `program` ran; then cancel the job and wait."""
    began = time.time()
    done = subprocess.run(
        [program, "job.sbatch"], cwd=directory, env=dict(environ), capture_output=True, text=True, check=True
    )
    job = re.findall(r"Submitted batch job (\d+)", done.stdout)[0]
    output = directory / f"slurm-{job}.out"
    while not (line := re.search(r"started=([\d.]+)\n", output.read_text() if output.exists() else "")):
        if time.time() - began > GIVE_UP_S:
            raise SystemExit(f"job {job} did not start within {GIVE_UP_S:.0f} s: {done.stderr}")
        time.sleep(0.2)
    subprocess.run(["scancel", job], env=dict(environ), check=True)
    while subprocess.run(["squeue", "-h", "-j", job], env=dict(environ), capture_output=True, text=True).stdout.strip():
        time.sleep(0.2)
    return float(line[1]) - began


def table(measured: list[Delays]) -> str:
    rows = [
        "| job | sbatch s | gsub s | next gsub s | later than sbatch, first | next | targets |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in measured:
        cells = (f"{one.sbatch:.1f}", f"{one.first:.1f}", f"{one.second:.1f}")
        later = (f"{one.first - one.sbatch:+.1f}", f"{one.second - one.sbatch:+.1f}")
        rows.append(f"| {one.kind} | {' | '.join(cells)} | {' | '.join(later)} | {'kept' if one.kept else 'MISSED'} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="only these (default: all)")
    parser.add_argument("--dir", default="", help="a lab that is up already; default: one is made for the run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slurmwrap-bench-", dir="/var/tmp") as scratch:
        place = Path(scratch)
        place.chmod(0o755)  # the lab serves several users
        with cluster(8, place, options.dir) as environ:
            measured = [measure(kind, environ, place) for kind in options.kind or KINDS]
    print(f"targets: {FIRST_S:.0f} s later than sbatch the first time, {NEXT_S:.0f} s the next time")
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}\n")
    print(table(measured))
    return 0 if all(one.kept for one in measured) else 1


if __name__ == "__main__":
    raise SystemExit(main())
