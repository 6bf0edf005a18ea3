"""CPUs and memory of pending jobs, redistributed by the site's reconciler: what it updates and what it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from fakes import START, FakeClock, FakeLogs, FakePublisher, FakeSlurm, MemorySpool, job, node

from slurmwrap.config.load_config import RULES, Config, Placement, Tuning
from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.errors import SlurmError
from slurmwrap.model.decision import InputRead, SlurmAction
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.placement_plan import PlacementPlan
from slurmwrap.model.resource_profile import CurvePoint, ResourceProfile
from slurmwrap.model.submission import Submission
from slurmwrap.reconcile import PassSummary, Scope, Services, reconcile_once
from slurmwrap.reconcile.reconcile_context import ReconcilerState
from slurmwrap.sbatch.job_request import CpuUnit, GpuUnit, MemUnit, OptionChange, ResourceShape
from slurmwrap.store.database import Database
from slurmwrap.store.deserialize import record_from_json

ACT = Config(rules=dict.fromkeys(RULES, "act"), placement=Placement(relax_updates_per_s=1000))
# 3 CPUs and 32,000 MiB: the share of one GPU on a node of 8 GPUs, 24 CPUs, 256,000 MiB
SHAPE = ResourceShape(
    gpus=1, gpus_per_node=1, gpu_unit=GpuUnit.GRES, cpus=3, cpu_unit=CpuUnit.PER_TASK, mem_mib=32_000,
    mem_unit=MemUnit.PER_NODE,
)  # fmt: skip
# (CPUs, steps per second): HUNGRY becomes faster with each CPU, CONTENT does not
HUNGRY = ((1, 0.3), (2, 0.66), (3, 1.0), (4, 1.25), (6, 1.75), (12, 2.9))
CONTENT = ((1, 1.0), (2, 1.0), (3, 1.0), (6, 1.0))


class RefusingSlurm(FakeSlurm):
    """Refuses one key but keeps the refused value, as observed with Slurm 22.05."""

    refused = ""

    def apply(self, action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        super().apply(action, owner, also)
        undoing = action.reason.startswith("the update was refused")
        if self.refused in {one.key for one in (action, *also)} and not undoing:
            raise SlurmError("Requested partition configuration not available now")


class World:
    """A site's reconciler with one node of 8 GPUs, 24 CPUs and 256,000 MiB in partition gpu."""

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        self.slurm = RefusingSlurm(clock=self.clock, nodes={"n0": node("n0", cpus=24)})
        self.store = Database.open(path / "site.db", clock=self.clock)
        self.state = ReconcilerState()

    def add_pending_job(self, job_id: int, key: str = "", shape: ResourceShape = SHAPE, **changes: object) -> JobRecord:
        """Add a pending job of alice: submitted by gsub with profile `key`, or by sbatch if `key` is ""."""
        record = job(
            job_id, state="PENDING", reason="Resources", start_time=None, end_time=None, nodes=(), exit_code=0,
            priority=1_000_000 - job_id, cpus=(shape.cpus or 1), cpus_per_task=shape.cpus, min_cpus=shape.cpus,
            mem_mib_per_node=shape.mem_mib, gpus=shape.gpus,
        )  # fmt: skip
        self.slurm.add(replace(record, **changes))  # type: ignore[arg-type]
        if key:
            self.store.save_submission(
                Submission(
                    cluster="lab",
                    job_id=job_id,
                    uid=1001,
                    user="alice",
                    at=START - 100.0,
                    shape=shape,
                    tune=True,
                    profile_key=key,
                    plan=asdict(PlacementPlan()),
                )
            )
        return record

    def add_profile(self, key: str, curve: Sequence[tuple[int, float]], runs: int = 3, mem_mib: int = 26_666) -> None:
        points = tuple(CurvePoint(cpus=cpus, steps_per_s=speed) for cpus, speed in curve)
        self.store.save_profile(
            ResourceProfile(
                key=f"1001:{key}", cpu_curve=points, runs=runs, mem_mib_per_gpu=mem_mib, measured_at=START - 1000.0
            )
        )

    def allocate_on_node(self, **changes: object) -> None:
        """Set what running jobs have allocated on the node."""
        self.slurm.nodes["n0"] = replace(self.slurm.nodes["n0"], state="MIXED", **changes)  # type: ignore[arg-type]

    def run(self, config: Config = ACT, scope: Scope | None = None) -> PassSummary:
        """One pass, a second after the last one."""
        self.clock.sleep(1)
        services = Services(
            slurm=self.slurm,
            store=self.store,
            spools=(MemorySpool(),),
            logs=FakeLogs(),
            clock=self.clock,
            publisher=FakePublisher(),
            unpack=record_from_json,
            classify=diagnose_run,
            read_inputs=lambda uid, paths: tuple(InputRead(path=path) for path in paths),
            config=config,
            scope=scope or Scope(),
        )
        return reconcile_once(services, self.state)

    def requests(self) -> list[tuple[str, str, str]]:
        return [(action.target, action.key, action.value) for action in self.slurm.calls]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.store.close()


def test_unneeded_cpus_go_to_the_pending_job_that_gains_speed(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_profile("content", CONTENT)
    world.add_pending_job(1, "hungry")
    world.add_pending_job(2, "content")

    world.run()

    cpus = {(target, key): int(value) for target, key, value in world.requests()}
    assert (cpus["1", "CPUsPerTask"], cpus["1", "MinCPUsNode"]) == (12, 12)
    assert (cpus["2", "CPUsPerTask"], cpus["2", "MinCPUsNode"]) == (1, 1)


def test_updates_run_as_the_owner_and_cpus_per_task_comes_first(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry")

    world.run()

    assert world.requests()[:2] == [("1", "CPUsPerTask", "12"), ("1", "MinCPUsNode", "12")]
    assert set(world.slurm.owners) == {1001}


def test_an_update_that_was_made_is_not_repeated(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry")
    world.run()
    before = len(world.slurm.calls)

    world.run()
    world.run()

    assert len(world.slurm.calls) == before


def test_memory_is_lowered_only_after_three_complete_runs(world: World) -> None:
    world.add_profile("twice", CONTENT, runs=2, mem_mib=10_000)
    world.add_profile("thrice", CONTENT, runs=3, mem_mib=10_000)
    world.add_pending_job(1, "twice")
    world.add_pending_job(2, "thrice")

    world.run()

    memory = {target: int(value) for target, key, value in world.requests() if key == "MinMemoryNode"}
    assert memory == {"2": 12_000}  # its peak plus 20 %


def test_cpus_stay_at_the_share_before_the_first_complete_run(world: World) -> None:
    world.add_profile("prerun only", CONTENT, runs=0)
    world.add_pending_job(1, "prerun only")

    world.run()

    assert world.requests() == []


def test_a_raised_job_that_could_start_at_its_share_is_lowered_after_a_wait(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry")
    world.run()
    world.allocate_on_node(gpus_used=7, cpus_alloc=21, mem_alloc_mib=224_000)

    world.run()
    assert world.requests()[-1] != ("1", "MinCPUsNode", "3")  # for some time the job waits for more than its share
    world.clock.sleep(ACT.tuning.assumed_run_s)
    world.run()

    assert world.requests()[-2:] == [("1", "CPUsPerTask", "3"), ("1", "MinCPUsNode", "3")]


def test_a_raised_job_with_nothing_to_save_is_lowered_at_once(world: World) -> None:
    config = replace(ACT, tuning=Tuning(assumed_run_s=0))
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry")
    world.run(config)
    world.allocate_on_node(gpus_used=7, cpus_alloc=21, mem_alloc_mib=224_000)

    world.run(config)

    assert world.requests()[-2:] == [("1", "CPUsPerTask", "3"), ("1", "MinCPUsNode", "3")]


def test_a_refused_update_is_undone_and_not_repeated(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry")
    world.slurm.refused = "MinCPUsNode"

    world.run()
    world.run()

    assert world.requests() == [
        ("1", "CPUsPerTask", "12"),
        ("1", "MinCPUsNode", "12"),
        ("1", "MinCPUsNode", "3"),
        ("1", "CPUsPerTask", "3"),
    ]


@pytest.mark.parametrize("reason", ["QOSMaxCpuPerUserLimit", "AssocGrpCpuLimit", "BadConstraints"])
def test_a_raised_job_that_slurm_will_not_run_gets_its_request_back_for_good(world: World, reason: str) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry")
    world.run()
    assert world.slurm.records[1].cpus_per_task == 12

    world.slurm.add(replace(world.slurm.records[1], reason=reason))
    world.run()
    world.slurm.add(replace(world.slurm.records[1], reason="Resources"))
    world.run()

    assert world.requests()[2:] == [("1", "CPUsPerTask", "3"), ("1", "MinCPUsNode", "3")]


def test_a_job_that_exceeds_a_limit_with_its_own_request_is_not_changed(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry", reason="QOSMaxCpuPerUserLimit")

    world.run()

    assert world.requests() == []


def test_a_job_that_its_user_changed_is_not_changed(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry", cpus=5, cpus_per_task=5, min_cpus=5)

    world.run()

    assert world.requests() == []


def _no_tuning(world: World) -> Config:
    world.store.save_submission(replace(_submission(world), tune=False))
    return ACT


def _no_shape(world: World) -> Config:
    world.store.save_submission(replace(_submission(world), shape=None))
    return ACT


def _submission(world: World) -> Submission:
    found = world.store.submission("lab", 1)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "forbid",
    [
        _no_tuning,
        _no_shape,
        lambda world: replace(ACT, tuning=Tuning(enabled=False)),
        lambda world: replace(ACT, tuning=Tuning(policy="proportional")),
        lambda world: replace(ACT, rules={**ACT.rules, "tune": "advise"}),
    ],
    ids=["gsub --no-tune", "an older gsub", "tuning is off", "policy proportional", "the rule only advises"],
)
def test_nothing_is_changed_where_a_setting_forbids_it(world: World, forbid: Callable[[World], Config]) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry")

    world.run(forbid(world))

    assert world.requests() == []


def test_the_reconciler_in_user_mode_tunes_nothing(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry")

    world.run(scope=Scope(user="alice", uid=1001))

    assert world.requests() == []


@pytest.mark.parametrize(
    "shape",
    [
        replace(SHAPE, mem_unit=MemUnit.PER_GPU),
        replace(SHAPE, mem_unit=MemUnit.PER_CPU, mem_mib=10_000),
        replace(SHAPE, cpu_unit=CpuUnit.PER_GPU),
        replace(SHAPE, gpu_unit=GpuUnit.GPUS),
        replace(SHAPE, exclusive=True),
        replace(SHAPE, tasks=3, nodes=None),
        replace(SHAPE, nodes=1, max_nodes=2),
    ],
    ids=["--mem-per-gpu", "--mem-per-cpu", "--cpus-per-gpu", "--gpus", "--exclusive", "tasks anywhere", "-N1-2"],
)
def test_a_job_with_other_units_keeps_its_request(world: World, shape: ResourceShape) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry", shape)

    world.run()

    assert world.requests() == []


def test_resources_that_untuned_jobs_will_take_are_not_given_away(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    for number in range(1, 6):
        world.add_pending_job(number, cpus=4, cpus_per_task=4, min_cpus=4)
    world.add_pending_job(8, "hungry")

    world.run()

    assert world.slurm.records[8].cpus < 12  # on an empty node it would get 12


def test_a_single_job_gets_all_cpus_that_make_it_faster(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(8, "hungry")

    world.run()

    assert world.slurm.records[8].cpus == 12


def test_pending_array_tasks_get_what_all_of_them_can_have_at_once(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_profile("content", CONTENT)
    world.add_pending_job(1, "hungry", array_job_id=1, array_tasks="0-6")
    world.add_pending_job(2, "content")

    world.run()

    assert world.slurm.records[1].cpus == 3  # 7 tasks and the 1 CPU of job 2 must fit into 24 CPUs
    assert ("1_[0-6]", "CPUsPerTask", "3") not in world.requests()
    assert world.slurm.records[2].cpus == 1


def test_only_nodes_that_may_run_a_job_limit_what_it_gets(world: World) -> None:
    world.slurm.nodes["n0"] = replace(world.slurm.nodes["n0"], features=("big",))
    world.slurm.nodes["n1"] = node("n1", cpus=6, gpus=2, features=("small",))
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry", features="big")

    world.run()

    assert world.slurm.records[1].cpus == 12  # n1, which may not run the job, has 6 CPUs


def test_a_job_with_a_feature_expression_keeps_its_request(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry", features="[big|small]&fast")

    world.run()

    assert world.requests() == []


def test_jobs_that_wait_for_a_dependency_reserve_nothing(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    for number in range(1, 8):
        world.add_pending_job(number, reason="Dependency")
    world.add_pending_job(8, "hungry")

    world.run()

    assert world.requests() == [("8", "CPUsPerTask", "12"), ("8", "MinCPUsNode", "12")]


def test_updates_above_the_rate_wait_for_the_next_pass(world: World) -> None:
    config = replace(ACT, placement=Placement(relax_updates_per_s=2))
    world.add_profile("hungry", HUNGRY)
    for number in range(1, 5):
        world.add_pending_job(number, "hungry")

    seen = [len(world.slurm.calls) for _ in range(4) if world.run(config)]

    assert seen == [2, 4, 6, 8]
    assert sorted({target for target, _, _ in world.requests()}) == ["1", "2", "3", "4"]


def test_a_raised_job_that_was_requeued_can_still_be_lowered(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry")
    world.run()
    before = world.slurm.records[1]
    assert before.cpus_per_task == 12
    world.clock.sleep(50)
    world.slurm.add(replace(before, restarts=1, submit_time=before.submit_time + 40, reason="Resources"))
    world.allocate_on_node(gpus_used=7, cpus_alloc=21, mem_alloc_mib=224_000)

    world.run()
    world.clock.sleep(ACT.tuning.assumed_run_s)
    world.run()

    assert world.requests()[-2:] == [("1", "CPUsPerTask", "3"), ("1", "MinCPUsNode", "3")]


def test_a_raised_task_that_was_split_from_its_array_can_still_be_lowered(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry", array_job_id=1, array_tasks="0-1")
    world.run()
    raised = world.slurm.records[1]
    assert raised.cpus_per_task > 3
    world.slurm.add(replace(raised, job_id=2, array_task_id=1, array_tasks=""), replace(raised, state="RUNNING"))
    world.allocate_on_node(gpus_used=7, cpus_alloc=21, mem_alloc_mib=224_000)

    world.run()
    world.clock.sleep(ACT.tuning.assumed_run_s)
    world.run()

    assert world.requests()[-2:] == [("1_1", "CPUsPerTask", "3"), ("1_1", "MinCPUsNode", "3")]


@pytest.mark.parametrize("off", [Tuning(enabled=False), Tuning(policy="proportional")], ids=["off", "proportional"])
def test_a_raised_job_is_lowered_with_tuning_off_and_raised_again_with_it_on(world: World, off: Tuning) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry")
    world.run()

    world.run(replace(ACT, tuning=off))
    lowered = world.slurm.records[1]
    world.run()

    assert (lowered.cpus_per_task, lowered.min_cpus) == (3, 3)
    assert world.slurm.records[1].cpus_per_task == 12


def test_a_raised_job_whose_user_changed_memory_keeps_it_and_loses_the_cpus(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry")
    world.run()
    world.slurm.add(replace(world.slurm.records[1], mem_mib_per_node=50_000))

    world.run()

    found = world.slurm.records[1]
    assert (found.cpus_per_task, found.min_cpus, found.mem_mib_per_node) == (3, 3, 50_000)


@pytest.mark.parametrize(
    ("plain", "lowered"),
    [
        ({"cpus": 4}, True),
        ({"cpus": 20, "gpus": 0}, True),
        ({"cpus": 4, "priority": 1_000_000}, False),
        ({"cpus": 4, "partition": "cpu"}, False),
        ({"cpus": 4, "reason": "Dependency"}, False),
    ],
    ids=["behind", "behind, without GPUs", "in front", "elsewhere", "waits for another"],
)
def test_a_job_ahead_of_an_untuned_job_is_lowered_to_its_share(
    world: World, plain: dict[str, object], lowered: bool
) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry")
    world.run()
    assert world.slurm.records[1].cpus_per_task == 12
    world.add_pending_job(2, **plain)  # type: ignore[arg-type]  # submitted by sbatch
    world.run()
    assert (world.slurm.records[1].cpus_per_task == 3) is lowered

    world.allocate_on_node(gpus_used=7, cpus_alloc=21, mem_alloc_mib=224_000)
    world.run()
    assert (world.slurm.records[1].cpus_per_task == 3) is lowered


def test_a_small_request_ahead_of_an_untuned_job_is_raised_to_its_share(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry", replace(SHAPE, cpus=1))
    world.add_pending_job(2, cpus=4)

    world.run()

    assert world.slurm.records[1].cpus_per_task == 3


def test_no_job_is_raised_ahead_of_a_gsub_job_without_a_profile(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry")
    world.add_pending_job(2, "new")

    world.run()

    assert world.requests() == []


def test_a_raised_job_waits_no_longer_than_its_time_limit_allows_to_save(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry", time_limit_s=120)
    world.run()
    world.allocate_on_node(gpus_used=7, cpus_alloc=21, mem_alloc_mib=224_000)
    world.run()
    assert world.requests()[-1] != ("1", "MinCPUsNode", "3")

    world.clock.sleep(40)  # more than half of what 2.9 times the speed saves within two minutes
    world.run()

    assert world.requests()[-2:] == [("1", "CPUsPerTask", "3"), ("1", "MinCPUsNode", "3")]


def test_a_clock_set_back_does_not_prolong_the_wait_of_a_raised_job(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry")
    world.run()
    world.allocate_on_node(gpus_used=7, cpus_alloc=21, mem_alloc_mib=224_000)
    world.run()
    world.clock.sleep(-10 * ACT.tuning.assumed_run_s)
    world.slurm.add(replace(world.slurm.records[1], eligible_time=0 + 1))
    world.run()

    world.clock.sleep(ACT.tuning.assumed_run_s)
    world.run()

    assert world.requests()[-2:] == [("1", "CPUsPerTask", "3"), ("1", "MinCPUsNode", "3")]


@pytest.mark.parametrize(
    "shape",
    [
        replace(SHAPE, gpus_per_node=8, nodes=100),
        replace(SHAPE, gpus_per_node=8),
        replace(SHAPE, nodes=2, max_nodes=2),
        replace(SHAPE, gpus_per_node=-1),
        replace(SHAPE, tasks_per_node=-3),
        replace(SHAPE, cpus=-3),
        replace(SHAPE, mem_mib=-1),
        replace(SHAPE, tasks_per_node=10**18, cpus=10**18),
    ],
    ids=["a cluster", "a node", "two nodes", "no GPU", "tasks below 0", "CPUs below 0", "memory below 0", "huge"],
)
def test_a_shape_that_does_not_match_the_job_does_not_affect_other_jobs(world: World, shape: ResourceShape) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry")
    world.store.save_submission(replace(_submission(world), shape=shape))
    world.add_pending_job(2, "hungry")

    summary = world.run()

    assert summary.errors == []
    assert {target for target, _, _ in world.requests()} == {"2"}
    assert world.slurm.records[2].cpus_per_task == 12


def test_a_job_can_be_raised_and_lowered_repeatedly(world: World) -> None:
    idle = world.slurm.nodes["n0"]
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry")
    world.run()
    world.allocate_on_node(gpus_used=7, cpus_alloc=21, mem_alloc_mib=224_000)
    world.run()
    world.slurm.nodes["n0"] = idle
    world.run()
    world.allocate_on_node(gpus_used=7, cpus_alloc=21, mem_alloc_mib=224_000)
    world.run()

    assert [int(value) for _, key, value in world.requests() if key == "CPUsPerTask"] == [12, 5, 12, 5]


def test_a_repeated_change_that_a_kill_interrupted_is_completed_on_restart(world: World) -> None:
    idle = world.slurm.nodes["n0"]
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry")
    world.run()
    world.allocate_on_node(gpus_used=7, cpus_alloc=21, mem_alloc_mib=224_000)
    world.run()
    world.slurm.nodes["n0"] = idle
    apply = world.slurm.apply

    def killed(action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        raise KeyboardInterrupt

    world.slurm.apply = killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        world.run()
    assert (world.slurm.records[1].cpus_per_task, world.slurm.records[1].min_cpus) == (5, 5)

    world.slurm.apply = apply  # type: ignore[method-assign]
    world.state = ReconcilerState()
    world.run()

    assert (world.slurm.records[1].cpus_per_task, world.slurm.records[1].min_cpus) == (12, 12)


def test_an_advised_update_is_recorded_as_done_once_the_rule_acts(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry")
    world.run(replace(ACT, rules={**ACT.rules, "tune": "advise"}))
    world.run()

    recorded = [(a.key, a.mode, a.done_at is not None) for a in world.store.actions() if a.rule == "tune"]
    assert recorded == [("CPUsPerTask", "act", True), ("MinCPUsNode", "act", True)]


@pytest.mark.parametrize(
    ("reason", "account", "raised"),
    [
        ("AssocGrpCpuLimit", "physics", False),
        ("QOSGrpMemLimit", "physics", False),
        ("AssocGrpCpuLimit", "chemistry", True),
        ("QOSMaxCpuPerUserLimit", "physics", True),  # a limit of that user only
    ],
)
def test_no_job_is_raised_in_a_resource_that_its_account_has_used_up(
    world: World, reason: str, account: str, raised: bool
) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry", account="physics", qos="normal")
    world.run()
    assert world.slurm.records[1].cpus_per_task == 12
    world.add_pending_job(2, reason=reason, account=account, qos="normal")
    world.run()
    assert (world.slurm.records[1].cpus_per_task == 12) is raised

    world.slurm.add(replace(world.slurm.records[2], reason="Dependency"))
    world.run()
    assert world.slurm.records[1].cpus_per_task == 12


def test_no_job_is_raised_where_slurm_preempts(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_profile("content", CONTENT)
    world.add_pending_job(1, "hungry")
    world.add_pending_job(2, "content")
    take_snapshot = world.slurm.snapshot
    world.slurm.snapshot = lambda: replace(take_snapshot(), preempts=True)  # type: ignore[method-assign]

    world.run()

    assert (world.slurm.records[1].cpus_per_task, world.slurm.records[2].cpus_per_task) == (3, 1)


def test_a_raised_job_does_not_wait_for_reserved_nodes(world: World) -> None:
    world.slurm.nodes["n1"] = replace(node("n1", cpus=24), flags=frozenset({"RESERVED"}))
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry")
    world.allocate_on_node(gpus_used=7, cpus_alloc=21, mem_alloc_mib=224_000)
    world.run()
    world.clock.sleep(ACT.tuning.assumed_run_s)
    world.run()

    assert world.slurm.records[1].cpus_per_task == 3


def test_a_raised_job_not_started_despite_room_gets_its_request_back_for_good(
    world: World,
) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry", time_limit_s=1200)
    world.run()
    world.clock.sleep(1190)
    world.run()
    assert world.slurm.records[1].cpus_per_task == 12

    world.clock.sleep(20)
    world.run()
    world.run()

    assert world.requests()[2:] == [("1", "CPUsPerTask", "3"), ("1", "MinCPUsNode", "3")]


def test_an_error_in_one_job_does_not_stop_tuning_of_other_jobs(world: World) -> None:
    world.add_profile("hungry", HUNGRY)
    world.add_pending_job(1, "hungry")
    world.add_pending_job(2, "hungry")
    read = world.store.profile
    world.store.save_submission(replace(_submission(world), profile_key="odd"))

    def fail_for_odd(key: str) -> ResourceProfile | None:
        if key == "1001:odd":
            raise ZeroDivisionError
        return read(key)

    world.store.profile = fail_for_odd  # type: ignore[method-assign]
    summary = world.run()

    assert summary.errors == ["job 1: ZeroDivisionError: "]
    assert world.slurm.records[2].cpus_per_task == 12


@pytest.mark.parametrize(("held", "updates"), [(36_000, []), (32_000, [("1", "MinMemoryNode", "36000")])])
def test_memory_is_at_least_the_measured_peak_plus_margin(
    world: World, held: int, updates: list[tuple[str, str, str]]
) -> None:
    world.add_profile("leaky", ((3, 1.0),), mem_mib=30_000)
    world.add_pending_job(1, "leaky", mem_mib_per_node=held)
    raised = PlacementPlan(lines=(OptionChange(option="mem", value="36000M", reason="its peak"),))
    world.store.save_submission(replace(_submission(world), plan=asdict(raised)))

    world.run()

    assert world.requests() == updates
