"""The two arms of a replay: the same jobs in the same order, by plain sbatch and by gsub, on the same lab."""

from __future__ import annotations

import pwd
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from replay.labs import USER, Lab, ReplayError, wait_for
from replay.measures import Given
from replay.records import Run, read_runs, read_submits, read_updates
from slurmwrap.sim.sim_job import SimJob

ARMS = ("sbatch", "gsub")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one arm. Times are Unix seconds; `jobs`: job id → the trace's job."""

    arm: str
    up: float
    submitting_s: float
    jobs: Mapping[int, SimJob]
    runs: tuple[Run, ...]
    given: Mapping[int, Given]
    updates: tuple[float, ...] = ()  # when the reconciler updated waiting jobs
    odd: tuple[str, ...] = ()  # jobs whose environment and allocation were inconsistent


def all_at_once(lab: Lab, arm: str, jobs: Sequence[SimJob], scale: float, patience_s: float) -> Outcome:
    """Submit all `jobs` while the partition is down, set it up, and wait until all have ended.

    A hundred calls of gsub take longer than a hundred of sbatch, and in a static trace all jobs are submitted at once.
    So no job of either arm may start before all have been submitted.
    """
    lab.root(["scontrol", "update", "PartitionName=gpu", "State=DOWN"])
    began = time.time()
    ids = {submit(lab, arm, job, scale): job for job in jobs}
    submitting = time.time() - began
    settle(lab, arm, ids)
    up = time.time()
    lab.root(["scontrol", "update", "PartitionName=gpu", "State=UP"])
    wait_for(lambda: not queue(lab), patience_s, f"{arm}: the end of all jobs", 0.5)
    return collect(lab, arm, ids, up, submitting)


def submit(lab: Lab, arm: str, job: SimJob, scale: float) -> int:
    """Submit one job and return its id."""
    own = ["--prerun=off", f"--resource-profile={job.model}"] if arm == "gsub" else []
    name = f"--job-name=j{job.number:03d}-{job.model}"
    return submitted(lab, [arm, *own, name, "replay.sh", job.model, f"{job.work_s / scale:.4f}"])


def submitted(lab: Lab, argv: Sequence[str]) -> int:
    """Return the id of the job that this call of sbatch or gsub submits."""
    return submitted_by(lab, argv, USER)


def submitted_by(lab: Lab, argv: Sequence[str], name: str) -> int:
    """Return the id of the job that this call of sbatch or gsub by a user submits."""
    told = re.findall(r"^Submitted batch job (\d+)$", lab.user(argv, name=name), re.MULTILINE)
    if not told:
        raise ReplayError(f"{argv[0]} submitted no job")
    return int(told[0])


def settle(lab: Lab, arm: str, ids: Mapping[int, SimJob], patience_s: float = 90.0) -> None:
    """Wait until the reconciler has seen all waiting jobs: a few of its passes without an update."""
    if arm != "gsub":
        return
    before, quiet = -1, 0
    deadline = time.monotonic() + patience_s
    while quiet < 3 and time.monotonic() < deadline:
        time.sleep(2)
        now = len(_updates(lab, ids))
        quiet = quiet + 1 if now == before else 0
        before = now


def queue(lab: Lab) -> list[str]:
    """Return the ids of all jobs that have not ended."""
    return lab.root(["squeue", "-h", "-o", "%A"]).split()


def collect(lab: Lab, arm: str, ids: Mapping[int, SimJob], up: float, submitting: float) -> Outcome:
    """Read Slurm's log and the jobs' files, and compare both with the controller's allocation."""
    wait_for(lambda: len(runs_of(lab, ids)) >= len(ids), 30.0, f"{arm}: every job's end in slurmctld's log")
    given = {job_id: _given(lab, job_id) for job_id in ids}
    said = (lab.work / "odd").read_text().splitlines() if (lab.work / "odd").exists() else []
    odd = [line for line in said if int(line.split(":")[0]) in ids]
    return Outcome(
        arm=arm,
        up=up,
        submitting_s=submitting,
        jobs=ids,
        runs=runs_of(lab, ids),
        given=given,
        updates=_updates(lab, ids),
        odd=(*odd, *_contradicted(lab, given)),
    )


def runs_of(lab: Lab, ids: Mapping[int, object]) -> tuple[Run, ...]:
    """Return the runs of these jobs that have ended."""
    with lab.log.open(encoding="utf-8", errors="replace") as lines:
        return read_runs(lines, ids)


def submits_of(lab: Lab, ids: Mapping[int, object]) -> dict[int, float]:
    """Return when the controller received each of these jobs."""
    with lab.log.open(encoding="utf-8", errors="replace") as lines:
        return read_submits(lines, ids)


def _updates(lab: Lab, ids: Mapping[int, SimJob]) -> tuple[float, ...]:
    with lab.log.open(encoding="utf-8", errors="replace") as lines:
        return read_updates(lines, ids)


def _given(lab: Lab, job_id: int) -> Given:
    words = (lab.work / "done" / str(job_id)).read_text(encoding="ascii").split()
    return Given(cpus=int(words[0]), mem_mib=int(words[1]), speed=float(words[2]))


def _contradicted(lab: Lab, given: Mapping[int, Given]) -> list[str]:
    """Return the jobs whose own view of CPUs and memory differs from the controller's allocation (AllocTRES)."""
    shown = lab.root(["squeue", "-h", "-t", "all", "-O", "JobID:|,tres-alloc:|"])
    odd = []
    for line in shown.splitlines():
        job_id, tres = (part.strip() for part in line.split("|")[:2])
        found = given.get(int(job_id))
        held = dict(part.partition("=")[::2] for part in tres.split(","))
        if found and (held.get("cpu") != str(found.cpus) or _mib(held.get("mem", "0")) != found.mem_mib):
            odd.append(f"{job_id}: found {found.cpus} CPUs, {found.mem_mib} MiB; the controller says {tres}")
    return odd


def _mib(text: str) -> int:
    units = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1 << 20}
    return round(float(text.rstrip("KMGT") or 0) * units.get(text[-1:], 1))


def owner() -> tuple[int, int]:
    """Return uid and gid of the user."""
    account = pwd.getpwnam(USER)
    return account.pw_uid, account.pw_gid
