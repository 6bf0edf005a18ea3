"""Incidents in whole passes with fake adapters and a real database: retry delays, marks on runs, what is published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import START, Fuse, Killed, job, node
from night_figures import night_of
from test_reconcile_pass import ACT, NCCL, World, hooks, outcome, submission, submission_observation

from slurmwrap.config.load_config import Incidents
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.topology import Switch, Topology
from slurmwrap.policy.incident import Incident
from slurmwrap.protocols import OpenIncident
from slurmwrap.reconcile import Scope, reconcile_once
from slurmwrap.reconcile.reconcile_context import ReconcilerState
from slurmwrap.report.headline import build_page
from slurmwrap.report.report_formats import render_text

pytestmark = pytest.mark.early

TREE = Topology(
    switches=(
        Switch(name="leaf0", level=0, nodes=("n0", "n1", "n2", "n3")),
        Switch(name="leaf1", level=0, nodes=("n4", "n5", "n6", "n7")),
    )
)
AWAY = "OSError: [Errno 5] Input/output error: '/scratch/{user}/data.pt'\n"
QUIET = 600


class TwoSwitchWorld(World):
    """A world of eight nodes below two leaf switches, with a short way to add failed jobs."""

    def __init__(self, path: Path, **more: object) -> None:
        super().__init__(path, **more)  # type: ignore[arg-type]
        self.slurm.topology = TREE

    def add_failed_job(
        self, number: int, *, uid: int, on: str, at: int = -30, log: str = NCCL, **changes: object
    ) -> JobRecord:
        """Add a failed job of user `uid`, with consent to retries, that ended `at` seconds after START."""
        user = f"u{uid}"
        kernel = changes.pop("kernel", ())
        times = {"start_time": START + at - 60, "end_time": START + at, "submit_time": START - 2000 + number}
        record = job(number, **{"uid": uid, "user": user, "nodes": (on,), **times, **changes})
        self.add(record)
        agreed = submission(number, uid=uid, user=user, at=float(record.submit_time))
        observations = hooks(record, log=log.format(user=user), kernel=kernel)  # type: ignore[arg-type]
        self.spool_observations(submission_observation(agreed, uid=uid), *observations)
        return record

    def incidents(self) -> tuple[Incident, ...]:
        return self.store.incidents()

    def retry_delays(self) -> list[float]:
        """How many seconds from now each retry waits, in order of job id."""
        found = {a.attempt.job_id: a.retry_at for a in self.store.attempts() if a.retry_at is not None}
        return [at - self.clock.now() for _, at in sorted(found.items())]


@pytest.fixture
def world(tmp_path: Path) -> TwoSwitchWorld:
    return TwoSwitchWorld(tmp_path)


def test_many_failures_below_one_switch_are_one_open_incident(world: TwoSwitchWorld) -> None:
    """40 jobs of 5 users fail within a minute: no strikes, and all retries but the first two wait."""
    for i in range(40):
        world.add_failed_job(1000 + i, uid=1001 + i % 5, on=f"n{i % 4}", at=i - 60)
    world.run()
    (one,) = world.incidents()
    assert (one.category, one.scope, one.users, len(one.jobs)) == ("nccl_error", "switch leaf0", 5, 40)
    assert (one.began, one.last, one.over_at) == (
        START - 60,
        START - 22,
        None,
    )  # the log of the 40th job alone does not extend the incident
    assert {(a.decision, a.incident) for a in world.store.attempts()} == {("retry", one.incident_id)}
    early, delayed = world.retry_delays()[:2], world.retry_delays()[2:]
    assert max(early) < 120 and min(delayed) >= one.began + 2 + QUIET - START
    assert len({round(wait) for wait in delayed}) > 25 and max(delayed) - min(delayed) > 450
    assert world.store.strikes(since=0) == ()
    assert world.publisher.published is not None
    published = OpenIncident(category="nccl_error", scope="switch leaf0", since=START - 60, jobs=40, users=5)
    assert world.publisher.published.incidents == (published,)
    assert (
        world.publisher.told[1000][0].incident == one.incident_id
    )  # the owner was notified before the incident was recognised, and again after it


def test_the_report_has_one_line_per_incident_and_blames_no_node(world: TwoSwitchWorld) -> None:
    for i in range(6):
        world.add_failed_job(1000 + i, uid=1001 + i % 5, on=f"n{i % 4}", at=i - 60)
    world.run()
    store = world.store
    kept = {"attempts": store.attempts(), "actions": store.actions(), "strikes": store.strikes(since=0)}
    page = night_of(**kept, incidents=store.incidents(), since=START - 3600, until=START)
    (row,) = page.incidents
    assert (row.jobs, row.users, row.over_at, row.gpu_hours) == (6, 5, None, pytest.approx(6 * 2 / 60))
    assert (page.categories, page.repeated, page.suspects, page.headline.failed_attempts) == ((), (), (), 6)
    (line,) = [line for line in render_text(build_page(page)).splitlines() if "leaf0" in line]
    assert " ".join(line.split()) == "NCCL error switch leaf0 2026-09-21 14:12 still open 6 5 0.20"


def test_strikes_from_before_the_incident_was_recognised_no_longer_count(world: TwoSwitchWorld) -> None:
    """Three nodes fail within a minute: this is a rack's power supply, not three bad nodes."""
    for i in range(3):
        world.add_failed_job(1000 + i, uid=1001, on=f"n{i}", log="", state="NODE_FAIL", reason="NodeDown", exit_code=0)
        world.run()
    (one,) = world.incidents()
    assert one.category == "node_failure"
    assert {(s.node, s.incident) for s in world.store.strikes(since=0)} == {
        ("n0", one.incident_id),
        ("n1", one.incident_id),
    }
    assert world.publisher.published is not None and world.publisher.published.health == ()


def test_failures_of_one_cause_on_one_node_are_strikes_and_no_incident(world: TwoSwitchWorld) -> None:
    for i in range(4):
        world.add_failed_job(1000 + i, uid=1001 + i, on="n1", log="", state="NODE_FAIL", reason="NodeDown", exit_code=0)
    world.run()
    assert world.incidents() == ()
    assert [(s.node, s.incident) for s in world.store.strikes(since=0)] == [("n1", "")] * 4


def test_a_conclusive_node_fault_during_an_incident_is_a_strike(world: TwoSwitchWorld) -> None:
    for i in range(4):
        world.add_failed_job(1000 + i, uid=1001 + i, on=f"n{i}", at=i - 60)
    xid = "NVRM: Xid (PCI:0000:05:00): 79, pid=4711, name=python, GPU has fallen off the bus."
    world.add_failed_job(1010, uid=1001, on="n2", kernel=[xid])
    world.run()
    assert [(s.node, s.cause, s.incident) for s in world.store.strikes(since=0)] == [("n2", "gpu_hardware", "")]
    assert len(world.incidents()) == 1


def test_one_users_array_is_no_incident(world: TwoSwitchWorld) -> None:
    for i in range(12):
        task = {"array_job_id": 77, "array_task_id": i}
        world.add_failed_job(1000 + i, uid=1001, on=f"n{i % 8}", at=i - 60, **task)
    world.run()
    assert world.incidents() == ()


def test_the_reconciler_in_user_mode_detects_no_incidents(tmp_path: Path) -> None:
    mine = TwoSwitchWorld(tmp_path / "mine", scope=Scope(user="u1001", uid=1001))
    for i in range(6):
        run = mine.add_failed_job(1000 + i, uid=1001, on=f"n{i}", at=i - 60)
        mine.logs.texts[run.job_id] = NCCL
    mine.run()
    assert mine.incidents() == ()


def test_an_incident_grows_and_closes_in_later_passes_of_one_process(world: TwoSwitchWorld) -> None:
    state = ReconcilerState()

    def one_pass() -> Incident:
        reconcile_once(world.services(), state)
        (one,) = world.incidents()
        return one

    for i in range(3):
        world.add_failed_job(1000 + i, uid=1001 + i, on=f"n{2 * i}", at=-60 + i)
    first = one_pass()
    world.clock.sleep(300)
    for i in range(2):
        world.add_failed_job(1010 + i, uid=1007 + i, on=f"n{i}", at=250 + i)
    grown = one_pass()
    world.clock.sleep(900)
    over = one_pass()
    world.add_failed_job(1020, uid=1001, on="n1", at=1190)
    one_pass()
    assert (first.last, grown.last, grown.incident_id) == (START - 58, START + 251, first.incident_id)
    assert over == replace(grown, over_at=START + 251 + QUIET)
    assert world.publisher.published is not None and world.publisher.published.incidents == ()
    late = next(a for a in world.store.attempts() if a.attempt.job_id == 1020)
    assert late.incident == ""


def test_an_incident_closed_by_a_person_is_over_for_a_running_reconciler(world: TwoSwitchWorld) -> None:
    state = ReconcilerState()
    for i in range(3):
        world.add_failed_job(1000 + i, uid=1001 + i, on=f"n{2 * i}", at=-60 + i)
    reconcile_once(world.services(), state)
    (one,) = world.incidents()
    closed = replace(one, over_at=world.clock.now(), closed_by="root", note="filer is back")
    world.store.save_incident(closed)
    world.clock.sleep(20)
    world.add_failed_job(1010, uid=1007, on="n1", at=10)
    reconcile_once(world.services(), state)
    assert world.incidents() == (closed,)
    assert world.publisher.published is not None and world.publisher.published.incidents == ()
    late = next(a for a in world.store.attempts() if a.attempt.job_id == 1010)
    assert (late.incident, late.decision) == ("", "retry")
    assert late.retry_at is not None and late.retry_at < world.clock.now() + 120


def test_a_pass_without_failures_makes_no_queries_for_incidents(world: TwoSwitchWorld) -> None:
    state, fuse = ReconcilerState(), Fuse()
    reconcile_once(world.services(), state)
    services = world.services()
    reconcile_once(replace(services, store=fuse.through(world.store), slurm=fuse.through(world.slurm)), state)  # type: ignore[arg-type]
    assert fuse.count <= 4


def test_a_path_from_user_logs_is_published_only_as_a_known_mount_point(tmp_path: Path) -> None:
    shown = {}
    for name, mounts in (("known", lambda path: "/scratch"), ("unknown", lambda path: "")):
        world = TwoSwitchWorld(tmp_path / name)
        for i in range(3):
            world.add_failed_job(1000 + i, uid=1001 + i, on=f"n{3 * i}", log=AWAY)
        reconcile_once(replace(world.services(), mounts=mounts))
        assert world.publisher.published is not None
        shown[name] = [(one.category, one.scope) for one in world.publisher.published.incidents]
        assert [one.scope for one in world.incidents()] == ["path /scratch"]
    assert shown == {"known": [("storage_io", "path /scratch")], "unknown": [("storage_io", "path")]}


def test_failures_of_one_user_do_not_hide_an_incident_of_other_users(tmp_path: Path) -> None:
    world = TwoSwitchWorld(tmp_path / "w", config=replace(ACT, incidents=Incidents(min_users=3)))
    for i in range(60):
        world.add_failed_job(1000 + i, uid=1001, on=f"n{i % 8}", at=i - 900)
    for i in range(12):
        world.add_failed_job(2000 + i, uid=1002 + i % 3, on=f"n{i * 3 % 8}", at=i - 60)
    world.run()
    (one,) = world.incidents()
    assert len(one.jobs) == 12 and 1000 not in one.jobs
    assert sum(wait > 500 for wait in world.retry_delays()[60:]) == 10


# --- kills -----------------------------------------------------------------------------------------------------------


def _six_lost_nodes(path: Path) -> TwoSwitchWorld:
    """Jobs of three users lose six nodes; from the third loss on it is an incident.

    The first two losses were diagnosed in an earlier pass.
    """
    world = TwoSwitchWorld(path)
    world.slurm.nodes = {f"n{i}": node(f"n{i}") for i in range(8)}
    lost = {"log": "", "state": "NODE_FAIL", "reason": "NodeDown", "exit_code": 0}
    for i in range(2):
        world.add_failed_job(1000 + i, uid=1001 + i, on=f"n{4 * i}", at=i - 60, **lost)
    world.run()
    for i in range(2, 6):
        world.add_failed_job(1000 + i, uid=1001 + i % 3, on=f"n{i - 1}", at=i - 60, **lost)
    return world


def _outcome_with_incidents(world: TwoSwitchWorld) -> dict[str, object]:
    struck = [(s.node, s.job_id, s.incident) for s in world.store.strikes(since=0)]
    shown = world.publisher.published and world.publisher.published.incidents
    return {**outcome(world), "incidents": world.incidents(), "struck": struck, "published": shown}


@pytest.mark.parametrize("deaths", [Fuse.of_each_kind, pytest.param(Fuse.everywhere, marks=pytest.mark.slow)])
def test_a_kill_at_any_adapter_call_changes_no_incident_and_no_decision(
    tmp_path: Path, deaths: Callable[[Fuse], list[tuple[int, bool]]]
) -> None:
    plain, fuse = _six_lost_nodes(tmp_path / "plain"), Fuse()
    reconcile_once(plain.services(fuse.through))
    plain.run()
    expected = _outcome_with_incidents(plain)
    plain.store.close()
    assert [len(one.jobs) for one in expected["incidents"]] == [6]  # type: ignore[attr-defined]
    assert len(expected["struck"]) == 2 and fuse.count > 40  # type: ignore[arg-type]
    for at, after in deaths(fuse):
        world = _six_lost_nodes(tmp_path / f"{at}-{after}")
        with pytest.raises(Killed):
            reconcile_once(world.services(Fuse(at, after=after).through))
        world.run()
        found = _outcome_with_incidents(world)
        for name in expected:
            assert found[name] == expected[name], (at, after, fuse.kinds[at - 1], name)
        world.store.close()
