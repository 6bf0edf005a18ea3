"""Second replay: multi-GPU jobs that are slower when spread over nodes, with Slurm's default placement and with gsub.

The slowdown was measured by others: Pollux's artefact (petuum/adaptdl, commit de25dcc9, branch osdi21-artifact,
simulator/traces/*/placements.csv: seconds per step by placement, AWS nodes with 4 T4 each). YOLOv3, batch 16 per GPU:
0.760 s on 4 GPUs of one node, 1.402 s on two of each of two nodes. ResNet-50, batch 200: 1.005 s on 4 GPUs of one node,
1.015 s on 8 of two, which is no relevant difference. The trace's models are assigned to these two kinds by Tiresias's
skew (largest tensor by model size: VGG and AlexNet 0.61 to 0.77, the others 0.04 to 0.14). More than two nodes make no
further difference there, and a second leaf switch makes none here, since no one has measured it.

A job requests its GPUs without a number of nodes: --ntasks=N --gpus-per-task=1.

Arms: `sbatch`; `gsub` knows the skew of each model; `loss` also knows the steps per second of earlier runs on one node
and on two, and run times of earlier runs with an error of 0.5 in the logarithm, so that it waits while P(close start
within t) x time lost > t (slurmwrap/placement/locality_wait.py). The least loss that is worth a wait is compressed with
the trace (bench/replay/compressed).

With --ahead all jobs are submitted before the first arrival, with --begin, and their StartTime is set when all are. So
the time to submit does not count, which on a busy machine is more than what the arms differ by otherwise.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from replay import arms, jobscript, known, plot
from replay.labs import Lab, ReplayError, Wanted, lab, wait_for
from replay.records import Run
from replay.tracefile import DATA, read_trace
from slurmwrap.config.load_config import Placement
from slurmwrap.sim.model_skew import SKEW
from slurmwrap.sim.sim_job import SimJob

ARMS = ("sbatch", "gsub", "loss")
_HANDS = 6  # parallel submissions
_SIGMA = 0.5  # error of the expected run times of arm `loss`, in the logarithm
SLOWER_SKEWED, SLOWER = 1.402 / 0.760, 1.015 / 1.005
SCRIPT = """\
#!/bin/bash
#SBATCH --cpus-per-task=2
#SBATCH --mem-per-gpu=8000
#SBATCH --time=60
#SBATCH --output=/dev/null
# replay.sh SECONDS NODES FACTOR: SECONDS on NODES nodes, FACTOR times as long on more.
seconds=$(awk -v w="$1" -v l="$2" -v f="$3" -v n="$SLURM_JOB_NUM_NODES" 'BEGIN { print (n > l ? w * f : w) }')
sleep "$seconds"
echo "$SLURM_JOB_NUM_NODES $seconds" >"done/$SLURM_JOB_ID"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The figures of one arm, in real seconds."""

    arm: str
    jobs: int
    mean_jct_s: float
    median_jct_s: float
    mean_lag_s: float  # from a job's arrival until the controller received it: the time to submit
    mean_wait_s: float  # from then to its start
    multi_gpu_jct_s: float  # mean of the jobs with several GPUs
    spread_share: float  # of the jobs that would fit into one node
    skewed_spread_share: float  # the same for models that are slower when spread
    makespan_s: float
    mean_fragmentation: float  # free GPUs on nodes that are partly in use, by time


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One trace on one cluster. `wait_s`: placement.switch_wait_s, in the trace's time like pin_s."""

    name: str
    jobs: tuple[SimJob, ...]
    nodes: int
    gpus: int
    leaves: int
    scale: float
    wait_s: float
    ahead: bool = False  # all jobs are submitted before the first arrival

    @property
    def settings(self) -> dict[str, object]:
        """Return the waiting times of the placement, compressed with the trace and in whole seconds."""
        return {
            "placement.switch_wait_s": max(1, round(self.wait_s / self.scale)),
            "placement.pin_s": max(1, round(Placement().pin_s / self.scale)),
        }


def setups(options: argparse.Namespace) -> tuple[Setup, ...]:
    """Return Tiresias's own trace, and the last 100 jobs of the Philly window, of which 63 request 4 or 8 GPUs.

    Philly's jobs run for hours. With their compression the default wait of 300 s would be less than a second, and a
    site with such jobs would set a longer one anyway.
    """
    traces = DATA / "traces"
    tiresias, philly = read_trace(traces / "tiresias_60.csv"), read_trace(traces / "philly480_window.csv")[380:]
    philly = tuple(replace(job, submit_s=job.submit_s - philly[0].submit_s) for job in philly)
    default, scale = float(Placement().switch_wait_s), options.scale
    both = (
        Setup(name="tiresias", jobs=tiresias, nodes=4, gpus=4, leaves=2, scale=scale or 12.0, wait_s=default),
        Setup(name="philly", jobs=philly, nodes=8, gpus=8, leaves=4, scale=scale or 300.0, wait_s=3600.0),
    )
    return tuple(replace(one, ahead=options.ahead) for one in both if options.trace in ("", one.name))


Series = list[tuple[float, float]]


def replay(options: argparse.Namespace, directory: Path) -> int:
    """Run the arms of the traces at the same time on separate labs, so that noise affects all equally."""
    todo = [(setup, arm) for setup in setups(options) for arm in ARMS]

    def play(number: int) -> tuple[Placed, Series]:
        setup, arm = todo[number]
        wanted = Wanted(
            directory=directory / f"p{number}", base_port=options.base_port + 20 * number, nodes=setup.nodes,
            gpus=setup.gpus, cpus=64, mem_mib=512_000, leaves=setup.leaves, settings=setup.settings,
            compressed=setup.scale,
        )  # fmt: skip
        runs = known.draw_run_times(setup.jobs, setup.scale, _SIGMA) if arm == "loss" else {}
        with lab(wanted, lambda made: known.teach_run_times(made, runs)) as running:
            jobscript.lay_out(running.work, SCRIPT, arms.owner(), {})
            known.teach_skew(running, {name_profile(job, arm): SKEW.get(job.model) for job in setup.jobs}, speeds(arm))
            return _played(running, arm, setup)

    with ThreadPoolExecutor(max_workers=len(todo)) as pool:
        found = list(pool.map(play, range(len(todo))))
    for setup in setups(options):
        mine = [found[number] for number, (other, _) in enumerate(todo) if other.name == setup.name]
        print(_told(setup) + "\n" + _table([placed for placed, _ in mine]) + "\n")
        if options.out:
            _write(options.out, setup, mine)
    return 0


def name_profile(job: SimJob, arm: str) -> str:
    """Return the key of the job's profile. Run times are known of each job, all else of its model."""
    return f"{job.model or 'unknown'}.{job.number}" if arm == "loss" else job.model or "unknown"


def speeds(arm: str) -> Callable[[str], list[dict[str, object]]]:
    """Return the counted runs of a profile: on one node, and on two."""
    if arm != "loss":
        return lambda key: []
    return lambda key: [
        {"work": "w", "gpus": 16, "nodes": nodes, "steps_per_s": find_slowdown(key.partition(".")[0]) ** (1 - nodes)}
        for nodes in (1, 2)
    ]


def _told(setup: Setup) -> str:
    waits = ", ".join(f"{key} {value} s" for key, value in setup.settings.items())
    return (
        f"{setup.name}: {len(setup.jobs)} jobs on {setup.nodes} x {setup.gpus} GPUs, 1 s stands for {setup.scale:g} s; "
        f"spread without need {SLOWER_SKEWED:.2f} times as long if skewed, else {SLOWER:.2f}; {waits}"
    )


def _write(out: Path, setup: Setup, found: Sequence[tuple[Placed, Series]]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    record: dict[str, object] = {"scale": setup.scale, "slower": {"skewed": SLOWER_SKEWED, "other": SLOWER}}
    record |= {"settings": setup.settings, **{placed.arm: asdict(placed) for placed, _ in found}}
    (out / f"locality_{setup.name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    chart = plot.lines(
        {placed.arm: series for placed, series in found},
        f"Free GPUs on nodes that are partly in use ({setup.name})",
        "seconds of the replay",
        "GPUs",
    )
    (out / f"locality_{setup.name}.svg").write_text(chart, encoding="utf-8")


def _played(running: Lab, arm: str, setup: Setup) -> tuple[Placed, Series]:
    began, arrivals = _submit_ahead(running, arm, setup) if setup.ahead else _submit_when_due(running, arm, setup)
    wait_for(lambda: not arms.queue(running), 900.0, f"{arm}: the end of all jobs", 0.5)
    wait_for(
        lambda: len(arms.runs_of(running, arrivals)) >= len(arrivals), 30.0, f"{arm}: every end in slurmctld's log"
    )
    runs = arms.runs_of(running, arrivals)
    series = fragments(runs, {i: job.gpus for i, (job, _) in arrivals.items()}, began, setup.gpus)
    submits = {i: at for i, (_, at) in arrivals.items()} if setup.ahead else arms.submits_of(running, arrivals)
    return _figures(arm, runs, arrivals, submits, began, series, setup), series


def _submit_ahead(running: Lab, arm: str, setup: Setup) -> tuple[float, dict[int, tuple[SimJob, float]]]:
    """Submit all jobs, then let them begin at their arrivals; return when the replay begins, and the arrivals."""
    with ThreadPoolExecutor(max_workers=_HANDS) as hands:
        ids = list(hands.map(lambda job: _submit(running, arm, job, setup, "--begin=now+6hours"), setup.jobs))
        began = time.time() + 10.0 + 0.5 * len(ids)
        arrivals = {
            job_id: (job, began + job.submit_s / setup.scale) for job_id, job in zip(ids, setup.jobs, strict=True)
        }

        def set_start(job_id: int) -> None:
            at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(arrivals[job_id][1]))
            running.root(["scontrol", "update", f"JobId={job_id}", f"StartTime={at}"])

        list(hands.map(set_start, ids))
    if time.time() > began:
        raise ReplayError(f"{len(ids)} updates took {time.time() - began:.0f} s too long")
    return began, arrivals


def _submit_when_due(running: Lab, arm: str, setup: Setup) -> tuple[float, dict[int, tuple[SimJob, float]]]:
    began = time.time() + 1.0
    with ThreadPoolExecutor(max_workers=_HANDS) as hands:
        found = list(hands.map(lambda job: _arrive(running, arm, job, setup, began), setup.jobs))
    return began, {job_id: (job, at) for job, at, job_id in found}


def _arrive(running: Lab, arm: str, job: SimJob, setup: Setup, began: float) -> tuple[SimJob, float, int]:
    """Submit the job when it is due; users do not wait for each other."""
    at = began + job.submit_s / setup.scale
    time.sleep(max(0.0, at - time.time()))
    return job, at, _submit(running, arm, job, setup)


def _submit(running: Lab, arm: str, job: SimJob, setup: Setup, *begin: str) -> int:
    factor = find_slowdown(job.model)
    own = ["--prerun=off", f"--resource-profile={name_profile(job, arm)}"] if arm != "sbatch" else []
    shape = [f"--ntasks={job.gpus}", "--gpus-per-task=1", f"--job-name=j{job.number:03d}-{job.model}", *begin]
    words = [f"{job.work_s / setup.scale:.4f}", str(-(-job.gpus // setup.gpus)), f"{factor:.4f}"]
    return arms.submitted(running, ["sbatch" if arm == "sbatch" else "gsub", *own, *shape, "replay.sh", *words])


def skewed(model: str) -> bool:
    """Return whether a model is slower when spread. GoogLeNet has no published skew and no large dense layer: no."""
    return SKEW.get(model, 0.0) > Placement().skew_limit


def find_slowdown(model: str) -> float:
    """Return how many times as long a job of the model takes when it is spread without need."""
    return SLOWER_SKEWED if skewed(model) else SLOWER


def _figures(
    arm: str,
    runs: Sequence[Run],
    arrivals: Mapping[int, tuple[SimJob, float]],
    submits: Mapping[int, float],
    began: float,
    series: Sequence[tuple[float, float]],
    setup: Setup,
) -> Placed:
    jct = {run.job_id: run.end - arrivals[run.job_id][1] for run in runs}
    one_node = [run for run in runs if 1 < arrivals[run.job_id][0].gpus <= setup.gpus]
    suffering = [run for run in one_node if skewed(arrivals[run.job_id][0].model)]
    return Placed(
        arm=arm,
        jobs=len(runs),
        mean_jct_s=fmean(jct.values()),
        median_jct_s=median(jct.values()),
        mean_lag_s=fmean(max(0.0, submits[job_id] - at) for job_id, (_, at) in arrivals.items()),
        mean_wait_s=fmean(run.start - submits[run.job_id] for run in runs),
        multi_gpu_jct_s=fmean(seconds for job_id, seconds in jct.items() if arrivals[job_id][0].gpus > 1),
        spread_share=fmean(len(run.nodes) > 1 for run in one_node),
        skewed_spread_share=fmean(len(run.nodes) > 1 for run in suffering),
        makespan_s=max(run.end for run in runs) - began,
        mean_fragmentation=_mean(series),
    )


def fragments(runs: Sequence[Run], gpus: Mapping[int, int], began: float, per_node: int) -> Series:
    """Return (seconds since `began`, free GPUs on nodes that are partly in use) at each change.

    The log does not show how a job's GPUs are distributed over its nodes; an even distribution is assumed.
    """
    changes = [(run.start, run, 1) for run in runs] + [(run.end, run, -1) for run in runs]
    used: dict[str, float] = {}
    series = [(0.0, 0.0)]
    for at, run, sign in sorted(changes, key=lambda change: (change[0], change[2])):
        for node in run.nodes:
            used[node] = used.get(node, 0.0) + sign * gpus[run.job_id] / len(run.nodes)
        series.append((at - began, sum(per_node - held for held in used.values() if held > 0.01)))
    return series


def _mean(series: Sequence[tuple[float, float]]) -> float:
    """Return the mean over time, in GPUs."""
    area = sum((b - a) * value for (a, value), (b, _) in pairwise(series))
    return area / max(1e-9, series[-1][0] - series[0][0])


def _table(found: Sequence[Placed]) -> str:
    """Return the figures of each arm, and of all but the first how many times less they are."""
    lines = []
    for name in (field.name for field in fields(Placed) if field.name not in ("arm", "jobs")):
        values = [getattr(placed, name) for placed in found]
        ratios = "".join(f"{values[0] / value:8.3f}" if value else f"{'-':>8}" for value in values[1:])
        lines.append(f"{name:22}" + "".join(f"{value:10.3f}" for value in values) + f"   ratio{ratios}")
    return f"{'':22}" + "".join(f"{placed.arm:>10}" for placed in found) + "\n" + "\n".join(lines)
