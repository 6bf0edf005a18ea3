"""Third replay: one bad node. Jobs that run there fail at 60 % and must run again; gsub knows the published suspects.

The node becomes suspect as on a real cluster: its kernel reports an uncorrectable ECC error (Xid 48) while jobs run
there and fail; the reconciler counts a strike and publishes it. Rule `drain` is only `advise` here, because with `act`
the node would be drained in both arms. In both arms a failed job is submitted again one second after its end, as by an
attentive user; --retry is off, so that only the placement differs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from replay import arms, jobscript
from replay.labs import Lab, Wanted, lab, slurmwrap_lab, wait_for
from replay.records import Run
from replay.tuning import shipped
from slurmwrap.sim.sim_job import SimJob

NODES, GPUS = 8, 4
BAD = "n2"
XID = "NVRM: Xid (PCI:0000:07:00): 48, pid=4711, name=python, An uncorrectable double bit error (DBE) was detected."
LOST = 0.6  # share of its run time after which a job fails on the bad node
SCRIPT = f"""\
#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=2
#SBATCH --mem=8000
#SBATCH --time=60
#SBATCH --requeue
#SBATCH --output=/dev/null
# replay.sh SECONDS
if [ "$SLURMD_NODENAME" = {BAD} ]; then
    sleep "$(awk -v w="$1" 'BEGIN {{ print {LOST} * w }}')"
    exit 1
fi
sleep "$1"
"""
FAILING = "#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --mem=8000\n#SBATCH --output=/dev/null\nsleep 8\nexit 1\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suffered:
    """The figures of one arm, in real seconds."""

    arm: str
    jobs: int
    failures: int
    lost_gpu_s: float
    mean_jct_s: float
    makespan_s: float
    gpu_s: float


def replay(options: argparse.Namespace, directory: Path) -> int:
    """Run both arms at the same time on separate labs; print a table or JSON."""
    scale = options.scale or 600.0
    jobs = shipped()
    print(f"{len(jobs)} one-GPU jobs on {NODES} x {GPUS} GPUs, {BAD} is bad, 1 s stands for {scale:g} s", flush=True)

    def play(number: int, arm: str) -> Suffered:
        wanted = Wanted(
            directory=directory / f"s{number}", base_port=options.base_port + 20 * number, nodes=NODES, gpus=GPUS,
            cpus=16, mem_mib=128_000, settings={"rules.drain": "advise", "placement.exclude_cap": 0.2},
        )  # fmt: skip
        with lab(wanted) as running:
            jobscript.lay_out(running.work, SCRIPT, arms.owner(), {})
            make_suspect(running)
            return _played(running, arm, jobs, scale)

    with ThreadPoolExecutor(max_workers=2) as pool:
        found = list(pool.map(play, (0, 1), arms.ARMS))
    print(_table(found))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        record = {"scale": scale, "lost": LOST} | {one.arm: asdict(one) for one in found}
        (options.out / "suspects.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


def make_suspect(running: Lab, patience_s: float = 60.0) -> None:
    """Let two jobs fail on the bad node while its kernel reports a GPU, and wait until the suspicion is published."""
    ids = [int(running.user(["sbatch", "--parsable", "-w", BAD], stdin=FAILING)) for _ in range(2)]
    wait_for(lambda: _states(running, ids) >= {"RUNNING"}, patience_s, "the failing jobs run")
    slurmwrap_lab(["kernel", BAD, XID, "--dir", str(running.directory)])
    wait_for(lambda: not arms.queue(running), patience_s, "the failing jobs end")
    wait_for(lambda: BAD in _suspects(running), patience_s, f"{BAD} is published as suspect", 1.0)


def _states(running: Lab, ids: Sequence[int]) -> set[str]:
    return set(running.root(["squeue", "-h", "-t", "all", "-o", "%T", "-j", ",".join(map(str, ids))]).split())


def _suspects(running: Lab) -> str:
    """Return the part of `gsub --dry-run` that names the excluded nodes; "" when gsub excludes none."""
    return running.user(["gsub", "--dry-run", "--prerun=off", "replay.sh", "1"], check=False).partition("exclude")[2]


def _played(running: Lab, arm: str, jobs: Sequence[SimJob], scale: float) -> Suffered:
    running.root(["scontrol", "update", "PartitionName=gpu", "State=DOWN"])
    own = ["--prerun=off"] if arm == "gsub" else []
    ids = {arms.submitted(running, [arm, *own, "replay.sh", f"{job.work_s / scale:.4f}"]): job for job in jobs}
    up = time.time()
    running.root(["scontrol", "update", "PartitionName=gpu", "State=UP"])
    good = _until_all_succeeded(running, ids, 600.0)
    runs = arms.runs_of(running, ids)
    return _figures(arm, runs, good, up)


def _until_all_succeeded(running: Lab, ids: Mapping[int, SimJob], patience_s: float) -> dict[int, Run]:
    """Submit failed jobs again, as their user would; return the successful run of each job."""
    again: set[tuple[int, float]] = set()
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        runs = arms.runs_of(running, ids)
        good = {run.job_id: run for run in runs if run.exit_code == 0}
        if len(good) == len(ids):
            return good
        for run in runs:
            if run.exit_code and (run.job_id, run.start) not in again and run.job_id not in good:
                again.add((run.job_id, run.start))
                running.user(["scontrol", "requeue", str(run.job_id)])
        for job_id in _delayed(running):
            running.user(["scontrol", "update", f"JobId={job_id}", "StartTime=now"], check=False)
        time.sleep(1)
    raise TimeoutError(f"not all jobs ended well after {patience_s:g} s")


def _delayed(running: Lab) -> list[str]:
    """Return requeued jobs, which Slurm delays for two minutes."""
    lines = running.root(["squeue", "-h", "-t", "PD", "-o", "%A %r"]).splitlines()
    return [line.split()[0] for line in lines if line.endswith("BeginTime")]


def _figures(arm: str, runs: Sequence[Run], good: Mapping[int, Run], up: float) -> Suffered:
    failed = [run for run in runs if run.exit_code]
    return Suffered(
        arm=arm,
        jobs=len(good),
        failures=len(failed),
        lost_gpu_s=sum(run.end - run.start for run in failed),
        mean_jct_s=fmean(run.end - up for run in good.values()),
        makespan_s=max(run.end for run in good.values()) - up,
        gpu_s=sum(run.end - run.start for run in runs),
    )


def _table(found: Sequence[Suffered]) -> str:
    lines = [f"{'':14}" + "".join(f"{one.arm:>10}" for one in found)]
    for name in ("failures", "lost_gpu_s", "gpu_s", "mean_jct_s", "makespan_s"):
        lines.append(f"{name:14}" + "".join(f"{getattr(one, name):10.1f}" for one in found))
    return "\n".join(lines)
