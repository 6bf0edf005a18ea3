"""The queue order (rule `order`): which priority pending gsub jobs get, that it is undone, and that nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import START, Fuse, Killed, job
from test_reconcile_pass import World, submission, submission_observation

from slurmwrap.config.load_config import Config, Order, Placement, SiteSection
from slurmwrap.errors import SlurmError, SlurmUnreachable
from slurmwrap.model.decision import SlurmAction
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.queue_priority import MAX_PRIORITY, NICE, SITE_FACTOR, PriorityScheme
from slurmwrap.model.run_time import FROM_RUNS, QUANTILE_LEVELS, RunTimeEstimate, RunTimeSample
from slurmwrap.policy.queue_order import OrderSettings, PendingOrder, classify_job
from slurmwrap.policy.run_from_slurm import run_key_from_job
from slurmwrap.profiling.run_time import RunTimeQuery, RunTimeRecord
from slurmwrap.reconcile import Scope, reconcile_once
from slurmwrap.reconcile.order_pending import choose_class, make_pending_order, withdraw_order
from slurmwrap.reconcile.reconcile_context import PassSummary, ReconcilePass, ReconcilerState, SlurmJobs

pytestmark = pytest.mark.early

MULTIFACTOR = PriorityScheme(plugin="multifactor", weights=10_000)
BASIC = PriorityScheme(plugin="basic")
FAST = Placement(relax_updates_per_s=1000)
RULES = {"order": "act", "relax": "observe", "tune": "observe"}
ACT = Config(rules=RULES, placement=FAST, order=Order(classes=6))
ADVISE = replace(ACT, rules={**ACT.rules, "order": "advise"})
# Profile key -> run time and number of runs. With two GPUs each, the classes end at 2,000, 5,318, 14,142, 37,606 and
# 100,000 GPU-seconds.
RUNS = {"short": (100.0, 2), "a": (1_000.0, 10), "medium": (5_000.0, 10), "b": (50_000.0, 10), "long": (500_000.0, 1)}


def waiting(job_id: int, **changes: object) -> JobRecord:
    plain = job(
        job_id, state="PENDING", reason="Priority", exit_code=0, start_time=None, end_time=None, nodes=(),
        submit_time=START - 60, eligible_time=START - 60, priority=5000 - job_id, gpus=2,
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


def teach(world: World, key: str, run_s: float, count: int = 10, *, complete: bool = True, since: int = 0) -> None:
    """Stores runs of alice with a profile key."""
    for number in range(count):
        at = START - 1000 + since + number
        world.store.save_run_time(
            RunTimeRecord(
                attempt=RunKey(
                    cluster="lab", job_id=10_000 + 100 * [*RUNS, "new"].index(key) + number, submit_time=at - 10
                ),
                uid=1001,
                end_time=at,
                job=RunTimeQuery(user="1001", key=key, gpus=2),
                sample=RunTimeSample(run_s=run_s, complete=complete),
            )
        )


def world_of(
    path: Path,
    keys: dict[int, str],
    scheme: PriorityScheme = MULTIFACTOR,
    config: Config = ACT,
    scope: Scope | None = None,
) -> World:
    """A world with runs of RUNS, and a pending gsub job with each of `keys`: job id -> profile key."""
    world = World(path, config, scope)
    world.slurm.scheme = scheme
    for key, (run_s, count) in RUNS.items():
        teach(world, key, run_s, count)
    for job_id, key in keys.items():
        add(world, waiting(job_id), key)
    return world


def add(world: World, record: JobRecord, key: str) -> None:
    world.add(record)
    world.spool_observations(
        submission_observation(
            submission(record.array_job_id or record.job_id, profile_key=key, at=float(record.submit_time))
        )
    )


def changes(world: World) -> list[tuple[str, str, str]]:
    return [(action.target, action.key, action.value) for action in world.slurm.calls]


def keep_passing(world: World, times: int = 1) -> ReconcilerState:
    """Several passes of one process."""
    book = ReconcilerState()
    for _ in range(times):
        reconcile_once(world.services(), book)
        world.clock.sleep(2)
    return book


def test_short_jobs_get_the_band_and_long_ones_keep_their_priority(tmp_path: Path) -> None:
    world = world_of(tmp_path, {81: "long", 82: "short", 83: "medium"})
    keep_passing(world, 3)
    assert changes(world) == [("82", SITE_FACTOR, "1000"), ("83", SITE_FACTOR, "600")]
    assert set(world.slurm.owners) == {None}
    rows = [(a.rule, a.mode, a.value, a.own, a.error, a.done_at is not None) for a in world.store.actions()]
    assert rows == [("order", "act", "1000", "0", "", True), ("order", "act", "600", "0", "", True)]
    assert world.store.actions()[0].reason.startswith("class 1 of 6: usually runs 2 min")


def test_nice_counts_from_what_the_user_set(tmp_path: Path) -> None:
    world = world_of(tmp_path, {81: "short", 82: "long"}, BASIC)
    world.slurm.terms[NICE] = {81: 7, 82: 3}
    keep_passing(world, 2)
    assert changes(world) == [("81", NICE, "-993")]
    assert world.store.actions()[0].own == "7"


def test_the_order_is_applied_again_after_a_release_that_reset_nice(tmp_path: Path) -> None:
    world = world_of(tmp_path, {81: "short"}, BASIC)
    world.slurm.terms[NICE] = {81: 7}
    book = keep_passing(world)
    world.slurm.terms[NICE][81] = 0
    reconcile_once(world.services(), book)
    reconcile_once(world.services(), book)
    assert changes(world) == [("81", NICE, "-993"), ("81", NICE, "-1000")]


def test_a_nice_that_the_user_sets_meanwhile_stays_theirs(tmp_path: Path) -> None:
    world = world_of(tmp_path, {81: "short"}, BASIC)
    book = keep_passing(world)
    world.slurm.terms[NICE][81] = 50
    reconcile_once(world.services(), book)
    assert world.slurm.terms[NICE][81] == -950
    world.config = ADVISE
    reconcile_once(world.services(), book)
    assert world.slurm.terms[NICE][81] == 50


def test_a_requeued_job_keeps_its_own_value(tmp_path: Path) -> None:
    world = world_of(tmp_path, {81: "short"}, BASIC)
    world.slurm.terms[NICE] = {81: 7}
    keep_passing(world)
    now = int(world.clock.now())
    world.add(replace(waiting(81), submit_time=now, eligible_time=now, restarts=1))
    world.config = ADVISE
    keep_passing(world)
    assert changes(world) == [("81", NICE, "-993"), ("81", NICE, "7")]


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_in_other_modes_the_class_is_only_recorded_and_only_once(tmp_path: Path, mode: str) -> None:
    world = world_of(tmp_path, {81: "short"}, config=replace(ACT, rules={"order": mode}))
    for _ in range(3):
        keep_passing(world)
    assert world.slurm.calls == []
    assert [(a.mode, a.key, a.value, a.done_at) for a in world.store.actions()] == [(mode, SITE_FACTOR, "1000", None)]


def test_jobs_get_back_what_they_had_when_the_rule_does_not_act_any_more(tmp_path: Path) -> None:
    world = world_of(tmp_path, {81: "short", 82: "medium"})
    world.slurm.terms[SITE_FACTOR] = {81: 25}
    keep_passing(world)
    assert world.slurm.terms[SITE_FACTOR] == {81: 1025, 82: 600}
    world.config = ADVISE
    keep_passing(world, 3)
    assert world.slurm.terms[SITE_FACTOR] == {81: 25, 82: 0}
    world.config = ACT
    keep_passing(world, 3)
    assert world.slurm.terms[SITE_FACTOR] == {81: 1025, 82: 600}
    assert len(world.slurm.calls) == 6


def test_the_watchdog_gives_back_what_jobs_had_held_ones_too(tmp_path: Path) -> None:
    world = world_of(tmp_path, {81: "short", 82: "medium", 83: "medium"})
    keep_passing(world)
    world.slurm.records[82] = replace(world.slurm.records[82], priority=0, reason="JobHeldUser")
    add(world, waiting(84), "short")
    assert withdraw_order(world.services()) == (3, True)
    assert world.slurm.terms[SITE_FACTOR] == {81: 0, 82: 0, 83: 0}
    assert withdraw_order(world.services()) == (0, True)


def test_the_watchdog_keeps_the_rate_and_stops_when_its_time_is_over(tmp_path: Path) -> None:
    slow = replace(ACT, placement=Placement(relax_updates_per_s=1))
    world = world_of(tmp_path, dict.fromkeys(range(81, 86), "short"))
    keep_passing(world)
    world.config = slow
    assert withdraw_order(world.services(), patience_s=2.5) == (4, False)
    assert withdraw_order(world.services(), patience_s=2.5) == (1, True)
    assert set(world.slurm.terms[SITE_FACTOR].values()) == {0}


def test_a_job_that_has_waited_long_enters_the_first_class(tmp_path: Path) -> None:
    world = world_of(tmp_path, {81: "medium", 82: "long"})
    book = keep_passing(world)
    assert changes(world) == [("81", SITE_FACTOR, "600")]
    world.clock.sleep(43_200)
    reconcile_once(world.services(), book)
    # The long one waits four times as long as it runs.
    assert changes(world) == [("81", SITE_FACTOR, "600"), ("81", SITE_FACTOR, "1000")]
    assert world.store.actions()[-1].reason == "class 1 of 6: it has waited 12 h 01 min"


def overran(world: World) -> bool:
    """Whether job 81 counts as one whose key overran, for a process that starts now."""
    jobs = SlurmJobs(ask=lambda: world.slurm.jobs())
    this_pass = ReconcilePass(
        services=world.services(), book=ReconcilerState(cluster="lab"), words=jobs, summary=PassSummary(), now=START
    )
    return make_pending_order(world.slurm.records[81], this_pass).overran


def test_a_key_overran_if_its_newest_run_took_longer_than_its_p90(tmp_path: Path) -> None:
    world = world_of(tmp_path, {81: "new"})
    keep_passing(world)
    assert not overran(world)
    teach(world, "new", 100.0, 4)
    teach(world, "new", 90_000.0, 1, since=100)
    assert overran(world)
    teach(world, "new", 100.0, 1, since=200)
    assert not overran(world)


def test_after_one_or_two_runs_a_longer_one_is_no_surprise(tmp_path: Path) -> None:
    world = world_of(tmp_path, {81: "new"})
    keep_passing(world)
    teach(world, "new", 100.0, 1)
    teach(world, "new", 90_000.0, 1, since=100)
    assert not overran(world)


@pytest.mark.parametrize(
    ("before", "run_s", "waited_s", "order_class"),
    [
        (None, 105, 0, 1),
        (0, 105, 0, 0),  # hardly above the limit of 100 s
        (0, 111, 0, 1),
        (1, 95, 0, 1),
        (1, 90, 0, 0),
        (2, 95, 0, 0),  # two classes are no small change
        (1, 95, 1e6, 0),  # it has waited enough
    ],
)
def test_an_estimate_that_moves_slightly_around_a_limit_keeps_the_class(
    before: int | None, run_s: float, waited_s: float, order_class: int
) -> None:
    settings = OrderSettings(index="shortest", thresholds=(100.0, 1000.0), most_wait_s=43_200)
    estimate = RunTimeEstimate(quantiles_s=(run_s,) * len(QUANTILE_LEVELS), source=FROM_RUNS, n=9)
    one = PendingOrder(job="81", gpus=1, waited_s=waited_s, estimate=estimate)
    assert choose_class(before, classify_job(one, settings), one, settings) == order_class


def test_within_a_user_priority_is_only_taken_away(tmp_path: Path) -> None:
    config = replace(ACT, order=Order(within="user", classes=6))
    world = world_of(tmp_path, {81: "medium", 82: "long"}, config=config)
    keep_passing(world, 2)
    assert changes(world) == [("82", SITE_FACTOR, "-600")]


def test_the_pending_tasks_of_an_array_are_one_record_and_running_ones_are_left(tmp_path: Path) -> None:
    world = world_of(tmp_path, {})
    add(world, waiting(81, array_job_id=81, array_tasks="2-5"), "short")
    world.add(replace(waiting(90), array_job_id=81, array_task_id=1, state="RUNNING", start_time=START))
    keep_passing(world)
    assert changes(world) == [("81_[2-5]", SITE_FACTOR, "1000")]
    # A task that was split from it has its value, and gives back what the array had.
    world.add(replace(waiting(91), array_job_id=81, array_task_id=2))
    world.slurm.terms[SITE_FACTOR][91] = 1000
    world.config = ADVISE
    keep_passing(world)
    assert world.slurm.terms[SITE_FACTOR] == {81: 0, 91: 0}


@pytest.mark.parametrize("scheme", [MULTIFACTOR, BASIC])
def test_held_jobs_and_jobs_of_others_are_not_changed(tmp_path: Path, scheme: PriorityScheme) -> None:
    world = world_of(tmp_path, {}, scheme)
    add(world, waiting(81, priority=0, reason="JobHeldUser"), "short")
    add(world, waiting(82, eligible_time=START + 9999, reason="BeginTime"), "short")
    world.add(waiting(83, uid=1002, user="bob"))
    keep_passing(world, 2)
    assert changes(world) == []


def test_a_job_that_is_held_a_moment_before_the_update_stays_held_under_basic(tmp_path: Path) -> None:
    world = world_of(tmp_path, {81: "short"}, BASIC)

    def held(address: str) -> JobRecord:
        return replace(waiting(81), priority=0, reason="JobHeldUser")

    world.slurm.job = held  # type: ignore[method-assign]
    keep_passing(world)
    assert changes(world) == []


def test_a_priority_that_would_wrap_around_is_not_set(tmp_path: Path) -> None:
    world = world_of(tmp_path, {}, BASIC)
    add(world, waiting(81, priority=MAX_PRIORITY - 999), "short")
    add(world, waiting(82, priority=MAX_PRIORITY - 1000), "short")
    keep_passing(world)
    assert changes(world) == [("82", NICE, "-1000")]


def test_the_rate_limit_holds_back_updates_and_the_next_pass_goes_on(tmp_path: Path) -> None:
    config = replace(ACT, placement=Placement(relax_updates_per_s=5))
    world = world_of(tmp_path, dict.fromkeys(range(81, 93), "short"), config=config)
    book, seen = ReconcilerState(), []
    for _ in range(4):
        summary = reconcile_once(world.services(), book)
        seen.append((len(world.slurm.calls), summary.held_back))
        world.clock.sleep(1)
    assert seen == [(5, 1), (10, 1), (12, 0), (12, 0)]


def test_a_service_that_may_not_change_priorities_says_so_once(tmp_path: Path) -> None:
    world = world_of(tmp_path, {81: "short", 82: "short"})

    def refuse(action: SlurmAction, owner: int | None = None, also: object = ()) -> None:
        world.slurm.calls.append(action)
        raise SlurmError("Access/permission denied for job 81")

    world.slurm.apply = refuse  # type: ignore[assignment]
    book = ReconcilerState()
    errors = [reconcile_once(world.services(), book).errors for _ in range(3)]
    assert [len(found) for found in errors] == [1, 0, 0] and "denied" in errors[0][0]
    assert len(world.slurm.calls) == 1


def test_without_enough_runs_or_with_an_unknown_plugin_there_is_no_order(tmp_path: Path) -> None:
    world = World(tmp_path / "few", ACT)
    world.slurm.scheme = MULTIFACTOR
    teach(world, "short", 100.0)
    add(world, waiting(81), "short")
    other = world_of(tmp_path / "other", {81: "short"}, PriorityScheme(plugin="own"))
    for one in (world, other):
        keep_passing(one)
        assert changes(one) == []


def test_the_order_begins_soon_after_there_are_enough_runs(tmp_path: Path) -> None:
    world = World(tmp_path, ACT)
    world.slurm.scheme = MULTIFACTOR
    add(world, waiting(81), "short")
    book = keep_passing(world)
    for key, (run_s, count) in RUNS.items():
        teach(world, key, run_s, count)
    # The history of the running process keeps what it read; a run that the process itself records is added to it.
    book.run_times = None
    world.clock.sleep(60)
    reconcile_once(world.services(), book)
    assert changes(world) == [("81", SITE_FACTOR, "1000")]


def test_what_users_may_know_is_published_when_it_changes(tmp_path: Path) -> None:
    world = world_of(tmp_path, {})
    book = keep_passing(world)
    assert world.publisher.published is not None and world.publisher.published.order is None
    add(world, waiting(81), "short")
    reconcile_once(world.services(), book)
    found = world.publisher.published.order
    assert found is not None and (found.acts, found.index, len(found.thresholds)) == (True, "shortest", 5)
    world.config = replace(ACT, rules={**ACT.rules, "order": "observe"})
    reconcile_once(world.services(), book)
    assert world.publisher.published.order is None


def test_jobs_of_others_that_were_passed_are_counted(tmp_path: Path) -> None:
    world = world_of(tmp_path, {81: "short", 82: "long"})
    bob = {"uid": 1002, "user": "bob"}
    world.add(waiting(70, **bob), waiting(71, **bob, partition="other"), waiting(72, **bob, reason="Dependency"))
    world.add(waiting(73, **bob, priority=9000), waiting(90, **bob))
    book = keep_passing(world, 2)
    for job_id in (81, 82):
        started = replace(
            world.slurm.records[job_id], state="RUNNING", start_time=int(world.clock.now()), nodes=("n1",)
        )
        world.add(started)
    reconcile_once(world.services(), book)
    assert [world.attempt(world.slurm.records[job_id]).passed for job_id in (81, 82)] == [1, None]
    reconcile_once(world.services(), book)
    assert world.attempt(world.slurm.records[81]).passed == 1


def test_a_users_own_reconciler_orders_by_nice_only_if_they_say_so_and_there_is_no_site(tmp_path: Path) -> None:
    scope = Scope(user="alice", uid=1001)
    for number, (config, lasting, expected) in enumerate(
        (
            (ACT, True, [("82", NICE, "600")]),
            (ADVISE, True, []),
            (ACT, False, []),
            (replace(ACT, site=SiteSection(published="/srv/published")), True, []),
        )
    ):
        world = world_of(tmp_path / str(number), {81: "medium", 82: "long"}, config=config, scope=scope)
        reconcile_once(replace(world.services(), lasting=lasting), ReconcilerState())
        assert changes(world) == expected
        assert len(world.store.actions()) == len(expected)


# --- killed at any instruction ---------------------------------------------------------------------------------------


def _run_until_done(world: World, deaths: Callable[[], Fuse]) -> int:
    """Passes of processes that are killed, until one is not. Returns how many were."""
    kills = 0
    while True:
        try:
            reconcile_once(world.services(deaths().through), ReconcilerState())
        except Killed:
            kills += 1
            continue
        return kills


@pytest.mark.parametrize("scheme", [MULTIFACTOR, BASIC])
@pytest.mark.parametrize("after", [False, True])
def test_nothing_is_lost_or_left_wherever_the_reconciler_is_killed(
    tmp_path: Path, scheme: PriorityScheme, after: bool
) -> None:
    term, sign = (SITE_FACTOR, 1) if scheme is MULTIFACTOR else (NICE, -1)
    world = world_of(tmp_path, {81: "short", 82: "medium", 83: "long", 84: "short"}, scheme)
    own = {81: 7, 82: 0, 83: 3, 84: 0}
    world.slurm.terms[term] = dict(own)
    ordered = {81: 7 + sign * 1000, 82: sign * 600, 83: 3, 84: sign * 1000}
    for config, expected in ((ACT, ordered), (ADVISE, own), (ACT, ordered), (ADVISE, own)):
        world.config = config
        at = 0

        def next_fuse() -> Fuse:
            nonlocal at
            at += 1
            return Fuse(at, after=after)

        kills = _run_until_done(world, next_fuse)
        assert kills > 10
        assert world.slurm.terms[term] == expected
        assert [a for a in world.store.actions() if a.mode == "act" and a.done_at is None] == []


def test_an_update_whose_result_is_unknown_is_compared_with_slurm_in_the_next_pass(tmp_path: Path) -> None:
    world = world_of(tmp_path, {81: "short"}, BASIC)
    world.slurm.terms[NICE] = {81: 7}
    real = world.slurm.apply

    def lose_the_answer(action: SlurmAction, owner: int | None = None, also: object = ()) -> None:
        real(action, owner)
        raise SlurmUnreachable("Socket timed out on send/recv operation")

    world.slurm.apply = lose_the_answer  # type: ignore[assignment]
    with pytest.raises(SlurmUnreachable):
        world.run()
    world.slurm.apply = real  # type: ignore[method-assign]
    world.run()
    assert len(world.slurm.calls) == 1
    (row,) = world.store.actions(run_key_from_job(world.slurm.records[81], "lab"))
    assert (row.value, row.own, row.error, row.done_at is not None) == ("-993", "7", "", True)
    world.config = ADVISE
    world.run()
    assert world.slurm.terms[NICE] == {81: 7}
