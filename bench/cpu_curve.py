"""Find the least CPUs of a CPU-bound DataLoader job: inside one running pre-run, and by a sweep of real restarts.

The job is real PyTorch: workers that compute each batch, a training step, and a device that is busy for a fixed time (a
sleep: no GPU is needed, and like a GPU it uses no CPU). The exhaustive sweep restarts the job for every number of CPUs,
in rounds of changing order. The pre-run reduces the CPU affinity of one running job (prerun/trial/cpu_profiler.py).
Claims, all for one run: the least CPUs differ by at most one; the pre-run takes less than a fifth of the time (its
start and first steps included, which a pre-run needs anyway); and speeds at points that it did not measure are
predicted within 5 %. Exit code 1 when a claim does not hold, as may happen on a machine that is in use. `make bench`
runs this program.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from cpu_interpolation import predict

from slurmwrap.model.cpu_sweep import curve_of, least_cpus
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.prerun.trial import step_detection
from slurmwrap.prerun.trial.supervisor import run_trial
from slurmwrap.prerun.trial.trial_spec import TrialSpec

JOB = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
work, device, workers = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])

def spin(seconds):  # CPU seconds, whatever else runs
    end, x = time.process_time() + seconds, 0
    while time.process_time() < end:
        for i in range(500):
            x += i * i
    return x

class Samples(Dataset):
    def __len__(self):
        return 1 << 20
    def __getitem__(self, index):
        spin(work)
        return torch.full((64,), float(index % 7))

model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for batch in DataLoader(Samples(), batch_size=4, num_workers=workers):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    time.sleep(device)
    optimizer.step()
"""
WARM_STEPS = 50


def main() -> int:
    """Print both curves and the three claims."""
    options = _options()
    cpus = sorted(os.sched_getaffinity(0))[: options.cpus]
    os.sched_setaffinity(0, cpus)
    with tempfile.TemporaryDirectory(prefix="cpu_curve.") as folder:
        job = [str(options.work_ms / 4000), str(options.device_ms / 1000), str(options.workers)]
        (Path(folder) / "train.py").write_text(JOB)
        began = time.monotonic()
        inside = in_trial(Path(folder), job, options.profile_s)
        trial_s = time.monotonic() - began
        began = time.monotonic()
        rounds = restarts(Path(folder), job, cpus, options)
        restart_s = time.monotonic() - began
    return tell(inside, trial_s, rounds, restart_s)


def in_trial(directory: Path, job: list[str], profile_s: float) -> Measurement:
    """Return the curve as a pre-run measures it."""
    trial = directory / "trial"  # as gsub lays it: outside the job's own directory
    trial.mkdir(mode=0o700)
    script = trial / "slurm_script"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -W ignore {directory}/train.py "$@"\n')
    (own := directory / "job").mkdir()
    spec = TrialSpec(trial_dir=str(trial), script=str(script), args=tuple(job), chdir=str(own), profile_s=profile_s)
    result = run_trial(spec, environ=dict(os.environ))
    if not result.measurement.cpu_curve:
        raise SystemExit(f"no curve: {result.layer} after {result.steps} steps: {result.error} {result.logs[0].text}")
    return result.measurement


def restarts(directory: Path, job: list[str], cpus: list[int], options: argparse.Namespace) -> dict[int, list[float]]:
    """Return the steps per second of the job, restarted on 1, 2, ... CPUs, `rounds` times."""
    found: dict[int, list[float]] = {k: [] for k in range(1, len(cpus) + 1)}
    for number in range(options.rounds):
        for k in sorted(found, reverse=number % 2 == 0):
            found[k].append(restarted(directory, job, cpus[:k], options.window_s))
    return found


def restarted(directory: Path, job: list[str], cpus: list[int], window_s: float) -> float:
    """Start the job on `cpus`, wait until it is warm, and measure for `window_s` seconds."""
    with tempfile.TemporaryDirectory(dir=directory) as step_dir:
        inject = str(Path(step_detection.__file__).parents[1] / "inject")
        environ = {**os.environ, "SLURMWRAP_STEP_DIR": step_dir, "PYTHONPATH": inject}
        argv = [
            "taskset",
            "-c",
            ",".join(map(str, cpus)),
            sys.executable,
            "-W",
            "ignore",
            str(directory / "train.py"),
            *job,
        ]
        process = subprocess.Popen(argv, env=environ, start_new_session=True)
        try:
            first = _reach(process, step_dir, lambda reading: reading.count >= WARM_STEPS)
            last = _reach(process, step_dir, lambda reading: reading.last - first.last >= window_s)
        finally:
            os.killpg(process.pid, 9)
            process.wait()
    return (last.count - first.count) / (last.last - first.last)


def _reach(process: subprocess.Popen[bytes], step_dir: str, there) -> step_detection.StepReading:  # type: ignore[no-untyped-def]
    while not there(reading := step_detection.read_steps(step_dir)):
        if process.poll() is not None:
            raise SystemExit("the job ended by itself")
        time.sleep(0.05)
    return reading


def tell(inside: Measurement, trial_s: float, rounds: dict[int, list[float]], restart_s: float) -> int:
    """Print the figures of this run; return 1 when a claim does not hold."""
    truth = {point.cpus: point for point in curve_of(rounds)}
    measured = {point.cpus: point for point in inside.cpu_curve}
    print(
        f"{'CPUs':>4}  {'restarts':>8}  {'spread':>6}  {'in trial':>8}  {'spread':>6}  {'predicted':>9}  {'error':>6}"
    )
    for k, point in truth.items():
        mine = measured.get(k)
        others = [p for p in inside.cpu_curve if p.cpus != k]
        guess = predict(others, k) or 0.0
        shown = f"{mine.steps_per_s:8.2f}  {mine.spread:6.1%}" if mine else f"{'-':>8}  {'':>6}"
        kind = "left out" if mine else "not measured"
        error = guess / point.steps_per_s - 1
        print(f"{k:4}  {point.steps_per_s:8.2f}  {point.spread:6.1%}  {shown}  {guess:9.2f}  {error:+6.1%}  {kind}")
    errors = [abs((predict(inside.cpu_curve, k) or 0.0) / truth[k].steps_per_s - 1) for k in truth if k not in measured]
    least, found = least_cpus(tuple(truth.values())) or 0, least_cpus(inside.cpu_curve) or 0
    predicted = "predicted: nothing, every point was measured"
    if errors:
        predicted = (
            f"predicted where not measured: worst {max(errors):.1%}, median {median(errors):.1%} of {len(errors)}"
        )
    raw = {k: [round(r, 2) for r in rates] for k, rates in rounds.items()}
    print(json.dumps({"restarts": raw, "end": inside.cpu_curve_end, "workers": inside.loader_workers}))
    claims = {
        f"least CPUs: {found} in the trial, {least} by restarts": abs(found - least) <= 1,
        f"time: {trial_s:.0f} s against {restart_s:.0f} s, {trial_s / restart_s:.3f}": trial_s / restart_s < 0.2,
        predicted: max(errors, default=0.0) <= 0.05,
    }
    for claim, holds in claims.items():
        print(f"{'holds' if holds else 'DOES NOT HOLD'}: {claim}")
    return 0 if all(claims.values()) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpus", type=int, default=4, help="CPUs to use, of those allowed")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--work-ms", type=float, default=36.0, help="CPU time of one batch in the loader")
    parser.add_argument("--device-ms", type=float, default=15.0, help="time of one step on the device")
    parser.add_argument("--profile-s", type=float, default=58.0, help="time for the sweep inside the trial")
    parser.add_argument("--window-s", type=float, default=25.0, help="how long a restart is measured once warm")
    parser.add_argument("--rounds", type=int, default=3, help="restarts per number of CPUs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
