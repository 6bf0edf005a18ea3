"""Pending jobs: what the reconciler relaxes, at what rate, as which user, and how it counts waiting time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import permutations
from pathlib import Path

import pytest
from fakes import START, Fuse, Killed, job, node
from test_reconcile_pass import ACT, World, submission, submission_observation

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
NO_TUNING = Config(tuning=Tuning(enabled=False))  # test_tune_pending.py tests tuning
RELAX = replace(NO_TUNING, rules={"relax": "act"})


def pending_job(job_id: int = 81, **changes: object) -> JobRecord:
    """A job of alice that has been pending since START - 60."""
    plain = job(
        job_id, state="PENDING", reason="Resources", exit_code=0, start_time=None, end_time=None, nodes=(),
        submit_time=START - 60, eligible_time=START - 60, priority=1000 - job_id, num_nodes=1, max_nodes=1, cpus=8,
        gpus=2, mem_mib_per_node=8000, cpus_per_task=4, min_cpus=8, exc_nodes="n[6-7]",
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


def planned_submission(job_id: int = 81, **changes: object) -> Submission:
    """The submission of a job of alice with PLAN, which may be relaxed."""
    plain = submission(job_id, at=START - 61.0, shape=SHAPE, plan=asdict(PLAN), tune=True, place=True)
    return replace(plain, **changes)  # type: ignore[arg-type]


def world_of(path: Path, *jobs: JobRecord, config: Config = RELAX, scope: Scope | None = None) -> World:
    world = World(path, config, scope)
    world.add(*jobs)
    world.spool_observations(
        *(submission_observation(planned_submission(one.array_job_id or one.job_id)) for one in jobs)
    )
    return world


def requests(world: World) -> list[tuple[str, str, str]]:
    """Target, key and value of each action that Slurm was asked for."""
    return [(action.target, action.key, action.value) for action in world.slurm.calls]


EXCLUDE_NOTHING = [("81", "ExcNodeList", "")]
REQUESTED_SIZES = [("81", "MinMemoryNode", "4000"), ("81", "CPUsPerTask", "2"), ("81", "MinCPUsNode", "4")]


# --- what is relaxed -------------------------------------------------------------------------------------------------


def test_levels_are_relaxed_in_order_as_the_owner_and_each_once(tmp_path: Path) -> None:
    world = world_of(tmp_path, pending_job())
    seen = []
    for _ in range(12):
        world.run()
        seen.append(len(world.slurm.calls))
        world.clock.sleep(50)
    assert requests(world) == [*EXCLUDE_NOTHING, *REQUESTED_SIZES]
    assert seen == [0, 1, 1, 1, 1, 1, 1, 4, 4, 4, 4, 4]
    assert set(world.slurm.owners) == {1001}
    rows = [(a.rule, a.mode, a.key, a.error, a.done_at is not None) for a in world.store.actions()]
    assert rows == [("relax", "act", key, "", True) for _, key, _ in requests(world)]


def test_all_due_levels_are_relaxed_at_once_after_the_reconciler_was_down(tmp_path: Path) -> None:
    world = world_of(tmp_path, pending_job())
    world.clock.sleep(10_000)
    world.run()
    assert requests(world) == [*EXCLUDE_NOTHING, *REQUESTED_SIZES]


@pytest.mark.parametrize(("lost_s", "relaxed_at"), [(None, 60), (1000.0, None), (50.0, 0)])
def test_a_known_loss_on_more_nodes_decides_how_long_few_are_insisted_on(
    tmp_path: Path, lost_s: float | None, relaxed_at: int | None
) -> None:
    """Four GPUs are free on two nodes now, and on one of them when the job there ends, in 200 s."""
    few = OptionChange(option="nodes", value="1", reason="spread it is slow")
    dropped = Level(name="any", wait_s=0, updates=(("NumNodes", "1-4"),))
    plan = PlacementPlan(lines=(few,), levels=(Level(name="fewest nodes", wait_s=120), dropped), lost_s=lost_s)
    world = World(tmp_path, RELAX)
    for name in world.slurm.nodes:
        world.slurm.nodes[name] = node(name, state="MIXED", gpus=4, gpus_used=2 if name in ("n1", "n2") else 4)
    busy = {"state": "RUNNING", "reason": "", "end_time": None, "time_limit_s": 290, "uid": 1002, "user": "bob"}
    others = [job(number, nodes=(f"n{number}",), gpus=2, **busy) for number in (1, 2)]
    others += [
        job(10 + at, nodes=(name,), gpus=4, **busy | {"time_limit_s": 9000})
        for at, name in enumerate(set(world.slurm.nodes) - {"n1", "n2"})
    ]
    world.add(pending_job(gpus=4, exc_nodes="", priority=1000), *others)
    shape = replace(SHAPE, nodes=None, gpus=4, gpus_per_node=None, gpu_unit=GpuUnit.GPUS)
    world.spool_observations(submission_observation(planned_submission(plan=asdict(plan), shape=shape)))
    found = None
    for seconds in range(0, 150, 30):
        world.run()
        if world.slurm.calls and found is None:
            found = seconds
        world.clock.sleep(30)
    assert found == relaxed_at
    assert [key for _, key, _ in requests(world)] == ([] if relaxed_at is None else ["NumNodes"])


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_in_other_modes_than_act_an_update_is_only_recorded_and_only_once(tmp_path: Path, mode: str) -> None:
    world = world_of(tmp_path, pending_job(), config=replace(NO_TUNING, rules={"relax": mode}))
    for _ in range(3):
        world.clock.sleep(200)
        world.run()
    assert world.slurm.calls == []
    assert [(a.mode, a.key, a.done_at) for a in world.store.actions()] == [
        (mode, "ExcNodeList", None),
        *((mode, key, None) for _, key, _ in REQUESTED_SIZES),
    ]


def test_in_user_mode_pending_jobs_are_not_changed(tmp_path: Path) -> None:
    world = world_of(tmp_path, pending_job(), scope=Scope(user="alice", uid=1001))
    world.clock.sleep(10_000)
    world.run()
    assert world.slurm.calls == [] and world.store.actions() == ()


def test_a_job_without_a_submission_by_its_own_user_is_not_changed(tmp_path: Path) -> None:
    world = World(tmp_path, RELAX)
    world.add(pending_job(81), pending_job(82, uid=1002, user="bob"), pending_job(83))
    world.spool_observations(
        submission_observation(planned_submission(82)), submission_observation(planned_submission(83, shape=None))
    )  # 82: by alice for bob's job; 83: by an older gsub
    world.clock.sleep(10_000)
    world.run()
    assert world.slurm.calls == []


@pytest.mark.parametrize("plan", [{"levels": "x"}, {"lines": [7]}, {"levels": [{"name": "a", "wait_s": 1e99}]}, {}])
def test_an_invalid_plan_changes_nothing_and_delays_no_other_job(tmp_path: Path, plan: dict[str, object]) -> None:
    world = World(tmp_path, RELAX)
    world.add(pending_job(81), pending_job(82))
    world.spool_observations(
        submission_observation(planned_submission(81, plan=plan)), submission_observation(planned_submission(82))
    )
    world.clock.sleep(100)
    summary = world.run()
    assert (requests(world), summary.errors) == ([("82", "ExcNodeList", "")], [])


def test_an_update_is_repeated_after_slurmctld_was_unreachable(tmp_path: Path) -> None:
    world, state = world_of(tmp_path, pending_job()), ReconcilerState()
    world.clock.sleep(100)
    apply = world.slurm.apply

    def become_unreachable(action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        world.slurm.away = True
        apply(action, owner, also)

    world.slurm.apply = become_unreachable  # type: ignore[method-assign]
    with pytest.raises(SlurmUnreachable):
        reconcile_once(world.services(), state)
    world.slurm.away, world.slurm.apply = False, apply  # type: ignore[method-assign]
    reconcile_once(world.services(), state)
    assert requests(world) == EXCLUDE_NOTHING and world.store.actions(unfinished=True) == ()


def test_a_submission_that_arrives_late_is_used(tmp_path: Path) -> None:
    world, state = World(tmp_path, RELAX), ReconcilerState()
    world.add(pending_job())
    reconcile_once(world.services(), state)
    world.spool_observations(submission_observation(planned_submission()))
    world.clock.sleep(100)
    reconcile_once(world.services(), state)
    assert requests(world) == EXCLUDE_NOTHING


def test_only_the_pending_tasks_of_an_array_are_relaxed(tmp_path: Path) -> None:
    rest = pending_job(81, array_job_id=81, array_tasks="3-9")
    first = replace(job(90, state="RUNNING", end_time=None), array_job_id=81, array_task_id=2)
    world = world_of(tmp_path, rest)
    world.add(first)
    world.clock.sleep(100)
    world.run()
    assert requests(world) == [("81_[3-9]", "ExcNodeList", "")]


def test_a_node_list_is_removed_as_soon_as_one_of_its_nodes_is_in_use(tmp_path: Path) -> None:
    pinned = replace(
        PLAN,
        lines=(OptionChange(option="nodelist", value="n1", reason="free"),),
        levels=(Level(name="pinned", wait_s=50_000),),
    )
    config = replace(RELAX, placement=Placement(pin_s=86_400))
    world = world_of(tmp_path, config=config)
    world.add(pending_job(req_nodes="n1", exc_nodes=""))
    world.spool_observations(submission_observation(planned_submission(plan=asdict(pinned))))
    world.run()
    assert requests(world) == []
    world.slurm.nodes["n1"] = node("n1", state="MIXED", gpus_used=7)
    world.run()
    assert [(*one, action.reason) for one, action in zip(requests(world), world.slurm.calls, strict=True)] == [
        ("81", "ReqNodeList", "", "n1 is not free any more")
    ]


def test_a_pending_reason_caused_by_the_plan_undoes_the_whole_plan(tmp_path: Path) -> None:
    world = world_of(tmp_path, pending_job(reason="QOSMaxMemoryPerJob"))
    world.run()
    assert requests(world) == [("81", "ExcNodeList", ""), *REQUESTED_SIZES]


# --- refusals and kills ----------------------------------------------------------------------------------------------


def world_that_refuses(
    path: Path, key: str = "MinCPUsNode", error: str = "Requested partition configuration not available now"
):
    """A world with one pending job, whose Slurm refuses `key` but keeps the refused value."""
    world = world_of(path, pending_job())
    world.clock.sleep(10_000)
    updated = world.slurm._updated

    def refuse(found: JobRecord, action: SlurmAction) -> JobRecord:
        if action.key == key and action.value == "4":
            world.slurm.records[found.job_id] = updated(found, action)
            raise SlurmError(error)
        return updated(found, action)

    world.slurm._updated = refuse  # type: ignore[method-assign]
    return world


def test_a_refused_update_is_undone_in_reverse_and_not_repeated(tmp_path: Path) -> None:
    world = world_that_refuses(tmp_path)
    world.run()
    first_pass = requests(world)
    assert first_pass == [*EXCLUDE_NOTHING, *REQUESTED_SIZES, ("81", "MinCPUsNode", "8"), ("81", "CPUsPerTask", "4")]
    world.clock.sleep(1000)
    world.run()
    assert requests(world) == first_pass
    assert [a.key for a in world.store.actions() if a.error] == ["CPUsPerTask", "MinCPUsNode"]


def test_a_node_list_and_updates_of_a_started_job_are_not_undone(tmp_path: Path) -> None:
    pinned = replace(PLAN, lines=(OptionChange(option="nodelist", value="n1", reason="free"),))
    world = World(tmp_path / "pin", RELAX)
    world.add(pending_job(req_nodes="n1", exc_nodes=""))
    world.spool_observations(submission_observation(planned_submission(plan=asdict(pinned))))
    world.clock.sleep(100)

    def refuse(found: JobRecord, action: SlurmAction) -> JobRecord:
        raise SlurmError("Invalid node name specified for job 81")  # Slurm's error for a job that has started

    world.slurm._updated = refuse  # type: ignore[method-assign]
    world.run()
    assert requests(world) == [("81", "ReqNodeList", "")]
    world = world_that_refuses(tmp_path / "sizes")
    updated = world.slurm._updated

    def started(found: JobRecord, action: SlurmAction) -> JobRecord:
        try:
            return updated(found, action)
        except SlurmError:
            world.add(replace(found, state="RUNNING", nodes=("n1",), start_time=int(world.clock.now())))
            raise

    world.slurm._updated = started  # type: ignore[method-assign]
    world.run()
    assert requests(world) == [*EXCLUDE_NOTHING, *REQUESTED_SIZES]


def test_an_update_refused_because_the_job_started_is_not_undone(tmp_path: Path) -> None:
    world = world_that_refuses(tmp_path, error="Job is no longer pending execution for job 81")
    world.run()
    assert requests(world) == [*EXCLUDE_NOTHING, *REQUESTED_SIZES]


def test_an_owner_whose_updates_time_out_delays_no_other_owner(tmp_path: Path) -> None:
    world = world_of(tmp_path, pending_job(81))
    world.add(pending_job(82, uid=1002, user="bob"))
    world.spool_observations(submission_observation(replace(planned_submission(82), uid=1002, user="bob"), uid=1002))
    world.clock.sleep(100)
    apply = world.slurm.apply

    def time_out(action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        if owner == 1001:
            raise SlurmUnreachable("scontrol: no answer within 3 s")
        apply(action, owner, also)

    world.slurm.apply = time_out  # type: ignore[method-assign]
    state = ReconcilerState()
    first, second = reconcile_once(world.services(), state), reconcile_once(world.services(), state)
    assert requests(world) == [("82", "ExcNodeList", "")]
    assert (len(first.errors), second.errors) == (1, [])
    world.slurm.apply = apply  # type: ignore[method-assign]
    world.clock.sleep(601)
    reconcile_once(world.services(), state)
    assert ("81", "ExcNodeList", "") in requests(world)


@pytest.mark.parametrize("deaths", [Fuse.of_each_kind, pytest.param(Fuse.everywhere, marks=pytest.mark.slow)])
def test_a_kill_at_any_adapter_call_leads_to_the_same_updates(
    tmp_path: Path, deaths: Callable[[Fuse], list[tuple[int, bool]]]
) -> None:
    def fresh(name: str) -> World:
        world = world_of(tmp_path / name, pending_job())
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
def test_a_refused_update_is_undone_after_a_kill(
    tmp_path: Path, deaths: Callable[[Fuse], list[tuple[int, bool]]]
) -> None:
    plain, fuse = world_that_refuses(tmp_path / "plain"), Fuse()
    reconcile_once(plain.services(fuse.through))
    for at, after in deaths(fuse):
        world = world_that_refuses(tmp_path / f"{at}-{after}")
        with pytest.raises(Killed):
            reconcile_once(world.services(Fuse(at, after=after).through))
        for _ in range(3):
            world.clock.sleep(2)
            world.run()
        assert world.slurm.records == plain.slurm.records, at
        world.store.close()


def test_a_run_that_ended_during_an_update_is_still_diagnosed(tmp_path: Path) -> None:
    world = world_of(tmp_path, pending_job(), config=replace(ACT, tuning=NO_TUNING.tuning))
    world.clock.sleep(100)
    with pytest.raises(Killed):
        reconcile_once(world.services(_kill_before_apply().through))
    world.add(job(81, submit_time=START - 60, state="COMPLETED", exit_code=0))
    world.clock.sleep(100)
    world.run()
    assert [(a.rule, a.error) for a in world.store.actions()] == [("relax", "the job is no longer pending")]
    assert world.attempt(pending_job()).reconciled


def _kill_before_apply() -> Fuse:
    class Before(Fuse):
        def through(self, edge: object) -> object:
            return _SlurmThatKills(edge) if hasattr(edge, "sbatch") else edge

    return Before()


class _SlurmThatKills:
    """A Slurm that kills the reconciler before the first change."""

    def __init__(self, edge: object) -> None:
        self._edge = edge

    def __getattr__(self, name: str) -> object:
        return getattr(self._edge, name)

    def apply(self, action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        raise Killed


# --- limits per pass -------------------------------------------------------------------------------------------------


def test_relax_jobs_and_relax_updates_per_s_are_obeyed_per_queue(tmp_path: Path) -> None:
    config = replace(RELAX, placement=Placement(relax_jobs=10, relax_updates_per_s=2))
    jobs = [pending_job(100 + i, partition="long" if i % 10 else "short", eligible_time=START - 200) for i in range(30)]
    world, state = world_of(tmp_path, *jobs, config=config), ReconcilerState()
    done: list[int] = []
    for _ in range(20):
        before = len(world.slurm.calls)
        summary = reconcile_once(world.services(), state)
        done.append(len(world.slurm.calls) - before)
        assert (summary.held_back > 0) == (sum(done) < 10)
        world.clock.sleep(1)
    assert done == [2] * 5 + [0] * 15
    # the three jobs of the short queue get places although the long queue has more jobs of similar priority
    assert [int(target) for target, _, _ in requests(world)] == [100, 101, 102, 110, 103, 120, 104, 105, 106, 107]


def test_jobs_that_fit_nowhere_take_at_most_a_tenth_of_the_places() -> None:
    stuck = [pending_job(n, priority=0, reason="BadConstraints") for n in range(100, 130)]
    found = [one.job_id for one in select_first_jobs([*stuck, *(pending_job(n) for n in range(200, 230))], 20)]
    assert found == [129, 128, *range(200, 218)]
    assert [one.job_id for one in select_first_jobs(stuck, 1)] == [129]


def test_very_many_jobs_that_fit_nowhere_are_examined_in_turn_over_passes(tmp_path: Path) -> None:
    jobs = [pending_job(100 + n, reason="BadConstraints", priority=0) for n in range(1200)]
    world = world_of(tmp_path, *jobs, config=replace(NO_TUNING, placement=Placement(relax_jobs=0)))
    state, seen = ReconcilerState(), []
    for _ in range(3):
        world.clock.sleep(60)
        reconcile_once(world.services(), state)
        seen.append(len(world.store.delays()))
    assert seen == [500, 1000, 1200]


def test_one_users_many_jobs_and_partition_lists_do_not_displace_other_jobs() -> None:
    names = ("a", "b", "c", "d", "e")
    lists = [",".join(some) for count in (2, 3) for some in permutations(names, count)]
    many = [pending_job(1000 + n, partition=text, priority=9, uid=1666) for n, text in enumerate(lists)]
    others = [pending_job(200 + n, partition=name, priority=500) for n, name in enumerate(names)]
    found = select_first_jobs([*many, *others], 10)
    assert [one.job_id for one in found[:5]] == [200, 201, 202, 203, 204]

    stuck = [pending_job(1000 + n, priority=0, reason="BadConstraints", uid=1666) for n in range(100)]
    found = select_first_jobs([*stuck, pending_job(300, priority=0, reason="BadConstraints")], 20)
    assert {one.job_id for one in found} == {1099, 300}


def test_a_node_list_set_by_slurmwrap_is_removed_at_any_queue_position(tmp_path: Path) -> None:
    pinned = replace(PLAN, lines=(OptionChange(option="nodelist", value="n3", reason="free"),), levels=())
    front = [pending_job(100 + n, priority=9000) for n in range(20)]
    last = pending_job(81, priority=1, exc_nodes="", req_nodes="n3")
    world = World(tmp_path, replace(RELAX, placement=Placement(relax_jobs=10)))
    world.add(*front, last)
    world.spool_observations(
        *(submission_observation(planned_submission(one.job_id)) for one in front),
        submission_observation(planned_submission(81, plan=asdict(pinned))),
    )
    world.run()
    assert ("81", "ReqNodeList", "") in requests(world)


def test_a_job_with_a_users_own_node_list_takes_no_place() -> None:
    jobs = [pending_job(n, priority=1000 - n, req_nodes="n3") for n in range(20)]
    assert [one.job_id for one in select_first_jobs(jobs, 10, {19, 18})] == [18, *range(9)]


def test_an_array_with_a_very_long_list_of_pending_tasks_is_not_changed() -> None:
    odd_tasks = ",".join(str(task) for task in range(1, 100_000, 2))
    assert may_be_touched(pending_job(array_job_id=81, array_tasks="1-99999:2"), START)
    assert not may_be_touched(pending_job(array_job_id=81, array_tasks=odd_tasks), START)


def test_an_error_in_one_job_does_not_stop_updates_of_other_jobs(tmp_path: Path) -> None:
    world = world_of(tmp_path, pending_job(81), pending_job(82))
    world.clock.sleep(100)
    read = world.store.actions

    def fail_for_81(attempt: RunKey | None = None, *, unfinished: bool = False) -> tuple[ActionRecord, ...]:
        if attempt is not None and attempt.job_id == 81:
            raise ZeroDivisionError
        return read(attempt, unfinished=unfinished)

    world.store.actions = fail_for_81  # type: ignore[method-assign]
    summary = reconcile_once(world.services())
    assert requests(world) == [("82", "ExcNodeList", "")]
    assert summary.errors[0] == "job 81: ZeroDivisionError: "


def test_a_slow_slurmctld_costs_one_timeout_per_pass_for_any_number_of_owners(tmp_path: Path) -> None:
    jobs = [pending_job(81 + n, uid=2000 + n, user=f"u{n}") for n in range(5)]
    world = World(tmp_path, RELAX)
    world.add(*jobs)
    world.spool_observations(
        *(
            submission_observation(replace(planned_submission(j.job_id), uid=j.uid, user=j.user), uid=j.uid)
            for j in jobs
        )
    )
    world.clock.sleep(100)
    owners: list[int | None] = []

    def time_out(action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        owners.append(owner)
        raise SlurmUnreachable("scontrol: no answer within 3 s")

    world.slurm.apply = time_out  # type: ignore[method-assign]
    state = ReconcilerState()
    for _ in range(2):
        reconcile_once(world.services(), state)
    assert owners == [2000, 2001]


def test_the_token_bucket_gives_at_most_its_rate_plus_one_second() -> None:
    bucket, given = fill_bucket(None, 0.0, 5.0), 0
    for tick in range(1, 601):  # one minute with a pass every 0.1 s, each of which takes all tokens
        bucket = fill_bucket(bucket, tick / 10, 5.0)
        while (rest := take(bucket, 1, 5.0)) is not None:
            bucket, given = rest, given + 1
    assert 300 <= given <= 305


def test_a_group_larger_than_the_token_bucket_leaves_a_debt() -> None:
    in_debt = take(fill_bucket(None, 0.0, 1.0), 2, 1.0)
    assert in_debt is not None and in_debt.tokens == -1.0
    assert take(fill_bucket(in_debt, 1.5, 1.0), 1, 1.0) is None
    assert take(fill_bucket(in_debt, 2.0, 1.0), 1, 1.0) is not None
    assert fill_bucket(in_debt, -50.0, 1.0).tokens == -1.0  # the clock was set back


# --- waiting time by cause -------------------------------------------------------------------------------------------


def delay(world: World, record: JobRecord) -> tuple[float, float, float, bool]:
    (found,) = [d for d in world.store.delays() if d.attempt == run_key_from_job(record, "lab")]
    return found.fair_share_s, found.fragmentation_s, found.unknown_s, found.over


def set_free_gpus(world: World, free_on_each: int) -> None:
    """Give every node `free_on_each` free GPUs."""
    for name in world.slurm.nodes:
        world.slurm.nodes[name] = node(name, state="MIXED", gpus_used=8 - free_on_each, cpus_alloc=8)


def test_waiting_time_is_split_by_cause_and_counted_once(tmp_path: Path) -> None:
    record = pending_job(eligible_time=START, gpus=4)
    world = world_of(tmp_path, record)
    set_free_gpus(world, free_on_each=0)
    world.run()  # no GPU is free
    world.clock.sleep(120)
    set_free_gpus(world, free_on_each=1)  # eight GPUs are free, but no node has four
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
def test_waiting_for_priority_or_limits_counts_as_fair_share(tmp_path: Path, reason: str) -> None:
    record = pending_job(reason=reason, eligible_time=START)
    world = world_of(tmp_path, record, config=NO_TUNING)
    set_free_gpus(world, free_on_each=1)
    for _ in range(2):
        world.run()
        world.clock.sleep(100)
    assert delay(world, record) == (100.0, 0.0, 0.0, False)


def test_waiting_of_a_job_that_fits_counts_as_fair_share(tmp_path: Path) -> None:
    record = pending_job(eligible_time=START)
    world = world_of(tmp_path, record, config=NO_TUNING)
    for _ in range(2):
        world.run()
        world.clock.sleep(100)
    assert delay(world, record) == (100.0, 0.0, 0.0, False)


def test_waiting_time_between_distant_passes_is_unknown(tmp_path: Path) -> None:
    record = pending_job(eligible_time=START - 1000)
    world = world_of(tmp_path, record, config=NO_TUNING)
    world.run()
    world.clock.sleep(100)
    world.run()
    world.clock.sleep(601)
    world.run()
    assert delay(world, record) == (100.0, 0.0, 1601.0, False)


def test_time_on_hold_does_not_count_as_waiting(tmp_path: Path) -> None:
    record = pending_job(eligible_time=START)
    world = world_of(tmp_path, record, config=NO_TUNING)
    for priority in (7, 7, 0, 0, 7, 7):
        world.slurm.records[81] = replace(record, priority=priority)
        world.run()
        world.clock.sleep(100)
    assert delay(world, record) == (300.0, 0.0, 0.0, False)


def test_a_requeue_starts_a_new_delay_and_one_missed_pass_does_not(tmp_path: Path) -> None:
    record = pending_job(eligible_time=START)
    world, state = world_of(tmp_path, record, config=NO_TUNING), ReconcilerState()
    reconcile_once(world.services(), state)
    world.slurm.records.clear()
    world.clock.sleep(100)
    reconcile_once(world.services(), state)
    world.add(record)
    world.clock.sleep(100)
    reconcile_once(world.services(), state)
    assert delay(world, record) == (200.0, 0.0, 0.0, False)
    again = replace(record, submit_time=START + 300, eligible_time=START + 421, restarts=1)
    world.slurm.records = {81: again}
    world.clock.sleep(321)
    reconcile_once(world.services(), state)
    assert [(d.attempt.submit_time, d.over) for d in world.store.delays()] == [(START - 60, True), (START + 300, False)]


def test_a_saved_delay_is_read_back_unchanged(tmp_path: Path) -> None:
    world = World(tmp_path)
    saved = QueueDelay(
        attempt=run_key_from_job(pending_job(), "lab"), address="81", user="alice", gpus=2, eligible_at=START + 0.5,
        seen_at=START + 9.0, fair_share_s=1.0, fragmentation_s=2.0, unknown_s=5.5, waits_for="fragmentation", over=True,
    )  # fmt: skip
    world.store.save_delay(saved)
    world.store.save_delay(saved)
    assert world.store.delays() == world.store.delays(job_id=81) == world.store.delays(since=START + 9.0) == (saved,)
    assert world.store.delays(open_only=True) == world.store.delays(since=START + 10.0) == ()


# --- what is published -----------------------------------------------------------------------------------------------


def test_node_load_is_published_without_user_names_and_relaxing_in_mode_act(tmp_path: Path) -> None:
    world = World(tmp_path, RELAX)
    running = replace(
        job(81, state="RUNNING", end_time=None, nodes=("n1", "n2"), gpus=4, cpus=16), submit_time=START - 60
    )
    world.add(running, job(82, state="RUNNING", end_time=None, nodes=("n2",)))
    world.spool_observations(submission_observation(planned_submission(profile_key="train")))
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
    [NO_TUNING, replace(NO_TUNING, rules={"relax": "advise"}), replace(RELAX, placement=Placement(relax_jobs=0))],
)
def test_relaxing_is_not_published_where_the_reconciler_does_not_relax(tmp_path: Path, config: Config) -> None:
    world = World(tmp_path, config)
    world.run()
    assert world.publisher.published is not None and not world.publisher.published.relaxing


@pytest.mark.parametrize("resizes", [True, False])
def test_relaxing_is_published_only_if_the_node_count_may_be_changed(tmp_path: Path, resizes: bool) -> None:
    world = World(tmp_path, RELAX)
    reconcile_once(replace(world.services(), may_resize=lambda: resizes))
    assert world.publisher.published is not None and world.publisher.published.relaxing == resizes
