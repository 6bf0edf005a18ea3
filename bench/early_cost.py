"""Measure the CPU time of looking at running jobs (rule `early`), as a share of one core. No Slurm is needed.

    bench/early_cost.py                  50 jobs of 5 users, or without root of one (some seconds)
    bench/early_cost.py --jobs 200 --new-kib 64

Each job has 8 GPUs with 256 samples each, 8 processes that count steps, and writes new output between two looks. The
looks follow each other at once; the share is their CPU time, children included, over the two minutes between looks. The
budget is 1 %. It is also the limit that the rule keeps (early.cpu_share): with more jobs it looks at each less often.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from slurmwrap.config.load_config import Config
from slurmwrap.fast_dataclasses import replace
from slurmwrap.host.read_running_jobs import RunningJobReader
from slurmwrap.host.read_user_file import UserLogs
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.running_job import GpuUse
from slurmwrap.model.submission import Submission
from slurmwrap.reconcile import Services
from slurmwrap.reconcile.check_running import check_running
from slurmwrap.reconcile.reconcile_context import PassSummary, ReconcilePass, ReconcilerState, SlurmJobs
from slurmwrap.store.database import Database
from slurmwrap.store.deserialize import record_from_json

CLUSTER, GPUS, RANKS, LOOKS = "bench", 8, 8, 10
BUDGET = 0.01
ROW = "{{'loss': {:.4f}, 'grad_norm': 1.2{:03d}, 'learning_rate': 2.1e-05, 'epoch': {:.3f}}}\n"


class StillSlurm:
    """A Slurm with these running jobs."""

    def __init__(self, jobs: Sequence[JobRecord]) -> None:
        self.records = tuple(jobs)

    def cluster_name(self) -> str:
        """Return the name of the cluster."""
        return CLUSTER

    def jobs(self, user: str | None = None) -> tuple[JobRecord, ...]:
        """Return all jobs."""
        return self.records

    def apply(self, action: object, owner: int | None = None, also: object = ()) -> None:
        """Change nothing."""


class BenchClock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.time = time.time()

    def now(self) -> float:
        """Return the time in Unix seconds."""
        return self.time

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.time += seconds


def list_uids(number: int) -> list[int]:
    """Return the uids of users of this machine; without root only one's own."""
    if os.geteuid():
        return [os.geteuid()]
    return [user.pw_uid for user in pwd.getpwall() if user.pw_uid > 0][:number]


def make_jobs(directory: Path, store: Database, number: int, users: int, start: int) -> list[JobRecord]:
    """Return running jobs with files, step counts, samples of their GPUs and submissions."""
    uids, jobs = list_uids(users), []
    for index in range(number):
        job_id, uid = 1000 + index, uids[index % len(uids)]
        place = directory / str(job_id)
        (place / "steps").mkdir(parents=True)
        (place / "out").touch()
        os.chown(place / "out", uid, -1)
        job = JobRecord(
            job_id=job_id, name="train", user=pwd.getpwuid(uid).pw_name, uid=uid, partition="gpu", state="RUNNING",
            requeue=True, submit_time=start, start_time=start, time_limit_s=86400, nodes=("n1",), num_nodes=1, cpus=64,
            gpus=GPUS, std_out=str(place / "out"), std_err=str(place / "out"),
        )  # fmt: skip
        jobs.append(job)
        store.save_submission(
            Submission(
                cluster=CLUSTER, job_id=job_id, uid=uid, user=job.user, at=start - 1.0, step_dir=str(place / "steps")
            )
        )
        for gpu in range(GPUS):
            store.save_gpu_use(
                GpuUse(
                    attempt=RunKey(cluster=CLUSTER, job_id=job_id, submit_time=start), node="n1", gpu=gpu, began=start,
                    interval_s=60.0, use_pct=(91.5,) * 256, mem_mib=(40_000,) * 256, processes=(1,) * 256,
                )
            )  # fmt: skip
    return jobs


def go_on(jobs: Sequence[JobRecord], look: int, size: int) -> None:
    """Let each job write `size` bytes of output and count steps."""
    rows = "".join(ROW.format(2 + (look * 7919 + n) % 997 / 1000, n % 1000, look + n / 1e4) for n in range(size // 80))
    for job in jobs:
        with Path(job.std_out).open("a") as output:
            output.write(rows)
        for rank in range(RANKS):
            path = Path(job.std_out).parent / "steps" / f"{job.job_id}.0.n1.{500 + rank}"
            path.write_text(f"{100 * look:10d} optimizer  {10.0:16.6f} {10.0 + 120 * look:16.6f} {0:10d} 0\n")
            os.chown(path, job.uid, -1)


def measure(number: int, users: int, size: int) -> dict[str, Any]:
    """Return the CPU time of a look at `number` jobs."""
    clock = BenchClock()
    start = int(clock.time) - 256 * 60
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        with Database.open(directory / "site.db") as store:
            jobs = make_jobs(directory, store, number, users, start)
            config = Config(rules={"early": "advise"})
            config = replace(config, early=replace(config.early, jobs=number, cpu_share=1.0))
            services = Services(
                slurm=cast("Any", StillSlurm(jobs)), store=store, spools=(), logs=UserLogs(), clock=clock,
                publisher=None, unpack=record_from_json, classify=cast("Any", None),
                read_inputs=lambda uid, paths: (), config=config,
                read_running=RunningJobReader(), own_cpu_s=lambda: sum(os.times()[:4]),
            )  # fmt: skip
            book, used = ReconcilerState(cluster=CLUSTER), []
            for look in range(1, LOOKS + 2):
                go_on(jobs, look, size)
                clock.time += 121
                words = SlurmJobs(ask=lambda: jobs)
                one = ReconcilePass(services=services, book=book, words=words, summary=PassSummary(), now=clock.now())
                before = sum(os.times()[:4])
                check_running(one)
                used.append(sum(os.times()[:4]) - before)
                if one.summary.errors:
                    raise RuntimeError(one.summary.errors[0])
            found = len(store.early_findings())
    # The first look also searches the submissions.
    seconds = sum(used[1:]) / LOOKS
    share = seconds / 120
    return {
        "jobs": number, "users": len(list_uids(users)), "new_kib": size // 1024, "cpu_s_per_look": round(seconds, 4),
        "ms_per_job": round(1000 * seconds / number, 2), "share_of_core": round(share, 5),
        "jobs_at_budget": int(number * BUDGET / share) if share else None, "findings": found,
    }  # fmt: skip


def main() -> int:
    """Print the figures; exit code 1 if 50 jobs cost more than the budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--users", type=int, default=5)
    parser.add_argument("--new-kib", type=int, default=4, help="output of each job between two looks")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    result = measure(asked.jobs, asked.users, asked.new_kib * 1024)
    if asked.json:
        print(json.dumps(result))
    else:
        print(
            "{jobs} jobs of {users} users, {new_kib} KiB of new output each: ".format(**result)
            + f"{result['ms_per_job']} ms of CPU time per job and look, {100 * result['share_of_core']:.2f} % of one "
            f"core at a look every two minutes; 1 % is enough for {result['jobs_at_budget']} jobs"
        )
    return 0 if result["share_of_core"] <= BUDGET else 1


if __name__ == "__main__":
    sys.exit(main())
