"""What passes record about nodes: who drained a node, who resumed it, and which node health is published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import job
from test_reconcile_pass import XID_79, World, hooks

from slurmwrap.model.decision import PlannedAction, SlurmAction, Verb
from slurmwrap.model.job_run import PrerunRecord
from slurmwrap.model.submission import Submission
from slurmwrap.model.verdict import Outcome, Verdict


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def published_health(world: World) -> list[tuple[str, str]]:
    assert world.publisher.published is not None
    return [(entry.node, entry.status) for entry in world.publisher.published.health]


def add_job_with_gpu_fault(world: World, job_id: int) -> None:
    failed = job(job_id)
    world.add(failed)
    world.spool_observations(*hooks(failed, kernel=[XID_79]))


def test_a_slurmwrap_drain_that_a_person_lifts_counts_as_a_repair(world: World) -> None:
    add_job_with_gpu_fault(world, 81)
    world.run()
    assert published_health(world) == [("n1", "drained")]
    assert [(r.node, r.ours) for r in world.store.removals()] == [("n1", True)]
    world.clock.sleep(600)
    world.slurm.apply(SlurmAction(verb=Verb.RESUME, target="n1"))
    world.run()
    assert published_health(world) == []
    assert [(r.node, r.kind) for r in world.store.repairs(since=0)] == [("n1", "lifted")]
    assert world.store.removals() == ()


def test_the_end_of_a_drain_that_a_person_set_is_no_repair(world: World) -> None:
    drained = replace(world.slurm.nodes["n3"], flags=frozenset({"DRAIN"}), reason="bad fan")
    world.slurm.nodes["n3"] = drained
    world.run()
    world.clock.sleep(600)
    world.run()
    assert [(r.node, r.reason, r.ours) for r in world.store.node_history(0).removals] == [("n3", "bad fan", False)]
    world.slurm.nodes["n3"] = replace(drained, flags=frozenset(), reason="")
    world.clock.sleep(600)
    world.run()
    assert world.store.removals() == () and world.store.repairs(since=0) == ()


def test_a_drain_that_slurmwrap_lifts_itself_is_no_repair(world: World) -> None:
    add_job_with_gpu_fault(world, 81)
    world.run()
    lift = SlurmAction(verb=Verb.RESUME, target="n1")
    world.clock.sleep(600)
    number = world.store.intend(None, PlannedAction(rule="drain", action=lift), "act", world.clock.now())
    world.slurm.apply(lift)
    world.store.done(number, world.clock.now())
    world.run()
    assert world.store.removals() == () and world.store.repairs(since=0) == ()
    assert published_health(world) == [("n1", "suspect")]


def test_the_counts_of_failing_scripts_are_published_without_names(world: World) -> None:
    at = world.clock.now()
    verdicts = ((1001, "v1", Outcome.FAIL), (1001, "v2", Outcome.PASS), (1002, "v3", Outcome.PASS))
    for number, (uid, fingerprint, outcome) in enumerate(verdicts):
        common = {"cluster": "lab", "job_id": 500 + number, "uid": uid, "fingerprint": fingerprint}
        sent = Submission(**common, user="ada", at=at + number, profile_key="train", prerun_job_id=600 + number)  # type: ignore[arg-type]
        verdict = Verdict(outcome=outcome, layer="exit", reason="ended")
        world.store.save_submission(sent)
        world.store.save_prerun(PrerunRecord(**common, prerun_job_id=600 + number, at=at, verdict=verdict))  # type: ignore[arg-type]
    add_job_with_gpu_fault(world, 81)
    world.run()
    assert world.publisher.published is not None
    assert world.publisher.published.new_scripts == (1, 2)
    assert world.publisher.published.changed_scripts == (0, 1)
