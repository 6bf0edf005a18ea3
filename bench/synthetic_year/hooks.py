"""Make the observations of hooks and gsub for a job, as in docs/records.md. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from slurmwrap.model.hostlist import fold
from slurmwrap.model.job_run import JobRun, PrerunRecord
from slurmwrap.model.observation import Context, Observation
from slurmwrap.model.submission import Submission
from slurmwrap.store.serialize import to_json_dict
from synthetic_year import texts
from synthetic_year.site import CLUSTER, GPUS_PER_NODE

_MOST_NODES = 16  # nodes of one job with observations; the limit keeps a small database small


def of_run(run: JobRun, dice: random.Random) -> Iterator[Observation]:
    """Return the observations of Prolog and Epilog on each node, and of EpilogSlurmctld."""
    assert run.start_time is not None
    shared = {"restarts": run.restarts, "uid": run.uid, "nodes": fold(run.nodes)}
    gpus = ",".join(map(str, range(min(GPUS_PER_NODE, max(1, run.gpus)))))
    for number, node in enumerate(run.nodes[:_MOST_NODES]):
        facts = {**shared, "gpus": gpus, "kernel_mark": f"{dice.getrandbits(64):x}"}
        yield _observed(run.attempt.job_id, Context.PROLOG, run.start_time + 0.5, facts, dice, node)
        if run.end_time is not None:
            facts = {**facts, **_ended(run, number, dice)}
            yield _observed(run.attempt.job_id, Context.EPILOG, run.end_time + 1.5, facts, dice, node)
    if run.end_time is not None:
        told = {"user": run.user, "name": run.name, "account": run.account, "partition": run.partition}
        told |= {"work_dir": f"/home/{run.user}", "exit": f"{run.exit_code or 0}:{run.signal or 0}"}
        facts = {**shared, **told, "wait_status": (run.exit_code or 0) << 8, "derived": 0}
        yield _observed(run.attempt.job_id, Context.EPILOG_SLURMCTLD, run.end_time + 1.0, facts, dice)


def of_submission(submission: Submission, dice: random.Random) -> Observation:
    facts = {"submission": to_json_dict(submission)}
    return _observed(submission.job_id, Context.SUBMIT, submission.at, facts, dice, uid=submission.uid)


def of_prerun(record: PrerunRecord, dice: random.Random) -> Observation:
    facts = {"prerun": to_json_dict(record)}
    return _observed(record.prerun_job_id, Context.PRERUN, record.at, facts, dice, uid=record.uid)


def _ended(run: JobRun, number: int, dice: random.Random) -> dict[str, Any]:
    used, found = run.measurement, run.diagnosis
    kernel = texts.GPU_LINES.get(found.category) if found is not None and found.node else None
    facts: dict[str, Any] = {
        "exit": f"{run.exit_code or 0}:{run.signal or 0}",
        "wait_status": (run.exit_code or 0) << 8,
        "derived": 0,
        "kernel": [{"text": kernel, "at": float(run.end_time or 0)}] if kernel else [],
        "kernel_source": "journal",
        "started_at": run.start_time,
        "gpu": [_gpu(index) for index in range(min(GPUS_PER_NODE, max(1, run.gpus)))],
    }
    if used is not None:
        facts |= {"mem_peak_mib": used.mem_peak_mib, "mem_source": "cgroup", "cpu_s": used.cpu_s, "oom_kills": 0}
    if number == 0 and found is not None and run.std_out:
        facts["logs"] = [{"name": run.std_out, "text": _tail(found.category, dice), "truncated": False}]
    return facts


def _tail(category: str, dice: random.Random) -> str:
    """Return the end of a log; some have a few lines, some more than the 64 KiB that an Epilog reads (assumed)."""
    text = texts.log_of(category)
    return (text * (1 + int(min(65_536, dice.lognormvariate(8.7, 1.3))) // len(text)))[-65_536:]


def _gpu(index: int) -> dict[str, Any]:
    return {
        "index": index,
        "bus_id": f"00000000:{16 * (index + 1):02X}:00.0",
        "recovery_action": "none",
        "remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": False, "failed": False},
        "ecc_uncorrected": {"volatile": 0, "aggregate": 0},
        "pcie": {"width": 16, "max_width": 16, "replays": 0},
        "persistence": True,
    }


def _observed(
    job_id: int,
    context: Context,
    at: float,
    facts: Mapping[str, Any],
    dice: random.Random,
    node: str = "",
    uid: int = 0,
) -> Observation:
    nonce = f"{dice.getrandbits(128):032x}"
    return Observation(
        nonce=f"{uid}-{nonce}" if uid else nonce,
        cluster=CLUSTER,
        job_id=job_id,
        context=context,
        at=at,
        node=node,
        uid=uid,
        facts=facts,
    )
