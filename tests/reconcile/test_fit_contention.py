"""The reconciler fits what busy neighbours cost from the site's database, once a day, and publishes it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import START, FakeClock, FakeLogs, FakePublisher, FakeSlurm, MemorySpool

from slurmwrap.config.load_config import Config
from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.model.cluster import NO_EVIDENCE, ContentionWeights
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.resource_profile import Measurement, ResourceProfile
from slurmwrap.model.submission import Submission
from slurmwrap.profiling.contention import ComparedRun
from slurmwrap.reconcile import Scope, Services, reconcile_once
from slurmwrap.reconcile.reconcile_context import ReconcilerState
from slurmwrap.store.database import Database
from slurmwrap.store.deserialize import record_from_json

DAY = 86_400
CPUS = 32  # of a node of FakeSlurm


class Place:
    """A reconciler on a site with a history of measured runs."""

    def __init__(self, root: Path) -> None:
        self.slurm, self.clock, self.publisher = FakeSlurm(), FakeClock(), FakePublisher()
        self.store, self.state, self.jobs = Database.open(root / "site.db"), ReconcilerState(), 100
        self.services = Services(
            slurm=self.slurm, store=self.store, spools=(MemorySpool(),), logs=FakeLogs(), clock=self.clock,
            publisher=self.publisher, unpack=record_from_json, classify=diagnose_run,
            read_inputs=lambda uid, paths: (), config=Config(), scope=Scope(trusted=frozenset({0})),
        )  # fmt: skip

    def add(self, uid: int, start: int, *, cpus: float, steps_per_s: float | None = None, script: str = "") -> None:
        self.jobs += 1
        self.store.save_attempt(
            JobRun(
                attempt=RunKey(cluster="lab", job_id=self.jobs, submit_time=start - 60), uid=uid, gpus=4, nodes=("n1",),
                partition="gpu", start_time=start, end_time=start + 1800,
                measurement=Measurement(seconds=1800, cpus_used=cpus, steps_per_s=steps_per_s),
            )
        )  # fmt: skip
        if script:
            given = {"profile_key": "train", "script_sha256": script, "profile_variant": "b64"}
            self.store.save_submission(
                Submission(cluster="lab", job_id=self.jobs, uid=uid, user="u", at=float(start - 60), gpus=4, **given)
            )

    def add_pairs(self, lost: float, pairs: int = 30) -> None:
        """Runs of four users on n1, half of them beside a job that keeps half of the CPUs busy."""
        rng, start = random.Random(5), START - 20 * DAY
        for uid in (1, 2, 3, 4):
            self.store.save_profile(ResourceProfile(key=f"{uid}:train", sensitivity={"cpu": 1.3}))
        for number in range(2 * pairs):
            start += 2000
            beside = number % 2
            speed = (1 - lost * beside) * rng.uniform(0.99, 1.01)
            self.add(number // 2 % 4 + 1, start, cpus=CPUS / 2, steps_per_s=speed, script=f"{number // 8:064}")
            if beside:
                self.add(9, start, cpus=CPUS / 2)

    def publish(self) -> ContentionWeights:
        reconcile_once(self.services, self.state)
        assert self.publisher.published is not None
        return self.publisher.published.contention


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.store.close()


def test_what_busy_neighbours_cost_is_published_and_fitted_again_after_a_day(place: Place) -> None:
    place.add_pairs(lost=0.4)  # of ln(speed): 0.51 = weight x 1/2 x 1/2
    found = place.publish()
    assert 1.8 < found.cpus < 2.05
    assert (found.memory, found.pcie, found.pairs) == (1.0, 0.0, 30)
    place.store.connection.execute("DELETE FROM attempts")
    place.clock.sleep(3600)
    assert place.publish() == found
    place.clock.sleep(DAY)
    assert place.publish() == NO_EVIDENCE


@pytest.mark.parametrize(("lost", "pairs"), [(0.0, 30), (0.4, 12)])
def test_without_an_effect_or_enough_pairs_the_score_stays_as_it_is(place: Place, lost: float, pairs: int) -> None:
    place.add_pairs(lost, pairs)
    assert place.publish() == NO_EVIDENCE


def test_runs_are_read_with_their_profiles_and_neighbours(place: Place) -> None:
    place.add(1, START - 9000, cpus=8.0, steps_per_s=2.0, script="a" * 64)
    place.add(2, START - 9000, cpus=5.0)
    place.store.save_profile(ResourceProfile(key="1:train", sensitivity={"cpu": 1.3}))
    place.store.save_profile(ResourceProfile(key="2:train", sensitivity={"cpu": 9.0}))
    neighbour = ComparedRun(
        uid=2, nodes=("n1",), gpus=4, start=START - 9000.0, end=START - 7200.0, cpus_used=5.0, sensitivity={}
    )
    work = ("a" * 64, "b64", "4", "gpu")
    counted = replace(neighbour, uid=1, work=work, steps_per_s=2.0, cpus_used=8.0, sensitivity={"cpu": 1.3})
    assert set(map(repr, place.store.shared_runs(START - DAY))) == set(map(repr, (counted, neighbour)))
    assert place.store.shared_runs(START) == ()
