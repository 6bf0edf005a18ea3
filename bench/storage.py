"""How well a pre-run predicts what a faster storage would save: real PyTorch DataLoaders whose data is slow to read.

    bench/storage.py            six loaders: each measured by a trial, then run with slow and with fast data
    bench/storage.py --check    exit code 1 if a prediction is wrong by more than 15 %

The data is a directory of files. A stand-in for a slow file system is in the program that reads them: each read of a
file below `slow` sleeps for a latency and for its size over a rate, like a network file system, and uses no CPU. The
same files below `fast` are read without sleeping. The program makes some steps with slow and with fast data in turn, in
one process, and the median ratio of their times is compared with the factor of profiling/storage_model.py. It is
predicted twice: from what the counters see of the slow data in the compared run itself, and from what a trial of three
steps (prerun/trial) sees. The first shows the error of the model. The second has also that of a small sample, taken at
another time, which is large on a machine in use.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from slurmwrap.inject import slurmwrap_step
from slurmwrap.model.resource_profile import DataLoading, Measurement
from slurmwrap.prerun.trial.loader_sampler import LoaderSampler
from slurmwrap.prerun.trial.supervisor import run_trial
from slurmwrap.prerun.trial.trial_spec import TrialSpec
from slurmwrap.profiling.storage_model import compute_staged_factor

JOB = """
import os, sys, time, torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
folder, workers = sys.argv[1], int(sys.argv[2])
latency, rate, work, device, steps, rounds = map(float, sys.argv[3:])

def read(path):
    with open(path, "rb") as stream:
        data = stream.read()
    if "/slow/" in path:
        time.sleep(latency + len(data) / rate)
    return data

def spin(seconds):  # CPU seconds, whatever else runs
    end, x = time.thread_time() + seconds, 0
    while time.thread_time() < end:
        x += sum(i * i for i in range(200))

class Files(Dataset):
    def __init__(self, folder):
        self.paths = sorted(entry.path for entry in os.scandir(folder))
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, index):
        data = read(self.paths[index])
        spin(work)
        return torch.full((64,), float(data[0]))

files = {name: Files(folder + "/" + name) for name in ("slow", "fast")}

def repeat(name):
    while True:
        yield from DataLoader(files[name], batch_size=8, shuffle=True, num_workers=workers)

model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

def train(batches, count):
    for _ in range(count):
        loss = model(next(batches)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        time.sleep(device)
        optimizer.step()

if steps == 0:  # in a trial
    train(repeat("slow"), 10_000)
ratios = []
for _ in range(int(rounds)):
    seconds = []
    for name in ("slow", "fast"):
        batches = repeat(name)
        # Without the start of the workers and what they prefetch meanwhile.
        train(batches, 2 * workers + 2)
        began = time.monotonic()
        train(batches, int(steps))
        seconds.append(time.monotonic() - began)
        if name == "slow":  # one batch more: of two iterators, the one with more batches is recorded
            train(batches, 1)
    ratios.append(seconds[0] / seconds[1])
print("ratio", sorted(ratios)[len(ratios) // 2])
"""
WRONG = 0.15
INJECT = Path(slurmwrap_step.__file__).parent
FILES, FILE_BYTES = 1000, 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """One job: times in seconds per file (latency, work) and per step (device); `rate` in bytes per second."""

    name: str
    workers: int
    latency: float
    rate: float
    work: float
    device: float


LOADERS = (
    Loader(name="slow files, no workers", workers=0, latency=0.005, rate=2e7, work=0.0005, device=0.02),
    Loader(name="slow files, 2 workers", workers=2, latency=0.005, rate=2e7, work=0.0005, device=0.02),
    Loader(name="slow files, 4 workers", workers=4, latency=0.02, rate=2e7, work=0.0005, device=0.03),
    Loader(name="low bandwidth, 2 workers", workers=2, latency=0.0, rate=5e6, work=0.0005, device=0.04),
    Loader(name="decoding limits it then", workers=2, latency=0.01, rate=5e7, work=0.004, device=0.005),
    Loader(name="not waiting", workers=2, latency=0.0005, rate=2e8, work=0.0005, device=0.06),
)


def make_words(directory: Path, loader: Loader, steps: int, rounds: int) -> list[str]:
    numbers = (loader.latency, loader.rate, loader.work, loader.device, steps, rounds)
    return [str(directory), str(loader.workers), *map(str, numbers)]


def measure_in_trial(directory: Path, loader: Loader, steps: int) -> Measurement:
    """Return what a pre-run of this many steps measures with slow data."""
    trial = directory / "trial"
    shutil.rmtree(trial, ignore_errors=True)
    trial.mkdir(mode=0o700)
    script = trial / "slurm_script"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -W ignore {directory}/train.py "$@"\n')
    spec = TrialSpec(
        trial_dir=str(trial),
        script=str(script),
        args=tuple(make_words(directory, loader, 0, 0)),
        chdir=str(directory / "job"),
        steps=steps,
    )
    result = run_trial(spec, environ=dict(os.environ))
    if result.measurement.loading is None:
        raise SystemExit(f"the loader was not measured: {result.layer} {result.error} {result.logs[0].text[-500:]}")
    return result.measurement


def compare_steps(directory: Path, loader: Loader, steps: int, rounds: int) -> tuple[float, DataLoading]:
    """Return the seconds of a step with slow data over those with fast data, the median of `rounds`, and the costs."""
    step_dir = directory / "steps"
    shutil.rmtree(step_dir, ignore_errors=True)
    step_dir.mkdir()
    counted = {"SLURMWRAP_STEP_DIR": str(step_dir), "SLURMWRAP_PRERUN": "1", "PYTHONPATH": str(INJECT)}
    argv = [sys.executable, "-W", "ignore", f"{directory}/train.py", *make_words(directory, loader, steps, rounds)]
    done = subprocess.run(argv, env={**os.environ, **counted}, capture_output=True, text=True, check=True)
    sampler = LoaderSampler(str(step_dir))
    sampler.look(0.0)
    loading = sampler.summarize()
    if loading is None:
        raise SystemExit(f"the loader was not measured: {done.stderr[-500:]}")
    return float(done.stdout.split()[-1]), loading


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="times that slow and fast data alternate")
    parser.add_argument("--steps", type=int, default=30, help="steps with slow or fast data at a time")
    parser.add_argument("--trials", type=int, default=3, help="trials whose median is compared")
    parser.add_argument("--trial-steps", type=int, default=3, help="steps of a trial")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a prediction is wrong by more than 15 %%")
    given = parser.parse_args()
    errors = []
    with tempfile.TemporaryDirectory(prefix="storage.") as folder:
        directory = Path(folder)
        (directory / "train.py").write_text(JOB)
        (directory / "job").mkdir()
        for name in ("slow", "fast"):
            (directory / name).mkdir()
            for number in range(FILES):
                (directory / name / f"{number:05d}.bin").write_bytes(bytes([number % 256]) * FILE_BYTES)
        real_mib, cpus = FILES * FILE_BYTES / 2**20, len(os.sched_getaffinity(0))
        print(f"  {'':28}{'measured':>10}{'in the run':>12}{'error':>8}{'by trials':>12}{'error':>8}{'data, MiB':>12}")
        for loader in LOADERS:
            true, loading = compare_steps(directory, loader, given.steps, given.rounds)
            trials = [measure_in_trial(directory, loader, given.trial_steps) for _ in range(given.trials)]
            factors = [compute_staged_factor(one.loading, cpus=cpus) for one in trials if one.loading is not None]
            found = (compute_staged_factor(loading, cpus=cpus), statistics.median(factors))
            errors.append(abs(found[0] / true - 1))
            shown = "".join(f"{factor:>12.2f}{100 * (factor / true - 1):>+6.0f} %" for factor in found)
            print(f"  {loader.name:28}{true:>10.2f}{shown}{trials[-1].dataset_mib or 0:>12.1f}", flush=True)
        print(f"  {'the data really has':28}{real_mib:>62.1f}")
    held, worst, middle = max(errors) <= WRONG, 100 * max(errors), 100 * statistics.median(errors)
    print(f"{'holds' if held else 'DOES NOT HOLD'}: in the run within 15 %; worst {worst:.0f} %, median {middle:.0f} %")
    return 1 if given.check and not held else 0


if __name__ == "__main__":
    sys.exit(main())
