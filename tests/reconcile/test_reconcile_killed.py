"""Many runs through a reconciler that is killed at every adapter call: nothing is lost and no action is repeated."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count, pairwise, product
from pathlib import Path
from random import Random

import pytest
from fakes import FakeClock, Fuse, Killed, job, node
from test_reconcile_pass import BUG, MISSING, NCCL, XID_79, World, hooks, outcome, submission, submission_observation

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


def _spool_hooks(world: World, run: JobRecord, *, consent: bool = True, **hook_facts: object) -> JobRecord:
    if consent:
        world.spool_observations(
            submission_observation(
                submission(run.job_id, at=float(run.submit_time), output_appends=run.job_id % 2 == 0)
            )
        )
    world.spool_observations(*hooks(run, **hook_facts))  # type: ignore[arg-type]
    return run


def _completed(world: World, run: JobRecord) -> JobRecord:
    return _spool_hooks(world, replace(run, state="COMPLETED", reason="None", exit_code=0))


def _bug(world: World, run: JobRecord) -> JobRecord:
    return _spool_hooks(world, run, log=BUG)


def _transient(world: World, run: JobRecord) -> JobRecord:
    return _spool_hooks(world, run, log=NCCL)


def _without_consent(world: World, run: JobRecord) -> JobRecord:
    return _spool_hooks(world, run, consent=False, log=NCCL)


def _broken_gpu(world: World, run: JobRecord) -> JobRecord:
    return _spool_hooks(world, run, log=NCCL, kernel=[XID_79])


def _out_of_memory(world: World, run: JobRecord) -> JobRecord:
    return _spool_hooks(world, replace(run, state="OUT_OF_MEMORY", reason="OutOfMemory", exit_code=0, signal=125))


def _time_limit(world: World, run: JobRecord) -> JobRecord:
    return _spool_hooks(world, replace(run, state="TIMEOUT", reason="TimeLimit", exit_code=0, signal=15))


def _cancelled(world: World, run: JobRecord) -> JobRecord:
    return _spool_hooks(world, replace(run, state="CANCELLED", reason="None", exit_code=0, signal=15), log=NCCL)


def _missing_input(world: World, run: JobRecord) -> JobRecord:
    """With consent (job id divisible by 3) the run is retried elsewhere first; else its input is blocked at once."""
    world.files[(1001, "/data/train.h5")] = InputRead(path="/data/train.h5", digest="d1")
    return _spool_hooks(world, run, consent=run.job_id % 3 == 0, log=MISSING)


def _requeued_by_slurm(world: World, run: JobRecord) -> JobRecord:
    """The hooks report the run, and Slurm already shows the next one."""
    _spool_hooks(
        world, run, log=f"slurmstepd: error: *** JOB {run.job_id} ON n1 CANCELLED AT x DUE TO PREEMPTION ***\n"
    )
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
    return replace(_spool_hooks(world, run, consent=False, log=BUG), job_id=0)


ENDINGS: tuple[Ending, ...] = (
    *(_completed, _bug, _transient, _transient, _without_consent, _broken_gpu, _out_of_memory),
    *(_time_limit, _cancelled, _missing_input, _requeued_by_slurm, _forgotten),
)


def _batches(world: World, runs: int) -> Iterable[None]:
    """Let BATCH runs end per iteration, `runs` in total. Every world gets the same runs."""
    dice = Random(81)
    for first in range(1000, 1000 + runs, BATCH):
        world.clock.sleep(600)
        now = int(world.clock.now())
        world.slurm.records.clear()  # MinJobAge is over
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


def _run_undisturbed(path: Path, runs: int) -> tuple[dict[str, object], list[dict[int, JobRecord]]]:
    world, jobs_after_each_batch = _world(path), []
    for _ in _batches(world, runs):
        world.run()
        jobs_after_each_batch.append(dict(world.slurm.records))
    found = outcome(world)
    world.store.close()
    return found, jobs_after_each_batch


def _run_with_kills(path: Path, runs: int) -> tuple[dict[str, object], list[dict[int, JobRecord]], int]:
    """Each process gets one adapter call further than the process before, and is killed before or after that call."""
    world, jobs_after_each_batch, kills = _world(path), [], 0
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
        jobs_after_each_batch.append(dict(world.slurm.records))
    found = outcome(world)
    world.store.close()
    return found, jobs_after_each_batch, kills


def _without_repeats(calls: object) -> list[object]:
    """The calls without repeated requests for the same size, which change nothing (action_status.py)."""
    assert isinstance(calls, list)
    again = [now[2] == "MinMemoryNode" and now == before for before, now in pairwise(calls)]
    return [calls[0], *(call for call, repeated in zip(calls[1:], again, strict=True) if not repeated)]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("runs", [3 * len(ENDINGS), pytest.param(1000, marks=pytest.mark.slow)])
def test_runs_of_every_ending_survive_a_kill_at_every_adapter_call(tmp_path: Path, runs: int) -> None:
    expected, jobs = _run_undisturbed(tmp_path / "plain", runs)
    found, jobs_after_each_batch, kills = _run_with_kills(tmp_path / "killed", runs)
    assert kills > 5 * runs
    assert len(expected["attempts"]) == runs  # type: ignore[arg-type]
    assert (expected["undone"], expected["spool"]) == ([], {})
    assert _without_repeats(found.pop("calls")) == expected.pop("calls")
    for name in expected:
        assert found[name] == expected[name], name
    assert jobs_after_each_batch == jobs


def _world_that_refuses_memory(path: Path) -> World:
    """A job that ran out of memory, on a Slurm that refuses more memory but keeps the refused value."""
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
def test_a_refused_resize_is_undone_wherever_the_reconciler_is_killed(
    tmp_path: Path, deaths: Callable[[Fuse], list[tuple[int, bool]]]
) -> None:
    fuse = Fuse()
    reconcile_once(_world_that_refuses_memory(tmp_path / "plain").services(fuse.through))
    for at, after in deaths(fuse):
        world = _world_that_refuses_memory(tmp_path / f"killed-{at}-{after}")
        with pytest.raises(Killed):
            reconcile_once(world.services(Fuse(at, after=after).through))
        world.run()
        (found,) = world.slurm.records.values()
        (run,) = world.store.attempts()
        assert (found.mem_mib_per_node, found.pending, found.reason, found.restarts) == (4000, True, "None", 1), at
        assert (run.reconciled, run.resize_refused, world.store.actions(unfinished=True)) == (True, True, ()), at
        world.store.close()


# --- a second reconciler, database errors, clock jumps ---------------------------------------------------------------


def _world_with_three_failures(path: Path) -> World:
    """A broken GPU, a transient failure and a job out of memory, all with consent."""
    world = _world(path)
    for job_id, ending in ((81, _broken_gpu), (82, _transient), (83, _out_of_memory)):
        world.add(ending(world, job(job_id, nodes=(f"n{job_id - 80}",))))
    return world


@pytest.fixture
def wanted(tmp_path: Path) -> dict[str, object]:
    """The outcome of an undisturbed pass over the three failures."""
    world = _world_with_three_failures(tmp_path / "wanted")
    world.run()
    return outcome(world)


def _apply_with_second_reconciler(world: World, other: Database, at: int) -> Callable[..., None]:
    """Return an apply() that runs a whole pass of a second reconciler before call number `at`."""
    original, calls = world.slurm.apply, count(1)

    def apply(action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        if next(calls) == at:
            reconcile_once(replace(world.services(), store=other))
        original(action, owner, also)

    return apply


def test_two_concurrent_reconcilers_requeue_and_drain_once(tmp_path: Path, wanted: dict[str, object]) -> None:
    """A lock allows only one reconciler. Where a file system has no locks, Slurm's state still prevents repeats."""
    for at in range(1, 12):
        world = _world_with_three_failures(tmp_path / f"both-{at}")
        other = Database.open(world.path, clock=world.clock)
        world.slurm.apply = _apply_with_second_reconciler(world, other, at)  # type: ignore[method-assign]
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


def test_a_locked_database_delays_a_pass_and_loses_nothing(tmp_path: Path, wanted: dict[str, object]) -> None:
    world = _world_with_three_failures(tmp_path / "locked")
    world.store.close()
    world.store = Database.open(world.path, clock=world.clock, busy_s=0.05)
    holder = sqlite3.connect(world.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        world.run()
    assert world.requested_actions() == [] and len(world.spool.files) > 0
    holder.execute("ROLLBACK")
    holder.close()
    world.run()
    assert outcome(world) == wanted


def test_a_database_write_error_ends_the_pass_and_no_action_is_repeated(tmp_path: Path) -> None:
    world = _world_with_three_failures(tmp_path / "broken")

    class Broken:
        """A store that refuses to record that an action was done."""

        def __init__(self, store: Database) -> None:
            self._store = store

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

        def done(self, action_id: int, at: float, error: str = "") -> None:
            raise StoreError("database or disk is full")

    with pytest.raises(StoreError, match="full"):
        reconcile_once(replace(world.services(), store=Broken(world.store)))  # type: ignore[arg-type]
    assert (
        len(world.requested_actions()) == 1
    )  # the action stays recorded as intended; the next pass compares it with Slurm
    world.run()
    assert {job_id: run.restarts for job_id, run in world.slurm.records.items()} == {81: 1, 82: 1, 83: 1}
    assert [call for call in world.requested_actions() if call[0] == "drain"] == world.requested_actions()[:1]


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_clock_jumps_change_no_decision_and_repeat_no_action(
    tmp_path: Path, wanted: dict[str, object], every: int
) -> None:
    """The clock of the reconciler alone, or of slurmctld too, jumps back or forth between any two adapter calls."""
    fuse = Fuse()
    reconcile_once(_world_with_three_failures(tmp_path / "plain").services(fuse.through))
    jumps = list(product((-86400.0, 86400.0, -3600.0, 3600.0), (False, True)))
    cases = [(jump, *death) for n, jump in enumerate(jumps) for death in fuse.of_each_kind()[n % every :: every]]
    for (jump, whole_host), at, after in cases:
        world = _world_with_three_failures(tmp_path / f"jump-{at}-{jump}-{whole_host}")
        if not whole_host:
            world.slurm.clock = FakeClock()
        with pytest.raises(Killed):
            reconcile_once(world.services(Fuse(at, after=after).through))
        world.clock.time += jump
        world.run()
        world.clock.time -= jump
        world.run()
        # A StartTime that is past by the new clock need not be requested. No other action may be missing.
        made = _without_repeats(world.requested_actions())
        requested, expected = ([call[:3] for call in calls] for calls in (made, wanted["calls"]))  # type: ignore[attr-defined]
        others = [call for call in requested if call[2] != "StartTime"]
        assert others == [call for call in expected if call[2] != "StartTime"], (jump, whole_host, fuse.kinds[at - 1])
        # A StartTime set before the clock was set back cannot be recognised, so it may be requested twice.
        assert len(set(others)) == len(others) and len(requested) <= len(set(requested)) + 1
        assert {job_id: (run.restarts, run.reason) for job_id, run in world.slurm.records.items()} == dict.fromkeys(
            (81, 82, 83), (1, "None")
        )
        world.store.close()
