"""Time limits of pending jobs: lowered, restored at the start, and never the reason that a job is killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from fakes import START, Fuse, Killed, MemoryLimits, job
from test_reconcile_pass import World, submission, submission_observation

from slurmwrap.config.load_config import Config, Limit, Placement, Tuning
from slurmwrap.errors import SlurmError, SlurmUnreachable, StoreError
from slurmwrap.model.cluster import Partition, Reservation, Snapshot
from slurmwrap.model.decision import SlurmAction
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.lowered_limit import LoweredLimit, TimeRequest
from slurmwrap.model.run_time import FROM_RUNS, QUANTILE_LEVELS, RunTimeEstimate
from slurmwrap.policy.time_limit import HEARTBEAT_LATE_S, WATCHDOG_EVERY_S
from slurmwrap.reconcile import Scope, limit_pending, reconcile_once, restore_limits
from slurmwrap.reconcile.reconcile_context import PassSummary, ReconcilerState, Services
from slurmwrap.reconcile.restore_limits import restore_all_limits
from slurmwrap.sbatch.job_request import ResourceShape
from slurmwrap.store.lowered_limits import LoweredLimitFile

pytestmark = pytest.mark.early

DAY, HOUR = 86_400, 3600
ACT = Config(
    rules={"limit": "act"}, tuning=Tuning(enabled=False), placement=Placement(relax_jobs=50, relax_updates_per_s=100)
)
LOWERED = [
    ("81", "TimeLimit", "300"),
    ("81", "Comment", "slurmwrap: time limit 5:00:00 until it starts, then 7-00:00:00"),
]
RESTORED = [("81", "TimeLimit", "10080"), ("81", "Comment", "")]


def make_estimate(p90_s: float, p99_s: float = 0.0, n: int = 14) -> RunTimeEstimate:
    times = [p90_s if level < 0.99 else max(p90_s, p99_s) for level in QUANTILE_LEVELS]
    return RunTimeEstimate(quantiles_s=tuple(times), source=FROM_RUNS, n=n)


@pytest.fixture(autouse=True)
def _known_run_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine of ten runs of every job ended within 200 minutes, so that 5 hours fit."""
    know_run_times(monkeypatch, lambda one: make_estimate(200 * 60))


def know_run_times(monkeypatch: pytest.MonkeyPatch, find: Callable[[JobRecord], RunTimeEstimate | None]) -> None:
    monkeypatch.setattr(limit_pending, "find_run_time", lambda one, this_pass: find(one))


def pending_job(job_id: int = 81, **changes: object) -> JobRecord:
    plain = job(
        job_id, state="PENDING", reason="Priority", exit_code=0, start_time=None, end_time=None, nodes=(),
        submit_time=START - 60, eligible_time=START - 60, priority=100_000 - job_id, time_limit_s=7 * DAY,
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


class Site(World):
    """A world with a reconciler that is watched, and the watchdog."""

    def __init__(self, path: Path, config: Config = ACT, scope: Scope | None = None) -> None:
        super().__init__(path, config, scope)
        self.limits: MemoryLimits | LoweredLimitFile = MemoryLimits()
        self.may_extend = self.may_resize = self.watched = True
        self.state = ReconcilerState()

    def submit(
        self,
        *jobs: JobRecord,
        time: TimeRequest | None = TimeRequest(),  # noqa: B008
        gpus: bool = True,
        at: float = START - 61.0,
    ) -> None:
        self.add(*jobs)
        shape = ResourceShape(nodes=1, gpus=2, gpus_per_node=2) if gpus else None
        for one in jobs:
            job_id = one.array_job_id or one.job_id
            self.spool_observations(submission_observation(submission(job_id, at=at, time=time, shape=shape)))

    def services(self, through: Callable[[object], object] = lambda adapter: adapter) -> Services:
        return replace(
            super().services(through),
            limits=through(self.limits),
            may_extend=lambda: self.may_extend,
            may_resize=lambda: self.may_resize,
            is_watched=lambda now: self.watched,
        )

    def run(self) -> PassSummary:
        return reconcile_once(self.services(), self.state)

    @property
    def limit(self) -> int | None:
        """The time limit of job 81 in Slurm, in seconds."""
        return self.slurm.records[81].time_limit_s


def requests(site: Site) -> list[tuple[str, str, str]]:
    return [(action.target, action.key, action.value) for action in site.slurm.calls]


def site_of(path: Path, *jobs: JobRecord, **settings: object) -> Site:
    site = Site(path, **settings)  # type: ignore[arg-type]
    site.submit(*(jobs or (pending_job(),)))
    return site


# --- lowered, and restored -------------------------------------------------------------------------------------------


def test_a_pending_job_is_limited_as_its_owner_once_and_restored_when_it_starts(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    for _ in range(3):
        site.run()
        site.clock.sleep(15)
    assert requests(site) == LOWERED and site.slurm.owners == [1001, 1001]
    site.slurm.start(81)
    site.run()
    assert requests(site) == [*LOWERED, *RESTORED] and site.slurm.owners[2:] == [None, None]
    site.clock.sleep(15)
    site.run()
    assert requests(site) == [*LOWERED, *RESTORED]
    rows = [(a.rule, a.mode, a.key, a.value, a.error, a.done_at is not None) for a in site.store.actions()]
    assert rows == [("limit", "act", key, value, "", True) for _, key, value in (*LOWERED, *RESTORED)]
    assert site.store.actions()[0].reason == "14 runs of it: 9 of 10 ended within 3:20:00; its own limit is 7-00:00:00"


def test_what_was_lowered_is_forgotten_some_time_after_it_was_restored(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    site.run()
    site.slurm.start(81)
    site.run()
    assert len(site.limits.read()) == 1
    site.clock.sleep(700)
    site.run()
    assert site.limits.read() == ()


def test_the_restore_comes_before_anything_else_of_the_pass(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    site.run()
    site.slurm.start(81)

    def fail(*arguments: object) -> object:
        raise StoreError("database is locked")

    site.spool.collect = fail  # type: ignore[method-assign]
    with pytest.raises(StoreError):
        site.run()
    assert requests(site) == [*LOWERED, *RESTORED]


def test_a_locked_database_does_not_prevent_the_restore(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    site.run()
    site.slurm.start(81)

    def fail(*arguments: object, **more: object) -> object:
        raise StoreError("database is locked")

    site.store.intend = fail  # type: ignore[method-assign]
    assert "database is locked" in site.run().errors
    assert site.limit == 7 * DAY


def test_a_kept_limit_grows_in_steps_up_to_its_users(tmp_path: Path) -> None:
    site = site_of(tmp_path, pending_job(time_limit_s=12 * HOUR), config=replace(ACT, limit=Limit(at_start="keep")))
    site.run()
    site.slurm.start(81)
    seen = []
    for _ in range(12 * 60):
        site.run()
        site.slurm.end_jobs(lambda one: 100 * HOUR)
        seen.append((site.limit or 0) // HOUR)
        site.clock.sleep(60)
    changes = {limit: seen.index(limit) / 60 for limit in dict.fromkeys(seen)}
    assert changes == {5: 0.0, 10: 3.5, 12: 7.0}
    site.clock.sleep(60)
    site.slurm.end_jobs(lambda one: 100 * HOUR)
    ended = site.slurm.records[81]
    assert ended.state == "TIMEOUT" and ended.end_time == (ended.start_time or 0) + 12 * HOUR


def test_only_the_pending_tasks_of_an_array_are_limited_and_each_task_is_restored(tmp_path: Path) -> None:
    rest = pending_job(81, array_job_id=81, array_tasks="3-9")
    site = site_of(tmp_path, rest)
    site.add(replace(pending_job(90), state="RUNNING", array_job_id=81, array_task_id=2, start_time=START))
    site.run()
    assert requests(site)[0] == ("81_[3-9]", "TimeLimit", "300")
    assert site.slurm.records[90].time_limit_s == 7 * DAY
    site.slurm.records[81] = replace(site.slurm.records[81], array_tasks="4-9")
    site.add(replace(site.slurm.records[81], job_id=91, array_task_id=3, array_tasks=""))
    site.slurm.start(91)
    site.clock.sleep(1e6)
    site.run()
    assert requests(site)[2:] == [("81_3", "TimeLimit", "10080"), ("81_3", "Comment", "")]
    assert len(site.limits.read()) == 1


def test_a_job_without_gpus_is_limited_too(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit(pending_job(gpus=0), gpus=False)
    site.run()
    assert requests(site) == LOWERED


def test_a_comment_of_the_user_stays(tmp_path: Path) -> None:
    site = site_of(tmp_path, pending_job(comment="for the paper"))
    site.run()
    site.slurm.start(81)
    site.run()
    assert requests(site) == [LOWERED[0], RESTORED[0]]


def test_a_job_requeued_before_its_limit_was_restored_gets_it_when_it_starts_again(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    site.run()
    site.clock.sleep(5)
    site.slurm.records[81] = replace(site.slurm.records[81], restarts=1, submit_time=START + 5)
    site.run()
    assert requests(site) == LOWERED
    site.slurm.start(81)
    site.run()
    assert site.limit == 7 * DAY


# --- not lowered -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_in_other_modes_than_act_the_limit_is_only_recorded_and_only_once(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_of(tmp_path, config=replace(ACT, rules={"limit": mode}))
    for minutes in (200, 250, 300):
        know_run_times(monkeypatch, lambda one, s=minutes * 60: make_estimate(s))
        site.state = ReconcilerState()
        site.run()
    assert site.slurm.calls == [] and site.limits.read() == ()
    assert [(a.mode, a.key, a.value, a.done_at) for a in site.store.actions()] == [(mode, "TimeLimit", "300", None)]


@pytest.mark.parametrize("missing", ["may_extend", "may_resize", "watched"])
def test_a_limit_that_might_not_be_restored_is_only_advised(tmp_path: Path, missing: str) -> None:
    site = site_of(tmp_path)
    setattr(site, missing, False)
    site.run()
    assert site.slurm.calls == [] and [a.mode for a in site.store.actions()] == ["advise"]
    setattr(site, missing, True)
    site.state = ReconcilerState()
    site.run()
    assert requests(site) == LOWERED


def test_a_pass_that_has_taken_long_lowers_nothing(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    collect = site.spool.collect

    def collect_slowly(limit: int = 1000) -> Sequence[object]:
        site.clock.sleep(61)
        return collect(limit)

    site.spool.collect = collect_slowly  # type: ignore[method-assign, assignment]
    site.run()
    assert site.slurm.calls == []


def test_in_user_mode_nothing_is_changed_or_recorded(tmp_path: Path) -> None:
    site = site_of(tmp_path, scope=Scope(user="alice", uid=1001))
    site.run()
    assert site.slurm.calls == [] and site.store.actions() == ()


@pytest.mark.parametrize(
    "changed",
    [{"restarts": 1}, {"het_job_id": 80}, {"time_limit_s": None}, {"reason": "QOSMaxWallDurationPerJobLimit"}],
)
def test_jobs_whose_limit_must_stay_are_neither_changed_nor_advised(tmp_path: Path, changed: dict[str, object]) -> None:
    site = site_of(tmp_path, pending_job(**changed))
    site.run()
    assert site.slurm.calls == [] and site.store.actions() == ()


@pytest.mark.parametrize("time", [None, TimeRequest(fixed="--time-min")])
def test_a_request_that_fixes_its_limit_is_respected(tmp_path: Path, time: TimeRequest | None) -> None:
    site = Site(tmp_path)
    site.submit(pending_job(), time=time)
    site.run()
    assert site.slurm.calls == []


def test_a_new_reservation_restores_the_limit_of_a_pending_job(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    site.run()
    maint = Reservation(name="maint", start=START + DAY, end=START + 2 * DAY, nodes=("n3",))
    plain = site.slurm.snapshot()
    site.slurm.snapshot = lambda: Snapshot(  # type: ignore[method-assign]
        taken_at=site.clock.now(), nodes=plain.nodes, partitions=(Partition(name="gpu"),), reservations=(maint,)
    )
    for _ in range(3):
        site.clock.sleep(15)
        site.run()
    assert requests(site) == [*LOWERED, *RESTORED]


# --- changed by others, refusals, and interruptions ------------------------------------------------------------------


@pytest.mark.parametrize("limit_s", [6 * HOUR, 2 * HOUR, 9 * DAY])
@pytest.mark.parametrize("started", [False, True])
def test_a_limit_that_the_user_changed_meanwhile_stays(tmp_path: Path, limit_s: int, started: bool) -> None:
    site = site_of(tmp_path)
    site.run()
    site.slurm.records[81] = replace(site.slurm.records[81], time_limit_s=limit_s)
    if started:
        site.slurm.start(81)
    for _ in range(3):
        site.clock.sleep(15)
        site.run()
    assert requests(site) == LOWERED and site.limits.read() == ()


def test_a_refused_limit_is_put_back_and_not_tried_again(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    updated = site.slurm._updated

    def refuse(found: JobRecord, action: SlurmAction) -> JobRecord:
        if (action.key, action.value) == ("TimeLimit", "300"):
            site.slurm.records[81] = updated(found, action)
            raise SlurmError("Invalid time-min specification (exceeds job's time or other limits) for job 81")
        return updated(found, action)

    site.slurm._updated = refuse  # type: ignore[method-assign]
    for _ in range(3):
        site.run()
        site.clock.sleep(15)
    assert requests(site) == [LOWERED[0], ("81", "TimeLimit", "10080")]
    site.clock.sleep(700)
    site.run()
    assert site.limits.read() == ()


def test_a_call_that_takes_effect_after_its_time_out_is_restored_as_well(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    apply = site.slurm.apply

    def time_out(action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        raise SlurmUnreachable("no answer within 3 s")

    site.slurm.apply = time_out  # type: ignore[method-assign]
    site.run()
    site.slurm.apply = apply  # type: ignore[method-assign]
    site.clock.sleep(200)
    site.run()
    site.slurm.start(81)
    apply(SlurmAction(verb=limit_pending.Verb.UPDATE_JOB, target="81", key="TimeLimit", value="300"), 1001)
    site.run()
    assert site.limit == 7 * DAY


@pytest.mark.parametrize("at_start", ["restore", "keep"])
def test_limits_are_restored_if_the_rule_is_switched_off(tmp_path: Path, at_start: str) -> None:
    jobs = [pending_job(number) for number in range(81, 84)]
    site = site_of(tmp_path, *jobs, config=replace(ACT, limit=Limit(at_start=at_start)))
    site.run()
    site.slurm.start(82)
    site.config = replace(ACT, rules={"limit": "advise"})
    site.run()
    limits = [site.slurm.records[one.job_id].time_limit_s for one in jobs]
    assert limits == [7 * DAY, 5 * HOUR if at_start == "keep" else 7 * DAY, 7 * DAY]


def test_a_restored_pending_job_is_limited_again_when_the_watchdog_is_back(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    for watched in (True, False, False, True, True):
        site.watched = watched
        site.run()
        site.clock.sleep(15)
    assert requests(site) == [*LOWERED, *RESTORED, *LOWERED]


def test_without_the_memory_of_what_was_lowered_nothing_more_is_lowered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_of(tmp_path)
    path = tmp_path / "limits.json"
    site.limits = LoweredLimitFile(path)
    path.write_text('[{"job_id": 1')

    def fail(*given: object) -> None:
        raise StoreError("the database is locked")

    monkeypatch.setattr(restore_limits, "find_forgotten_limits", fail)
    errors = site.run().errors
    assert site.slurm.calls == [] and "limits.json cannot be read" in errors[0] and "locked" in errors[1]


@pytest.mark.parametrize("content", [None, "", '[{"job_id": 81, "uid": 1001'])
def test_a_lost_or_damaged_file_is_made_again_from_the_recorded_changes(tmp_path: Path, content: str | None) -> None:
    """A started job, a waiting one, an array with a started task, and one that its user changed."""
    path = tmp_path / "limits.json"
    site = Site(tmp_path)
    site.limits = LoweredLimitFile(path)
    array = pending_job(91, array_job_id=91, array_tasks="0-3")
    site.submit(*(pending_job(number) for number in (81, 82, 83)), array)
    site.run()
    site.slurm.start(81)
    task = replace(array, job_id=95, array_task_id=3, array_tasks="")
    site.slurm.add(task)
    site.slurm.records[95] = replace(task, time_limit_s=site.slurm.records[91].time_limit_s)
    site.slurm.start(95)
    site.slurm.records[83] = replace(site.slurm.records[83], time_limit_s=2 * HOUR)
    before = {one.job_id: one for one in site.limits.read()}
    path.unlink() if content is None else path.write_text(content)
    site.state = ReconcilerState()
    errors = site.run().errors
    assert len(errors) == (content is not None)
    assert {number: one.time_limit_s for number, one in site.slurm.records.items()} == {
        81: 7 * DAY, 82: 5 * HOUR, 83: 2 * HOUR, 91: 5 * HOUR, 95: 7 * DAY
    }  # fmt: skip
    after = {one.job_id: one for one in site.limits.read()}
    assert after.keys() == {81, 82, 91} and all(one.user_s == before[number].user_s for number, one in after.items())
    site.slurm.start(82)
    site.run()
    assert site.slurm.records[82].time_limit_s == 7 * DAY


def test_a_comment_that_a_user_wrote_gives_no_job_a_longer_limit(tmp_path: Path) -> None:
    site = site_of(tmp_path, pending_job(comment="slurmwrap: time limit 1:00:00 until it starts, then 30-00:00:00"))
    site.slurm.records[81] = replace(site.slurm.records[81], time_limit_s=HOUR)
    site.slurm.start(81)
    site.run()
    assert site.slurm.calls == [] and site.limit == HOUR


def test_a_job_that_reached_a_lowered_limit_is_reported(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    site.run()
    site.slurm.start(81)
    site.clock.sleep(6 * HOUR)
    site.slurm.end_jobs(lambda one: 8 * HOUR)
    assert "job 81 reached a time limit that slurmwrap had lowered" in site.run().errors


def test_the_file_keeps_what_was_written(tmp_path: Path) -> None:
    store = LoweredLimitFile(tmp_path / "limits.json")
    one = LoweredLimit(
        job_id=81, uid=1001, submit_time=START, at=START + 0.5, user_s=7 * DAY, set_s=5 * HOUR, keep=True
    )
    assert store.read() == ()
    store.write([one, replace(one, job_id=82)])
    assert store.read() == (one, replace(one, job_id=82))
    assert (tmp_path / "limits.json").stat().st_mode & 0o777 == 0o600


# --- killed at every step --------------------------------------------------------------------------------------------


class ChangeFuse(Fuse):
    """A fuse that counts only the calls that change time limits or remember such changes."""

    def burn(self, kind: str, call: Callable[[], object]) -> object:
        changes = kind.startswith(("apply", "write", "intend", "done"))
        return super().burn(kind, call) if changes else call()


class Controller:
    """Starts and ends the jobs of a Site while its clock moves, and is its systemd: restarts and the watchdog."""

    def __init__(self, site: Site, dice: Random, parallel: int) -> None:
        self.site, self.dice, self.parallel = site, dice, parallel
        self.needs: dict[int, float] = {}
        self.user_limits: dict[int, int] = {}
        self.beat_at = self.watchdog_at = site.clock.now()
        self.killed = Counter[str]()
        self.lowered = set[LoweredLimit]()
        self.ended: dict[int, JobRecord] = {}

    def submit(self, job_ids: Sequence[int]) -> None:
        """Submit jobs, and let the reconciler see them before the first one may start."""
        now = int(self.site.clock.now())
        for job_id in job_ids:
            limit_s = self.user_limits[job_id]
            self.site.submit(
                pending_job(job_id, time_limit_s=limit_s, submit_time=now, eligible_time=now), at=now - 1.0
            )
        self.run_pass(None)

    def is_beating(self, now: float) -> bool:
        return now - self.beat_at < HEARTBEAT_LATE_S

    def pass_time(self, seconds: float) -> None:
        """Move the clock from one event to the next: a job starts or ends, or the watchdog runs."""
        clock, until = self.site.clock, self.site.clock.now() + seconds
        while (now := clock.now()) < until:
            clock.sleep(max(1.0, min(until, self.watchdog_at + WATCHDOG_EVERY_S, self._schedule()) - now))
            if clock.now() - self.watchdog_at >= WATCHDOG_EVERY_S:
                self.watchdog_at = clock.now()
                if not self.is_beating(self.watchdog_at):
                    restore_all_limits(self.site.slurm, self.site.limits.read())
        self._schedule()

    def _schedule(self) -> float:
        """Start and end jobs; return when the next one may start or end."""
        slurm, now = self.site.slurm, self.site.clock.now()
        slurm.end_jobs(lambda one: self.needs[one.job_id])
        self.ended |= {job_id: one for job_id, one in slurm.records.items() if one.ended}
        for job_id in [one.job_id for one in slurm.records.values() if one.ended and now - (one.end_time or 0) > 300]:
            del slurm.records[job_id]  # MinJobAge is over
        running = [one for one in slurm.records.values() if one.state == "RUNNING"]
        waiting = [one.job_id for one in slurm.records.values() if one.pending]
        free = self.parallel - len(running)
        for job_id in waiting[:free]:
            if self.dice.random() < 0.5:
                slurm.start(job_id)
        if waiting and free:
            return now + 5
        ends = ((one.start_time or 0) + min(self.needs[one.job_id], one.time_limit_s or 0) for one in running)
        return min(ends, default=now + HOUR)

    def run_pass(self, at: int | None, *, after: bool = False) -> bool:
        """Run one pass that is killed at its call number `at`. Return True if it was completed."""
        fuse = ChangeFuse(at, after=after)
        self.lowered.update(self.site.limits.read())
        services = replace(self.site.services(fuse.through), is_watched=self.is_beating)
        try:
            # A restarted process knows nothing of the one before.
            self.site.state = ReconcilerState()
            reconcile_once(services, self.site.state)
        except Killed:
            self.killed[fuse.kinds[(at or 0) - 1]] += 1
            return False
        self.beat_at = self.site.clock.now()
        return True


def play(path: Path, jobs: int, at_start: str, monkeypatch: pytest.MonkeyPatch) -> Controller:
    """Run `jobs` jobs through a reconciler that is killed at every call and stays down now and then."""
    dice = Random(20)
    config = replace(ACT, limit=Limit(at_start=at_start), placement=replace(ACT.placement, relax_jobs=20))
    site = Site(path, config)
    controller = Controller(site, dice, parallel=10)
    know_run_times(monkeypatch, lambda one: make_estimate(HOUR * (0.2 + one.job_id % 5)))
    for job_id in range(1000, 1000 + jobs):
        # Some take as long as predicted, some much longer, some longer than even their user's limit.
        user_s = dice.choice((2, 8, 24)) * HOUR
        controller.user_limits[job_id] = user_s
        controller.needs[job_id] = min(HOUR * dice.lognormvariate(0.3, 1.3), user_s * dice.choice((0.9, 1.2)))
    at, coming = 0, sorted(controller.user_limits)
    while coming or any(not one.ended for one in site.slurm.records.values()):
        if coming and sum(one.pending for one in site.slurm.records.values()) < 20:
            controller.submit(coming[:20])
            del coming[:20]
        at += 1
        if not controller.run_pass(at, after=dice.random() < 0.5):
            # Mostly systemd restarts it at once, sometimes it stays down for hours.
            controller.pass_time(10 if dice.random() < 0.95 else dice.uniform(HOUR / 2, 3 * HOUR))
            continue
        at = 0
        idle = all(not one.pending for one in site.slurm.records.values())
        controller.pass_time(240 if idle else dice.choice((15, 15, 60)))
    return controller


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("at_start", ["restore", "keep"])
@pytest.mark.parametrize("jobs", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_job_is_killed_before_its_users_limit_wherever_the_reconciler_is_killed(
    tmp_path: Path, jobs: int, at_start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = play(tmp_path, jobs, at_start, monkeypatch)
    overran = 0
    assert len(controller.ended) == jobs
    for job_id, ended in controller.ended.items():
        needed, allowed = controller.needs[job_id], controller.user_limits[job_id]
        assert (ended.end_time or 0) - (ended.start_time or 0) == int(min(needed, allowed)), ended
        lowest = min((one.set_s for one in controller.lowered if one.job_id == job_id), default=allowed)
        overran += min(needed, allowed) > lowest
    # Many jobs ran longer than the limit that they had while pending: without the restores they would have been killed.
    assert overran > jobs / 20 and sum(controller.killed.values()) > jobs / 4
    print(f"{jobs} jobs, {overran} ran longer than a lowered limit, killed {dict(controller.killed)}")
