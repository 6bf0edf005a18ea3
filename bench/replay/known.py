"""Resource profiles as earlier jobs on a lab would have left them: known to user and site before the replay begins."""

from __future__ import annotations

import json
import math
import pwd
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from replay.labs import USER, Lab
from slurmwrap.config.load_config import Tuning
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.run_time import RunTimeSample
from slurmwrap.profiling.run_time import RunTimeQuery, RunTimeRecord
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.store.database import Database

_LEAST_GB = 20.83  # every model of the matrices ran with this memory, even if slowly; more is used as cache
RUNS = 3  # tuning.runs_before_shrink: complete runs after which memory may go below what was asked for


def teach(lab: Lab, matrices: Path) -> int:
    """Import Synergy's matrices by `slurmwrap profile import`, as if each model had RUNS complete runs.

    A profile that was only imported may raise a request, but not lower its memory. The replay is about models that ran
    on this cluster before, so runs, confidence and the curve's date are those of such a model. Speeds are those of the
    matrices. They do not have the peak of a model's own memory; it is assumed to fit into the least memory with which
    all models ran. Return the number of profiles.
    """
    lab.user(["slurmwrap", "profile", "import", "-"], stdin=matrices.read_text(encoding="utf-8"))
    exported = json.loads(lab.user(["slurmwrap", "profile", "export"]))
    for one in _profiles(exported):
        one |= {"runs": RUNS, "confidence": 0.9, "source": "epilog", "curve_at": time.time()}
        one["mem_mib_per_gpu"] = int(_LEAST_GB * 1024 / Tuning().memory_margin)
    text = json.dumps(exported)
    lab.user(["slurmwrap", "profile", "import", "--replace", "-"], stdin=text)
    lab.root(["slurmwrap", "profile", "import", "--site", "--user", USER, "-"], stdin=text)
    return len(_profiles(exported))


def teach_skew(
    lab: Lab, skews: Mapping[str, float | None], speeds: Callable[[str], list[dict[str, object]]] = lambda key: []
) -> None:
    """Record profiles of which complete runs reported only the skew (largest tensor / model size) and these speeds."""
    now = time.time()
    known = [
        {
            "key": key, "skew": skew, "runs": RUNS, "confidence": 0.9, "source": "epilog", "measured_at": now,
            "speeds": speeds(key),
        }
        for key, skew in skews.items()
    ]  # fmt: skip
    text = json.dumps({"slurmwrap_profiles": 1, "profiles": known})
    lab.user(["slurmwrap", "profile", "import", "-"], stdin=text)
    lab.root(["slurmwrap", "profile", "import", "--site", "--user", USER, "-"], stdin=text)


def draw_run_times(jobs: Sequence[SimJob], scale: float, sigma: float) -> dict[SimJob, tuple[float, ...]]:
    """Return run times of earlier runs of each job, in real seconds; `sigma`: the error, in the logarithm."""
    dice = random.Random("run times")
    return {
        job: tuple(max(1.0, job.work_s / scale * math.exp(dice.gauss(0.0, sigma))) for _ in range(RUNS)) for job in jobs
    }


def teach_run_times(lab: Lab, runs: Mapping[SimJob, Sequence[float]]) -> None:
    """Store earlier runs in the site's database. Before the reconciler starts, because it publishes them then."""
    if not runs:
        return
    path, uid, now = lab.directory / "state" / "site.db", pwd.getpwnam(USER).pw_uid, int(time.time())
    cluster = re.search(r"ClusterName\s*=\s*(\S+)", lab.root(["scontrol", "show", "config"]))
    assert cluster is not None
    with Database.open(path) as store:
        for job, times in runs.items():
            query = RunTimeQuery(
                user=str(uid), key=f"{job.model or 'unknown'}.{job.number}", gpus=job.gpus, partition="gpu"
            )
            for number, run_s in enumerate(times):
                key = RunKey(cluster=cluster[1], job_id=10**6 + 10 * job.number + number, submit_time=now)
                sample = RunTimeSample(run_s=run_s)
                store.save_run_time(RunTimeRecord(attempt=key, uid=uid, end_time=now - 1000, job=query, sample=sample))


def _profiles(exported: object) -> list[dict[str, object]]:
    found = exported.get("profiles") if isinstance(exported, dict) else exported
    assert isinstance(found, list)
    return found
