"""Rows of report_sql.py's queries as records of the night report. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from slurmwrap.model.evidence import RunKey
from slurmwrap.model.measurement import CurvePoint
from slurmwrap.model.run import QueueDelay
from slurmwrap.report.night_report import Moment
from slurmwrap.report.report_inputs import Caught, Delayed, Idle, MultiNodeRun, Paced, TunedRun
from slurmwrap.sbatch.request import CpuUnit, ResourceShape
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.report_reader import Rows, decode_text, parse_json_list

DAY_S = 86400.0
# (period up to, length of a step of the curve of held GPUs)
_STEPS = ((2 * DAY_S, 3600.0), (14 * DAY_S, 6 * 3600.0), (92 * DAY_S, DAY_S), (float("inf"), 7 * DAY_S))
_MOST_STEPS = 200


def compute_edges(since: float, until: float) -> list[float]:
    length = max(next(step for limit, step in _STEPS if until - since <= limit), (until - since) / _MOST_STEPS)
    count = max(1, -int(-(until - since) // length))
    return [max(since, until - length * number) for number in range(count, 0, -1)] + [until]


def compute_moments(edges: Sequence[float], sums: Rows, spills: Sequence[Rows]) -> list[Moment]:
    """GPU-hours held in each step: of the runs that ended in it, and what runs that ended later held before."""
    held = [[float(value) for value in row[:3]] for row in sums]
    for number, rows in enumerate(spills):
        for start, gpus, outcome in rows:
            held[number][outcome - 1] -= gpus * (edges[number] - start)
            for earlier in range(number - 1, -1, -1):
                low, high = edges[earlier], edges[earlier + 1]
                held[earlier][outcome - 1] += gpus * (high - max(low, start))
                if start >= low:
                    break
    return [
        Moment(at=low, seconds=high - low, completed=well / 3600, failed=failed / 3600, cancelled=cancelled / 3600)
        for (low, high), (well, failed, cancelled) in zip(pairwise(edges), held, strict=True)
    ]


def lasted(rows: Rows, names: Mapping[int, str]) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """(of the period alone, of all that was looked at): seconds to failure by category, sorted."""
    alone: dict[str, list[int]] = {}
    every: dict[str, list[int]] = {}
    for category, by_itself, run_s, runs in rows:
        every.setdefault(names[category], []).extend([run_s] * runs)
        if by_itself:
            alone.setdefault(names[category], []).extend([run_s] * runs)
    return alone, every


def added(counts: Iterable[tuple[tuple[str, str], int]]) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for key, count in counts:
        found[key] = found.get(key, 0) + count
    return found


def scaled(delayed: Delayed, outcomes: Rows, since: float, detail: float) -> Delayed:
    """Where only the newest days were looked at, these stand for all."""
    if detail <= since or not delayed.tried:
        return delayed
    tried = sum(count for outcome, count in outcomes if outcome != "fail")
    of = tried / delayed.tried
    return Delayed(tried, round(delayed.started * of), delayed.gpu_s * of, delayed.wait_s * of)


def idle(row: Sequence[Any], names: Mapping[int, str]) -> Idle:
    cluster, job_id, submit_time, user, name, gpus, unused, permille, run_s = row
    use = permille / 1000 * (gpus - unused) / gpus if permille is not None else None
    key = (names[cluster], job_id, submit_time)
    return Idle(
        key=key,
        user=names[user],
        name=decode_text(name),
        gpus=gpus,
        unused=min(gpus, unused),
        use=0.0 if unused >= gpus else use,
        run_s=run_s,
    )


def spreads(rows: Rows) -> list[MultiNodeRun]:
    return [
        MultiNodeRun(tuple(map(str, parse_json_list(nodes))), float(gpu_s), bool(failed))
        for nodes, gpu_s, failed in rows
    ]


def paced(row: Sequence[Any]) -> Paced:
    uid, script, variant, gpus, nodes, gpu_s, steps_per_s, ended, placed = row
    work = (uid, decode_text(script), variant, gpus)
    return Paced(
        work, tuple(map(str, parse_json_list(nodes))), float(gpu_s), float(steps_per_s), float(ended), bool(placed)
    )


def delay(row: Sequence[Any]) -> QueueDelay:
    cluster, job_id, submit_time, address, user, gpus, eligible, seen, fair, fragmented, unknown, over = row
    return QueueDelay(
        attempt=RunKey(cluster=cluster, job_id=job_id, submit_time=submit_time),
        address=decode_text(address),
        user=decode_text(user),
        gpus=gpus,
        eligible_at=float(eligible),
        seen_at=float(seen),
        fair_share_s=float(fair),
        fragmentation_s=float(fragmented),
        unknown_s=float(unknown),
        over=bool(over),
    )


def caught(category: str, job_id: int | None, gpus: int, uid: int, at: float, reason: Any) -> Caught:
    return Caught(category, job_id, gpus, uid, at, decode_text(reason))


def tuned(gpu_s: int, cpus: int, gpus: int, nodes: int, shape: str, curve: str) -> TunedRun | None:
    """None where the CPUs per GPU asked for are not to be told, or were got."""
    asked = cpus_per_gpu(record_from_json(ResourceShape, json.loads(shape)), gpus)
    got = cpus / gpus
    if asked is None or abs(got - asked) < 0.01:
        return None
    points = tuple(record_from_json(CurvePoint, point) for point in parse_json_list(curve))
    return TunedRun(float(gpu_s), asked, got, points)


def cpus_per_gpu(shape: ResourceShape, gpus: int) -> float | None:
    """As its user asked; None where they left it to Slurm."""
    if shape.cpus is None or not gpus:
        return None
    if shape.cpu_unit is CpuUnit.PER_GPU:
        return float(shape.cpus)
    tasks = shape.tasks or (shape.tasks_per_node or 1) * (shape.nodes or 1)
    return shape.cpus * tasks / gpus if shape.cpu_unit is CpuUnit.PER_TASK else None
