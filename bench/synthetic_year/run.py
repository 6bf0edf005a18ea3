"""Make one run as Slurm, its Epilogs and the classifier would report it: a JobRun. Pure but for dice."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from math import ceil

from slurmwrap.fast_dataclasses import replace as changed
from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.submission import Submission
from slurmwrap.sbatch.job_request import CpuUnit, GpuUnit, MemUnit, ResourceShape
from synthetic_year import texts
from synthetic_year.calls import DAY_S, Call
from synthetic_year.site import CLUSTER, GPUS_PER_NODE, Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The request of one job and the nodes on which it runs."""

    nodes: tuple[str, ...]
    gpus: int
    cpus: int
    cpus_per_gpu: int
    mem_mib: int  # per node
    limit_s: int

    def on(self, node: str) -> Shape:
        """Return the shape with `node` as its first node."""
        return replace(self, nodes=(node, *(one for one in self.nodes[1:] if one != node)))

    def wait_s(self, call: Call, dice: random.Random) -> float:
        """Draw a queueing delay. Half of the jobs start at once; large others wait longer (Philly, figure 3)."""
        if dice.random() < 0.5:
            return dice.uniform(1, 15)
        return min(5 * DAY_S, dice.lognormvariate(5.2, 1.5) * (1 + call.gpus / 8))

    def submission(
        self, call: Call, job_id: int, fingerprint: str, dice: random.Random, *, whole: bool = True
    ) -> Submission:
        """Return the gsub call. Unless `whole`, omit what pruning would remove at once."""
        count = len(self.nodes)
        counts = dice.random() < 0.3
        home = f"/home/{call.user.name}"
        plan = {
            "lines": [
                {
                    "option": "switches",
                    "value": "1@5:00",
                    "reason": f"{count} nodes fit under one switch; Slurm waits up to 300 s for that",
                }
            ],
            "node_count": count,
            "gpus_per_node": min(GPUS_PER_NODE, self.gpus),
            "candidates": list(self.nodes[:4]),
            "switch": "leaf1",
            "locality": "consolidated",
            "levels": [{"name": "fewest nodes, one switch", "wait_s": 300}, {"name": "any", "wait_s": 0}],
            "cpus_per_gpu": self.cpus_per_gpu,
            "mem_mib_per_gpu": None,
            "profile_key": f"{call.name}-gpux{self.gpus}-{call.script_sha256[:12]}",
        }
        return Submission(
            cluster=CLUSTER,
            job_id=job_id,
            uid=call.user.uid,
            user=call.user.name,
            at=call.at,
            name=call.name,
            script_path=call.script,
            script_sha256=call.script_sha256,
            work_dir=call.script.rpartition("/")[0],
            gpus=self.gpus,
            nodes=count,
            retry=call.retry,
            profile_key=str(plan["profile_key"]),
            step_dir=f"{home}/.local/state/slurmwrap/steps/{dice.getrandbits(64):x}" if counts else "",
            prerun_mode="auto",
            fingerprint=fingerprint,
            inputs=(call.input_path,) if call.input_path else (f"/data/{call.user.account}/set-{dice.randrange(30)}",),
            plan=plan if whole else {},
            changes=()
            if not whole
            else ({"option": "switches", "old": None, "new": "1@5:00", "where": "added", "reason": "locality"},),
            shape=None
            if not whole
            else ResourceShape(
                nodes=count,
                gpus=self.gpus,
                gpus_per_node=min(GPUS_PER_NODE, self.gpus),
                gpu_unit=GpuUnit.NODE if hasattr(GpuUnit, "NODE") else next(iter(GpuUnit)),
                cpus=self.cpus_per_gpu,
                cpu_unit=next(iter(CpuUnit)),
                mem_mib=self.mem_mib,
                mem_unit=next(iter(MemUnit)),
                time_limit_s=self.limit_s,
            ),
            own={"cpus-per-task": str(self.cpus_per_gpu)} if whole else {},
            tune=whole,
            place=whole,
        )


def shape_of(call: Call, site: Site, dice: random.Random) -> Shape:
    nodes = site.some_nodes(max(1, ceil(call.gpus / GPUS_PER_NODE)), dice)
    per_gpu = dice.choice((2, 4, 4, 8, 8, 12, 16))
    here = min(GPUS_PER_NODE, call.gpus)
    hours = next((h for h in (1, 4, 12, 24, 48, 96) if h * 3600 > call.run_s), 168)
    limit = int(call.run_s) if call.category == "time_limit" else hours * 3600
    mem = here * dice.choice((16, 32, 64, 96, 120)) * 1024
    return Shape(
        nodes=nodes, gpus=call.gpus, cpus=per_gpu * call.gpus, cpus_per_gpu=per_gpu, mem_mib=mem, limit_s=max(60, limit)
    )


def run_of(
    call: Call,
    shape: Shape,
    job_id: int,
    *,
    began: float,
    run_s: float,
    category: str,
    dice: random.Random,
    address: str = "",
    restarts: int = 0,
    eligible: float | None = None,
    until: float = 1e12,
    submission: Submission | None = None,
) -> JobRun:
    """Return the run; without its end if that is at or after `until`."""
    start, end = int(began), int(began + run_s)
    over = end < until
    std_out = f"{call.script.rpartition('/')[0]}/slurm-{(address or str(job_id)).replace('_', '-')}.out"
    found = _diagnosis(category, shape, call, std_out, run_s, dice) if over else None
    failed = category not in ("success", "cancelled", "time_limit", "node_failure", "job_preempted", "cpu_oom")
    ends = {std_out: [dice.randrange(2_000, 2_000_000), f"{dice.getrandbits(64):016x}"]} if over and failed else {}
    return JobRun(
        attempt=RunKey(cluster=CLUSTER, job_id=job_id, submit_time=int(eligible if eligible is not None else call.at)),
        address=address or str(job_id),
        restarts=restarts,
        name=call.name,
        user=call.user.name,
        uid=call.user.uid,
        account=call.user.account,
        partition="gpu",
        state=texts.state_of(category) if over else "",
        reason={"failed": "NonZeroExitCode"}.get("failed" if failed else "", "None"),
        exit_code=(1 if failed else 0) if over else None,
        signal=(15 if category == "cancelled" else 0) if over else None,
        derived_exit_code=0 if over else None,
        nodes=shape.nodes,
        gpus=shape.gpus,
        cpus=shape.cpus,
        eligible_time=int(eligible if eligible is not None else call.at),
        start_time=start,
        end_time=end if over else None,
        time_limit_s=shape.limit_s,
        mem_mib_per_node=shape.mem_mib,
        std_out=std_out,
        std_err=std_out,
        measurement=_measured(call, shape, run_s, category, submission, dice) if over else None,
        diagnosis=found,
        output_ends=ends,
    )


def alone(seconds: float, dice: random.Random) -> Measurement:
    """Return the measurements of a pre-run on one GPU."""
    return Measurement(
        seconds=round(seconds, 3),
        steps=3,
        steps_per_s=round(dice.uniform(0.1, 6), 3),
        cpu_s=round(seconds * dice.uniform(1, 6), 2),
        cpus_used=round(dice.uniform(1, 6), 2),
        cpus_allocated=8,
        mem_peak_mib=dice.randrange(3_000, 60_000),
        mem_source="cgroup",
        gpu_mem_peak_mib=dice.randrange(4_000, 70_000),
        gpu_util=round(dice.betavariate(3, 2), 3),
    )


def _measured(
    call: Call, shape: Shape, run_s: float, category: str, submission: Submission | None, dice: random.Random
) -> Measurement | None:
    if run_s < 5:
        return None
    share = max(1, len(shape.nodes))
    asked = max(1, shape.cpus // share)
    used = round(asked * dice.betavariate(1.3, 3), 2)
    idle = dice.random() < 0.03 and run_s > 900
    no_process = idle and dice.random() < 0.5
    per_s = round(dice.uniform(0.1, 4), 3)
    steps = int(max(0.0, run_s - 40) * per_s) if submission is not None and submission.step_dir else 0
    peak = shape.mem_mib if category == "cpu_oom" else int(shape.mem_mib * dice.betavariate(1.4, 3)) + 200
    return Measurement(
        seconds=float(int(run_s)),
        steps=steps or None,
        steps_per_s=per_s if steps else None,
        steps_until_s=round(max(0.0, run_s - dice.uniform(1, 30)), 1) if steps else None,
        cpu_s=round(used * run_s, 1),
        cpus_used=used,
        cpus_allocated=asked,
        mem_peak_mib=peak,
        mem_source="cgroup",
        gpus=-(-shape.gpus // share),
        gpu_mem_peak_mib=None if no_process else 450 if idle else dice.randrange(2_000, 78_000),
        gpu_util=None if no_process else 0.0 if idle else round(dice.betavariate(2.2, 2.0), 3),
        gpu_mem_util=None if no_process else 0.0 if idle else round(dice.betavariate(1.5, 3.0), 3),
    )


def _diagnosis(category: str, shape: Shape, call: Call, std_out: str, run_s: float, dice: random.Random) -> Diagnosis:
    """Return the classifier's diagnosis of the sample, with this job's node, file and log."""
    found = texts.diagnosis_of(category)
    swap = {texts.NODE: shape.nodes[0], texts.PATH: call.input_path or texts.PATH, texts.LOG: std_out}

    def told(text: str) -> str:
        for old, new in swap.items():
            text = text.replace(old, new)
        return text

    evidence = tuple(changed(c, source=told(c.source), text=told(c.text)) for c in found.evidence)
    steps = int(run_s * 0.8) if call.gsub and run_s > 3600 and category != "success" else None
    return changed(
        found,
        evidence=evidence,
        advice=told(found.advice),
        node=shape.nodes[0] if found.node else "",
        input_path=call.input_path if category == "incorrect_inputs" else "",
        step=steps,
        resumed=bool(steps) and dice.random() < 0.3,
        checkpoint_step=steps - steps % 500 if steps else None,
    )
