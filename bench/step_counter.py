"""Measure the cost of counting: each step of torch's smallest optimizer with and without the hook, each Python start.

In a real job the losses are recorded too: the second row has a backward pass of the smallest graph in each step, on the
CPU; the third compares it with a job whose steps alone are counted. The cost of a loss on a GPU is not measured here.

The last rows are about the recorder of layers (inject/slurmwrap_model_layers.py), which a pre-run alone has: a model is
trained in a pre-run with and without it. Its work is done in the first steps; what it adds there is compared with a
step, and later steps with those of the run without it. "100 small layers" is the worst case, a step of 100 linear
layers of 16 x 16; MobileNetV2 is that of bench/traffic.

Both variants are measured in turn, so that they run under the same conditions: rounds of SGD.step() in two processes
that take turns, and starts of `python -c pass`. All figures are CPU time, which is affected least by other programs on
the machine. Prints minima, medians and ratios of one run; only figures of one run may be compared. Budgets: 10 µs per
step, 20 ms per start, 1 % of a step with the recorder of layers. Needs torch. `make bench` runs this program.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

INJECT = Path(__file__).resolve().parents[1] / "slurmwrap" / "inject"
STEPPER = """
import sys, time, types
if "without" in sys.argv:
    sys.modules["slurmwrap_losses"] = losses = types.ModuleType("slurmwrap_losses")
    losses.OF_SLURMWRAP, losses.hook = True, lambda *_: None
import torch
torch.set_num_threads(1)
parameter = torch.zeros(1, requires_grad=True)
parameter.grad = torch.ones(1)
optimizer = torch.optim.SGD([parameter], lr=0.1)
def step():
    optimizer.step()
def step_with_loss():
    optimizer.zero_grad()
    parameter.sum().backward()
    optimizer.step()
step = step_with_loss if "loss" in sys.argv else step
for line in sys.stdin:
    began = time.thread_time()
    for _ in range(int(line)):
        step()
    print((time.thread_time() - began) / int(line) * 1e6, flush=True)
"""
# One process per model and variant: the recorder works once per process. Prints the seconds of each step.
TRAINER = """
import sys, time, types
sys.path.insert(0, sys.argv[1])
if "without" in sys.argv:
    sys.modules["slurmwrap_model_layers"] = layers = types.ModuleType("slurmwrap_model_layers")
    class Nothing:
        def __init__(self, *_): pass
        def begin(self, _): pass
        def step(self, _): pass
    layers.OF_SLURMWRAP, layers.Layers = True, Nothing
import torch
torch.set_num_threads(1)
if sys.argv[2] == "100 small layers":
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(100)))
    batch = lambda: torch.randn(2, 16)
else:
    from traffic.models import MODELS
    model, batch = MODELS[sys.argv[2]].make(), MODELS[sys.argv[2]].batch
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for line in sys.stdin:
    began = time.thread_time()
    for _ in range(int(line)):
        model(batch()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print((time.thread_time() - began) / int(line), flush=True)
"""
# Model -> steps of a round.
MODELS = {"100 small layers": 100, "MobileNetV2": 5}
# Steps in which the recorder works: it finds the layers, times the second step, and removes its hooks.
RECORDED = 3
BUDGET_US, BUDGET_MS = 10.0, 20.0


def environment(step_dir: str | None, prerun: bool = False, named: bool = False) -> dict[str, str]:
    """Return the environment, with the counter if it has a directory.

    `prerun`: with all that a pre-run injects; `named`: as in a real job (gsub --count-steps).
    """
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("SLURMWRAP_", "PYTHON"))}
    if step_dir is None:
        return plain
    trial = {"SLURMWRAP_PRERUN": "1", "SLURMWRAP_PARK_AFTER": "0"} if prerun else {}
    trial |= {"SLURMWRAP_STEP_NAMED": "1"} if named else {}
    return {**plain, "PYTHONPATH": str(INJECT), "SLURMWRAP_STEP_DIR": step_dir, **trial}


def steps(step_dir: str, rounds: int, length: int, *what: str) -> tuple[list[float], list[float]]:
    """Return microseconds per step (without, with), one figure per round.

    `what`: "loss": each step has a loss, as in a real job; "counted": without the recording of the losses, not without
    the counter.
    """
    named, counted = "loss" in what, "counted" in what
    pair = [
        subprocess.Popen(
            [sys.executable, "-c", STEPPER, *what, *more],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for env, more in (
            (environment(step_dir if counted else None, named=named), ["without"]),
            (environment(step_dir, named=named), []),
        )
    ]
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for process, took in zip(pair, found, strict=True):
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(f"{length}\n")
            figure = float(process.stdout.readline())
            if number:  # the first round warms up
                took.append(figure)
    for process in pair:
        process.communicate()
    return found


def layers(step_dir: str, model: str, processes: int, rounds: int) -> tuple[list[list[float]], list[list[float]]]:
    """Return ([without, with] seconds of the first steps, [without, with] seconds of a later step)."""
    bench = str(Path(__file__).resolve().parent)
    first, later = [[], []], [[], []]  # type: tuple[list[list[float]], list[list[float]]]
    for _ in range(processes):
        pair = [
            subprocess.Popen(
                [sys.executable, "-c", TRAINER, bench, model, *more],
                env=environment(step_dir, prerun=True),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            for more in (["without"], [])
        ]
        for number in range(RECORDED + rounds):
            for process, begin, rest in zip(pair, first, later, strict=True):
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(f"{1 if number < RECORDED else MODELS[model]}\n")
                took = float(process.stdout.readline())
                if number == 0:
                    begin.append(0.0)
                if number < RECORDED:
                    begin[-1] += took
                elif number > RECORDED:  # the first round warms up
                    rest.append(took)
        for process in pair:
            process.communicate()
    return first, later


def report_layers(model: str, first: list[list[float]], later: list[list[float]]) -> None:
    """Print what the recorder adds once, and to each later step."""
    once = [statistics.median(first[1]) - statistics.median(first[0]), min(first[1]) - min(first[0])]
    step, median = min(later[0]), statistics.median(later[0])
    paired = statistics.median(with_ / without for without, with_ in zip(*later, strict=True))
    print(
        f"layers of {model:17} a step without {1e3 * step:8.2f} / {1e3 * median:8.2f} ms (minimum / median)   "
        f"first {RECORDED} steps: adds {1e3 * once[1]:.1f} / {1e3 * once[0]:.1f} ms, {once[1] / step:.2f} steps   "
        f"later steps, with / without, median of the rounds: {paired:.4f} (budget 1.01), "
        f"n = {len(first[0])} processes, {len(later[0])} rounds"
    )


def starts(step_dir: str, rounds: int, prerun: bool) -> tuple[list[float], list[float]]:
    """Return milliseconds per start of Python (without, with)."""
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 2):
        for env, took in zip((environment(None), environment(step_dir, prerun)), found, strict=True):
            began = children_s()
            subprocess.run([sys.executable, "-c", "pass"], env=env, check=True)
            if number > 1:
                took.append(1000 * (children_s() - began))
    return found


def children_s() -> float:
    """Return the CPU seconds of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def report(what: str, unit: str, budget: float, without: list[float], with_: list[float]) -> None:
    """Return one line. The minima count, because other programs on the machine can only add time."""
    least, median = min(with_) - min(without), statistics.median(with_) - statistics.median(without)
    print(
        f"{what:24} without {min(without):7.2f} / {statistics.median(without):7.2f} {unit}   "
        f"with {min(with_):7.2f} / {statistics.median(with_):7.2f} {unit} (minimum / median)   "
        f"adds {least:.2f} / {median:.2f} {unit} of {budget:.0f}   with / without: {min(with_) / min(without):.3f}, "
        f"n = {len(with_)}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="of steps; starts are four times as many")
    parser.add_argument("--layers", action="store_true", help="only the recorder of layers")
    parser.add_argument("--steps", type=int, default=2000, help="per round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as step_dir:
        for model in MODELS:
            report_layers(model, *layers(step_dir, model, 5, options.rounds))
        if options.layers:
            return 0
        report("SGD.step()", "µs", BUDGET_US, *steps(step_dir, options.rounds, options.steps))
        for what, *kind in (("backward(), SGD.step()", "loss"), ("the same, loss alone", "loss", "counted")):
            report(what, "µs", BUDGET_US, *steps(step_dir, options.rounds, options.steps, *kind))
        for what, prerun in (("python start, counted", False), ("python start, in a trial", True)):
            report(what, "ms", BUDGET_MS, *starts(step_dir, 4 * options.rounds, prerun))
    return 0


if __name__ == "__main__":
    sys.exit(main())
