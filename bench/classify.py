"""Measure the time to classify a log, and to search it for the same literals with `re`: 64 KiB and 10 MB.

The peer is one alternation of all literals that the signatures look for; it only reports where they occur. Of 10 MB,
classify reads the start and the end, so the peer is given only these. Prints medians and ratios of one run; machines
are noisy, so only figures of the same run may be compared. The budget is 5 ms for 64 KiB and 50 ms for 10 MB. A dense
log, which no job prints, is measured too. `make bench` runs this program.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count, cycle
from pathlib import Path

from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.diagnosis.log_rows import HEAD_CHARS, TAIL_CHARS
from slurmwrap.diagnosis.signatures import get_default_signatures
from slurmwrap.model.evidence import Diagnosis, Evidence, LogTail

SIZES = {"64 KiB": (64 << 10, 5.0), "10 MB": (10_000_000, 50.0)}  # characters, budget in ms
ENDING = """\
Traceback (most recent call last):
  File "/home/ann/train.py", line 71, in <module>
    main()
  File "/home/ann/train.py", line 60, in main
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB
srun: error: n3: task 0: Exited with exit code 1
"""
CASES = Path(__file__).parents[1] / "tests/data/diagnosis/cases.jsonl"
WARNINGS = (
    "[rank{0}]:[W ProcessGroupNCCL.cpp:1496] Warning: destroy_process_group() was not called, step {1}",
    "/opt/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py:6{0}: UserWarning: {1} workers is too many",
    "urllib3.connectionpool - WARNING - Retrying (Retry(total={0})) after connection broken by 'ReadTimeoutError': {1}",
)


def progress(size: int) -> str:
    """Return a quiet log: one line per step, all different, and a failure at the end."""
    return _filled(size, (f"step {n}/900000 loss={3 / (1 + n % 997):.4f} lr=1e-4 {n % 89} it/s" for n in count(1)))


def warnings(size: int) -> str:
    """Return a noisy log: every third line looks like a failure but is none."""
    noise = cycle(WARNINGS)
    rows = (next(noise).format(n % 8, n) if n % 3 == 0 else f"epoch {n} loss: {n % 7}.{n}" for n in count(1))
    return _filled(size, rows)


def one_row(size: int) -> str:
    """Return a log with everything in one line, as some programs write it."""
    return "x" * (size - len(ENDING) - 1) + "\n" + ENDING


def dense(size: int) -> str:
    """Return a log of failures only, which no job prints: the logs of the tests, repeated."""
    lines = CASES.read_text(encoding="utf-8").splitlines()
    return _filled(size, cycle([row for line in lines for row in json.loads(line)["log"].split("\n")]))


LOGS: dict[str, Callable[[int], str]] = {
    "progress": progress,
    "warnings": warnings,
    "one row": one_row,
    "dense": dense,
}


def _filled(size: int, rows: Iterator[str]) -> str:
    kept: list[str] = []
    left = size - len(ENDING)
    while left > 0:
        kept.append(next(rows))
        left -= len(kept[-1]) + 1
    return "\n".join(kept) + "\n" + ENDING


def peer() -> re.Pattern[str]:
    """Return one regular expression for all literals."""
    literals = {needle.literal for needle in get_default_signatures().needles["log"]}
    return re.compile("|".join(map(re.escape, sorted(literals, key=lambda text: (-len(text), text)))))


def timed(action: Callable[[], object]) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    action()
    return 1000 * (time.perf_counter() - began)


def diagnose(text: str) -> Diagnosis:
    """Classify as the reconciler (a tail) and `slurmwrap classify` (a whole file) do."""
    return diagnose_run(Evidence(state="FAILED", exit_code=1, logs=(LogTail(name="out", text=text),)))


def measure(text: str, alternation: re.Pattern[str], rounds: int) -> tuple[float, float]:
    """Return the median milliseconds of both, measured in turn under the same conditions."""
    ours, theirs = [], []
    window = text if len(text) <= HEAD_CHARS + TAIL_CHARS else text[:HEAD_CHARS] + text[-TAIL_CHARS:]
    for number in range(rounds + 1):
        mine, other = timed(lambda: diagnose(text)), timed(lambda: alternation.findall(window))
        if number:  # the first compiles what is needed
            ours.append(mine)
            theirs.append(other)
    return statistics.median(ours), statistics.median(theirs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    loading = timed(get_default_signatures)
    print(f"{len(get_default_signatures().signatures)} signatures, loaded once per process in {loading:.0f} ms")
    alternation = peer()
    for size, (length, budget) in SIZES.items():
        for name, make in LOGS.items():
            text = make(length)
            if (found := diagnose(text).category) != "gpu_oom" and name != "dense":
                sys.exit(f"{size} of {name}: taken for {found}")
            ours, theirs = measure(text, alternation, options.rounds)
            print(
                f"{size:7} {name:9} classify {ours:6.1f} ms (budget {budget:.0f} ms)   re {theirs:7.1f} ms   "
                f"classify / re: {ours / theirs:.3f}, n = {options.rounds}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
