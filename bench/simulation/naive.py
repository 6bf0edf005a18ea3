"""A straightforward round loop: one list of jobs, traversed in each round. Peer of bench/simulator.py.

FIFO, proportional, whole GPUs of one cluster-wide pool; a job that does not fit is skipped, as in Synergy's rounds. It
uses no numpy and no optimization. It does what `slurmwrap simulate TRACE --round S` does under the same conditions, and
must give the same JCTs.
    python naive.py TRACE.csv GPUS ROUND_S
"""

from __future__ import annotations

import csv
import json
import sys
import time
from math import ceil
from pathlib import Path


def play(jobs: list[tuple[float, float, int]], gpus: int, round_s: float) -> list[float]:
    """Return the JCT of each (submit, work, GPUs) in seconds; a job leaves at the end of the round in which it ends."""
    left = [work for _, work, _ in jobs]
    jcts = [0.0] * len(jobs)
    here: list[int] = []
    now, coming = ceil(jobs[0][0] / round_s) * round_s, 0
    while here or coming < len(jobs):
        while coming < len(jobs) and jobs[coming][0] <= now:
            here.append(coming)
            coming += 1
        free, staying = gpus, []
        for number in here:
            if jobs[number][2] <= free:
                free -= jobs[number][2]
                left[number] -= round_s
            if left[number] <= 0:
                jcts[number] = now + round_s - jobs[number][0]
            else:
                staying.append(number)
        here = staying
        now += round_s
    return jcts


def main(trace: str, gpus: str, round_s: str) -> None:
    with Path(trace).open(newline="") as lines:
        jobs = [(float(row["submit_s"]), float(row["duration_s"]), int(row["gpus"])) for row in csv.DictReader(lines)]
    began = time.perf_counter()
    jcts = play(jobs, int(gpus), float(round_s))
    print(json.dumps({"mean_jct_s": sum(jcts) / len(jcts), "wall_s": time.perf_counter() - began}))


if __name__ == "__main__":
    main(*sys.argv[1:])
