"""CPUs and memory of waiting jobs, divided anew by the site's reconciler: what it asks for, and what it leaves."""

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
HUNGRY = ((1, 0.3), (2, 0.66), (3, 1.0), (4, 1.25), (6, 1.75), (12, 2.9))
CONTENT = ((1, 1.0), (2, 1.0), (3, 1.0), (6, 1.0))


class StubbornSlurm(FakeSlurm):
    """Refuses one key, and keeps the refused value all the same, as 22.05 was seen to."""

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
        self.slurm = StubbornSlurm(clock=self.clock, nodes={"n0": node("n0", cpus=24)})
        self.store = Database.open(path / "site.db", clock=self.clock)
        self.book = ReconcilerState()

    def waits(self, job_id: int, key: str = "", shape: ResourceShape = SHAPE, **changes: object) -> JobRecord:
        """A pending job of alice's, by gsub with profile `key`; "" by plain sbatch."""
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

    def knows(self, key: str, curve: Sequence[tuple[int, float]], runs: int = 3, mem_mib: int = 26_666) -> None:
        points = tuple(CurvePoint(cpus=cpus, steps_per_s=speed) for cpus, speed in curve)
        self.store.save_profile(
            ResourceProfile(
                key=f"1001:{key}", cpu_curve=points, runs=runs, mem_mib_per_gpu=mem_mib, measured_at=START - 1000.0
            )
        )

    def holds(self, **changes: object) -> None:
        """What running jobs hold of the node."""
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
        return reconcile_once(services, self.book)

    def asked(self) -> list[tuple[str, str, str]]:
        return [(action.target, action.key, action.value) for action in self.slurm.calls]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.store.close()


def test_of_two_waiting_jobs_the_one_that_gains_gets_the_cpus_that_the_other_does_not_need(world: World) -> None:
    world.knows("hungry", HUNGRY)
    world.knows("content", CONTENT)
    world.waits(1, "hungry")
    world.waits(2, "content")

    world.run()

    cpus = {(target, key): int(value) for target, key, value in world.asked()}
    assert (cpus["1", "CPUsPerTask"], cpus["1", "MinCPUsNode"]) == (12, 12)
    assert (cpus["2", "CPUsPerTask"], cpus["2", "MinCPUsNode"]) == (1, 1)


def test_updates_are_made_in_the_owners_name_cpus_per_task_before_the_nodes_cpus(world: World) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry")

    world.run()

    assert world.asked()[:2] == [("1", "CPUsPerTask", "12"), ("1", "MinCPUsNode", "12")]
    assert set(world.slurm.owners) == {1001}


def test_what_was_asked_once_is_not_asked_again(world: World) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry")
    world.run()
    before = len(world.slurm.calls)

    world.run()
    world.run()

    assert len(world.slurm.calls) == before


def test_memory_goes_below_the_request_after_three_complete_runs_and_not_before(world: World) -> None:
    world.knows("twice", CONTENT, runs=2, mem_mib=10_000)
    world.knows("thrice", CONTENT, runs=3, mem_mib=10_000)
    world.waits(1, "twice")
    world.waits(2, "thrice")

    world.run()

    memory = {target: int(value) for target, key, value in world.asked() if key == "MinMemoryNode"}
    assert memory == {"2": 12_000}  # its peak and a fifth


def test_cpus_stay_at_the_share_while_no_run_was_complete(world: World) -> None:
    world.knows("prerun only", CONTENT, runs=0)
    world.waits(1, "prerun only")

    world.run()

    assert world.asked() == []


def test_a_raised_job_that_could_start_at_its_share_falls_back_when_its_patience_is_over(world: World) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry")
    world.run()
    world.holds(gpus_used=7, cpus_alloc=21, mem_alloc_mib=224_000)

    world.run()
    assert world.asked()[-1] != ("1", "MinCPUsNode", "3")  # it waits for more a while
    world.clock.sleep(ACT.tuning.assumed_run_s)
    world.run()

    assert world.asked()[-2:] == [("1", "CPUsPerTask", "3"), ("1", "MinCPUsNode", "3")]


def test_a_raised_job_falls_back_at_once_where_there_is_nothing_to_save(world: World) -> None:
    config = replace(ACT, tuning=Tuning(assumed_run_s=0))
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry")
    world.run(config)
    world.holds(gpus_used=7, cpus_alloc=21, mem_alloc_mib=224_000)

    world.run(config)

    assert world.asked()[-2:] == [("1", "CPUsPerTask", "3"), ("1", "MinCPUsNode", "3")]


def test_a_refused_update_is_undone_and_not_tried_again(world: World) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry")
    world.slurm.refused = "MinCPUsNode"

    world.run()
    world.run()

    assert world.asked() == [
        ("1", "CPUsPerTask", "12"),
        ("1", "MinCPUsNode", "12"),
        ("1", "MinCPUsNode", "3"),
        ("1", "CPUsPerTask", "3"),
    ]


@pytest.mark.parametrize("reason", ["QOSMaxCpuPerUserLimit", "AssocGrpCpuLimit", "BadConstraints"])
def test_a_job_that_slurm_would_not_run_with_more_gets_back_what_it_asked_for_good(world: World, reason: str) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry")
    world.run()
    assert world.slurm.records[1].cpus_per_task == 12

    world.slurm.add(replace(world.slurm.records[1], reason=reason))
    world.run()
    world.slurm.add(replace(world.slurm.records[1], reason="Resources"))
    world.run()

    assert world.asked()[2:] == [("1", "CPUsPerTask", "3"), ("1", "MinCPUsNode", "3")]


def test_a_limit_that_blocks_a_job_as_it_was_asked_is_not_ours_to_mend(world: World) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry", reason="QOSMaxCpuPerUserLimit")

    world.run()

    assert world.asked() == []


def test_a_job_that_its_user_changed_himself_is_left_alone(world: World) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry", cpus=5, cpus_per_task=5, min_cpus=5)

    world.run()

    assert world.asked() == []


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
def test_nothing_is_changed_where_somebody_forbids_it(world: World, forbid: Callable[[World], Config]) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry")

    world.run(forbid(world))

    assert world.asked() == []


def test_a_users_own_reconciler_tunes_nothing(world: World) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry")

    world.run(scope=Scope(user="alice", uid=1001))

    assert world.asked() == []


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
def test_a_job_asked_for_in_other_units_keeps_what_it_asks(world: World, shape: ResourceShape) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry", shape)

    world.run()

    assert world.asked() == []


def test_what_strangers_are_about_to_take_is_not_given_away(world: World) -> None:
    world.knows("hungry", HUNGRY)
    for number in range(1, 6):
        world.waits(number, cpus=4, cpus_per_task=4, min_cpus=4)
    world.waits(8, "hungry")

    world.run()

    assert world.slurm.records[8].cpus < 12  # what it gets of an empty node


def test_a_lone_job_gets_all_that_makes_it_faster(world: World) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(8, "hungry")

    world.run()

    assert world.slurm.records[8].cpus == 12


def test_the_tasks_of_a_pending_array_get_what_all_of_them_may_have_side_by_side(world: World) -> None:
    world.knows("hungry", HUNGRY)
    world.knows("content", CONTENT)
    world.waits(1, "hungry", array_job_id=1, array_tasks="0-6")
    world.waits(2, "content")

    world.run()

    assert world.slurm.records[1].cpus == 3  # seven of them and one CPU more are the node's
    assert ("1_[0-6]", "CPUsPerTask", "3") not in world.asked()
    assert world.slurm.records[2].cpus == 1


def test_only_the_nodes_that_may_run_a_job_bound_what_it_gets(world: World) -> None:
    world.slurm.nodes["n0"] = replace(world.slurm.nodes["n0"], features=("big",))
    world.slurm.nodes["n1"] = node("n1", cpus=6, gpus=2, features=("small",))
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry", features="big")

    world.run()

    assert world.slurm.records[1].cpus == 12  # n1 has six


def test_a_job_with_an_expression_of_features_keeps_what_it_asks(world: World) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry", features="[big|small]&fast")

    world.run()

    assert world.asked() == []


def test_jobs_that_wait_for_something_else_claim_nothing(world: World) -> None:
    world.knows("hungry", HUNGRY)
    for number in range(1, 8):
        world.waits(number, reason="Dependency")
    world.waits(8, "hungry")

    world.run()

    assert world.asked() == [("8", "CPUsPerTask", "12"), ("8", "MinCPUsNode", "12")]


def test_beyond_the_rate_the_rest_waits_for_the_next_pass(world: World) -> None:
    config = replace(ACT, placement=Placement(relax_updates_per_s=2))
    world.knows("hungry", HUNGRY)
    for number in range(1, 5):
        world.waits(number, "hungry")

    seen = [len(world.slurm.calls) for _ in range(4) if world.run(config)]

    assert seen == [2, 4, 6, 8]
    assert sorted({target for target, _, _ in world.asked()}) == ["1", "2", "3", "4"]


def test_a_raised_job_that_is_requeued_is_still_ours_to_bring_back_to_its_share(world: World) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry")
    world.run()
    before = world.slurm.records[1]
    assert before.cpus_per_task == 12
    world.clock.sleep(50)
    world.slurm.add(replace(before, restarts=1, submit_time=before.submit_time + 40, reason="Resources"))
    world.holds(gpus_used=7, cpus_alloc=21, mem_alloc_mib=224_000)

    world.run()
    world.clock.sleep(ACT.tuning.assumed_run_s)
    world.run()

    assert world.asked()[-2:] == [("1", "CPUsPerTask", "3"), ("1", "MinCPUsNode", "3")]


def test_a_task_that_was_split_from_its_array_is_still_ours_to_bring_back_to_its_share(world: World) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry", array_job_id=1, array_tasks="0-1")
    world.run()
    raised = world.slurm.records[1]
    assert raised.cpus_per_task > 3
    world.slurm.add(replace(raised, job_id=2, array_task_id=1, array_tasks=""), replace(raised, state="RUNNING"))
    world.holds(gpus_used=7, cpus_alloc=21, mem_alloc_mib=224_000)

    world.run()
    world.clock.sleep(ACT.tuning.assumed_run_s)
    world.run()

    assert world.asked()[-2:] == [("1_1", "CPUsPerTask", "3"), ("1_1", "MinCPUsNode", "3")]


@pytest.mark.parametrize("off", [Tuning(enabled=False), Tuning(policy="proportional")], ids=["off", "proportional"])
def test_what_was_raised_is_given_back_when_tuning_is_switched_off_and_raised_again_when_on(
    world: World, off: Tuning
) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry")
    world.run()

    world.run(replace(ACT, tuning=off))
    given = world.slurm.records[1]
    world.run()

    assert (given.cpus_per_task, given.min_cpus) == (3, 3)
    assert world.slurm.records[1].cpus_per_task == 12


def test_a_raised_job_whose_memory_its_user_changed_gets_its_own_cpus_back_and_keeps_his_memory(world: World) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry")
    world.run()
    world.slurm.add(replace(world.slurm.records[1], mem_mib_per_node=50_000))

    world.run()

    found = world.slurm.records[1]
    assert (found.cpus_per_task, found.min_cpus, found.mem_mib_per_node) == (3, 3, 50_000)


@pytest.mark.parametrize(
    ("plain", "hurries"),
    [
        ({"cpus": 4}, True),
        ({"cpus": 20, "gpus": 0}, True),
        ({"cpus": 4, "priority": 1_000_000}, False),
        ({"cpus": 4, "partition": "cpu"}, False),
        ({"cpus": 4, "reason": "Dependency"}, False),
    ],
    ids=["behind", "behind, without GPUs", "in front", "elsewhere", "waits for another"],
)
def test_in_front_of_a_job_that_is_not_tuned_nobody_has_or_waits_for_more_than_his_share(
    world: World, plain: dict[str, object], hurries: bool
) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry")
    world.run()
    assert world.slurm.records[1].cpus_per_task == 12
    world.waits(2, **plain)  # type: ignore[arg-type]  # by plain sbatch
    world.run()
    assert (world.slurm.records[1].cpus_per_task == 3) is hurries

    world.holds(gpus_used=7, cpus_alloc=21, mem_alloc_mib=224_000)
    world.run()
    assert (world.slurm.records[1].cpus_per_task == 3) is hurries


def test_in_front_of_a_job_that_is_not_tuned_a_request_below_the_share_is_raised_to_it(world: World) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry", replace(SHAPE, cpus=1))
    world.waits(2, cpus=4)

    world.run()

    assert world.slurm.records[1].cpus_per_task == 3


def test_nobody_is_raised_in_front_of_a_job_of_gsubs_of_which_nothing_is_known(world: World) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry")
    world.waits(2, "new")

    world.run()

    assert world.asked() == []


def test_patience_is_for_what_can_be_saved_within_the_time_limit(world: World) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry", time_limit_s=120)
    world.run()
    world.holds(gpus_used=7, cpus_alloc=21, mem_alloc_mib=224_000)
    world.run()
    assert world.asked()[-1] != ("1", "MinCPUsNode", "3")

    world.clock.sleep(40)  # more than half of what 2.9 times the speed would save of two minutes
    world.run()

    assert world.asked()[-2:] == [("1", "CPUsPerTask", "3"), ("1", "MinCPUsNode", "3")]


def test_a_clock_that_is_put_back_makes_nobody_wait_longer(world: World) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry")
    world.run()
    world.holds(gpus_used=7, cpus_alloc=21, mem_alloc_mib=224_000)
    world.run()
    world.clock.sleep(-10 * ACT.tuning.assumed_run_s)
    world.slurm.add(replace(world.slurm.records[1], eligible_time=0 + 1))
    world.run()

    world.clock.sleep(ACT.tuning.assumed_run_s)
    world.run()

    assert world.asked()[-2:] == [("1", "CPUsPerTask", "3"), ("1", "MinCPUsNode", "3")]


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
def test_a_shape_that_is_not_the_jobs_takes_nothing_from_others_and_stops_nobody(
    world: World, shape: ResourceShape
) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry")
    world.store.save_submission(replace(_submission(world), shape=shape))
    world.waits(2, "hungry")

    summary = world.run()

    assert summary.errors == []
    assert {target for target, _, _ in world.asked()} == {"2"}
    assert world.slurm.records[2].cpus_per_task == 12


def test_a_job_that_was_raised_lowered_and_raised_again_is_still_ours(world: World) -> None:
    idle = world.slurm.nodes["n0"]
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry")
    world.run()
    world.holds(gpus_used=7, cpus_alloc=21, mem_alloc_mib=224_000)
    world.run()
    world.slurm.nodes["n0"] = idle
    world.run()
    world.holds(gpus_used=7, cpus_alloc=21, mem_alloc_mib=224_000)
    world.run()

    assert [int(value) for _, key, value in world.asked() if key == "CPUsPerTask"] == [12, 5, 12, 5]


def test_a_change_that_comes_again_and_is_cut_short_is_made_whole_after_the_restart(world: World) -> None:
    idle = world.slurm.nodes["n0"]
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry")
    world.run()
    world.holds(gpus_used=7, cpus_alloc=21, mem_alloc_mib=224_000)
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
    world.book = ReconcilerState()
    world.run()

    assert (world.slurm.records[1].cpus_per_task, world.slurm.records[1].min_cpus) == (12, 12)


def test_what_was_advised_before_the_rule_acts_is_recorded_as_done_by_it(world: World) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry")
    world.run(replace(ACT, rules={**ACT.rules, "tune": "advise"}))
    world.run()

    told = [(a.key, a.mode, a.done_at is not None) for a in world.store.actions() if a.rule == "tune"]
    assert told == [("CPUsPerTask", "act", True), ("MinCPUsNode", "act", True)]


@pytest.mark.parametrize(
    ("reason", "account", "raised"),
    [
        ("AssocGrpCpuLimit", "physics", False),
        ("QOSGrpMemLimit", "physics", False),
        ("AssocGrpCpuLimit", "chemistry", True),
        ("QOSMaxCpuPerUserLimit", "physics", True),  # that user's own affair
    ],
)
def test_nobody_is_given_more_of_what_his_account_has_used_up(
    world: World, reason: str, account: str, raised: bool
) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry", account="physics", qos="normal")
    world.run()
    assert world.slurm.records[1].cpus_per_task == 12
    world.waits(2, reason=reason, account=account, qos="normal")
    world.run()
    assert (world.slurm.records[1].cpus_per_task == 12) is raised

    world.slurm.add(replace(world.slurm.records[2], reason="Dependency"))
    world.run()
    assert world.slurm.records[1].cpus_per_task == 12


def test_where_slurm_preempts_nobodys_job_is_ended_for_a_raise(world: World) -> None:
    world.knows("hungry", HUNGRY)
    world.knows("content", CONTENT)
    world.waits(1, "hungry")
    world.waits(2, "content")
    told = world.slurm.snapshot
    world.slurm.snapshot = lambda: replace(told(), preempts=True)  # type: ignore[method-assign]

    world.run()

    assert (world.slurm.records[1].cpus_per_task, world.slurm.records[2].cpus_per_task) == (3, 1)


def test_what_a_reservation_holds_is_no_place_to_wait_for(world: World) -> None:
    world.slurm.nodes["n1"] = replace(node("n1", cpus=24), flags=frozenset({"RESERVED"}))
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry")
    world.holds(gpus_used=7, cpus_alloc=21, mem_alloc_mib=224_000)
    world.run()
    world.clock.sleep(ACT.tuning.assumed_run_s)
    world.run()

    assert world.slurm.records[1].cpus_per_task == 3


def test_a_raised_job_that_slurm_does_not_start_where_there_is_room_gets_back_what_it_asked_for_good(
    world: World,
) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry", time_limit_s=1200)
    world.run()
    world.clock.sleep(1190)
    world.run()
    assert world.slurm.records[1].cpus_per_task == 12

    world.clock.sleep(20)
    world.run()
    world.run()

    assert world.asked()[2:] == [("1", "CPUsPerTask", "3"), ("1", "MinCPUsNode", "3")]


def test_a_job_that_nobody_can_handle_keeps_no_other_from_being_tuned(world: World) -> None:
    world.knows("hungry", HUNGRY)
    world.waits(1, "hungry")
    world.waits(2, "hungry")
    read = world.store.profile
    world.store.save_submission(replace(_submission(world), profile_key="odd"))

    def odd(key: str) -> ResourceProfile | None:
        if key == "1001:odd":
            raise ZeroDivisionError
        return read(key)

    world.store.profile = odd  # type: ignore[method-assign]
    summary = world.run()

    assert summary.errors == ["job 1: ZeroDivisionError: "]
    assert world.slurm.records[2].cpus_per_task == 12


@pytest.mark.parametrize(("held", "updates"), [(36_000, []), (32_000, [("1", "MinMemoryNode", "36000")])])
def test_memory_is_never_below_a_measured_peak_with_its_margin_though_less_was_asked(
    world: World, held: int, updates: list[tuple[str, str, str]]
) -> None:
    world.knows("leaky", ((3, 1.0),), mem_mib=30_000)
    world.waits(1, "leaky", mem_mib_per_node=held)
    raised = PlacementPlan(lines=(OptionChange(option="mem", value="36000M", reason="its peak"),))
    world.store.save_submission(replace(_submission(world), plan=asdict(raised)))

    world.run()

    assert world.asked() == updates
