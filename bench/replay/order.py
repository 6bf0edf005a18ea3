"""Fourth replay: a contended window of Philly's jobs in Slurm's own order, and with the rule `order`, with fair share.

Slurm's order is that of priority/multifactor with fair share and age (`lab up --priority multifactor --accounting`).
Some users submit with gsub; two call plain sbatch, and slurmwrap never changes their jobs. All jobs are submitted in
both arms alike, with --begin at their arrival, so the time to submit does not count. In arm `order` the reconciler
knows two earlier runs of each job, whose times differ from this run's by a factor whose logarithm has the standard
deviation `--sigma`. In arm `fifo` the rule only observes.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import pwd
import random
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from replay import arms
from replay.labs import USER, Lab, ReplayError, Wanted, lab, wait_for
from replay.records import Run
from replay.tracefile import DATA
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.run_time import RunTimeSample
from slurmwrap.profiling.run_time import RunTimeQuery, RunTimeRecord
from slurmwrap.sim.sim_outcome import compute_percentile
from slurmwrap.store.database import Database

ARMS = ("fifo", "order")
NODES, GPUS = 4, 8
OUTSIDE = (f"{USER}x", f"{USER}y")  # users without gsub
SCRIPT = '#!/bin/bash\n#SBATCH --mem=100 --time=60 --output=/dev/null\nsleep "$1"\n'
# Earlier runs of each key, and seconds of a submission with gsub and with sbatch on a busy machine.
_RUNS, _SUBMIT_S = 2, 1.0
_OUTSIDE_SHARE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """One job. Times in real seconds; `user`: the user on the lab who submits it."""

    number: int
    arrival_s: float
    run_s: float
    gpus: int
    user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """The figures of one arm, in real seconds. `shares`: of the GPU time until the last arrival, by user."""

    arm: str
    jobs: int
    mean_jct_s: float
    gsub_jct_s: float  # of the jobs submitted with gsub
    others_jct_s: float  # of the other jobs
    mean_wait_s: float
    p99_wait_s: float
    makespan_s: float
    updates: int  # of waiting jobs
    passed: int  # times that a job of a user without gsub was passed by the rule alone
    shares: Mapping[str, float]


def make_jobs(count: int, load: float, scale: float, seed: int, users: Sequence[str]) -> tuple[QueuedJob, ...]:
    """Return `count` consecutive jobs of the Philly window, arriving so fast that they offer `load` times the GPUs.

    `users`: first the two without gsub, who together have 30 % of the jobs. Runs shorter than a second take a second.
    """
    with (DATA / "traces" / "philly480_window.csv").open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if int(row["gpus"]) <= NODES * GPUS]
    dice = random.Random(seed)
    first = dice.randrange(max(1, len(rows) - count))
    rows = rows[first : first + count]
    outside, inside = users[: len(OUTSIDE)], users[len(OUTSIDE) :]
    owners = [dice.choice(outside if dice.random() < _OUTSIDE_SHARE else inside) for _ in rows]
    runs = [max(1.0, float(row["duration_s"]) / scale) for row in rows]
    service = sum(run * int(row["gpus"]) for run, row in zip(runs, rows, strict=True))
    span = float(rows[-1]["submit_s"]) - float(rows[0]["submit_s"])
    stretch = service / (load * NODES * GPUS) / span
    return tuple(
        QueuedJob(
            number=number,
            arrival_s=(float(row["submit_s"]) - float(rows[0]["submit_s"])) * stretch,
            run_s=run,
            gpus=int(row["gpus"]),
            user=owners[number],
        )
        for number, (row, run) in enumerate(zip(rows, runs, strict=True))
    )


def replay(options: argparse.Namespace, directory: Path) -> int:
    """Run both arms one after the other, each on a new lab, so that both begin without usage."""
    with _accounts(options.users):
        users = (*OUTSIDE, *_list_gsub_users(options.users))
        jobs = make_jobs(options.jobs, options.load, options.scale or 300.0, options.seed, users)
        print(_describe(jobs, options), flush=True)
        found = [_play(arm, jobs, options, directory / f"o{n}", n) for n, arm in enumerate(ARMS)]
    print(_format_table(found))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "order.json").write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    return 0


def _list_gsub_users(count: int) -> tuple[str, ...]:
    return (USER, *(f"{USER}{number}" for number in range(1, count)))


@contextlib.contextmanager
def _accounts(gsub_users: int) -> Iterator[None]:
    """Create the other ordinary users, and remove them afterwards."""
    names = [name for name in (*OUTSIDE, *_list_gsub_users(gsub_users)) if name != USER]
    for name in names:
        argv = ["useradd", "--no-create-home", "--home-dir", "/nonexistent", "--shell", "/bin/bash", name]
        subprocess.run(argv, check=True, capture_output=True, timeout=30)
    try:
        yield
    finally:
        for name in names:
            subprocess.run(["userdel", "-f", name], check=False, capture_output=True, timeout=30)


def _describe(jobs: Sequence[QueuedJob], options: argparse.Namespace) -> str:
    outside = sum(job.user in OUTSIDE for job in jobs)
    return (
        f"{len(jobs)} jobs on {NODES} x {GPUS} GPUs, load {options.load:g}, {outside} of them by {len(OUTSIDE)} users "
        f"without gsub, the others by {options.users}; arrivals within {jobs[-1].arrival_s:.0f} s, "
        f"{sum(job.run_s * job.gpus for job in jobs):.0f} GPU-seconds; sigma {options.sigma:g}, seed {options.seed}"
    )


def _play(arm: str, jobs: Sequence[QueuedJob], options: argparse.Namespace, directory: Path, number: int) -> Ordered:
    mode = "act" if arm == "order" else "observe"
    settings = {
        **{f"rules.{rule}": "observe" for rule in ("relax", "tune", "limit")},
        "rules.order": mode,
        "order.band": options.band,
    }
    wanted = Wanted(
        directory=directory, base_port=options.base_port + 20 * number, nodes=NODES, gpus=GPUS, cpus=64,
        mem_mib=512_000, settings=settings, options=("--priority", "multifactor", "--accounting"),
    )  # fmt: skip
    with lab(wanted) as running:
        _teach(running, jobs, options)
        began = time.time() + max(30.0, _SUBMIT_S * len(jobs))
        ids = {_submit(running, job, began): job for job in jobs}
        if time.time() > began:
            raise ReplayError(f"{len(jobs)} submissions took {time.time() - began:.0f} s too long")
        wait_for(lambda: not arms.queue(running), 3600.0, f"{arm}: the end of all jobs", 1.0)
        wait_for(lambda: len(arms.runs_of(running, ids)) >= len(ids), 60.0, f"{arm}: every end in slurmctld's log")
        return _compute(arm, running, ids, began)


def _teach(running: Lab, jobs: Sequence[QueuedJob], options: argparse.Namespace) -> None:
    """Store the earlier runs in the site's database, which the reconciler makes at its first pass."""
    path, dice = running.directory / "state" / "site.db", random.Random(options.seed)
    wait_for(path.exists, 60.0, "the site's database")
    now = int(time.time())
    with Database.open(path) as store:
        for job in jobs:
            uid = pwd.getpwnam(job.user).pw_uid
            for number in range(_RUNS):
                record = RunTimeRecord(
                    attempt=RunKey(cluster=_cluster(running), job_id=10**6 + 10 * job.number + number, submit_time=now),
                    uid=uid,
                    end_time=now - 1000 + job.number,
                    job=RunTimeQuery(
                        user=str(uid), key=f"j{job.number}", gpus=job.gpus, account="lab", partition="gpu"
                    ),
                    sample=RunTimeSample(run_s=max(1.0, job.run_s * math.exp(dice.gauss(0.0, options.sigma)))),
                )
                store.save_run_time(record)
    (running.directory / "work.sbatch").write_text(SCRIPT)
    (running.directory / "work.sbatch").chmod(0o644)


def _cluster(running: Lab) -> str:
    found = re.search(r"ClusterName\s*=\s*(\S+)", running.root(["scontrol", "show", "config"]))
    assert found is not None
    return found[1]


def _submit(running: Lab, job: QueuedJob, began: float) -> int:
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(began + job.arrival_s))
    nodes = -(-job.gpus // GPUS)
    shape = [f"--nodes={nodes}", f"--gres=gpu:{-(-job.gpus // nodes)}", f"--begin={at}", f"--job-name=j{job.number}"]
    own = [] if job.user in OUTSIDE else ["--prerun=off", f"--resource-profile=j{job.number}"]
    argv = ["sbatch" if job.user in OUTSIDE else "gsub", *own, *shape, str(running.directory / "work.sbatch")]
    return arms.submitted_by(running, [*argv, f"{job.run_s:.3f}"], job.user)


def _compute(arm: str, running: Lab, ids: Mapping[int, QueuedJob], began: float) -> Ordered:
    runs = arms.runs_of(running, ids)
    jct = {run.job_id: run.end - began - ids[run.job_id].arrival_s for run in runs}
    waits = sorted(run.start - began - ids[run.job_id].arrival_s for run in runs)
    outside = {job_id for job_id, job in ids.items() if job.user in OUTSIDE}
    until = began + max(job.arrival_s for job in ids.values())
    with Database.open(running.directory / "state" / "site.db", readonly=True) as store:
        changed = [action for action in store.actions() if action.rule == "order" and action.mode == "act"]
        passed = sum(run.passed or 0 for run in store.attempts())
    return Ordered(
        arm=arm,
        jobs=len(runs),
        mean_jct_s=fmean(jct.values()),
        gsub_jct_s=fmean(seconds for job_id, seconds in jct.items() if job_id not in outside),
        others_jct_s=fmean(seconds for job_id, seconds in jct.items() if job_id in outside),
        mean_wait_s=fmean(waits),
        p99_wait_s=compute_percentile(waits, 99),
        makespan_s=max(run.end for run in runs) - began,
        updates=len(changed),
        passed=passed,
        shares=_compute_shares(runs, ids, until),
    )


def _compute_shares(runs: Sequence[Run], ids: Mapping[int, QueuedJob], until: float) -> dict[str, float]:
    """Return each user's share of the GPU time until `until`, while jobs still arrive."""
    used: dict[str, float] = {}
    for run in runs:
        job = ids[run.job_id]
        used[job.user] = used.get(job.user, 0.0) + job.gpus * max(0.0, min(run.end, until) - run.start)
    total = sum(used.values())
    return {user.replace(USER, "user"): seconds / total for user, seconds in sorted(used.items())}


def _format_table(found: Sequence[Ordered]) -> str:
    names = [name for name in Ordered.__dataclass_fields__ if name not in ("arm", "jobs", "shares")]
    lines = [f"{'':16}" + "".join(f"{one.arm:>10}" for one in found)]
    for name in names:
        first, second = (getattr(one, name) for one in found)
        ratio = f"   ratio {first / second:.3f}" if second and name.endswith("_s") else ""
        lines.append(f"{name:16}{first:10.1f}{second:10.1f}{ratio}")
    lines += [
        f"share {user:10}" + "".join(f"{one.shares.get(user, 0.0):10.3f}" for one in found) for user in found[0].shares
    ]
    return "\n".join(lines)
