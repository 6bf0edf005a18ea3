"""The reconciler and the jobs that wait: what it loosens, how fast, in whose name, and what it counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import permutations
from pathlib import Path

import pytest
from fakes import START, Fuse, Killed, job, node
from test_reconcile_pass import ACT, World, submission, submitted

from slurmwrap.config.load_config import Config, Placement, Tuning
from slurmwrap.errors import SlurmError, SlurmUnreachable
from slurmwrap.model.cluster import NodeLoad
from slurmwrap.model.decision import SlurmAction
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import ActionRecord, QueueDelay
from slurmwrap.model.placement_plan import Level, PlacementPlan
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.model.submission import Submission
from slurmwrap.placement.relaxation import may_be_touched
from slurmwrap.placement.token_bucket import fill_bucket, take
from slurmwrap.policy.run_from_slurm import run_key_from_job
from slurmwrap.reconcile import Scope, reconcile_once
from slurmwrap.reconcile.pending_job_updates import select_first_jobs
from slurmwrap.reconcile.reconcile_context import ReconcilerState
from slurmwrap.sbatch.job_request import CpuUnit, GpuUnit, MemUnit, OptionChange, ResourceShape

SHAPE = ResourceShape(
    nodes=1, tasks_per_node=2, gpus=2, gpus_per_node=2, gpu_unit=GpuUnit.GRES,
    cpus=2, cpu_unit=CpuUnit.PER_TASK, mem_mib=4000, mem_unit=MemUnit.PER_NODE,
)  # fmt: skip
PLAN = PlacementPlan(
    lines=(
        OptionChange(option="exclude", value="n[6-7]", reason="suspect"),
        OptionChange(option="mem", value="8000M", reason="peak"),
        OptionChange(option="cpus-per-task", value="4", reason="need"),
    ),
    levels=(
        Level(name="away from suspects", wait_s=100),
        Level(name="any", wait_s=400, updates=(("ExcNodeList", ""),)),
        Level(
            name="CPUs and memory as asked",
            wait_s=0,
            updates=(("MinMemoryNode", "4000"), ("CPUsPerTask", "2"), ("MinCPUsNode", "4")),
        ),
    ),
)
ALONE = Config(tuning=Tuning(enabled=False))  # what tuning does to waiting jobs is tested elsewhere
RELAX = replace(ALONE, rules={"relax": "act"})


def waiting(job_id: int = 81, **changes: object) -> JobRecord:
    """A job of alice's that waits since START - 60."""
    plain = job(
        job_id, state="PENDING", reason="Resources", exit_code=0, start_time=None, end_time=None, nodes=(),
        submit_time=START - 60, eligible_time=START - 60, priority=1000 - job_id, num_nodes=1, max_nodes=1, cpus=8,
        gpus=2, mem_mib_per_node=8000, cpus_per_task=4, min_cpus=8, exc_nodes="n[6-7]",
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


def asked(job_id: int = 81, **changes: object) -> Submission:
    plain = submission(job_id, at=START - 61.0, shape=SHAPE, plan=asdict(PLAN), tune=True, place=True)
    return replace(plain, **changes)  # type: ignore[arg-type]


def world_of(path: Path, *jobs: JobRecord, config: Config = RELAX, scope: Scope | None = None) -> World:
    world = World(path, config, scope)
    world.add(*jobs)
    world.hear(*(submitted(asked(one.array_job_id or one.job_id)) for one in jobs))
    return world


def said(world: World) -> list[tuple[str, str, str]]:
    return [(action.target, action.key, action.value) for action in world.slurm.calls]


ANY = [("81", "ExcNodeList", "")]
SHARE = [("81", "MinMemoryNode", "4000"), ("81", "CPUsPerTask", "2"), ("81", "MinCPUsNode", "4")]


# --- what is loosened ------------------------------------------------------------------------------------------------


def test_levels_are_loosened_in_order_in_the_owners_name_and_each_once(tmp_path: Path) -> None:
    world = world_of(tmp_path, waiting())
    seen = []
    for _ in range(12):
        world.run()
        seen.append(len(world.slurm.calls))
        world.clock.sleep(50)
    assert said(world) == [*ANY, *SHARE]
    assert seen == [0, 1, 1, 1, 1, 1, 1, 4, 4, 4, 4, 4]
    assert set(world.slurm.owners) == {1001}
    rows = [(a.rule, a.mode, a.key, a.error, a.done_at is not None) for a in world.store.actions()]
    assert rows == [("relax", "act", key, "", True) for _, key, _ in said(world)]


def test_all_levels_at_once_after_the_reconciler_was_away(tmp_path: Path) -> None:
    world = world_of(tmp_path, waiting())
    world.clock.sleep(10_000)
    world.run()
    assert said(world) == [*ANY, *SHARE]


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_without_act_it_is_only_recorded_and_only_once(tmp_path: Path, mode: str) -> None:
    world = world_of(tmp_path, waiting(), config=replace(ALONE, rules={"relax": mode}))
    for _ in range(3):
        world.clock.sleep(200)
        world.run()
    assert world.slurm.calls == []
    assert [(a.mode, a.key, a.done_at) for a in world.store.actions()] == [
        (mode, "ExcNodeList", None),
        *((mode, key, None) for _, key, _ in SHARE),
    ]


def test_in_user_mode_nothing_is_changed(tmp_path: Path) -> None:
    world = world_of(tmp_path, waiting(), scope=Scope(user="alice", uid=1001))
    world.clock.sleep(10_000)
    world.run()
    assert world.slurm.calls == [] and world.store.actions() == ()


def test_a_job_without_a_submission_of_its_own_user_is_left_alone(tmp_path: Path) -> None:
    world = World(tmp_path, RELAX)
    world.add(waiting(81), waiting(82, uid=1002, user="bob"), waiting(83))
    world.hear(submitted(asked(82)), submitted(asked(83, shape=None)))  # alice speaks of bob's; one of an older version
    world.clock.sleep(10_000)
    world.run()
    assert world.slurm.calls == []


@pytest.mark.parametrize("plan", [{"levels": "x"}, {"lines": [7]}, {"levels": [{"name": "a", "wait_s": 1e99}]}, {}])
def test_a_plan_that_is_none_changes_nothing_and_stops_nobody(tmp_path: Path, plan: dict[str, object]) -> None:
    world = World(tmp_path, RELAX)
    world.add(waiting(81), waiting(82))
    world.hear(submitted(asked(81, plan=plan)), submitted(asked(82)))
    world.clock.sleep(100)
    summary = world.run()
    assert (said(world), summary.errors) == ([("82", "ExcNodeList", "")], [])


def test_while_the_controller_is_away_nobody_is_blamed(tmp_path: Path) -> None:
    world, book = world_of(tmp_path, waiting()), ReconcilerState()
    world.clock.sleep(100)
    apply = world.slurm.apply

    def away(action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        world.slurm.away = True
        apply(action, owner, also)

    world.slurm.apply = away  # type: ignore[method-assign]
    with pytest.raises(SlurmUnreachable):
        reconcile_once(world.services(), book)
    world.slurm.away, world.slurm.apply = False, apply  # type: ignore[method-assign]
    reconcile_once(world.services(), book)
    assert said(world) == ANY and world.store.actions(unfinished=True) == ()


def test_a_submission_that_comes_late_is_found(tmp_path: Path) -> None:
    world, book = World(tmp_path, RELAX), ReconcilerState()
    world.add(waiting())
    reconcile_once(world.services(), book)
    world.hear(submitted(asked()))
    world.clock.sleep(100)
    reconcile_once(world.services(), book)
    assert said(world) == ANY


def test_an_array_is_loosened_where_it_waits(tmp_path: Path) -> None:
    rest = waiting(81, array_job_id=81, array_tasks="3-9")
    first = replace(job(90, state="RUNNING", end_time=None), array_job_id=81, array_task_id=2)
    world = world_of(tmp_path, rest)
    world.add(first)
    world.clock.sleep(100)
    world.run()
    assert said(world) == [("81_[3-9]", "ExcNodeList", "")]


def test_a_node_list_goes_at_once_when_a_node_is_taken(tmp_path: Path) -> None:
    pinned = replace(
        PLAN,
        lines=(OptionChange(option="nodelist", value="n1", reason="free"),),
        levels=(Level(name="pinned", wait_s=50_000),),
    )
    config = replace(RELAX, placement=Placement(pin_s=86_400))
    world = world_of(tmp_path, config=config)
    world.add(waiting(req_nodes="n1", exc_nodes=""))
    world.hear(submitted(asked(plan=asdict(pinned))))
    world.run()
    assert said(world) == []
    world.slurm.nodes["n1"] = node("n1", state="MIXED", gpus_used=7)
    world.run()
    assert [(*one, action.reason) for one, action in zip(said(world), world.slurm.calls, strict=True)] == [
        ("81", "ReqNodeList", "", "n1 is not free any more")
    ]


def test_a_reason_that_names_what_we_asked_for_takes_all_of_it_back(tmp_path: Path) -> None:
    world = world_of(tmp_path, waiting(reason="QOSMaxMemoryPerJob"))
    world.run()
    assert said(world) == [("81", "ExcNodeList", ""), *SHARE]


# --- refusals and deaths ---------------------------------------------------------------------------------------------


def refusing(path: Path, key: str = "MinCPUsNode", error: str = "Requested partition configuration not available now"):
    """A Slurm that refuses `key` and keeps the value."""
    world = world_of(path, waiting())
    world.clock.sleep(10_000)
    updated = world.slurm._updated

    def refuse(found: JobRecord, action: SlurmAction) -> JobRecord:
        if action.key == key and action.value == "4":
            world.slurm.records[found.job_id] = updated(found, action)
            raise SlurmError(error)
        return updated(found, action)

    world.slurm._updated = refuse  # type: ignore[method-assign]
    return world


def test_a_refusal_is_put_back_in_reverse_and_not_tried_again(tmp_path: Path) -> None:
    world = refusing(tmp_path)
    world.run()
    once = said(world)
    assert once == [*ANY, *SHARE, ("81", "MinCPUsNode", "8"), ("81", "CPUsPerTask", "4")]
    world.clock.sleep(1000)
    world.run()
    assert said(world) == once
    assert [a.key for a in world.store.actions() if a.error] == ["CPUsPerTask", "MinCPUsNode"]


def test_a_node_list_is_never_put_back_and_nothing_to_a_job_that_started(tmp_path: Path) -> None:
    pinned = replace(PLAN, lines=(OptionChange(option="nodelist", value="n1", reason="free"),))
    world = World(tmp_path / "pin", RELAX)
    world.add(waiting(req_nodes="n1", exc_nodes=""))
    world.hear(submitted(asked(plan=asdict(pinned))))
    world.clock.sleep(100)

    def refuse(found: JobRecord, action: SlurmAction) -> JobRecord:
        raise SlurmError("Invalid node name specified for job 81")  # what a job that has started answers

    world.slurm._updated = refuse  # type: ignore[method-assign]
    world.run()
    assert said(world) == [("81", "ReqNodeList", "")]
    world = refusing(tmp_path / "sizes")
    updated = world.slurm._updated

    def started(found: JobRecord, action: SlurmAction) -> JobRecord:
        try:
            return updated(found, action)
        except SlurmError:
            world.add(replace(found, state="RUNNING", nodes=("n1",), start_time=int(world.clock.now())))
            raise

    world.slurm._updated = started  # type: ignore[method-assign]
    world.run()
    assert said(world) == [*ANY, *SHARE]


def test_a_job_that_started_meanwhile_is_not_undone(tmp_path: Path) -> None:
    world = refusing(tmp_path, error="Job is no longer pending execution for job 81")
    world.run()
    assert said(world) == [*ANY, *SHARE]


def test_an_owner_in_whose_name_slurm_does_not_answer_holds_up_nobody_else(tmp_path: Path) -> None:
    world = world_of(tmp_path, waiting(81))
    world.add(waiting(82, uid=1002, user="bob"))
    world.hear(submitted(replace(asked(82), uid=1002, user="bob"), uid=1002))
    world.clock.sleep(100)
    apply = world.slurm.apply

    def stopped(action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        if owner == 1001:
            raise SlurmUnreachable("scontrol: no answer within 3 s")
        apply(action, owner, also)

    world.slurm.apply = stopped  # type: ignore[method-assign]
    book = ReconcilerState()
    first, second = reconcile_once(world.services(), book), reconcile_once(world.services(), book)
    assert said(world) == [("82", "ExcNodeList", "")]
    assert (len(first.errors), second.errors) == (1, [])
    world.slurm.apply = apply  # type: ignore[method-assign]
    world.clock.sleep(601)
    reconcile_once(world.services(), book)
    assert ("81", "ExcNodeList", "") in said(world)


@pytest.mark.parametrize("deaths", [Fuse.of_each_kind, pytest.param(Fuse.everywhere, marks=pytest.mark.slow)])
def test_killed_anywhere_nothing_is_lost_and_nothing_differs(
    tmp_path: Path, deaths: Callable[[Fuse], list[tuple[int, bool]]]
) -> None:
    def fresh(name: str) -> World:
        world = world_of(tmp_path / name, waiting())
        world.clock.sleep(10_000)
        return world

    plain, fuse = fresh("plain"), Fuse()
    reconcile_once(plain.services(fuse.through))
    for at, after in deaths(fuse):
        world = fresh(f"killed-{at}-{after}")
        with pytest.raises(Killed):
            reconcile_once(world.services(Fuse(at, after=after).through))
        for _ in range(3):
            world.clock.sleep(2)
            world.run()
        assert world.slurm.records == plain.slurm.records, at
        assert world.store.actions(unfinished=True) == (), at
        assert {(a.key, a.value, a.error) for a in world.store.actions()} == {
            (a.key, a.value, a.error) for a in plain.store.actions()
        }, at
        assert len(world.slurm.calls) <= len(plain.slurm.calls) + 3, at
        world.store.close()


@pytest.mark.parametrize("deaths", [Fuse.after_each_change, pytest.param(Fuse.everywhere, marks=pytest.mark.slow)])
def test_killed_between_a_refusal_and_its_undoing_it_is_put_back(
    tmp_path: Path, deaths: Callable[[Fuse], list[tuple[int, bool]]]
) -> None:
    plain, fuse = refusing(tmp_path / "plain"), Fuse()
    reconcile_once(plain.services(fuse.through))
    for at, after in deaths(fuse):
        world = refusing(tmp_path / f"{at}-{after}")
        with pytest.raises(Killed):
            reconcile_once(world.services(Fuse(at, after=after).through))
        for _ in range(3):
            world.clock.sleep(2)
            world.run()
        assert world.slurm.records == plain.slurm.records, at
        world.store.close()


def test_a_run_that_ends_with_relaxing_begun_is_judged_and_retried_all_the_same(tmp_path: Path) -> None:
    world = world_of(tmp_path, waiting(), config=replace(ACT, tuning=ALONE.tuning))
    world.clock.sleep(100)
    with pytest.raises(Killed):
        reconcile_once(world.services(_before_apply().through))
    world.add(job(81, submit_time=START - 60, state="COMPLETED", exit_code=0))
    world.clock.sleep(100)
    world.run()
    assert [(a.rule, a.error) for a in world.store.actions()] == [("relax", "the job is no longer pending")]
    assert world.attempt(waiting()).reconciled


def _before_apply() -> Fuse:
    class Before(Fuse):
        def through(self, edge: object) -> object:
            return _Dying(edge) if hasattr(edge, "sbatch") else edge

    return Before()


class _Dying:
    """A Slurm before whose first change the reconciler dies."""

    def __init__(self, edge: object) -> None:
        self._edge = edge

    def __getattr__(self, name: str) -> object:
        return getattr(self._edge, name)

    def apply(self, action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        raise Killed


# --- how many, how fast ----------------------------------------------------------------------------------------------


def test_at_most_so_many_jobs_at_the_head_of_each_queue_and_so_many_updates_a_second(tmp_path: Path) -> None:
    config = replace(RELAX, placement=Placement(relax_jobs=10, relax_updates_per_s=2))
    jobs = [waiting(100 + i, partition="long" if i % 10 else "short", eligible_time=START - 200) for i in range(30)]
    world, book = world_of(tmp_path, *jobs, config=config), ReconcilerState()
    done: list[int] = []
    for _ in range(20):
        before = len(world.slurm.calls)
        summary = reconcile_once(world.services(), book)
        done.append(len(world.slurm.calls) - before)
        assert (summary.held_back > 0) == (sum(done) < 10)
        world.clock.sleep(1)
    assert done == [2] * 5 + [0] * 15
    # the three of the short queue are not hidden behind the long one, which has more and as high ones
    assert [int(target) for target, _, _ in said(world)] == [100, 101, 102, 110, 103, 120, 104, 105, 106, 107]


def test_jobs_that_fit_nowhere_have_a_tenth_of_the_head_and_no_more() -> None:
    stuck = [waiting(n, priority=0, reason="BadConstraints") for n in range(100, 130)]
    found = [one.job_id for one in select_first_jobs([*stuck, *(waiting(n) for n in range(200, 230))], 20)]
    assert found == [129, 128, *range(200, 218)]
    assert [one.job_id for one in select_first_jobs(stuck, 1)] == [129]


def test_of_very_many_jobs_that_fit_nowhere_some_are_looked_at_in_each_pass_and_all_in_turn(tmp_path: Path) -> None:
    jobs = [waiting(100 + n, reason="BadConstraints", priority=0) for n in range(1200)]
    world = world_of(tmp_path, *jobs, config=replace(ALONE, placement=Placement(relax_jobs=0)))
    book, seen = ReconcilerState(), []
    for _ in range(3):
        world.clock.sleep(60)
        reconcile_once(world.services(), book)
        seen.append(len(world.store.delays()))
    assert seen == [500, 1000, 1200]


def test_no_list_of_partitions_and_no_number_of_jobs_keeps_others_from_the_head_of_the_queue() -> None:
    names = ("a", "b", "c", "d", "e")
    lists = [",".join(some) for count in (2, 3) for some in permutations(names, count)]
    many = [waiting(1000 + n, partition=text, priority=9, uid=1666) for n, text in enumerate(lists)]
    others = [waiting(200 + n, partition=name, priority=500) for n, name in enumerate(names)]
    found = select_first_jobs([*many, *others], 10)
    assert [one.job_id for one in found[:5]] == [200, 201, 202, 203, 204]

    stuck = [waiting(1000 + n, priority=0, reason="BadConstraints", uid=1666) for n in range(100)]
    found = select_first_jobs([*stuck, waiting(300, priority=0, reason="BadConstraints")], 20)
    assert {one.job_id for one in found} == {1099, 300}


def test_a_list_of_nodes_of_ours_is_loosened_however_far_back_the_job_is(tmp_path: Path) -> None:
    pinned = replace(PLAN, lines=(OptionChange(option="nodelist", value="n3", reason="free"),), levels=())
    front = [waiting(100 + n, priority=9000) for n in range(20)]
    last = waiting(81, priority=1, exc_nodes="", req_nodes="n3")
    world = World(tmp_path, replace(RELAX, placement=Placement(relax_jobs=10)))
    world.add(*front, last)
    world.hear(*(submitted(asked(one.job_id)) for one in front), submitted(asked(81, plan=asdict(pinned))))
    world.run()
    assert ("81", "ReqNodeList", "") in said(world)


def test_a_list_of_nodes_of_its_users_own_takes_no_place_at_the_head() -> None:
    jobs = [waiting(n, priority=1000 - n, req_nodes="n3") for n in range(20)]
    assert [one.job_id for one in select_first_jobs(jobs, 10, {19, 18})] == [18, *range(9)]


def test_an_array_whose_waiting_tasks_fill_pages_is_left_alone() -> None:
    odd = ",".join(str(task) for task in range(1, 100_000, 2))
    assert may_be_touched(waiting(array_job_id=81, array_tasks="1-99999:2"), START)
    assert not may_be_touched(waiting(array_job_id=81, array_tasks=odd), START)


def test_a_job_that_nobody_can_handle_keeps_no_other_from_being_loosened(tmp_path: Path) -> None:
    world = world_of(tmp_path, waiting(81), waiting(82))
    world.clock.sleep(100)
    read = world.store.actions

    def odd(attempt: RunKey | None = None, *, unfinished: bool = False) -> tuple[ActionRecord, ...]:
        if attempt is not None and attempt.job_id == 81:
            raise ZeroDivisionError
        return read(attempt, unfinished=unfinished)

    world.store.actions = odd  # type: ignore[method-assign]
    summary = reconcile_once(world.services())
    assert said(world) == [("82", "ExcNodeList", "")]
    assert summary.errors[0] == "job 81: ZeroDivisionError: "


def test_a_slow_controller_costs_one_time_out_in_a_pass_however_many_owners_there_are(tmp_path: Path) -> None:
    jobs = [waiting(81 + n, uid=2000 + n, user=f"u{n}") for n in range(5)]
    world = World(tmp_path, RELAX)
    world.add(*jobs)
    world.hear(*(submitted(replace(asked(j.job_id), uid=j.uid, user=j.user), uid=j.uid) for j in jobs))
    world.clock.sleep(100)
    tried: list[int | None] = []

    def slow(action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        tried.append(owner)
        raise SlurmUnreachable("scontrol: no answer within 3 s")

    world.slurm.apply = slow  # type: ignore[method-assign]
    book = ReconcilerState()
    for _ in range(2):
        reconcile_once(world.services(), book)
    assert tried == [2000, 2001]


def test_the_bucket_never_gives_more_than_its_rate_and_one_seconds_worth() -> None:
    bucket, given = fill_bucket(None, 0.0, 5.0), 0
    for tick in range(1, 601):  # a minute of passes every tenth of a second, each wanting all it can get
        bucket = fill_bucket(bucket, tick / 10, 5.0)
        while (rest := take(bucket, 1, 5.0)) is not None:
            bucket, given = rest, given + 1
    assert 300 <= given <= 305


def test_a_group_larger_than_the_bucket_is_owed_for() -> None:
    owing = take(fill_bucket(None, 0.0, 1.0), 2, 1.0)
    assert owing is not None and owing.tokens == -1.0
    assert take(fill_bucket(owing, 1.5, 1.0), 1, 1.0) is None
    assert take(fill_bucket(owing, 2.0, 1.0), 1, 1.0) is not None
    assert fill_bucket(owing, -50.0, 1.0).tokens == -1.0  # a clock that was put back


# --- what it waits for -----------------------------------------------------------------------------------------------


def delay(world: World, record: JobRecord) -> tuple[float, float, float, bool]:
    (found,) = [d for d in world.store.delays() if d.attempt == run_key_from_job(record, "lab")]
    return found.fair_share_s, found.fragmentation_s, found.unknown_s, found.over


def crowded(world: World, free_on_each: int) -> None:
    """Every node has so many free GPUs."""
    for name in world.slurm.nodes:
        world.slurm.nodes[name] = node(name, state="MIXED", gpus_used=8 - free_on_each, cpus_alloc=8)


def test_waiting_time_is_split_by_what_it_waited_for_and_counted_once(tmp_path: Path) -> None:
    record = waiting(eligible_time=START, gpus=4)
    world = world_of(tmp_path, record)
    crowded(world, free_on_each=0)
    world.run()  # nothing is free
    world.clock.sleep(120)
    crowded(world, free_on_each=1)  # eight are free, none of the nodes has four
    world.run()
    world.reopen()
    world.clock.sleep(180)
    world.run()
    world.run()
    assert delay(world, record) == (120.0, 180.0, 0.0, False)
    world.add(replace(record, state="RUNNING", start_time=int(world.clock.now()) + 30, nodes=("n1",)))
    world.clock.sleep(60)
    world.run()
    assert delay(world, record) == (120.0, 210.0, 0.0, True)


@pytest.mark.parametrize(
    "reason", ["Priority", "QOSMaxGRESPerUser", "AssocGrpCpuLimit", "JobArrayTaskLimit", "Licenses"]
)
def test_priority_and_limits_are_fair_share_whatever_is_free(tmp_path: Path, reason: str) -> None:
    record = waiting(reason=reason, eligible_time=START)
    world = world_of(tmp_path, record, config=ALONE)
    crowded(world, free_on_each=1)
    for _ in range(2):
        world.run()
        world.clock.sleep(100)
    assert delay(world, record) == (100.0, 0.0, 0.0, False)


def test_a_job_that_fits_only_has_not_been_come_to(tmp_path: Path) -> None:
    record = waiting(eligible_time=START)
    world = world_of(tmp_path, record, config=ALONE)
    for _ in range(2):
        world.run()
        world.clock.sleep(100)
    assert delay(world, record) == (100.0, 0.0, 0.0, False)


def test_time_in_which_nobody_looked_is_unknown(tmp_path: Path) -> None:
    record = waiting(eligible_time=START - 1000)
    world = world_of(tmp_path, record, config=ALONE)
    world.run()
    world.clock.sleep(100)
    world.run()
    world.clock.sleep(601)
    world.run()
    assert delay(world, record) == (100.0, 0.0, 1601.0, False)


def test_time_on_hold_is_nobodys(tmp_path: Path) -> None:
    record = waiting(eligible_time=START)
    world = world_of(tmp_path, record, config=ALONE)
    for priority in (7, 7, 0, 0, 7, 7):
        world.slurm.records[81] = replace(record, priority=priority)
        world.run()
        world.clock.sleep(100)
    assert delay(world, record) == (300.0, 0.0, 0.0, False)


def test_a_requeue_counts_anew_and_a_job_missed_once_goes_on(tmp_path: Path) -> None:
    record = waiting(eligible_time=START)
    world, book = world_of(tmp_path, record, config=ALONE), ReconcilerState()
    reconcile_once(world.services(), book)
    world.slurm.records.clear()
    world.clock.sleep(100)
    reconcile_once(world.services(), book)
    world.add(record)
    world.clock.sleep(100)
    reconcile_once(world.services(), book)
    assert delay(world, record) == (200.0, 0.0, 0.0, False)
    again = replace(record, submit_time=START + 300, eligible_time=START + 421, restarts=1)
    world.slurm.records = {81: again}
    world.clock.sleep(321)
    reconcile_once(world.services(), book)
    assert [(d.attempt.submit_time, d.over) for d in world.store.delays()] == [(START - 60, True), (START + 300, False)]


def test_a_delay_is_kept_as_it_is(tmp_path: Path) -> None:
    world = World(tmp_path)
    kept = QueueDelay(
        attempt=run_key_from_job(waiting(), "lab"), address="81", user="alice", gpus=2, eligible_at=START + 0.5,
        seen_at=START + 9.0, fair_share_s=1.0, fragmentation_s=2.0, unknown_s=5.5, waits_for="fragmentation", over=True,
    )  # fmt: skip
    world.store.save_delay(kept)
    world.store.save_delay(kept)
    assert world.store.delays() == world.store.delays(job_id=81) == world.store.delays(since=START + 9.0) == (kept,)
    assert world.store.delays(open_only=True) == world.store.delays(since=START + 10.0) == ()


# --- what is published -----------------------------------------------------------------------------------------------


def test_the_load_of_nodes_is_published_without_a_name_and_relaxing_only_in_act(tmp_path: Path) -> None:
    world = World(tmp_path, RELAX)
    running = replace(
        job(81, state="RUNNING", end_time=None, nodes=("n1", "n2"), gpus=4, cpus=16), submit_time=START - 60
    )
    world.add(running, job(82, state="RUNNING", end_time=None, nodes=("n2",)))
    world.hear(submitted(asked(profile_key="train")))
    profile = ResourceProfile(key="1001:train", cpus_per_gpu=3.0, mem_mib_per_gpu=900, read_mib_per_s=10.0)
    world.store.save_profile(profile)
    world.run()
    published = world.publisher.published
    assert published is not None
    load = NodeLoad(node="n1", cpus_busy=6.0, mem_mib=1800)
    assert published.loads == (load, replace(load, node="n2"))
    assert published.relaxing and published.fresh(START) and published.fresh(START + 599)
    assert not published.fresh(START + 600) and not published.fresh(START - 1)


@pytest.mark.parametrize(
    "config",
    [ALONE, replace(ALONE, rules={"relax": "advise"}), replace(RELAX, placement=Placement(relax_jobs=0))],
)
def test_who_does_not_relax_does_not_say_so(tmp_path: Path, config: Config) -> None:
    world = World(tmp_path, config)
    world.run()
    assert world.publisher.published is not None and not world.publisher.published.relaxing


@pytest.mark.parametrize("resizes", [True, False])
def test_who_may_not_change_the_number_of_nodes_does_not_say_that_he_loosens(tmp_path: Path, resizes: bool) -> None:
    world = World(tmp_path, RELAX)
    reconcile_once(replace(world.services(), may_resize=lambda: resizes))
    assert world.publisher.published is not None and world.publisher.published.relaxing == resizes
