"""Messages of the nodes' samplers become the use of a run's GPUs; what no sampler would send is rejected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import START, FakeClock, FakeLogs, FakeSlurm, MemorySpool, job

from slurmwrap.config.load_config import Config
from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.observation import Context, Observation
from slurmwrap.reconcile import Scope, Services, reconcile_once
from slurmwrap.store.database import Database
from slurmwrap.store.deserialize import record_from_json

RUN = RunKey(cluster="lab", job_id=81, submit_time=int(START))
GPU = {"gpu": 0, "mig": "", "use": [40.0, 60], "mem_mib": [10, 20], "processes": [1, 1], "mem_total_mib": 80}


class Place:
    """A reconciler with one running job of uid 1001 on n1."""

    def __init__(self, root: Path) -> None:
        self.slurm, self.spool, self.clock = FakeSlurm(), MemorySpool(), FakeClock()
        self.store = Database.open(root / "site.db")
        self.slurm.add(job(81, state="RUNNING", submit_time=int(START), start_time=int(START) + 10, nodes=("n1",)))
        self.services = Services(
            slurm=self.slurm, store=self.store, spools=(self.spool,), logs=FakeLogs(), clock=self.clock, publisher=None,
            unpack=record_from_json, classify=diagnose_run, read_inputs=lambda uid, paths: (), config=Config(),
            scope=Scope(trusted=frozenset({0})),
        )  # fmt: skip

    def message(self, *gpus: Any, sealed: int = 0, node: str = "n1", job_id: int = 81, **facts: Any) -> Observation:
        plain = {"restarts": 0, "uid": 1001, "began": START + 12.0, "interval_s": 60.0, "first": 0, **facts}
        nonce = f"{len(self.spool.collect(1 << 20)):032x}"
        return Observation(
            nonce=nonce, cluster="lab", job_id=job_id, context=Context.SAMPLES, at=START + 100, node=node, uid=sealed,
            facts={**plain, "samples": list(gpus)},
        )  # fmt: skip

    def read(self, *items: Observation) -> tuple[Any, ...]:
        for item in items:
            self.spool.put(item)
        self.report = reconcile_once(self.services).ingested
        return self.store.gpu_use(RUN)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.store.close()


def test_samples_of_a_running_job_are_stored_by_gpu_while_it_runs(place: Place) -> None:
    other = {**GPU, "gpu": 3, "mig": "MIG-1", "energy_j": 12.5}
    one, split = place.read(place.message(GPU, other))
    assert (one.node, one.gpu, one.use_pct, one.mem_mib, one.energy_j) == ("n1", 0, (40.0, 60.0), (10, 20), None)
    assert (split.gpu, split.mig, split.energy_j) == (3, "MIG-1", 12.5)
    assert place.store.observations("lab", 81) == ()
    one, _ = place.read(place.message(GPU, first=2), place.message(GPU, first=0))
    assert one.use_pct == (40.0, 60.0, 40.0, 60.0)


def test_the_shares_of_a_gpu_are_those_of_the_message_with_most_samples(place: Place) -> None:
    shares = {"sm_active": 0.4, "dram": 0.2, "pcie": 0.1, "nvlink": 0.0}
    (one,) = place.read(place.message({**GPU, "shares": shares, "share_samples": 2}))
    assert (one.shares, one.share_samples) == (shares, 2)
    newer = place.message({**GPU, "shares": {"sm_active": 0.6}, "share_samples": 4}, first=2)
    older = place.message({**GPU, "shares": {"sm_active": 0.9}, "share_samples": 1}, first=4)
    (one,) = place.read(newer, older)
    assert (one.shares, one.share_samples, len(one.use_pct)) == ({"sm_active": 0.6}, 4, 6)


@pytest.mark.parametrize(
    "changed",
    [
        {"sealed": 1001},  # the job's own user
        {"node": "n2"},  # root of a node on which the job does not run
        {"first": -1},
        {"first": 1e300},
        {"interval_s": 0},
        {"began": "now"},
    ],
    ids=str,
)
def test_a_message_not_from_the_jobs_node_or_impossible_is_rejected(place: Place, changed: dict[str, Any]) -> None:
    assert place.read(place.message(GPU, **changed)) == ()
    assert (place.report.kept, place.report.refused) == (0, 1)


@pytest.mark.parametrize(
    "gpu",
    [
        {**GPU, "use": [101, 0]},
        {**GPU, "use": [1]},
        {**GPU, "use": [True, 1]},
        {**GPU, "mem_mib": [1e12, 1]},
        {**GPU, "processes": ["1", 1]},
        {**GPU, "use": [0] * 10000, "mem_mib": [0] * 10000, "processes": [0] * 10000},
        {**GPU, "gpu": 1 << 40},
        {**GPU, "mig": ["x"]},
        {**GPU, "mig": "x" * 100},
        {**GPU, "energy_j": -5},
        {**GPU, "clocks": {"busy": -1}},
        {**GPU, "clocks": {"sm": 2}},
        {**GPU, "clocks": {"hw_thermal": "x"}},
        {**GPU, "clocks": []},
        {},
        7,
    ],
    ids=lambda gpu: str(gpu)[:40],
)
def test_impossible_samples_are_rejected(place: Place, gpu: Any) -> None:
    assert place.read(place.message(gpu)) == ()
    assert place.report.refused == 1


def test_a_users_own_reconciler_takes_no_samples(place: Place) -> None:
    place.services = replace(place.services, scope=Scope(user="alice", uid=1001))
    assert place.read(place.message(GPU, sealed=-1)) == ()


def test_samples_of_another_run_or_after_the_end_are_dropped(place: Place) -> None:
    for changed in ({"restarts": 1}, {"uid": 1002}, {"began": START - 4000}, {"job_id": 99}):
        assert place.read(place.message(GPU, **changed)) == ()
    ended = job(
        81, state="COMPLETED", submit_time=int(START), start_time=int(START) + 10, end_time=int(START) + 60,
        nodes=("n1",),
    )  # fmt: skip
    place.slurm.add(ended)
    (use,) = place.read(place.message(GPU))
    assert use.use_pct == (40.0,)


def test_clocks_that_were_held_down_are_kept_with_the_use(place: Place) -> None:
    clocks = {"busy": 20, "slowed": 9, "hw_thermal": 9, "sm": 0.71, "thermal_s": 300.5}
    (one,) = place.read(place.message({**GPU, "clocks": {**clocks, "of_a_later_release": "x"}}))
    assert one.clocks == clocks
    earlier = {**clocks, "busy": 4}
    (one,) = place.read(place.message({**GPU, "clocks": earlier}, first=2), place.message(GPU, first=4))
    assert one.clocks == clocks  # a sampler without clocks, or one that was started again
