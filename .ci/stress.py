"""Run the test suite while busy loops occupy the processors, and count failed tests (`make test-stress`).

A test that fails here and passes alone depends on the speed of the machine. Each run writes build/stress/run-N.xml.
Exit code 1 if a test failed in any run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

RESULTS = Path(__file__).resolve().parent.parent / "build" / "stress"


def run_suite(pytest_args: list[str], result: Path) -> int:
    """Run pytest once and return its exit code."""
    argv = [sys.executable, "-m", "pytest", f"--junit-xml={result}", *pytest_args]
    return subprocess.run(argv, check=False).returncode


def read_failures(result: Path) -> tuple[int, list[str]]:
    """Return the number of tests that ran, and the names of those that failed or could not be set up."""
    cases = list(ElementTree.parse(result).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return len(cases), [f"{case.get('classname')}::{case.get('name')}" for case in failed]


def main() -> int:
    """Start the loops, run the suite, end the loops, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1, help="how often the suite runs (default: 1)")
    parser.add_argument("--loops", type=int, default=4, help="how many processes do nothing but count (default: 4)")
    parser.add_argument("pytest", nargs="*", help="pytest's arguments (after --)")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    loops = [subprocess.Popen([sys.executable, "-I", "-c", "while True: pass"]) for _ in range(options.loops)]
    failures: Counter[str] = Counter()
    broken = 0
    try:
        for number in range(1, options.runs + 1):
            result = RESULTS / f"run-{number}.xml"
            result.unlink(missing_ok=True)
            began = time.monotonic()
            code = run_suite(options.pytest, result)
            tests, failed = read_failures(result) if result.exists() else (0, [])
            failures.update(failed)
            broken += code != 0
            took = time.monotonic() - began
            print(f"run {number} of {options.runs}: {tests:,} tests, {len(failed)} failed, {took:.0f} s", flush=True)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    for name, count in failures.most_common():
        print(f"failed in {count} of {options.runs} runs: {name}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
