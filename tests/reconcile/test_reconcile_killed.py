"""Many runs through a reconciler that is killed all the way: nothing lost, nothing done twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count, pairwise, product
from pathlib import Path
from random import Random

import pytest
from fakes import FakeClock, Fuse, Killed, job, node
from test_reconcile_pass import BUG, MISSING, NCCL, XID_79, World, hooks, outcome, submission, submitted

from slurmwrap.config.load_config import RULES, Config, Placement, Retry
from slurmwrap.errors import SlurmError, StoreError
from slurmwrap.model.decision import InputRead, SlurmAction
from slurmwrap.model.job_record import JobRecord
from slurmwrap.reconcile import reconcile_once
from slurmwrap.store.database import Database

pytestmark = pytest.mark.early

BATCH = 2
CONFIG = Config(
    rules=dict.fromkeys(RULES, "act"), placement=Placement(exclude_cap=0.5), retry=Retry(max_per_hour=3, backoff_s=30)
)
Ending = Callable[[World, JobRecord], JobRecord]


def _heard(world: World, run: JobRecord, *, consent: bool = True, **told: object) -> JobRecord:
    if consent:
        world.hear(submitted(submission(run.job_id, at=float(run.submit_time), output_appends=run.job_id % 2 == 0)))
    world.hear(*hooks(run, **told))  # type: ignore[arg-type]
    return run


def _completed(world: World, run: JobRecord) -> JobRecord:
    return _heard(world, replace(run, state="COMPLETED", reason="None", exit_code=0))


def _bug(world: World, run: JobRecord) -> JobRecord:
    return _heard(world, run, log=BUG)


def _transient(world: World, run: JobRecord) -> JobRecord:
    return _heard(world, run, log=NCCL)


def _without_consent(world: World, run: JobRecord) -> JobRecord:
    return _heard(world, run, consent=False, log=NCCL)


def _broken_gpu(world: World, run: JobRecord) -> JobRecord:
    return _heard(world, run, log=NCCL, kernel=[XID_79])


def _out_of_memory(world: World, run: JobRecord) -> JobRecord:
    return _heard(world, replace(run, state="OUT_OF_MEMORY", reason="OutOfMemory", exit_code=0, signal=125))


def _time_limit(world: World, run: JobRecord) -> JobRecord:
    return _heard(world, replace(run, state="TIMEOUT", reason="TimeLimit", exit_code=0, signal=15))


def _cancelled(world: World, run: JobRecord) -> JobRecord:
    return _heard(world, replace(run, state="CANCELLED", reason="None", exit_code=0, signal=15), log=NCCL)


def _missing_input(world: World, run: JobRecord) -> JobRecord:
    """Half of them may be tried elsewhere; the others' input is blocked at once."""
    world.files[(1001, "/data/train.h5")] = InputRead(path="/data/train.h5", digest="d1")
    return _heard(world, run, consent=run.job_id % 3 == 0, log=MISSING)


def _requeued_by_slurm(world: World, run: JobRecord) -> JobRecord:
    """Its hooks tell of the run; Slurm shows the next one already."""
    _heard(world, run, log=f"slurmstepd: error: *** JOB {run.job_id} ON n1 CANCELLED AT x DUE TO PREEMPTION ***\n")
    return replace(
        run,
        state="PENDING",
        reason="BeginTime",
        restarts=1,
        submit_time=(run.end_time or 0) + 1,
        start_time=None,
        end_time=None,
        nodes=(),
    )


def _forgotten(world: World, run: JobRecord) -> JobRecord:
    return replace(_heard(world, run, consent=False, log=BUG), job_id=0)


ENDINGS: tuple[Ending, ...] = (
    *(_completed, _bug, _transient, _transient, _without_consent, _broken_gpu, _out_of_memory),
    *(_time_limit, _cancelled, _missing_input, _requeued_by_slurm, _forgotten),
)


def _batches(world: World, runs: int) -> Iterable[None]:
    """Lets BATCH runs end, again and again, until there were so many; the same ones in every world."""
    dice = Random(81)
    for first in range(1000, 1000 + runs, BATCH):
        world.clock.sleep(600)
        now = int(world.clock.now())
        world.slurm.records.clear()  # MinJobAge
        for job_id in range(first, first + BATCH):
            begin = now - 200 + job_id - first
            name = f"n{dice.randrange(40)}"
            run = job(job_id, submit_time=begin, start_time=begin + 5, end_time=begin + 60, nodes=(name,))
            shown = ENDINGS[job_id % len(ENDINGS)](world, run)
            if shown.job_id:
                world.add(shown)
        yield


def _world(path: Path) -> World:
    world = World(path, config=CONFIG)
    world.slurm.nodes = {f"n{number}": node(f"n{number}") for number in range(40)}
    return world


def _undisturbed(path: Path, runs: int) -> tuple[dict[str, object], list[dict[int, JobRecord]]]:
    world, left = _world(path), []
    for _ in _batches(world, runs):
        world.run()
        left.append(dict(world.slurm.records))
    found = outcome(world)
    world.store.close()
    return found, left


def _killed_all_the_way(path: Path, runs: int) -> tuple[dict[str, object], list[dict[int, JobRecord]], int]:
    """Each incarnation gets one call of an edge further than the one before it, and dies before or after it."""
    world, left, kills = _world(path), [], 0
    for _ in _batches(world, runs):
        at = 0
        while True:
            at += 1
            try:
                reconcile_once(world.services(Fuse(at, after=kills % 2 == 1).through))
                break
            except Killed:
                kills += 1
            if kills % 100 == 0:
                world.reopen()
        left.append(dict(world.slurm.records))
    found = outcome(world)
    world.store.close()
    return found, left, kills


def _once(calls: object) -> list[object]:
    """Without a size that was asked for again, which changes nothing (action_status.py)."""
    assert isinstance(calls, list)
    again = [now[2] == "MinMemoryNode" and now == before for before, now in pairwise(calls)]
    return [calls[0], *(call for call, repeated in zip(calls[1:], again, strict=True) if not repeated)]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("runs", [3 * len(ENDINGS), pytest.param(1000, marks=pytest.mark.slow)])
def test_runs_of_every_ending_survive_a_kill_at_every_call_of_an_edge(tmp_path: Path, runs: int) -> None:
    expected, jobs = _undisturbed(tmp_path / "plain", runs)
    found, left, kills = _killed_all_the_way(tmp_path / "killed", runs)
    assert kills > 5 * runs
    assert len(expected["attempts"]) == runs  # type: ignore[arg-type]
    assert (expected["undone"], expected["spool"]) == ([], {})
    assert _once(found.pop("calls")) == expected.pop("calls")
    for name in expected:
        assert found[name] == expected[name], name
    assert left == jobs


def _refusing(path: Path) -> World:
    """A job out of memory, on a Slurm that refuses it more and keeps what it refused."""
    world = _world(path)
    world.add(_out_of_memory(world, job(82, nodes=("n1",))))
    updated = world.slurm._updated

    def limited(found: JobRecord, action: SlurmAction) -> JobRecord:
        if action.key == "MinMemoryNode" and int(action.value) > 4000:
            world.slurm.records[found.job_id] = updated(found, action)
            raise SlurmError("Requested partition configuration not available now")
        return updated(found, action)

    world.slurm._updated = limited  # type: ignore[method-assign]
    return world


@pytest.mark.parametrize("deaths", [Fuse.after_each_change, pytest.param(Fuse.everywhere, marks=pytest.mark.slow)])
def test_a_refused_resize_is_put_back_wherever_the_reconciler_dies(
    tmp_path: Path, deaths: Callable[[Fuse], list[tuple[int, bool]]]
) -> None:
    fuse = Fuse()
    reconcile_once(_refusing(tmp_path / "plain").services(fuse.through))
    for at, after in deaths(fuse):
        world = _refusing(tmp_path / f"killed-{at}-{after}")
        with pytest.raises(Killed):
            reconcile_once(world.services(Fuse(at, after=after).through))
        world.run()
        (found,) = world.slurm.records.values()
        (run,) = world.store.attempts()
        assert (found.mem_mib_per_node, found.pending, found.reason, found.restarts) == (4000, True, "None", 1), at
        assert (run.reconciled, run.resize_refused, world.store.actions(unfinished=True)) == (True, True, ()), at
        world.store.close()


# --- other people's interference -------------------------------------------------------------------------------------


def _three(path: Path) -> World:
    """A broken GPU, a transient failure and one out of memory, all with consent."""
    world = _world(path)
    for job_id, ending in ((81, _broken_gpu), (82, _transient), (83, _out_of_memory)):
        world.add(ending(world, job(job_id, nodes=(f"n{job_id - 80}",))))
    return world


@pytest.fixture
def wanted(tmp_path: Path) -> dict[str, object]:
    """The outcome of an undisturbed pass over the three."""
    world = _three(tmp_path / "wanted")
    world.run()
    return outcome(world)


def _interrupted(world: World, other: Database, at: int) -> Callable[..., None]:
    """apply() that lets a second reconciler do a whole pass before its call number `at`."""
    asked, calls = world.slurm.apply, count(1)

    def apply(action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        if next(calls) == at:
            reconcile_once(replace(world.services(), store=other))
        asked(action, owner, also)

    return apply


def test_two_reconcilers_at_once_requeue_and_drain_once(tmp_path: Path, wanted: dict[str, object]) -> None:
    """The lock keeps them apart; were it lost, as on a file system without locks, Slurm's state still would."""
    for at in range(1, 12):
        world = _three(tmp_path / f"both-{at}")
        other = Database.open(world.path, clock=world.clock)
        world.slurm.apply = _interrupted(world, other, at)  # type: ignore[method-assign]
        world.run()
        jobs = world.slurm.records
        assert {job_id: (run.restarts, run.pending, run.reason) for job_id, run in jobs.items()} == dict.fromkeys(
            (81, 82, 83), (1, True, "None")
        )
        assert {job_id: run.mem_mib_per_node for job_id, run in jobs.items()} == {81: 4000, 82: 4000, 83: 6000}
        assert outcome(world)["nodes"] == wanted["nodes"]
        assert outcome(world)["strikes"] == wanted["strikes"]
        assert [action for action in world.store.actions(unfinished=True) if action.mode == "act"] == []
        other.close()
        world.store.close()


def test_a_locked_database_delays_and_loses_nothing(tmp_path: Path, wanted: dict[str, object]) -> None:
    world = _three(tmp_path / "locked")
    world.store.close()
    world.store = Database.open(world.path, clock=world.clock, busy_s=0.05)
    holder = sqlite3.connect(world.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        world.run()
    assert world.asked() == [] and len(world.spool.files) > 0
    holder.execute("ROLLBACK")
    holder.close()
    world.run()
    assert outcome(world) == wanted


def test_a_database_that_breaks_in_between_is_said_and_slurm_is_not_asked_blindly(tmp_path: Path) -> None:
    world = _three(tmp_path / "broken")

    class Broken:
        """Every write is refused once the first action was intended."""

        def __init__(self, store: Database) -> None:
            self._store, self.full = store, False

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

        def done(self, action_id: int, at: float, error: str = "") -> None:
            raise StoreError("database or disk is full")

    with pytest.raises(StoreError, match="full"):
        reconcile_once(replace(world.services(), store=Broken(world.store)))  # type: ignore[arg-type]
    assert len(world.asked()) == 1  # what was asked stands as intended, and is compared with Slurm next time
    world.run()
    assert {job_id: run.restarts for job_id, run in world.slurm.records.items()} == {81: 1, 82: 1, 83: 1}
    assert [call for call in world.asked() if call[0] == "drain"] == world.asked()[:1]


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_jumping_clock_changes_no_decision_and_repeats_none(
    tmp_path: Path, wanted: dict[str, object], every: int
) -> None:
    """Back or forth between any two calls of an edge, for us alone or for the controller's host as a whole."""
    fuse = Fuse()
    reconcile_once(_three(tmp_path / "plain").services(fuse.through))
    jumps = list(product((-86400.0, 86400.0, -3600.0, 3600.0), (False, True)))
    cases = [(jump, *death) for n, jump in enumerate(jumps) for death in fuse.of_each_kind()[n % every :: every]]
    for (jump, controllers), at, after in cases:
        world = _three(tmp_path / f"jump-{at}-{jump}-{controllers}")
        if not controllers:
            world.slurm.clock = FakeClock()
        with pytest.raises(Killed):
            reconcile_once(world.services(Fuse(at, after=after).through))
        world.clock.time += jump
        world.run()
        world.clock.time -= jump
        world.run()
        # A StartTime whose moment has passed by the new clock need not be asked for; nothing else may be missing.
        asked, once = ([call[:3] for call in calls] for calls in (_once(world.asked()), wanted["calls"]))  # type: ignore[attr-defined]
        others = [call for call in asked if call[2] != "StartTime"]
        assert others == [call for call in once if call[2] != "StartTime"], (jump, controllers, fuse.kinds[at - 1])
        # nor can one be known again by the time it gave when the clock was put back since: it may be asked for twice
        assert len(set(others)) == len(others) and len(asked) <= len(set(asked)) + 1
        assert {job_id: (run.restarts, run.reason) for job_id, run in world.slurm.records.items()} == dict.fromkeys(
            (81, 82, 83), (1, "None")
        )
        world.store.close()
