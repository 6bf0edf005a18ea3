"""Compare ways to choose among equal partitions of a running lab: by turns, the earliest forecast, or gsub's list.

    slurmwrap lab up --dir DIR --nodes 6 --gpus 4 --no-reconcile --no-hooks
    python bench/partition_choice.py DIR --seeds 1,2,3

The nodes of the lab are divided into three partitions. In each arm the same jobs of 1, 2 or 4 GPUs are submitted at the
same times, with time limits far above their run times, as users give them:

by turns    each job in the next partition, as if its user had chosen without looking
forecast    each job in the one partition that gsub expects to start it first (gsub --partition=auto --dry-run)
list        gsub --partition=auto: all partitions that suit, Slurm starts the job in the first that can

Run it as root; the jobs are those of nobody. Waiting times are whole seconds, from squeue.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from slurmwrap.lab.lab_directories import LabDirectories, exports

NOBODY = 65534
PARTITIONS = ("gpu", "second", "third")
ARMS = ("by turns", "forecast", "list")
EVERY_S = 2.5


def main() -> None:
    """Print the waiting times of each arm and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lab", type=Path, help="directory of the lab")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--mean-s", type=float, default=26.0, help="mean run time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="partition-choice-") as home:
        Path(home).chmod(0o777)
        lab = _Lab(options.lab, Path(home))
        lab.divide()
        load = f"machine load {os.getloadavg()[0]:.1f}"
        print(f"{options.jobs} jobs, one each {EVERY_S:g} s, mean run time {options.mean_s:g} s; {load}", flush=True)
        for seed in map(int, options.seeds.split(",")):
            drawn = random.Random(seed)
            jobs = [
                (drawn.choice((1, 1, 2, 2, 4)), max(1.0, drawn.expovariate(1 / options.mean_s)), drawn.randint(2, 30))
                for _ in range(options.jobs)
            ]
            arms = ARMS[seed % 3 :] + ARMS[: seed % 3]
            found = {arm: lab.play(arm, jobs) for arm in arms}
            for arm in ARMS:
                waits = found[arm]
                nine_of_ten = sorted(waits)[round(0.9 * (len(waits) - 1))]
                mean, longest = statistics.mean(waits), max(waits)
                figures = f"mean wait {mean:5.1f} s, nine of ten {nine_of_ten:3.0f}, longest {longest:3.0f}"
                print(f"seed {seed} {arm:9} {figures}; submitted at most {lab.late[arm]:.1f} s late", flush=True)


class _Lab:
    def __init__(self, directory: Path, home: Path) -> None:
        self._home = home
        self.late: dict[str, float] = {}
        self._environ = {**os.environ, **exports(LabDirectories(directory)), "HOME": str(home)}

    def divide(self) -> None:
        names = self._run(["sinfo", "-h", "-N", "-o", "%N"]).split()
        nodes = sorted(set(names), key=lambda name: int(re.sub(r"\D", "", name)))
        shares = [nodes[i::3] for i in range(3)]
        for name, share in zip(PARTITIONS, shares, strict=True):
            listed = f"Nodes={','.join(share)}"
            self._run(["scontrol", "create", f"PartitionName={name}", listed, "State=UP"], check=False)
            self._run(["scontrol", "update", f"PartitionName={name}", listed])
        others = set(self._run(["sinfo", "-h", "-a", "-o", "%R"]).split()) - set(PARTITIONS)
        for name in others:
            self._run(["scontrol", "update", f"PartitionName={name}", "State=DOWN"])

    def play(self, arm: str, jobs: list[tuple[int, float, int]]) -> list[float]:
        """Submit the jobs in one arm; return the seconds that each waited."""
        ids = []
        self.late[arm] = 0.0
        began = time.monotonic()
        for number, (gpus, run_s, limit_min) in enumerate(jobs):
            time.sleep(max(0.0, began + number * EVERY_S - time.monotonic()))
            asked = ["-G", str(gpus), "-N", "1", "-t", str(limit_min), "--mem=100", "-o", "/dev/null", "--parsable"]
            self.late[arm] = max(self.late[arm], time.monotonic() - began - number * EVERY_S)
            ids.append(self._submit(arm, number, asked, f"sleep {run_s:.1f}"))
        while self._run(["squeue", "-h", "-t", "PD,R,CG", "-j", ",".join(ids)], check=False).strip():
            time.sleep(1.0)
        rows = self._run(["squeue", "-h", "-t", "all", "-o", "%i %V %S", "-j", ",".join(ids)]).split()
        at = dict(zip(rows[::3], zip(rows[1::3], rows[2::3], strict=True), strict=True))
        return [float(int(start) - int(submitted)) for submitted, start in (at[one] for one in ids)]

    def _submit(self, arm: str, number: int, asked: list[str], command: str) -> str:
        gsub = [sys.executable, "-m", "slurmwrap.gsub.gsub_main", "--prerun=off", "--no-tune", "--no-place"]
        if arm == "list":
            return self._run([*gsub, "-p", "auto", *asked, "--wrap", command], nobody=True).split(";")[0].strip()
        partition = PARTITIONS[number % 3]
        if arm == "forecast":
            shown = self._run([*gsub, "-p", "auto", "--dry-run", *asked, "--wrap", command], nobody=True)
            (found,) = re.findall(r"#SBATCH --partition=(\w+)", shown)
            partition = found
        return self._run(["sbatch", "-p", partition, *asked, "--wrap", command], nobody=True).split(";")[0].strip()

    def _run(self, argv: list[str], *, nobody: bool = False, check: bool = True) -> str:
        who = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if nobody else {}
        environ = {**self._environ, "SLURM_TIME_FORMAT": "%s"}
        done = subprocess.run(argv, env=environ, cwd=self._home, capture_output=True, text=True, check=False, **who)
        if check and done.returncode:
            raise SystemExit(f"{' '.join(argv)}: {done.stderr}")
        return done.stdout


if __name__ == "__main__":
    main()
