"""Incidents through whole passes, with fake edges and a real database: waits, marks, what is published and reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import START, Fuse, Killed, job, node
from night_figures import night_of
from test_reconcile_pass import ACT, NCCL, World, hooks, outcome, submission, submitted

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


class Storm(World):
    """A world of eight nodes below two leaf switches; a failure is heard of in one line."""

    def __init__(self, path: Path, **more: object) -> None:
        super().__init__(path, **more)  # type: ignore[arg-type]
        self.slurm.topology = TREE

    def fails(self, number: int, *, uid: int, on: str, at: int = -30, log: str = NCCL, **changes: object) -> JobRecord:
        """A job of user `uid` that agreed to retries ended `at` seconds from START."""
        user = f"u{uid}"
        kernel = changes.pop("kernel", ())
        times = {"start_time": START + at - 60, "end_time": START + at, "submit_time": START - 2000 + number}
        record = job(number, **{"uid": uid, "user": user, "nodes": (on,), **times, **changes})
        self.add(record)
        told = submission(number, uid=uid, user=user, at=float(record.submit_time))
        heard = hooks(record, log=log.format(user=user), kernel=kernel)  # type: ignore[arg-type]
        self.hear(submitted(told, uid=uid), *heard)
        return record

    def incidents(self) -> tuple[Incident, ...]:
        return self.store.incidents()

    def waits(self) -> list[float]:
        """Seconds from now that each retry waits, by job."""
        found = {a.attempt.job_id: a.retry_at for a in self.store.attempts() if a.retry_at is not None}
        return [at - self.clock.now() for _, at in sorted(found.items())]


@pytest.fixture
def storm(tmp_path: Path) -> Storm:
    return Storm(tmp_path)


def test_a_burst_on_one_switch_is_one_incident_before_it_is_over(storm: Storm) -> None:
    """40 jobs of 5 users within a minute: nobody is struck, all but the first two wait, the report has one line."""
    for i in range(40):
        storm.fails(1000 + i, uid=1001 + i % 5, on=f"n{i % 4}", at=i - 60)
    storm.run()
    (one,) = storm.incidents()
    assert (one.category, one.scope, one.users, len(one.jobs)) == ("nccl_error", "switch leaf0", 5, 40)
    assert (one.began, one.last, one.over_at) == (START - 60, START - 22, None)  # the 40th is one user's word
    assert {(a.decision, a.incident) for a in storm.store.attempts()} == {("retry", one.incident_id)}
    early, waiting = storm.waits()[:2], storm.waits()[2:]
    assert max(early) < 120 and min(waiting) >= one.began + 2 + QUIET - START
    assert len({round(wait) for wait in waiting}) > 25 and max(waiting) - min(waiting) > 450
    assert storm.store.strikes(since=0) == ()
    assert storm.publisher.published is not None
    told = OpenIncident(category="nccl_error", scope="switch leaf0", since=START - 60, jobs=40, users=5)
    assert storm.publisher.published.incidents == (told,)
    assert storm.publisher.told[1000][0].incident == one.incident_id  # he was told before it was recognised: again


def test_the_report_has_one_line_for_it_and_blames_no_node(storm: Storm) -> None:
    for i in range(6):
        storm.fails(1000 + i, uid=1001 + i % 5, on=f"n{i % 4}", at=i - 60)
    storm.run()
    store = storm.store
    kept = {"attempts": store.attempts(), "actions": store.actions(), "strikes": store.strikes(since=0)}
    page = night_of(**kept, incidents=store.incidents(), since=START - 3600, until=START)
    (row,) = page.incidents
    assert (row.jobs, row.users, row.over_at, row.gpu_hours) == (6, 5, None, pytest.approx(6 * 2 / 60))
    assert (page.categories, page.repeated, page.suspects, page.headline.failed_attempts) == ((), (), (), 6)
    (line,) = [line for line in render_text(build_page(page)).splitlines() if "leaf0" in line]
    assert " ".join(line.split()) == "NCCL error switch leaf0 2026-09-21 14:12 still open 6 5 0.20"


def test_strikes_from_before_it_was_recognised_count_no_more(storm: Storm) -> None:
    """Three nodes are lost within a minute: a rack's power, not three bad nodes."""
    for i in range(3):
        storm.fails(1000 + i, uid=1001, on=f"n{i}", log="", state="NODE_FAIL", reason="NodeDown", exit_code=0)
        storm.run()
    (one,) = storm.incidents()
    assert one.category == "node_failure"
    assert {(s.node, s.incident) for s in storm.store.strikes(since=0)} == {
        ("n0", one.incident_id),
        ("n1", one.incident_id),
    }
    assert storm.publisher.published is not None and storm.publisher.published.health == ()


def test_the_same_cause_on_one_node_strikes_it_and_is_no_incident(storm: Storm) -> None:
    for i in range(4):
        storm.fails(1000 + i, uid=1001 + i, on="n1", log="", state="NODE_FAIL", reason="NodeDown", exit_code=0)
    storm.run()
    assert storm.incidents() == ()
    assert [(s.node, s.incident) for s in storm.store.strikes(since=0)] == [("n1", "")] * 4


def test_a_conclusive_fault_of_a_node_counts_within_an_incident_too(storm: Storm) -> None:
    for i in range(4):
        storm.fails(1000 + i, uid=1001 + i, on=f"n{i}", at=i - 60)
    xid = "NVRM: Xid (PCI:0000:05:00): 79, pid=4711, name=python, GPU has fallen off the bus."
    storm.fails(1010, uid=1001, on="n2", kernel=[xid])
    storm.run()
    assert [(s.node, s.cause, s.incident) for s in storm.store.strikes(since=0)] == [("n2", "gpu_hardware", "")]
    assert len(storm.incidents()) == 1


def test_one_users_array_is_no_incident(storm: Storm) -> None:
    for i in range(12):
        task = {"array_job_id": 77, "array_task_id": i}
        storm.fails(1000 + i, uid=1001, on=f"n{i % 8}", at=i - 60, **task)
    storm.run()
    assert storm.incidents() == ()


def test_a_users_own_reconciler_looks_for_none(tmp_path: Path) -> None:
    mine = Storm(tmp_path / "mine", scope=Scope(user="u1001", uid=1001))
    for i in range(6):
        run = mine.fails(1000 + i, uid=1001, on=f"n{i}", at=i - 60)
        mine.logs.texts[run.job_id] = NCCL
    mine.run()
    assert mine.incidents() == ()


def test_it_grows_and_closes_in_later_passes_of_one_process(storm: Storm) -> None:
    book = ReconcilerState()

    def one_pass() -> Incident:
        reconcile_once(storm.services(), book)
        (one,) = storm.incidents()
        return one

    for i in range(3):
        storm.fails(1000 + i, uid=1001 + i, on=f"n{2 * i}", at=-60 + i)
    first = one_pass()
    storm.clock.sleep(300)
    for i in range(2):
        storm.fails(1010 + i, uid=1007 + i, on=f"n{i}", at=250 + i)
    grown = one_pass()
    storm.clock.sleep(900)
    over = one_pass()
    storm.fails(1020, uid=1001, on="n1", at=1190)
    one_pass()
    assert (first.last, grown.last, grown.incident_id) == (START - 58, START + 251, first.incident_id)
    assert over == replace(grown, over_at=START + 251 + QUIET)
    assert storm.publisher.published is not None and storm.publisher.published.incidents == ()
    late = next(a for a in storm.store.attempts() if a.attempt.job_id == 1020)
    assert late.incident == ""


def test_one_that_a_person_closed_is_over_for_a_reconciler_that_runs(storm: Storm) -> None:
    book = ReconcilerState()
    for i in range(3):
        storm.fails(1000 + i, uid=1001 + i, on=f"n{2 * i}", at=-60 + i)
    reconcile_once(storm.services(), book)
    (one,) = storm.incidents()
    closed = replace(one, over_at=storm.clock.now(), closed_by="root", note="filer is back")
    storm.store.save_incident(closed)
    storm.clock.sleep(20)
    storm.fails(1010, uid=1007, on="n1", at=10)
    reconcile_once(storm.services(), book)
    assert storm.incidents() == (closed,)
    assert storm.publisher.published is not None and storm.publisher.published.incidents == ()
    late = next(a for a in storm.store.attempts() if a.attempt.job_id == 1010)
    assert (late.incident, late.decision) == ("", "retry")
    assert late.retry_at is not None and late.retry_at < storm.clock.now() + 120


def test_a_pass_without_failures_asks_neither_the_database_nor_slurm_for_them(storm: Storm) -> None:
    book, fuse = ReconcilerState(), Fuse()
    reconcile_once(storm.services(), book)
    services = storm.services()
    reconcile_once(replace(services, store=fuse.through(storm.store), slurm=fuse.through(storm.slurm)), book)  # type: ignore[arg-type]
    assert fuse.count <= 4


def test_users_words_are_published_only_as_a_mount_point_that_we_know(tmp_path: Path) -> None:
    shown = {}
    for name, mounts in (("known", lambda path: "/scratch"), ("unknown", lambda path: "")):
        world = Storm(tmp_path / name)
        for i in range(3):
            world.fails(1000 + i, uid=1001 + i, on=f"n{3 * i}", log=AWAY)
        reconcile_once(replace(world.services(), mounts=mounts))
        assert world.publisher.published is not None
        shown[name] = [(one.category, one.scope) for one in world.publisher.published.incidents]
        assert [one.scope for one in world.incidents()] == ["path /scratch"]
    assert shown == {"known": [("storage_io", "path /scratch")], "unknown": [("storage_io", "path")]}


def test_a_storm_of_one_user_hides_no_burst_of_others_in_the_same_pass(tmp_path: Path) -> None:
    world = Storm(tmp_path / "w", config=replace(ACT, incidents=Incidents(min_users=3)))
    for i in range(60):
        world.fails(1000 + i, uid=1001, on=f"n{i % 8}", at=i - 900)
    for i in range(12):
        world.fails(2000 + i, uid=1002 + i % 3, on=f"n{i * 3 % 8}", at=i - 60)
    world.run()
    (one,) = world.incidents()
    assert len(one.jobs) == 12 and 1000 not in one.jobs
    assert sum(wait > 500 for wait in world.waits()[60:]) == 10


# --- killed ----------------------------------------------------------------------------------------------------------


def _struck(path: Path) -> Storm:
    """Six nodes lost, of three users; the third makes it an incident, the first two were judged a pass before."""
    world = Storm(path)
    world.slurm.nodes = {f"n{i}": node(f"n{i}") for i in range(8)}
    lost = {"log": "", "state": "NODE_FAIL", "reason": "NodeDown", "exit_code": 0}
    for i in range(2):
        world.fails(1000 + i, uid=1001 + i, on=f"n{4 * i}", at=i - 60, **lost)
    world.run()
    for i in range(2, 6):
        world.fails(1000 + i, uid=1001 + i % 3, on=f"n{i - 1}", at=i - 60, **lost)
    return world


def _all_of(world: Storm) -> dict[str, object]:
    struck = [(s.node, s.job_id, s.incident) for s in world.store.strikes(since=0)]
    shown = world.publisher.published and world.publisher.published.incidents
    return {**outcome(world), "incidents": world.incidents(), "struck": struck, "published": shown}


@pytest.mark.parametrize("deaths", [Fuse.of_each_kind, pytest.param(Fuse.everywhere, marks=pytest.mark.slow)])
def test_killed_at_any_call_of_an_edge_the_same_incident_is_found_and_the_same_decided(
    tmp_path: Path, deaths: Callable[[Fuse], list[tuple[int, bool]]]
) -> None:
    plain, fuse = _struck(tmp_path / "plain"), Fuse()
    reconcile_once(plain.services(fuse.through))
    plain.run()
    expected = _all_of(plain)
    plain.store.close()
    assert [len(one.jobs) for one in expected["incidents"]] == [6]  # type: ignore[attr-defined]
    assert len(expected["struck"]) == 2 and fuse.count > 40  # type: ignore[arg-type]
    for at, after in deaths(fuse):
        world = _struck(tmp_path / f"{at}-{after}")
        with pytest.raises(Killed):
            reconcile_once(world.services(Fuse(at, after=after).through))
        world.run()
        found = _all_of(world)
        for name in expected:
            assert found[name] == expected[name], (at, after, fuse.kinds[at - 1], name)
        world.store.close()
