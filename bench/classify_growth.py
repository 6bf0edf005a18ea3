"""Measure how the time to classify a log grows with its size, for logs of all unusual shapes: 24 KiB, 192 KiB, 10 MB.

Eight times the log should take about eight times as long, and 10 MB no longer than the part of it that is read (300
kB). Prints ratios of one run, each of the least CPU times of some rounds, and fails when a ratio is far from that.
tests/diagnosis/test_linear.py counts steps for the same logs instead. `make bench` runs this program.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.diagnosis.signatures import get_default_signatures
from slurmwrap.model.evidence import Evidence, LogTail

SMALL, TIMES = 24 * 1024, 8  # both sizes are below the part that is read of a log
WINDOW, HUGE = 300_000, 10_000_000
SLACK = 4  # a quadratic cost would show as TIMES * TIMES
TRACEBACK = 'Traceback (most recent call last):\n  File "/x/train.py", line 7, in f\n    g()\n'
EXAMPLES = [text for signature in get_default_signatures().signatures for text in signature.examples]


def cut(piece: str) -> Callable[[int], str]:
    return lambda size: (piece * (size // len(piece) + 1))[:size]


def numbered(piece: str) -> Callable[[int], str]:
    def make(size: int) -> str:
        return "".join(piece.format(chr(97 + n % 26) * (n // 26 % 40 + 1), n) for n in range(size // len(piece)))[:size]

    return make


LOGS = {
    "one long line": cut("x"),
    "blanks": cut(" "),
    "short lines": cut("a\n"),
    "empty lines": cut("\n"),
    "headers without an end": cut("Traceback (most recent call last):\n"),
    "headers of ever new ranks": numbered("[rank{1}]: Traceback (most recent call last):\n"),
    "deep tracebacks": cut(TRACEBACK + '  File "/y.py", line 1, in h\n' * 300 + "KeyError: 1\n"),
    "chained tracebacks": cut(
        TRACEBACK + "KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n"
    ),
    "interleaved ranks": cut("".join(f"[rank{rank}]: {row}\n" for row in TRACEBACK.split("\n") for rank in range(8))),
    "escape sequences": cut("\x1b[31mError\x1b[0m \x1b[" + "1;" * 30),
    "bars": numbered("\r{0} 12%|███ | {1}/900 [00:10<00:10, 3.1it/s, loss=0.1]"),
    "NULs": cut("\0\0error\0"),
    "times": numbered("2026-11-20 12:00:01 {0} E1120 12:00:01.1 step {1}\n"),
    "many words": numbered("{0} failed to load {0} not found {1}\n"),
    "every example": cut("\n".join(EXAMPLES) + "\n"),
    "every example in one line": cut(" ".join(EXAMPLES)),
    "unicode": cut("é│🙂\u2028error: \u202e"),
}


def cost(text: str, rounds: int) -> float:
    """Return the least CPU seconds of `rounds`."""
    found = []
    for _ in range(rounds):
        began = time.process_time()
        diagnose_run(Evidence(state="FAILED", exit_code=1, logs=(LogTail(name="out", text=text),)))
        found.append(time.process_time() - began)
    return min(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    wrong = []
    for name, make in LOGS.items():
        small, large, window, huge = (cost(make(size), options.rounds) for size in (SMALL, SMALL * TIMES, WINDOW, HUGE))
        growth, beyond = large / max(small, 0.001), huge / max(window, 0.02)
        first = f"{name:26} 24 KiB {1000 * small:6.1f} ms"
        print(f"{first}   192 KiB / 24 KiB: {growth:4.1f}   10 MB / 300 kB: {beyond:4.1f}, n = {options.rounds}")
        if growth > TIMES * SLACK or beyond > SLACK:
            wrong.append(name)
    if wrong:
        sys.exit(f"more than in proportion to what is read: {', '.join(wrong)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
