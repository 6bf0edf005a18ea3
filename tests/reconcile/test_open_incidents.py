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
from slurmwrap.report.headline import build_page, make_night_verdict
from slurmwrap.report.night_report import NightReport
from slurmwrap.report.report_formats import render_text

pytestmark = pytest.mark.early

TREE = Topology(
    switches=(
        Switch(name="leaf0", level=0, nodes=("n0", "n1", "n2", "n3")),
        Switch(name="leaf1", level=0, nodes=("n4", "n5", "n6", "n7")),
    )
)
NFS = "nfs: server filer1 not responding, still trying"
LOST = {"log": "", "state": "NODE_FAIL", "reason": "NodeDown", "exit_code": 0}
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


def forged_node_loss() -> dict[str, str]:
    """What a user prints to look like a job that lost its node."""
    return {"log": "slurmstepd: error: *** JOB 81 ON n1 CANCELLED AT 2026-09-21T14:12:00 DUE TO NODE FAILURE ***\n"}


def make_night(world: TwoSwitchWorld) -> NightReport:
    world.run()
    store = world.store
    kept = {"attempts": store.attempts(), "actions": store.actions(), "strikes": store.strikes(since=0)}
    return night_of(**kept, incidents=store.incidents(), since=START - 3600, until=START)


@pytest.fixture
def world(tmp_path: Path) -> TwoSwitchWorld:
    return TwoSwitchWorld(tmp_path)


def test_many_failures_below_one_switch_are_one_open_incident(world: TwoSwitchWorld) -> None:
    """40 jobs of 5 users fail within a minute, two of them because Slurm lost their nodes below the switch.

    There are no strikes. All retries wait but those decided while logs alone showed it, the first two of each user.
    """
    for i in range(40):
        world.add_failed_job(1000 + i, uid=1001 + i % 5, on=f"n{i % 4}", at=i - 60, **(LOST if i in (20, 21) else {}))
    world.run()
    (one,) = world.incidents()
    assert (one.category, one.scope, one.users, len(one.jobs)) == ("nccl_error", "switch leaf0", 5, 38)
    # The logs after the lost nodes do not extend it.
    assert (one.proof, one.began, one.last, one.over_at) == (("n0", "n1"), START - 60, START - 39, None)
    joined = [a for a in world.store.attempts() if a.state != "NODE_FAIL"]
    assert {(a.decision, a.incident) for a in joined} == {("retry", one.incident_id)}
    waits = {a.attempt.job_id: a.retry_at - START for a in joined if a.retry_at is not None}
    early, delayed = list(waits.values())[:10], list(waits.values())[10:]
    assert max(early) < 120 and min(delayed) >= one.began + 2 + QUIET - START
    assert len({round(wait) for wait in delayed}) > 20 and max(delayed) - min(delayed) > 450
    assert world.publisher.published is not None
    published = OpenIncident(category="nccl_error", scope="switch leaf0", since=START - 60, jobs=38, users=5)
    assert world.publisher.published.incidents == (published,)
    assert (
        world.publisher.told[1000][0].incident == one.incident_id
    )  # the owner was notified before the incident was recognised, and again after it


def test_a_clock_that_is_a_day_slow_delays_no_retry_by_a_day(world: TwoSwitchWorld) -> None:
    """The incident has Slurm's times. A retry that waits for its end must not wait for the clock too."""
    for i in range(40):
        world.add_failed_job(1000 + i, uid=1001 + i % 5, on=f"n{i % 4}", at=i - 60, **(LOST if i in (20, 21) else {}))
    world.run()
    world.add_failed_job(2000, uid=1002, on="n1", at=-1)
    world.clock.time -= 86_400
    world.run()
    starts = [int(call[3].partition("+")[2]) for call in world.requested_actions() if call[2] == "StartTime"]
    assert len(starts) == 41 and starts[-1] < QUIET + 900 + 60


def test_forged_logs_of_three_users_delay_and_warn_nobody_else(world: TwoSwitchWorld) -> None:
    """41 jobs of three users print the same error. A fourth user, who fails the same way once, retries at once."""
    for i in range(41):
        world.add_failed_job(1000 + i, uid=1001 + i % 3, on=f"n{i % 4}", at=i - 60)
    world.add_failed_job(2000, uid=1009, on="n2", at=-59)
    world.add_failed_job(2001, uid=1009, on="n3", at=-18)
    world.run()
    (one,) = world.incidents()
    assert (one.scope, one.users, len(one.jobs), one.confirmed) == ("switch leaf0", 4, 43, False)
    assert one.doubt == "unconfirmed, by log text of 4 users alone"
    assert world.publisher.published is not None and world.publisher.published.incidents == ()
    delays = world.retry_delays()
    assert max(delays[-2:]) < 120 and sum(wait > 500 for wait in delays[:-2]) == 41 - 3 * 2
    marked = {a.uid for a in world.store.attempts() if a.incident}
    assert marked == {1001, 1002, 1003}


def test_forged_logs_void_no_strike_and_a_fault_of_one_node_confirms_nothing(world: TwoSwitchWorld) -> None:
    for i in range(12):
        world.add_failed_job(1000 + i, uid=1001 + i % 3, on=f"n{i % 4}", at=i - 60, **forged_node_loss())
    for i in range(2):
        world.add_failed_job(2000 + i, uid=1009 + i, on="n2", at=i - 40, **LOST)
    world.run()
    assert [one.confirmed for one in world.incidents()] == [False]
    struck = [(s.node, s.job_id, s.incident) for s in world.store.strikes(since=0)]
    assert struck == [("n2", 2000, ""), ("n2", 2001, "")]


def test_a_file_system_that_the_kernel_misses_on_some_nodes_is_an_incident_of_the_site(world: TwoSwitchWorld) -> None:
    """Every third job has the kernel's line beside its error; the others have only the error and its path."""
    for i in range(12):
        kernel = [NFS] if i % 3 == 1 else []
        world.add_failed_job(1000 + i, uid=1001 + i % 4, on=f"n{2 * i % 8}", at=i - 60, log=AWAY, kernel=kernel)
    reconcile_once(replace(world.services(), mounts=lambda path: "/scratch"))
    (one,) = world.incidents()
    assert (one.category, one.scope, len(one.jobs), one.proof) == ("storage_io", "path /scratch", 12, ("n0", "n2"))
    assert world.publisher.published is not None
    assert [p.scope for p in world.publisher.published.incidents] == ["path /scratch"]
    assert {a.incident for a in world.store.attempts()} == {one.incident_id}


def test_the_report_has_one_line_per_incident_and_blames_no_node(world: TwoSwitchWorld) -> None:
    for i in range(6):
        world.add_failed_job(1000 + i, uid=1001 + i % 5, on=f"n{i % 4}", at=i - 60, log="", kernel=[NFS])
    page = make_night(world)
    (row,) = page.incidents
    assert (row.jobs, row.users, row.over_at, row.gpu_hours) == (6, 5, None, pytest.approx(6 * 2 / 60))
    assert (page.categories, page.repeated, page.suspects, page.headline.failed_attempts) == ((), (), (), 6)
    assert make_night_verdict(page).word == "watch"
    (line,) = [line for line in render_text(build_page(page)).splitlines() if "switch" in line]
    assert " ".join(line.split()) == "file syste… switch lea… 2026-09-21 14:12 still open 6 5 0.20"


def test_the_report_says_that_only_logs_show_an_incident(world: TwoSwitchWorld) -> None:
    for i in range(6):
        world.add_failed_job(1000 + i, uid=1001 + i % 2, on=f"n{i % 4}", at=i - 60)
    page = make_night(world)
    (row,) = page.incidents
    assert (row.scope, row.doubt) == ("switch leaf0", "unconfirmed, by log text of 2 users alone")
    assert row.doubt in render_text(build_page(page))
    assert make_night_verdict(page).word == "quiet"


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
            world.add_failed_job(1000 + i, uid=1001 + i, on=f"n{3 * i}", log=AWAY, kernel=[NFS])
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
    # Each user's first two retries do not wait, because only logs show the incident.
    assert sum(wait > 500 for wait in world.retry_delays()[60:]) == 12 - 3 * 2


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


def _nodes_lost_after_errors(path: Path) -> TwoSwitchWorld:
    """Logs of two users show an incident, which two lost nodes confirm. A third user's job failed the same way."""
    world = TwoSwitchWorld(path)
    for i in range(8):
        world.add_failed_job(1000 + i, uid=1001 + i % 2, on=f"n{i % 4}", at=i - 60)
    world.add_failed_job(1010, uid=1003, on="n3", at=-50)
    world.run()
    for i in range(2):
        world.add_failed_job(1020 + i, uid=1004, on=f"n{i}", at=i - 40, **LOST)
    world.add_failed_job(1030, uid=1005, on="n2", at=-20)
    return world


def test_lost_nodes_make_an_incident_of_some_users_one_of_the_site(tmp_path: Path) -> None:
    world = _nodes_lost_after_errors(tmp_path)
    (before,) = world.incidents()
    assert world.publisher.published is not None and world.publisher.published.incidents == ()
    assert {a.uid for a in world.store.attempts() if a.incident} == {1001, 1002}
    world.run()
    (one,) = world.incidents()
    assert (one.incident_id, before.confirmed, one.proof) == (before.incident_id, False, ("n0", "n1"))
    assert [p.scope for p in world.publisher.published.incidents] == ["switch leaf0"]
    assert {a.uid for a in world.store.attempts() if a.incident} == {1001, 1002, 1003, 1005}
    assert world.publisher.told[1010][0].incident == one.incident_id


def _outcome_with_incidents(world: TwoSwitchWorld) -> dict[str, object]:
    struck = [(s.node, s.job_id, s.incident) for s in world.store.strikes(since=0)]
    shown = world.publisher.published and world.publisher.published.incidents
    return {**outcome(world), "incidents": world.incidents(), "struck": struck, "published": shown}


@pytest.mark.parametrize(("make", "jobs", "strikes"), [(_six_lost_nodes, 6, 2), (_nodes_lost_after_errors, 10, 2)])
@pytest.mark.parametrize("deaths", [Fuse.of_each_kind, pytest.param(Fuse.everywhere, marks=pytest.mark.slow)])
def test_a_kill_at_any_adapter_call_changes_no_incident_and_no_decision(
    tmp_path: Path,
    deaths: Callable[[Fuse], list[tuple[int, bool]]],
    make: Callable[[Path], TwoSwitchWorld],
    jobs: int,
    strikes: int,
) -> None:
    plain, fuse = make(tmp_path / "plain"), Fuse()
    reconcile_once(plain.services(fuse.through))
    plain.run()
    expected = _outcome_with_incidents(plain)
    plain.store.close()
    assert [len(one.jobs) for one in expected["incidents"]] == [jobs]  # type: ignore[attr-defined]
    assert len(expected["struck"]) == strikes and fuse.count > 40  # type: ignore[arg-type]
    for at, after in deaths(fuse):
        world = make(tmp_path / f"{at}-{after}")
        with pytest.raises(Killed):
            reconcile_once(world.services(Fuse(at, after=after).through))
        world.run()
        found = _outcome_with_incidents(world)
        for name in expected:
            assert found[name] == expected[name], (at, after, fuse.kinds[at - 1], name)
        world.store.close()
