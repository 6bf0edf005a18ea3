"""A pre-run requests no more time than its partition allows; otherwise it would pend forever (PartitionTimeLimit)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fakes import FakeSlurm, job

from slurmwrap.config.load_config import Prerun
from slurmwrap.gsub.prerun_submission import (
    TrialTimes,
    _copy_dependency,
    choose_prerun_partition,
    compute_trial_times,
)
from slurmwrap.model.cluster import Node, Partition, Snapshot
from slurmwrap.sbatch.parse_request import parse_request

PARTITIONS = (
    Partition(name="gpu", default=True),
    Partition(name="short", max_time_s=1200),
    Partition(name="tiny", max_time_s=120),
)


@pytest.mark.parametrize(
    ("partition", "configured", "profile_s", "expected"),
    [
        ("", "", 0.0, TrialTimes(trial_s=900, profile_s=0, slurm_s=960)),
        ("", "", 300.0, TrialTimes(trial_s=900, profile_s=300, slurm_s=1260)),
        ("short", "", 300.0, TrialTimes(trial_s=840, profile_s=300, slurm_s=1200)),
        ("gpu,short", "", 300.0, TrialTimes(trial_s=840, profile_s=300, slurm_s=1200)),
        ("", "short", 3000.0, TrialTimes(trial_s=120, profile_s=1020, slurm_s=1200)),
        ("tiny", "", 300.0, TrialTimes(trial_s=60, profile_s=0, slurm_s=120)),
        ("unknown", "", 0.0, TrialTimes(trial_s=900, profile_s=0, slurm_s=960)),
    ],
)
def test_trial_times_fit_the_time_limit_of_the_partition(
    partition: str, configured: str, profile_s: float, expected: TrialTimes
) -> None:
    words = [*([f"--partition={partition}"] if partition else []), "--gres=gpu:2", "a.sh"]
    script = b"#!/bin/sh\n"
    request = parse_request(words, environ={}, cwd="/", read_script=lambda _: script, read_stdin=lambda: b"")
    snapshot = Snapshot(taken_at=0.0, nodes=(), default_partition="gpu", partitions=PARTITIONS)
    prepared = SimpleNamespace(request=request, snapshot=snapshot, profile_s=profile_s, keeps_place=False, pack=None)
    assert compute_trial_times(prepared, Prerun(partition=configured)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("members", "keeps_place", "expected"),
    [
        (("gpu", "short"), False, "short"),
        (("gpu", "short"), True, ""),  # there it would take one of the GPUs that the job waits for
        (("short",), True, "short"),  # the site has nodes of its own for pre-runs
    ],
)
def test_a_pre_run_stays_behind_a_job_that_is_not_held(
    members: tuple[str, ...], keeps_place: bool, expected: str
) -> None:
    request = parse_request(
        ["--gres=gpu:2", "a.sh"], environ={}, cwd="/", read_script=lambda _: b"#!/bin/sh\n", read_stdin=lambda: b""
    )
    nodes = (Node(name="n0", state="IDLE", partitions=("gpu",)), Node(name="n1", state="IDLE", partitions=members))
    snapshot = Snapshot(taken_at=0.0, nodes=nodes, default_partition="gpu", partitions=PARTITIONS)
    prepared = SimpleNamespace(request=request, snapshot=snapshot, keeps_place=keeps_place)
    assert choose_prerun_partition(prepared, Prerun(partition="short")) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), ""),
        (("--dependency=afterok:7",), "afterok:7"),
        (("--dependency=aftercorr:7",), "aftercorr:7"),
        (("--array=3-5", "--dependency=aftercorr:7:8:9"), "aftercorr:7_3:8:9"),
        (("--array=3-5", "--dependency=afterok:7"), "afterok:7"),
    ],
)
def test_the_pre_run_of_an_array_depends_on_the_corresponding_task(words: tuple[str, ...], expected: str) -> None:
    slurm = FakeSlurm()
    slurm.add(job(7, array_job_id=7, array_task_id=None), job(8))
    request = parse_request(
        [*words, "a.sh"], environ={}, cwd="/", read_script=lambda _: b"#!/bin/sh\n", read_stdin=lambda: b""
    )
    assert _copy_dependency(request, SimpleNamespace(slurm=slurm)) == expected  # type: ignore[arg-type]
