"""Passes of the reconciler with fake adapters and a real database: decisions, actions, and that none is repeated."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from fakes import START, FakeClock, FakeLogs, FakePublisher, FakeSlurm, Fuse, Killed, MemorySpool, job

from slurmwrap.config.load_config import RULES, Config, Retry
from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.errors import SlurmError, SlurmUnreachable
from slurmwrap.model.decision import InputRead, SlurmAction, Strike, Verb
from slurmwrap.model.evidence import Diagnosis, Evidence, LogTail, RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import JobRun, LedgerReset, PrerunRecord
from slurmwrap.model.observation import Context, Observation, RejectedEntry, SpoolEntry
from slurmwrap.model.placement_plan import PlacementPlan
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.submission import Submission
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.reconcile import PassSummary, Scope, Services, reconcile_once, watch
from slurmwrap.reconcile.ingest_spool import MOST_OF_JOB
from slurmwrap.reconcile.reconcile_context import ReconcilerState
from slurmwrap.sbatch.job_request import ResourceShape
from slurmwrap.store.database import Database
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.serialize import to_json_dict

pytestmark = pytest.mark.early

XID_79 = "NVRM: Xid (PCI:0000:05:00): 79, pid=4711, name=python, GPU has fallen off the bus."
NCCL = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error\n"
BUG = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nAssertionError: no\n'
MISSING = (
    'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n'
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.h5'\n"
)
ACT = Config(rules=dict.fromkeys(RULES, "act"))
_nonces = count()


def hook_observation(
    context: Context, job_id: int, *, at: float, node: str = "", sealed: int = 0, **facts: object
) -> Observation:
    """An observation by a hook about a job of alice, sealed by uid `sealed`."""
    plain = {"restarts": 0, "uid": 1001, **facts}
    return Observation(
        nonce=f"{next(_nonces):032x}",
        cluster="lab",
        job_id=job_id,
        context=context,
        at=at,
        node=node,
        uid=sealed,
        facts=plain,
    )


def hooks(record: JobRecord, *, log: str = "", kernel: Sequence[str] = (), sealed: int = 0) -> tuple[Observation, ...]:
    """Observations by Prolog and Epilog on each node of a job that ended."""
    start, end = float(record.start_time or START), float(record.end_time or START)
    found: list[Observation] = []
    for place, name in enumerate(record.nodes):
        logs = [{"name": record.std_out, "text": log, "truncated": False}] if log and not place else []
        lines = [{"text": line, "at": end - 1} for line in kernel] if not place else []
        again: dict[str, object] = {"restarts": record.restarts, "uid": record.uid}
        found += [
            hook_observation(Context.PROLOG, record.job_id, at=start, node=name, sealed=sealed, **again),
            hook_observation(
                Context.EPILOG,
                record.job_id,
                at=end,
                node=name,
                sealed=sealed,
                started_at=start,
                wait_status=record.exit_code << 8 | record.signal,
                derived=record.derived_exit_code << 8,
                logs=logs,
                kernel=lines,
                mem_peak_mib=2000,
                cpu_s=120.0,
                **again,
            ),
        ]
    return tuple(found)


def submission(job_id: int, **changes: object) -> Submission:
    plain = Submission(
        cluster="lab", job_id=job_id, uid=1001, user="alice", at=START - 100.0, retry=True, output_appends=True
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def user_observation(
    job_id: int, context: Context, facts: dict[str, Any], *, uid: int = 1001, at: float = START
) -> Observation:
    """An observation by a user's program, sealed by `uid`."""
    nonce = f"{next(_nonces):032x}"
    return Observation(nonce=nonce, cluster="lab", job_id=job_id, context=context, at=at, uid=uid, facts=facts)


def submission_observation(record: Submission, *, uid: int = 1001) -> Observation:
    """The observation in which gsub reports a submission, sealed by `uid`."""
    return user_observation(record.job_id, Context.SUBMIT, {"submission": to_json_dict(record)}, uid=uid, at=record.at)


@cache
def new_database() -> bytes:
    """The bytes of a new database file. Writing a copy takes a tenth of the time of Database.open."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "site.db"
        Database.open(path, clock=FakeClock()).close()
        return path.read_bytes()


class World:
    """All adapters of one reconciler: Slurm, spool, logs, publisher, clock and database."""

    def __init__(self, path: Path, config: Config = ACT, scope: Scope | None = None) -> None:
        self.clock = FakeClock()
        self.slurm = FakeSlurm(clock=self.clock)
        self.spool = MemorySpool()
        self.logs = FakeLogs()
        self.publisher = FakePublisher()
        self.config, self.scope = config, scope or Scope()
        path.mkdir(exist_ok=True)
        self.path = path / "site.db"
        self.path.write_bytes(new_database())
        self.store = Database.open(self.path, clock=self.clock)
        self.files: dict[tuple[int, str], InputRead] = {}

    def add(self, *jobs: JobRecord) -> None:
        self.slurm.add(*jobs)

    def spool_observations(self, *observations: Observation) -> None:
        for observation in observations:
            self.spool.put(observation)

    def services(self, through: Callable[[object], object] = lambda adapter: adapter) -> Services:
        return Services(
            slurm=through(self.slurm),
            store=through(self.store),
            spools=(through(self.spool),),
            logs=through(self.logs),
            clock=self.clock,
            publisher=through(self.publisher),
            unpack=record_from_json,
            classify=diagnose_run,
            read_inputs=self.read,
            config=self.config,
            scope=self.scope,
        )

    def read(self, uid: int, paths: Sequence[str]) -> tuple[InputRead, ...]:
        return tuple(self.files.get((uid, path), InputRead(path=path)) for path in paths)

    def run(self) -> PassSummary:
        return reconcile_once(self.services())

    def reopen(self) -> None:
        self.store.close()
        self.store = Database.open(self.path, clock=self.clock)

    def attempt(self, record: JobRecord) -> JobRun:
        found = self.store.attempt(RunKey(cluster="lab", job_id=record.job_id, submit_time=record.submit_time))
        assert found is not None
        return found

    def requested_actions(self) -> list[tuple[str, str, str, str]]:
        """The actions requested from Slurm, without the Comment, which tests/policy/test_launch_failure.py tests."""
        return [plain(action) for action in self.slurm.calls if action.key != "Comment"]


def plain(action: SlurmAction) -> tuple[str, str, str, str]:
    return action.verb.value, action.target, action.key, action.value


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def category_and_decision_of(world: World, record: JobRecord) -> tuple[str, str]:
    found = world.attempt(record)
    assert found.diagnosis is not None
    return found.diagnosis.category, found.decision


# --- what is decided -------------------------------------------------------------------------------------------------


def test_a_gpu_off_the_bus_drains_the_node_and_the_job_is_retried_elsewhere(world: World) -> None:
    failed = job(81)
    world.add(failed)
    world.spool_observations(submission_observation(submission(81)), *hooks(failed, log=NCCL, kernel=[XID_79]))
    world.run()
    assert category_and_decision_of(world, failed) == ("gpu_hardware", "retry_elsewhere")
    drain, *again = world.requested_actions()
    assert drain[:2] == ("drain", "n1") and drain[3].startswith("slurmwrap: gpu_hardware")
    assert again == [
        ("requeuehold", "81", "", ""),
        ("update job", "81", "ExcNodeList", "n1"),
        ("release", "81", "", ""),
        ("update job", "81", "StartTime", "now+3"),
    ]
    assert [strike.node for strike in world.store.strikes(since=0)] == ["n1"]
    assert world.publisher.published is not None
    assert [(entry.node, entry.status) for entry in world.publisher.published.health] == [("n1", "drained")]
    assert 81 in world.publisher.told
    assert world.attempt(failed).reconciled


def test_a_bug_in_the_program_leads_to_stop_without_actions(world: World) -> None:
    failed = job(82)
    world.add(failed)
    world.spool_observations(submission_observation(submission(82)), *hooks(failed, log=BUG))
    world.run()
    assert category_and_decision_of(world, failed) == ("traceback_from_crash", "stop")
    assert world.requested_actions() == []
    assert world.attempt(failed).reconciled


def test_without_consent_the_node_is_drained_and_the_job_is_not_requeued(world: World) -> None:
    failed = job(83)
    world.add(failed)
    world.spool_observations(*hooks(failed, kernel=[XID_79]))
    world.run()
    assert [call[0] for call in world.requested_actions()] == ["drain"]
    assert world.attempt(failed).decision == "stop"
    assert "not submitted by gsub" in world.attempt(failed).decision_reason


def test_an_ending_that_the_user_named_is_consent(world: World) -> None:
    for number, code in ((81, 93), (82, 1)):
        ended = job(number, exit_code=code)
        world.add(ended)
        record = submission(number, retry=False, retry_on=("93",))
        world.spool_observations(submission_observation(record), *hooks(ended, log="ModuleNotFoundError: No module"))
    world.run()
    assert {address for _, address, _, _ in world.requested_actions()} == {"81"}
    assert category_and_decision_of(world, job(82))[1] == "stop"
    assert world.attempt(job(81)).decision_reason.startswith("exit code 93, which --retry-on names, retry 1 of 3")


def test_in_advise_mode_actions_are_recorded_and_not_executed(tmp_path: Path) -> None:
    world = World(tmp_path, config=Config())
    failed = job(84)
    world.add(failed)
    world.spool_observations(submission_observation(submission(84)), *hooks(failed, kernel=[XID_79]))
    world.run()
    actions = world.store.actions(world.attempt(failed).attempt)
    assert world.requested_actions() == []
    verbs = [action.verb for action in actions if action.key != "Comment"]
    assert verbs == ["drain", "requeuehold", "update job", "release", "update job"]
    assert {action.mode for action in actions} == {"advise"}
    assert world.attempt(failed).reconciled


def test_a_successful_run_is_recorded_and_updates_the_resource_profile(world: World) -> None:
    done = job(85, state="COMPLETED", exit_code=0, reason="None")
    world.add(done)
    world.spool_observations(submission_observation(submission(85, profile_key="resnet")), *hooks(done))
    world.run()
    assert category_and_decision_of(world, done) == ("success", "none")
    profile = world.store.profile("1001:resnet")
    assert profile is not None and profile.runs == 1
    assert [(speed.gpus, speed.nodes, speed.run_s) for speed in profile.speeds] == [(2, 1, 60.0)]


def test_an_array_task_is_addressed_by_its_task_id_not_by_the_array_id(world: World) -> None:
    master = job(77, array_job_id=77, array_task_id=3)
    world.add(master)
    world.spool_observations(submission_observation(submission(77)), *hooks(master, log=NCCL))
    world.run()
    assert {call[1] for call in world.requested_actions()} == {"77_3"}


def test_an_array_task_with_its_own_raw_id_uses_the_arrays_submission(world: World) -> None:
    task = job(79, array_job_id=77, array_task_id=1)
    world.add(task)
    world.spool_observations(submission_observation(submission(77)), *hooks(task, log=NCCL))
    world.run()
    assert world.requested_actions()[0] == ("requeuehold", "77_1", "", "")


def test_a_cancelled_job_is_never_requeued(world: World) -> None:
    cancelled = job(86, state="CANCELLED", reason="None", exit_code=0, signal=15)
    world.add(cancelled)
    world.spool_observations(submission_observation(submission(86)), *hooks(cancelled, log=NCCL))
    world.run()
    assert category_and_decision_of(world, cancelled) == ("cancelled", "none")
    assert world.requested_actions() == []


def test_a_job_cancelled_between_decision_and_action_is_not_requeued(world: World) -> None:
    failed = job(87)
    world.add(failed)
    world.spool_observations(submission_observation(submission(87)), *hooks(failed, log=NCCL))
    find_job = world.slurm.job

    def job_is_cancelled(address: str) -> JobRecord | None:
        found = find_job(address)
        return replace(found, state="CANCELLED") if found else None

    world.slurm.job = job_is_cancelled  # type: ignore[method-assign]
    world.run()
    assert world.requested_actions() == []
    errors = {action.error for action in world.store.actions(world.attempt(failed).attempt)}
    assert errors == {"it was cancelled meanwhile"}


def test_a_run_that_slurm_already_requeued_is_recorded_without_actions(world: World) -> None:
    running = job(88, state="RUNNING", reason="None", exit_code=0, end_time=None)
    world.add(running)
    world.run()
    log = "slurmstepd-n1: error: *** JOB 88 ON n1 CANCELLED AT 2026-11-20T23:47:02 DUE TO PREEMPTION ***\n"
    world.spool_observations(
        submission_observation(submission(88)), *hooks(replace(running, end_time=START - 30), log=log)
    )
    again = replace(running, state="PENDING", reason="BeginTime", restarts=1, submit_time=START - 20, start_time=None)
    world.add(again)
    world.run()
    assert category_and_decision_of(world, running) == ("job_preempted", "retry")
    assert world.attempt(running).state == "REQUEUED"
    assert world.requested_actions() == []


@pytest.mark.parametrize(
    ("log", "exit_code", "found"),
    [
        ("saved step 40\n", 0, ("cancelled", "none")),
        ("slurmstepd-n1: error: *** JOB 88 ON n1 CANCELLED AT 2026-11-20T23:47:02 DUE TO JOB REQUEUE ***\n", 0,
         ("cancelled", "none")),
        (BUG, 0, ("traceback_from_crash", "stop")),  # `python train.py || scontrol requeue $SLURM_JOB_ID`
        ("saved step 40\n", 3, ("no_signature", "retry")),  # RequeueExit=3
    ],
)  # fmt: skip
def test_a_requeued_run_counts_as_failed_only_with_evidence(
    world: World, log: str, exit_code: int, found: tuple[str, str]
) -> None:
    running = job(88, state="RUNNING", reason="None", exit_code=0, end_time=None)
    world.add(running)
    world.run()
    ended = replace(running, end_time=START - 30, exit_code=exit_code)
    world.spool_observations(submission_observation(submission(88)), *hooks(ended, log=log))
    world.add(
        replace(running, state="PENDING", reason="BeginTime", restarts=1, submit_time=START - 20, start_time=None)
    )
    world.run()
    assert category_and_decision_of(world, running) == found


def test_a_submission_that_slurm_refused_is_no_run(world: World) -> None:
    at = START - 60
    never = job(88, state="FAILED", reason="BadConstraints", exit_code=0, signal=1, nodes=(), submit_time=at)
    world.add(
        replace(never, start_time=at, end_time=at), replace(never, job_id=89, start_time=at + 30, end_time=at + 30)
    )
    world.run()
    assert [run.attempt.job_id for run in world.store.attempts()] == [89]  # job 89 had waited before it failed


@pytest.mark.parametrize("signal", [0, 1], ids=["22.05", "24.11"])
def test_a_requeued_run_whose_node_went_down_is_a_node_failure(world: World, signal: int) -> None:
    running = job(89, state="RUNNING", reason="None", exit_code=0, end_time=None, nodes=("n1", "n2"))
    world.add(running)
    world.run()
    world.slurm.nodes["n2"] = replace(world.slurm.nodes["n2"], state="DOWN", reason="Not responding")
    survivor = replace(running, end_time=START - 30, signal=signal)
    world.spool_observations(*[o for o in hooks(survivor) if o.node == "n1" or o.context is Context.PROLOG])
    world.add(replace(running, state="PENDING", restarts=1, submit_time=START - 20, start_time=None, nodes=()))
    world.run()
    found = world.attempt(running)
    assert (found.state, found.decision) == ("NODE_FAIL", "retry_elsewhere")
    assert [strike.node for strike in world.store.strikes(since=0)] == ["n2"]
    assert world.requested_actions() == []


def list_runs(world: World, job_id: int) -> list[tuple[int, int | None, int | None, str]]:
    """The stored runs of a job: restarts, start and end relative to START, state."""
    return [
        (
            run.restarts,
            run.start_time and int(run.start_time - START),
            run.end_time and int(run.end_time - START),
            run.state,
        )
        for run in world.store.attempts(cluster="lab", job_id=job_id)
    ]


# What Slurm shows of a run that lost its node while it is COMPLETING: the next restart, the present time, and the limit
# after it.
RUNNING = job(89, state="RUNNING", reason="None", exit_code=0, end_time=None)
REQUEUEING = replace(RUNNING, state="COMPLETING", restarts=1, start_time=START, end_time=START + 3600)
REQUEUED = replace(RUNNING, state="PENDING", restarts=1, submit_time=START + 5, start_time=None, nodes=())


@pytest.mark.parametrize("seen_running", [True, False])
def test_a_run_that_is_requeued_has_one_row_whenever_it_is_first_seen(world: World, seen_running: bool) -> None:
    prolog, _ = hooks(RUNNING)
    if seen_running:
        world.add(RUNNING)
        world.run()
    world.add(REQUEUEING)
    world.spool_observations(prolog)
    world.run()
    assert list_runs(world, 89) == [(0, -90, None, "")]
    world.add(REQUEUED)
    world.clock.sleep(world.services().scope.patience_s + 5)
    world.run()
    # No Epilog came: the run ended before the job was submitted again.
    assert list_runs(world, 89) == [(0, -90, 5, "REQUEUED")]
    world.add(replace(REQUEUED, state="RUNNING", start_time=START + 60, nodes=("n2",)))
    world.run()
    assert list_runs(world, 89)[1:] == [(1, 60, None, "")]


def test_a_run_that_is_cancelled_while_it_is_requeued_has_one_row(world: World) -> None:
    world.spool_observations(hooks(RUNNING)[0])
    world.add(replace(REQUEUEING, state="CANCELLED", start_time=RUNNING.start_time, end_time=START))
    world.run()
    assert list_runs(world, 89) == [(0, -90, 0, "CANCELLED")]


def test_a_run_that_starts_during_a_pass_is_stored_at_once_and_has_one_row(world: World) -> None:
    """Slurm showed the job as pending before the spool was read; it is requeued before the next pass."""
    answers = iter([replace(RUNNING, state="PENDING", start_time=None, nodes=()), RUNNING])

    class Started:
        def __getattr__(self, name: str) -> object:
            return getattr(world.slurm, name)

        def jobs(self, user: str | None = None) -> tuple[JobRecord, ...]:
            return (next(answers),)

    world.spool_observations(hooks(RUNNING)[0])
    reconcile_once(replace(world.services(), slurm=Started()))
    assert list_runs(world, 89) == [(0, -90, None, "")]
    world.reopen()
    world.add(REQUEUED)
    world.clock.sleep(world.services().scope.patience_s + 5)
    world.run()
    assert list_runs(world, 89) == [(0, -90, 5, "REQUEUED")]


def test_two_runs_with_one_submit_time_have_two_rows(world: World) -> None:
    """A job that requeues itself and loses its node before it has ended keeps its SubmitTime (22.05)."""
    world.add(RUNNING)
    world.spool_observations(hooks(RUNNING)[0])
    world.run()
    again = replace(RUNNING, restarts=1, start_time=START + 60, nodes=("n2",))
    world.add(again)
    world.run()
    done = replace(again, state="COMPLETED", end_time=START + 90)
    world.spool_observations(*hooks(done))
    world.add(done)
    world.run()
    assert list_runs(world, 89) == [(0, -90, 60, "REQUEUED"), (1, 60, 90, "COMPLETED")]


def held_after_launch_failure(found: JobRecord, clock: FakeClock) -> JobRecord:
    """The job record that Slurm 22.05 shows after a Prolog failed."""
    now = int(clock.now())
    return replace(
        found, state="PENDING", reason="launch failed requeued held", restarts=1, submit_time=now, nodes=(),
        start_time=None, end_time=None,
    )  # fmt: skip


def test_a_job_held_after_a_launch_failure_is_released_once_with_consent(world: World) -> None:
    held = held_after_launch_failure(job(91), world.clock)
    world.add(held)
    world.spool_observations(submission_observation(submission(91)))
    world.run()
    world.clock.sleep(30)
    world.run()
    (record,) = world.store.attempts(job_id=91)
    assert record.diagnosis is not None
    assert (record.diagnosis.category, record.decision, record.restarts) == ("node_failure", "retry_elsewhere", 0)
    assert world.requested_actions() == [("release", "91", "", ""), ("update job", "91", "StartTime", "now+3")]
    world.run()
    assert len(world.requested_actions()) == 2


def test_a_job_held_after_a_launch_failure_stays_held_without_consent(world: World) -> None:
    world.add(held_after_launch_failure(job(92), world.clock))
    world.run()
    world.clock.sleep(30)
    world.run()
    (record,) = world.store.attempts(job_id=92)
    assert (record.decision, world.requested_actions()) == ("stop", [])
    assert "scontrol release 92" in record.decision_reason


def test_a_job_refused_by_the_prolog_gate_runs_elsewhere_even_without_consent(world: World) -> None:
    first = job(93, nodes=("n1",))
    held = held_after_launch_failure(first, world.clock)
    world.add(held)
    world.slurm.nodes["n1"] = replace(world.slurm.nodes["n1"], flags=frozenset({"DRAIN"}), reason="Prolog error")
    gate = {"refused": True, "cause": "gpu_lost", "text": "the GPU is lost", "source": "nvml"}
    world.spool_observations(
        hook_observation(Context.PROLOG, 93, at=held.submit_time - 1.0, node="n1", restarts=0, gate=gate)
    )
    world.run()
    world.clock.sleep(30)
    world.run()
    assert world.requested_actions() == [
        ("drain", "n1", "", "slurmwrap: gate: gpu_lost, before job 93"),
        ("update job", "93", "ExcNodeList", "n1"),
        ("release", "93", "", ""),
        ("update job", "93", "StartTime", "now+3"),
    ]


def test_only_the_node_that_the_prolog_gate_refused_is_excluded(world: World) -> None:
    held = held_after_launch_failure(job(94, nodes=("n1", "n2")), world.clock)
    world.add(held)
    world.slurm.nodes["n2"] = replace(world.slurm.nodes["n2"], flags=frozenset({"DRAIN"}), reason="Prolog error")
    at, gate = held.submit_time - 1.0, {"refused": True, "cause": "gpu_lost", "text": "", "source": "nvml"}
    world.spool_observations(hook_observation(Context.PROLOG, 94, at=at, node="n1", restarts=0))
    world.spool_observations(hook_observation(Context.PROLOG, 94, at=at, node="n2", restarts=0, gate=gate))
    world.run()
    world.clock.sleep(30)
    world.run()
    assert world.requested_actions()[:2] == [
        ("drain", "n2", "", "slurmwrap: gate: gpu_lost, before job 94"),
        ("update job", "94", "ExcNodeList", "n2"),
    ]


def test_the_prolog_gate_is_permitted_below_the_cap_and_gets_conclusive_faults(world: World) -> None:
    broken = Strike(node="n2", cause="gpu_hardware", conclusive=True, text="Xid 79")
    lately = world.clock.now() - 60
    world.store.add_strike(broken, 1.0, 7, 1001)
    world.store.add_strike(replace(broken, node="n3"), lately, 8, 1001)
    world.store.add_strike(replace(broken, node="n4", cause="nccl_error", conclusive=False), lately, 9, 1001)
    world.run()
    gate = world.publisher.gate
    assert gate is not None
    assert (gate.allowed, gate.until) == (True, world.clock.now() + 300)
    assert [(fault.node, fault.cause, fault.text) for fault in gate.faults] == [("n3", "gpu_hardware", "")]
    world.slurm.nodes["n5"] = replace(world.slurm.nodes["n5"], flags=frozenset({"DRAIN"}), reason="slurmwrap: x")
    world.clock.sleep(250)
    world.run()
    assert world.publisher.gate is not None and not world.publisher.gate.allowed


def test_a_clock_set_back_does_not_stop_gate_permits_or_published_health(
    world: World,
) -> None:
    state = ReconcilerState()
    reconcile_once(world.services(), state)
    world.clock.time -= 86400
    reconcile_once(world.services(), state)
    gate, published = world.publisher.gate, world.publisher.published
    assert gate is not None and published is not None
    assert (gate.until, published.at) == (world.clock.now() + 300, world.clock.now())


def test_in_advise_mode_the_prolog_gate_gets_faults_and_no_permit(tmp_path: Path) -> None:
    advised, observed = World(tmp_path, Config()), World(tmp_path, Config(rules={"gate": "observe"}))
    advised.run()
    observed.run()
    assert advised.publisher.gate is not None and not advised.publisher.gate.allowed
    assert observed.publisher.gate is None


def test_a_run_that_slurm_forgot_is_diagnosed_from_its_hooks(world: World) -> None:
    gone = job(90, exit_code=1)
    controller = hook_observation(
        Context.EPILOG_SLURMCTLD,
        90,
        at=START - 30.0,
        sealed=-1,
        user="alice",
        name="train",
        partition="gpu",
        wait_status=256,
        derived=0,
    )
    world.spool_observations(*hooks(gone, log=BUG), controller)
    world.run()
    (found,) = world.store.attempts(cluster="lab", job_id=90)
    assert found.diagnosis is not None
    assert (found.state, found.exit_code, found.user, found.nodes) == ("FAILED", 1, "alice", ("n1",))
    assert found.diagnosis.category == "traceback_from_crash"
    assert found.reconciled


def test_a_failed_srun_that_the_script_hides_is_found(world: World) -> None:
    hidden = job(91, state="COMPLETED", reason="None", exit_code=0, derived_exit_code=1)
    world.add(hidden)
    world.spool_observations(*hooks(hidden, log=BUG))
    world.run()
    assert category_and_decision_of(world, hidden) == ("traceback_from_crash", "stop")


def test_an_older_job_with_the_same_id_does_not_affect_the_new_job(world: World) -> None:
    old = job(92, uid=1002, submit_time=START - 90_000, start_time=START - 90_000, end_time=START - 89_000)
    world.spool_observations(
        submission_observation(submission(92, uid=1002, user="bob", at=START - 90_000.0), uid=1002)
    )
    world.add(old)
    world.spool_observations(*hooks(old, kernel=[XID_79]))
    world.run()
    new = job(92)
    world.add(new)
    world.spool_observations(*hooks(new, log=BUG))
    world.run()
    assert category_and_decision_of(world, new) == ("traceback_from_crash", "stop")
    assert len(world.store.attempts(cluster="lab", job_id=92)) == 2


def test_a_completing_job_is_diagnosed_in_a_later_pass(world: World) -> None:
    ending = job(93, state="COMPLETING")
    world.add(ending)
    world.spool_observations(*hooks(ending, log=BUG))
    assert world.run().waiting == 1
    assert world.attempt(ending).diagnosis is None
    world.add(replace(ending, state="FAILED"))
    world.run()
    assert category_and_decision_of(world, ending) == ("traceback_from_crash", "stop")


def test_an_ended_job_is_diagnosed_only_after_a_late_epilog(world: World) -> None:
    failed = job(94, nodes=("n1", "n2"), end_time=START - 1)
    world.add(failed)
    early, late = hooks(failed, log=NCCL, kernel=[XID_79])[2:], hooks(failed, kernel=[XID_79])[:2]
    world.spool_observations(late[0], *early)
    assert world.run().waiting == 1
    world.spool_observations(late[1])
    world.run()
    assert category_and_decision_of(world, failed)[0] == "gpu_hardware"


def run_and_fail(world: World, run: JobRecord, restarts: int, log: str = NCCL) -> None:
    """The next run of a job fails with this log, its hooks report it, and a pass handles it."""
    now = int(world.clock.now())
    run = replace(run, restarts=restarts, submit_time=now, start_time=now + 5, end_time=now + 60, state="FAILED")
    world.add(run)
    world.spool_observations(*hooks(run, log=log))
    world.clock.sleep(100)
    world.run()


def test_the_third_retry_of_one_root_cause_is_the_last(world: World) -> None:
    world.spool_observations(submission_observation(submission(95)))
    for restarts in range(4):
        run_and_fail(world, job(95), restarts)
    decisions = [record.decision for record in world.store.attempts(cluster="lab", job_id=95)]
    assert decisions == ["retry", "retry", "retry", "stop"]
    starts = [call[3] for call in world.requested_actions() if call[2] == "StartTime"]
    assert starts == ["now+64", "now+136", "now+290"]  # the backoff doubles; the jitter depends on the job


def test_a_retry_budget_that_a_person_reset_starts_again(world: World) -> None:
    world.spool_observations(submission_observation(submission(95)))
    for restarts in range(6):
        run_and_fail(world, job(95), restarts)
        if restarts == 2:
            at = world.clock.now()
            world.store.add_reset(LedgerReset(cluster="lab", job_id=95, at=at, who="root", note="switch mended"))
    found = [(one.decision, one.decision_reason[:24]) for one in world.store.attempts(cluster="lab", job_id=95)]
    assert found == [("retry", f"nccl_error, retry {number} of 3") for number in (1, 2, 3, 1, 2, 3)]


def test_a_job_out_of_memory_gets_more_memory_in_the_unit_it_used(world: World) -> None:
    _out_of_memory(world, 96)
    world.run()
    assert ("update job", "96", "MinMemoryNode", "6000") in world.requested_actions()


def test_a_retry_whose_output_would_be_truncated_gets_a_new_output_file(world: World) -> None:
    failed = job(97)
    world.add(failed)
    world.spool_observations(submission_observation(submission(97, output_appends=False)), *hooks(failed, log=NCCL))
    world.run()
    assert ("update job", "97", "StdOut", "/home/alice/slurm-97.retry1.out") in world.requested_actions()


def test_a_node_that_a_person_drained_is_not_changed(world: World) -> None:
    world.slurm.nodes["n1"] = replace(world.slurm.nodes["n1"], flags=frozenset({"DRAIN"}), reason="bob: fans")
    failed = job(98)
    world.add(failed)
    world.spool_observations(*hooks(failed, kernel=[XID_79]))
    world.run()
    assert world.requested_actions() == []
    assert world.slurm.nodes["n1"].reason == "bob: fans"


def test_no_more_nodes_are_drained_than_the_cap_allows(world: World) -> None:
    for job_id, name in ((101, "n1"), (102, "n2")):
        failed = job(job_id, nodes=(name,), submit_time=START - 300 + job_id)
        world.add(failed)
        world.spool_observations(*hooks(failed, kernel=[XID_79]))
    world.run()
    assert [call[1] for call in world.requested_actions()] == ["n1"]
    (given_up,) = [action for action in world.store.actions() if action.target == "n2"]
    assert "exclude_cap" in given_up.error


def test_a_refused_requeue_voids_the_remaining_actions(world: World) -> None:
    failed = job(103)
    world.add(failed)
    world.spool_observations(submission_observation(submission(103)), *hooks(failed, log=NCCL))

    def refuse(found: JobRecord, *, held: bool) -> JobRecord:
        raise SlurmError("Requested operation is presently disabled for job 103")

    world.slurm._requeued = refuse  # type: ignore[method-assign]
    world.run()
    assert [call[0] for call in world.requested_actions()] == ["requeuehold"]
    errors = [action.error for action in world.store.actions(world.attempt(failed).attempt)]
    assert errors[0].startswith("Requested operation") and all(errors)
    assert world.attempt(failed).reconciled


def test_an_input_that_only_the_log_blames_is_blocked_after_a_second_failure(world: World) -> None:
    world.files[(1001, "/data/train.h5")] = InputRead(path="/data/train.h5", digest="d1")
    world.spool_observations(submission_observation(submission(104)))
    for restarts in range(2):
        run_and_fail(world, job(104), restarts, log=MISSING)
    first, second = world.store.attempts(cluster="lab", job_id=104)
    assert (first.decision, second.decision) == ("retry_elsewhere", "blacklist_input")
    (blocked,) = world.store.blocked_inputs()
    assert (blocked.digest, blocked.uid, blocked.job_id) == ("d1", 1001, 104)
    published = world.publisher.published
    assert published is not None and [(b.digest, b.uid, b.path) for b in published.blocked] == [("d1", 1001, "")]


def test_slurmwrap_finds_a_broken_input_not_named_in_the_log_and_blocks_it(world: World) -> None:
    log = "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory\n"
    bad = InputRead(path="/data/bad.pt", digest="d3", fault="it is truncated", theirs=True)
    world.files[(1001, "/data/bad.pt")] = bad
    failed = job(107)
    world.add(failed)
    world.spool_observations(
        submission_observation(submission(107, inputs=("/data/good.pt", "/data/bad.pt"))), *hooks(failed, log=log)
    )
    world.run()
    found = world.attempt(failed)
    assert found.diagnosis is not None
    assert (found.decision, found.diagnosis.input_path) == ("blacklist_input", "/data/bad.pt")
    assert found.decision_reason == "/data/bad.pt: it is truncated"
    assert [(b.digest, b.uid, b.reason) for b in world.store.blocked_inputs()] == [
        ("d3", -1, "slurmwrap's own check of it: it is truncated"),
        ("d3", 1001, "/data/bad.pt: it is truncated"),
    ]


def test_a_broken_file_that_the_user_owns_is_blocked_for_that_user_only(world: World) -> None:
    """The user could copy a sound file of another user under a name of another format, so that both have one digest."""
    log = "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory\n"
    world.files[(1001, "/home/eve/x.npy")] = InputRead(path="/home/eve/x.npy", digest="d5", fault="is no NumPy file")
    failed = job(110)
    world.add(failed)
    world.spool_observations(
        submission_observation(submission(110, inputs=("/home/eve/x.npy",))), *hooks(failed, log=log)
    )
    world.run()
    assert [(b.digest, b.uid) for b in world.store.blocked_inputs()] == [("d5", 1001)]


def test_a_checkpoint_error_is_an_input_failure_if_slurmwrap_finds_it_broken(world: World) -> None:
    log = "RuntimeError: Restoring from checkpoint failed\n"
    world.files[(1001, "/data/bad.pt")] = InputRead(path="/data/bad.pt", digest="d4", fault="it is truncated")
    mine, sound = job(108), job(109)
    world.add(mine, sound)
    world.spool_observations(submission_observation(submission(108, inputs=("/data/bad.pt",))), *hooks(mine, log=log))
    world.spool_observations(submission_observation(submission(109, inputs=("/data/good.pt",))), *hooks(sound, log=log))
    world.run()
    assert category_and_decision_of(world, mine) == ("incorrect_inputs", "blacklist_input")
    assert category_and_decision_of(world, sound) == (
        "checkpoint_error",
        "stop",
    )  # a resume that failed will fail again
    assert {b.digest for b in world.store.blocked_inputs()} == {"d4"}


def test_an_advised_input_block_is_recorded_and_not_set(tmp_path: Path) -> None:
    world = World(tmp_path, config=Config())
    world.files[(1001, "/data/train.h5")] = InputRead(path="/data/train.h5", digest="d1")
    failed = job(150)
    world.add(failed)
    world.spool_observations(*hooks(failed, log=MISSING))
    world.run()
    (action,) = world.store.actions()
    assert (action.rule, action.mode, action.verb, action.target) == (
        "block_input",
        "advise",
        "block input",
        "/data/train.h5",
    )
    assert (world.store.blocked_inputs(), world.requested_actions(), action.done_at) == ((), [], None)
    assert world.publisher.told[150][1] == (action,)


def test_failures_of_two_users_on_two_nodes_block_an_input_for_all_users(world: World) -> None:
    for uid, user, name in ((1001, "alice", "n1"), (1002, "bob", "n2")):
        world.files[(uid, "/data/train.h5")] = InputRead(path="/data/train.h5", digest="d1")
        failed = job(150 + uid, uid=uid, user=user, nodes=(name,))
        world.add(failed)
        world.spool_observations(*hooks(failed, log=MISSING))
        world.run()
    found = {(b.digest, b.uid): b.reason for b in world.store.blocked_inputs()}
    assert set(found) == {("d1", 1001), ("d1", 1002), ("d1", -1)}
    assert found["d1", -1] == "jobs of several users failed because of it on several nodes"
    done = [a for a in world.store.actions() if a.verb == "block input"]
    assert [(a.key, bool(a.done_at), a.error) for a in done] == [
        ("user", True, ""),
        ("user", True, ""),
        ("site", True, ""),
    ]
    assert world.requested_actions() == []  # an input block changes nothing in Slurm


def test_a_job_that_resumes_from_a_checkpoint_gets_more_time(world: World) -> None:
    timed_out = job(151, state="TIMEOUT", reason="TimeLimit", exit_code=0, signal=15)
    world.add(timed_out)
    world.spool_observations(submission_observation(submission(151)), *hooks(timed_out))
    services = world.services()

    def resumes(evidence: Evidence) -> Diagnosis:
        return replace(services.classify(evidence), resumed=True, step=120, checkpoint_step=100)

    reconcile_once(replace(services, classify=resumes))
    assert ("update job", "151", "TimeLimit", "90") in world.requested_actions()
    found = world.attempt(timed_out)
    assert found.diagnosis is not None
    assert (found.decision, found.diagnosis.checkpoint_step) == ("resize", 100)


def test_a_refused_resize_is_undone_and_not_requested_again(world: World) -> None:
    updated = world.slurm._updated

    def limited(found: JobRecord, action: SlurmAction) -> JobRecord:
        if action.key == "MinMemoryNode" and int(action.value) > 4000:
            world.slurm.records[found.job_id] = updated(found, action)  # Slurm 22.05 may keep a value that it refuses
            raise SlurmError("Job violates accounting/QOS policy")
        return updated(found, action)

    world.slurm._updated = limited  # type: ignore[method-assign]
    failed = _out_of_memory(world, 152)
    world.run()
    keys = [(call[2], call[3]) for call in world.requested_actions() if call[0] == "update job"]
    assert keys == [("MinMemoryNode", "6000"), ("MinMemoryNode", "4000"), ("StartTime", "now+3")]
    assert world.slurm.records[152].mem_mib_per_node == 4000
    again = replace(failed, restarts=1, submit_time=START + 50, start_time=START + 60, end_time=START + 90)
    world.clock.sleep(200)
    world.add(again)
    world.spool_observations(*hooks(again))
    world.run()
    assert world.attempt(again).decision == "stop"
    assert "Slurm refused the larger job last time" in world.attempt(again).decision_reason


def _out_of_memory(world: World, job_id: int) -> JobRecord:
    failed = job(job_id, state="OUT_OF_MEMORY", reason="OutOfMemory", exit_code=0, signal=125)
    world.add(failed)
    world.spool_observations(submission_observation(submission(job_id)), *hooks(failed))
    return failed


@pytest.mark.parametrize(("scope", "owner"), [(Scope(), 1001), (Scope(user="alice", uid=1001), None)])
def test_a_resize_runs_as_the_owner_and_all_else_as_slurmwrap(tmp_path: Path, scope: Scope, owner: int | None) -> None:
    world = World(tmp_path, ACT, scope)
    _out_of_memory(world, 152)
    world.run()
    owners = {
        action.key or action.verb.value: who for action, who in zip(world.slurm.calls, world.slurm.owners, strict=True)
    }
    others = ("requeuehold", "Comment", "release", "StartTime")
    assert owners == {**dict.fromkeys(others), "MinMemoryNode": owner}


def _let_scontrol_time_out(world: World, key: str = "MinMemoryNode") -> None:
    apply = world.slurm.apply

    def stopped(action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        if owner == 1001 and action.key == key:
            world.slurm.calls.append(action)
            raise SlurmUnreachable("scontrol: no answer within 3 s")
        apply(action, owner, also)

    world.slurm.apply = stopped  # type: ignore[method-assign]


def test_an_owner_who_blocks_a_resize_delays_no_other_job_and_gets_no_memory(world: World) -> None:
    failed = _out_of_memory(world, 152)
    other = job(153, uid=1002, user="bob", state="OUT_OF_MEMORY", reason="OutOfMemory", exit_code=0, signal=125)
    world.add(other)
    world.spool_observations(submission_observation(submission(153, uid=1002, user="bob"), uid=1002), *hooks(other))
    _let_scontrol_time_out(world)
    state, services = ReconcilerState(), world.services()

    for _ in range(5):
        reconcile_once(services, state)
    assert world.slurm.records[153].mem_mib_per_node == 6000
    resizes = [action for action in world.slurm.calls if (action.target, action.key) == ("152", "MinMemoryNode")]
    assert len(resizes) == 1  # it is not repeated within ten minutes

    world.clock.sleep(601)
    reconcile_once(services, state)
    found = world.slurm.records[152]
    assert (found.reason, found.mem_mib_per_node, world.attempt(failed).resize_refused) == ("None", 4000, True)


@pytest.mark.parametrize(("reason", "memory"), [("AssocMaxMemPerJob", 4000), ("Priority", 6000)])
def test_a_resized_retry_that_a_limit_keeps_pending_gets_its_old_size(world: World, reason: str, memory: int) -> None:
    failed = job(152, state="OUT_OF_MEMORY", reason="OutOfMemory", exit_code=0, signal=125)
    world.add(failed)
    world.spool_observations(
        submission_observation(submission(152, shape=ResourceShape(), plan=to_json_dict(PlacementPlan()))),
        *hooks(failed),
    )
    world.run()
    assert world.slurm.records[152].mem_mib_per_node == 6000

    world.clock.sleep(300)
    world.slurm.add(replace(world.slurm.records[152], reason=reason, priority=7))
    for _ in range(2):
        world.run()

    assert world.slurm.records[152].mem_mib_per_node == memory
    assert world.slurm.owners[-1] == (1001 if memory == 4000 else None)
    assert world.attempt(failed).resize_refused is (memory == 4000)


def test_a_second_resized_retry_gets_the_size_of_the_run_before_it(world: World) -> None:
    failed = job(152, state="OUT_OF_MEMORY", reason="OutOfMemory", exit_code=0, signal=125)
    world.add(failed)
    plan = to_json_dict(PlacementPlan())
    world.spool_observations(submission_observation(submission(152, shape=ResourceShape(), plan=plan)), *hooks(failed))
    world.run()
    again = world.slurm.records[152]
    now = int(world.clock.now())
    ended = {"state": "OUT_OF_MEMORY", "reason": "OutOfMemory", "exit_code": 0, "signal": 125}
    again = replace(again, submit_time=now, start_time=now + 5, end_time=now + 60, nodes=failed.nodes, **ended)  # type: ignore[arg-type]
    world.slurm.add(again)
    world.spool_observations(*hooks(again))
    world.clock.sleep(100)
    world.run()
    assert (again.mem_mib_per_node, world.slurm.records[152].mem_mib_per_node) == (6000, 9000)

    world.clock.sleep(300)
    world.slurm.add(replace(world.slurm.records[152], reason="AssocMaxMemPerJob", priority=7))
    world.run()
    assert world.slurm.records[152].mem_mib_per_node == 6000
    assert [world.attempt(run).resize_refused for run in (failed, again)] == [False, True]


def test_an_unanswered_resize_is_repeated_after_ten_minutes(world: World) -> None:
    _out_of_memory(world, 152)
    apply = world.slurm.apply
    _let_scontrol_time_out(world)
    state, services = ReconcilerState(), world.services()
    reconcile_once(services, state)
    world.slurm.apply = apply  # type: ignore[method-assign]

    world.clock.sleep(601)
    reconcile_once(services, state)

    assert world.slurm.records[152].mem_mib_per_node == 6000
    assert world.slurm.records[152].reason == "None"


def test_retries_above_the_hourly_limit_start_later_and_none_is_lost(tmp_path: Path) -> None:
    world = World(tmp_path, config=Config(rules=ACT.rules, retry=Retry(max_per_hour=2, backoff_s=0)))
    failures = [job(160 + n, submit_time=START - 200 + n) for n in range(5)]
    world.add(*failures)
    for failed in failures:
        world.spool_observations(submission_observation(submission(failed.job_id)), *hooks(failed, log=NCCL))
    world.run()
    world.reopen()  # a new process must count them too
    late = job(170)
    world.add(late)
    world.spool_observations(submission_observation(submission(170)), *hooks(late, log=NCCL))
    world.run()
    starts = [call[3] for call in world.requested_actions() if call[2] == "StartTime"]
    assert starts == ["now+3", "now+3", "now+3600", "now+3600", "now+7200", "now+7200"]
    assert "2 retries an hour are the limit" in world.attempt(late).decision_reason
    assert all(record.pending for record in world.slurm.records.values())


class AppendedLogs(FakeLogs):
    """One output file to which each run appends. It records the offset of each read in `begins`."""

    def __init__(self) -> None:
        super().__init__()
        self.begins: list[object] = []

    def tails(self, run: JobRun, named: Sequence[str] = ()) -> tuple[LogTail, ...]:
        self.begins.append(dict(run.output_begins))
        size = 100 * len(self.begins)
        return (LogTail(name=run.std_out, text=BUG, size=size, mark=f"m{size}"),)


def test_without_hooks_a_run_is_diagnosed_from_the_output_it_appended(tmp_path: Path) -> None:
    world = World(tmp_path, scope=Scope(user="alice", uid=1001))
    world.logs = logs = AppendedLogs()
    first = job(110)
    world.add(first)
    world.run()
    second = replace(first, submit_time=START + 50, start_time=START + 60, end_time=START + 90, restarts=1)
    world.slurm.add(second)
    world.clock.sleep(200)
    world.run()
    assert logs.begins == [{}, {first.std_out: [100, "m100"]}]


@pytest.mark.parametrize(
    ("state", "known"),
    [("PENDING", True), ("RUNNING", False)],  # the next run may have appended to the same file
)
def test_where_the_output_of_a_requeued_run_ends_is_known_until_the_next_run_starts(
    tmp_path: Path, state: str, known: bool
) -> None:
    world = World(tmp_path, scope=Scope(user="alice", uid=1001))
    world.logs = AppendedLogs()
    running = job(110, state="RUNNING", reason="None", exit_code=0, end_time=None)
    world.add(running)
    world.run()
    world.clock.sleep(100)
    started = START + 60 if state == "RUNNING" else None
    world.add(replace(running, state=state, restarts=1, submit_time=START + 50, start_time=started))
    world.run()
    assert bool(world.attempt(running).output_ends) is known


def test_late_hooks_of_an_earlier_run_do_not_count_for_the_next_run(world: World) -> None:
    first = job(110, start_time=START - 90)
    late = hooks(replace(first, start_time=START - 82, end_time=START - 80))  # on a busy node the Prolog began late
    world.add(first)
    world.spool_observations(*late)
    world.run()
    second = replace(first, submit_time=START - 81, start_time=START - 80, end_time=START, restarts=1)
    world.add(second)
    prolog, epilog = hooks(second)
    world.spool_observations(prolog)
    assert world.run().waiting == 1  # for the Epilog of the second run
    world.spool_observations(epilog)
    world.run()
    assert world.attempt(second).diagnosis


class WrittenLogs(FakeLogs):
    """Output that ends with an error, last written at `modified`."""

    def __init__(self, modified: float) -> None:
        super().__init__()
        self.modified = modified

    def tails(self, run: JobRun, named: Sequence[str] = ()) -> tuple[LogTail, ...]:
        return (LogTail(name=run.std_out, text=BUG, modified=self.modified),)


@pytest.mark.parametrize(("after_s", "category"), [(0, "completed_with_error"), (600, "success")])
def test_output_that_a_later_job_wrote_does_not_count_for_a_completed_job(
    tmp_path: Path, after_s: float, category: str
) -> None:
    world = World(tmp_path, scope=Scope(user="alice", uid=1001))
    done = job(86, state="COMPLETED", exit_code=0, reason="None")
    assert done.end_time is not None
    world.logs = WrittenLogs(done.end_time + after_s)
    world.add(done)
    world.run()
    assert category_and_decision_of(world, done) == (category, "none")
    assert world.store.strikes(since=0) == ()


class NamedLogs(FakeLogs):
    """A log that a container wrote to a path elsewhere, with an error. It records what each read named."""

    def __init__(self, after_s: float) -> None:
        super().__init__()
        self.after_s = after_s
        self.reads: list[tuple[str, tuple[str, ...], object]] = []

    def tails(self, run: JobRun, named: Sequence[str] = ()) -> tuple[LogTail, ...]:
        self.reads.append((run.std_out, tuple(named), dict(run.output_begins)))
        modified = (run.end_time or 0) + self.after_s
        return tuple(LogTail(name=name, text=BUG, modified=modified) for name in named)


@pytest.mark.parametrize("epilog_sent", [True, False])
@pytest.mark.parametrize(("after_s", "is_found"), [(0, True), (600, False)])
def test_an_error_in_a_log_that_the_submission_names_is_found_unless_a_later_job_wrote_it(
    world: World, epilog_sent: bool, after_s: float, is_found: bool
) -> None:
    failed = job(81)
    world.logs = logs = NamedLogs(after_s)
    world.add(failed)
    sent = submission(81, logs={"/scratch/run1/t.log": [7, "0a"], "/scratch/run1/": []})
    world.spool_observations(submission_observation(sent), *hooks(failed, log="started\n" if epilog_sent else ""))
    world.run()
    std_out = "" if epilog_sent else failed.std_out
    assert logs.reads == [(std_out, ("/scratch/run1/t.log", "/scratch/run1/"), {"/scratch/run1/t.log": [7, "0a"]})]
    assert (category_and_decision_of(world, failed)[0] == "traceback_from_crash") is is_found


@pytest.mark.parametrize("uid", [1001, 1002])
def test_the_logs_that_a_submission_names_are_read_only_for_a_job_of_its_sender(world: World, uid: int) -> None:
    failed = job(81)
    world.logs = logs = NamedLogs(0)
    world.add(failed)
    sent = submission(81, uid=uid, logs={"/scratch/t.log": "forged", "/b": {"x": 1}, "/c": [1], "/d": None})
    world.spool_observations(submission_observation(sent, uid=uid))
    world.run()
    named = ("/scratch/t.log", "/b", "/c", "/d") if uid == failed.uid else ()
    assert logs.reads == [(failed.std_out, named, {})]


class FullSpool(MemorySpool):
    """A spool whose files cannot be removed, as on a read-only file system."""

    def discard(self, collected: Sequence[SpoolEntry]) -> None:
        return


def test_a_spool_that_cannot_be_emptied_does_not_block_the_reconciler(world: World) -> None:
    world.spool = FullSpool(*(hook_observation(Context.PROLOG, 1000 + n, at=float(START)) for n in range(201)))
    assert world.run().ingested.kept == 201


def prerun_observation(**changes: Any) -> Observation:
    """The observation with the pre-run record of job 105; `changes` are applied to the record's JSON."""
    verdict = Verdict(outcome=Outcome.PASS, layer="optimizer", reason="3 steps ran", seconds=20.0)
    record = PrerunRecord(
        cluster="lab", job_id=105, prerun_job_id=106, uid=1001, at=float(START), verdict=verdict, profile_key="k"
    )
    plain = to_json_dict(record)
    plain["verdict"] |= changes.pop("verdict", {})
    return user_observation(105, Context.PRERUN, {"prerun": plain | changes})


def test_an_impossible_measurement_is_not_put_into_the_profile(world: World) -> None:
    world.add(job(105, state="PENDING", start_time=None, end_time=None, nodes=()), job(106, end_time=None))
    points = [{"cpus": cpus, "steps_per_s": 5e-324, "spread": 0.0, "rounds": 0} for cpus in (1, 2)]
    odd = {"mem_peak_mib": 2**63 - 1, "cpus_used": 1e308, "gpus": -7, "steps_per_s": 1e308, "cpu_curve": points}
    world.spool_observations(prerun_observation(verdict={"measurement": odd}))
    world.spool_observations(
        prerun_observation(at=START + 60.0, verdict={"measurement": {"mem_peak_mib": 2048, "mem_source": "cgroup"}})
    )
    world.run()
    (profile,) = world.store.profiles()
    assert (profile.mem_mib_per_gpu, profile.cpus_per_gpu, profile.cpu_curve) == (2048, None, ())


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_a_pre_run_that_reports_twice_counts_once(world: World, order: tuple[int, int], passes: int) -> None:
    world.add(job(105, state="PENDING", start_time=None, end_time=None, nodes=()), job(106, end_time=None))
    measured = {"measurement": {"mem_peak_mib": 2048, "mem_source": "cgroup"}}
    notes = {1: prerun_observation(verdict=measured), 2: prerun_observation(verdict=measured, released=True)}
    for number in order:
        world.spool_observations(notes[number])
        if passes == 2:
            world.run()
    world.run()
    (profile,), (record,) = world.store.profiles(), world.store.preruns()
    assert (profile.runs, profile.preruns, record.released) == (0, 1, True)


@pytest.mark.parametrize("changes", [{"at": 1e300}, {"gpus": -1}, {"verdict": {"seconds": 1e308}}])
def test_a_pre_run_record_with_impossible_numbers_is_rejected(world: World, changes: dict[str, Any]) -> None:
    world.add(job(105, state="PENDING", start_time=None, end_time=None, nodes=()), job(106, end_time=None))
    world.spool_observations(prerun_observation(**changes))
    summary = world.run()
    assert (summary.ingested.refused, world.store.preruns()) == (1, ())


def test_a_failed_pre_run_that_read_a_broken_input_blocks_it_for_its_owner(world: World) -> None:
    waiting = job(105, state="PENDING", reason="BeginTime", start_time=None, end_time=None, nodes=())
    trial = job(106, state="RUNNING", end_time=None)
    verdict = Verdict(
        outcome=Outcome.FAIL,
        layer="exit",
        reason="broken input",
        category="incorrect_inputs",
        input_path="/data/x.h5",
        input_fault="it is truncated",
    )
    record = PrerunRecord(cluster="lab", job_id=105, prerun_job_id=106, uid=1001, at=float(START), verdict=verdict)
    world.files[(1001, "/data/x.h5")] = InputRead(path="/data/x.h5", digest="d2")
    world.add(waiting, trial)
    world.spool_observations(user_observation(105, Context.PRERUN, {"prerun": to_json_dict(record)}))
    world.run()
    assert [(b.digest, b.uid, b.reason) for b in world.store.blocked_inputs()] == [("d2", 1001, "it is truncated")]


# --- rejected observations -------------------------------------------------------------------------------------------


def test_a_hook_observation_forged_by_a_user_is_rejected_and_counted(world: World) -> None:
    failed = job(110)
    world.add(failed)
    world.spool_observations(*hooks(failed, kernel=[XID_79], sealed=1001))
    summary = world.run()
    assert summary.ingested.refused == 2
    assert world.requested_actions() == [] and world.store.strikes(since=0) == ()
    assert sorted(world.spool.rejected) and not world.spool.files


def test_a_forged_xid_line_in_a_log_strikes_no_node(world: World) -> None:
    failed = job(111)
    world.add(failed)
    world.spool_observations(submission_observation(submission(111)), *hooks(failed, log=f"{XID_79}\n{BUG}"))
    world.run()
    assert world.store.strikes(since=0) == ()
    assert "drain" not in [call[0] for call in world.requested_actions()]


def test_a_kernel_line_from_a_node_that_the_job_did_not_run_on_is_ignored(world: World) -> None:
    failed = job(112)
    world.add(failed)
    stray = hook_observation(
        Context.EPILOG, 112, at=START - 30.0, node="n5", started_at=START - 90.0, kernel=[{"text": XID_79, "at": None}]
    )
    world.spool_observations(*hooks(failed, log=BUG), stray)
    world.run()
    assert category_and_decision_of(world, failed) == ("traceback_from_crash", "stop")
    assert world.requested_actions() == []


def test_a_submission_for_another_users_job_is_rejected(world: World) -> None:
    victim = job(113)
    world.add(victim)
    world.spool_observations(
        submission_observation(submission(113, uid=1002, user="bob"), uid=1002), *hooks(victim, log=NCCL)
    )
    world.run()
    assert world.store.submission("lab", 113) is None
    assert world.requested_actions() == []


def test_a_submission_with_a_uid_other_than_its_seal_is_rejected(world: World) -> None:
    victim = job(114)
    world.add(victim)
    world.spool_observations(submission_observation(submission(114), uid=1002))
    world.run()
    assert world.store.submission("lab", 114) is None
    (aside,) = world.spool.rejected.values()
    assert isinstance(aside, RejectedEntry) and aside.uid == 1002


def test_a_submission_of_a_job_newer_than_the_job_list_is_accepted(world: World) -> None:
    world.spool_observations(submission_observation(submission(115)))
    list_jobs = world.slurm.jobs

    def list_jobs_and_add_115(user: str | None = None) -> tuple[JobRecord, ...]:
        answer = list_jobs(user)
        world.add(job(115, state="PENDING", start_time=None, end_time=None, nodes=()))
        return answer

    world.slurm.jobs = list_jobs_and_add_115  # type: ignore[method-assign]
    world.run()
    assert world.store.submission("lab", 115) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": 2**63 - 1, "gpus": 10**12},
        {"nodes": -(2**63), "prerun_job_id": -1},
        {"expected_p50_s": 1e308, "expected_p90_s": -1e308},
        {"logs": {"/a.log": [1e300, 7], "/b.log": [None, None], "c": [], "\ud800": [-5, "x"], "/d\0": [2**62, "m"]}},
        {"logs": {f"/{number}": [number, "m"] for number in range(5000)}},
        {"inputs": ("/x\n",) * 5000, "retry_on": ("9" * 5000, "SIG\x1b")},
        {"plan": {"node_count": -1, "switch": [[[]]]}, "changes": ({"option": []}, {}), "own": {"mem": "9" * 5000}},
        {"name": "\x1b]0;x\x07\r\n" * 100, "profile_key": "k" * 50_000, "length": (("a", "9" * 5000),)},
        {"at": 0.0},
        {"at": 1e11 - 1},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_impossible_claims_of_one_user_change_nothing_for_another(world: World, changes: dict[str, Any]) -> None:
    mine, theirs = job(117), job(118, uid=1002, user="bob")
    world.add(mine, theirs)
    world.spool_observations(
        *hooks(mine, log=NCCL),
        *hooks(theirs, log=NCCL),
        submission_observation(submission(117, **changes)),
        submission_observation(submission(118, uid=1002, user="bob"), uid=1002),
    )
    for _ in range(2):
        assert world.run().errors == []
    assert category_and_decision_of(world, theirs) == ("nccl_error", "retry")
    assert {target for _, target, *_ in world.requested_actions()} <= {"117", "118"}
    for number in (117, 118):
        json.dumps(to_json_dict(world.publisher.told[number][0]), allow_nan=False)


def test_a_limited_number_of_a_users_records_is_stored_of_each_job(world: World) -> None:
    world.add(job(117), job(118))
    many = [submission_observation(submission(117, at=float(START + number))) for number in range(MOST_OF_JOB + 5)]
    world.spool_observations(*many, submission_observation(submission(118)))
    summary = world.run()
    assert (summary.ingested.refused, len(world.store.submissions())) == (5, MOST_OF_JOB + 1)


def test_a_malformed_submission_is_rejected(world: World) -> None:
    world.spool_observations(user_observation(116, Context.SUBMIT, {"submission": {"job_id": "$(reboot)"}}))
    assert world.run().ingested.refused == 1


# --- user mode -------------------------------------------------------------------------------------------------------


def test_in_user_mode_own_jobs_are_diagnosed_from_their_logs_without_hooks(tmp_path: Path) -> None:
    world = World(tmp_path, scope=Scope(user="alice", uid=1001, trusted=frozenset()))
    mine, other = job(120), job(121, user="bob", uid=1002)
    world.add(mine, other)
    world.logs.texts = {120: BUG, 121: BUG}
    world.spool_observations(replace(submission_observation(submission(120)), uid=-1))
    world.run()
    assert category_and_decision_of(world, mine) == ("traceback_from_crash", "stop")
    assert world.store.attempts(cluster="lab", job_id=121) == ()
    assert world.store.submission("lab", 120) is not None


def test_in_a_shared_home_observations_of_another_cluster_are_kept(tmp_path: Path) -> None:
    """A site's spool belongs to one cluster. Reconcilers of all clusters with that home read a user's spool."""
    world = World(tmp_path, scope=Scope(user="alice", uid=1001, trusted=frozenset()))
    of_other_cluster = replace(submission(120), cluster="other")
    note = replace(submission_observation(of_other_cluster), cluster="other", uid=-1)
    world.add(job(120, user="bob", uid=1002))  # on this cluster, job 120 belongs to another user
    world.spool_observations(note)
    summary = world.run().ingested
    assert (summary.kept, summary.refused, summary.submitted) == (1, 0, set())
    assert (world.store.submission("other", 120), world.store.submission("lab", 120)) == (of_other_cluster, None)
    of_site = World(tmp_path / "site")
    of_site.spool_observations(replace(note, uid=1001))
    assert of_site.run().ingested.refused == 1


def test_in_user_mode_a_transient_failure_is_retried_and_no_node_is_drained(tmp_path: Path) -> None:
    world = World(tmp_path, scope=Scope(user="alice", uid=1001, trusted=frozenset()))
    lost = job(122, state="NODE_FAIL", reason="NodeDown", exit_code=0)
    world.add(lost)
    world.spool_observations(replace(submission_observation(submission(122)), uid=-1))
    world.run()
    assert [call[0] for call in world.requested_actions()] == ["requeuehold", "update job", "release", "update job"]


# --- kills -----------------------------------------------------------------------------------------------------------


def crash_world(path: Path) -> World:
    """A world with four ended jobs (GPU fault, transient failure, bug, success) and a pre-run."""
    world = World(path)
    hardware, transient = job(130), job(131, nodes=("n2",))
    bug, done = job(132, nodes=("n3",)), job(133, nodes=("n4",), state="COMPLETED", exit_code=0)
    world.add(hardware, transient, bug, done)
    world.spool_observations(
        submission_observation(submission(130)), submission_observation(submission(131, output_appends=False))
    )
    world.spool_observations(
        submission_observation(submission(133, profile_key="k")), *hooks(hardware, log=NCCL, kernel=[XID_79])
    )
    world.spool_observations(*hooks(transient, log=NCCL), *hooks(bug, log=BUG), *hooks(done))
    world.spool_observations(
        passed_prerun_observation(134, 135, Measurement(seconds=30, mem_peak_mib=900, cpu_s=20), key="k")
    )
    world.add(job(134, state="PENDING", start_time=None, end_time=None, nodes=()), job(135, state="RUNNING"))
    return world


def passed_prerun_observation(job_id: int, trial_id: int, measurement: Measurement, *, key: str) -> Observation:
    """The observation with the record of a pre-run that passed."""
    verdict = Verdict(outcome=Outcome.PASS, layer="step", reason="three steps", measurement=measurement)
    record = PrerunRecord(
        cluster="lab",
        job_id=job_id,
        prerun_job_id=trial_id,
        uid=1001,
        at=float(START),
        verdict=verdict,
        profile_key=key,
    )
    return user_observation(job_id, Context.PRERUN, {"prerun": to_json_dict(record)})


def outcome(world: World) -> dict[str, object]:
    """All results that a kill must not change. Ids and times are left out, because a kill changes them."""
    store = world.store
    actions = [(a.attempt, a.verb, a.target, a.key, a.value, a.mode, a.error) for a in store.actions()]
    return {
        "calls": world.requested_actions(),
        "jobs": world.slurm.records,
        "nodes": world.slurm.nodes,
        "attempts": store.attempts(),
        "actions": actions,
        "undone": [a for a in store.actions(unfinished=True) if a.mode == "act"],
        "strikes": [(s.node, s.cause, s.job_id) for s in store.strikes(since=0)],
        "submissions": store.submissions(),
        "profiles": store.profiles(),
        "told": sorted(world.publisher.told),
        "health": world.publisher.published and world.publisher.published.health,
        "spool": world.spool.files,
    }


@pytest.mark.parametrize("deaths", [Fuse.of_each_kind, pytest.param(Fuse.everywhere, marks=pytest.mark.slow)])
def test_a_kill_at_any_adapter_call_loses_nothing_and_repeats_nothing(
    tmp_path: Path, deaths: Callable[[Fuse], list[tuple[int, bool]]]
) -> None:
    plain, fuse = crash_world(tmp_path / "plain"), Fuse()
    reconcile_once(plain.services(fuse.through))
    plain.run()
    expected = outcome(plain)
    plain.store.close()
    assert len(expected["calls"]) == 1 + 4 + 4 and fuse.count > 60  # type: ignore[arg-type]
    for at, after in deaths(fuse):
        world = crash_world(tmp_path / f"{at}-{after}")
        with pytest.raises(Killed):
            reconcile_once(world.services(Fuse(at, after=after).through))
        world.reopen()
        world.run()
        world.run()
        found = outcome(world)
        world.store.close()
        assert found == expected, f"killed {'after' if after else 'before'} call {at}, {fuse.kinds[at - 1]}"


# --- the watch loop --------------------------------------------------------------------------------------------------


def test_watch_continues_while_slurm_is_unreachable_and_reports_it_once(world: World) -> None:
    failed = job(140)
    world.add(failed)
    world.spool_observations(*hooks(failed, log=BUG))
    world.slurm.away = True
    messages: list[str] = []
    passes = count(1)

    def stopped() -> bool:
        if world.clock.now() > START + 60:
            world.slurm.away = False
        return world.clock.now() > START + 300

    watch(
        replace(world.services(), say=messages.append),
        poll_s=30,
        woken=lambda: 0,
        stopped=stopped,
        report=lambda _: next(passes),
    )
    assert messages == [
        "trying again until it works: Unable to contact slurm controller (connect failure)",
        "it works again",
    ]
    assert category_and_decision_of(world, failed)[0] == "traceback_from_crash"


def test_a_wakeup_starts_the_next_pass_at_once(world: World) -> None:
    failed = job(141)
    summaries: list[float] = []

    def woken() -> int:
        if world.clock.now() > START + 5 and not world.slurm.records:
            world.add(failed)
            world.spool_observations(*hooks(failed, log=BUG))
        return len(world.slurm.records)

    watch(
        world.services(),
        poll_s=3600,
        woken=woken,
        stopped=lambda: world.clock.now() > START + 20,
        report=lambda _: summaries.append(world.clock.now()),
    )
    assert len(summaries) == 2
    assert category_and_decision_of(world, failed)[0] == "traceback_from_crash"


def test_a_clock_set_back_during_the_wait_ends_the_wait(world: World) -> None:
    passes: list[float] = []
    back = count(1)

    def stopped() -> bool:
        if len(passes) == 1 and next(back) == 10:
            world.clock.time -= 86400
        return len(passes) == 2 or world.clock.now() > START + 60

    watch(
        world.services(),
        poll_s=30,
        woken=lambda: 0,
        stopped=stopped,
        report=lambda _: passes.append(world.clock.now()),
    )
    assert [at > START - 3600 for at in passes] == [True, False]


def test_a_second_pass_does_not_read_reconciled_runs_again(world: World) -> None:
    failed = job(142)
    world.add(failed)
    world.spool_observations(*hooks(failed, log=BUG))
    services, state = world.services(), ReconcilerState()
    reconcile_once(services, state)
    fuse = Fuse()
    reconcile_once(replace(services, store=fuse.through(world.store)), state)  # type: ignore[arg-type]
    assert fuse.count == 2  # one transaction and one query for the open runs


def test_an_error_in_one_job_does_not_delay_the_other_jobs(world: World) -> None:
    faulty, failed = job(144, submit_time=START - 200), job(145)
    world.add(faulty, failed)
    world.spool_observations(*hooks(faulty, log="poison"), *hooks(failed, log=BUG))

    def classify(evidence: Evidence) -> Diagnosis:
        if evidence.logs[0].text == "poison":
            raise ZeroDivisionError("division by zero")
        return diagnose_run(evidence)

    summary = reconcile_once(replace(world.services(), classify=classify))
    assert summary.errors == ["job 144: ZeroDivisionError: division by zero"]
    assert category_and_decision_of(world, failed)[0] == "traceback_from_crash"


def test_only_known_scontrol_verbs_are_requested(world: World) -> None:
    failed = job(143)
    world.add(failed)
    world.spool_observations(submission_observation(submission(143)), *hooks(failed, kernel=[XID_79]))
    world.run()
    assert {call.verb for call in world.slurm.calls} <= set(Verb)


# --- counted steps ---------------------------------------------------------------------------------------------------


def test_in_user_mode_steps_come_from_the_users_step_counter(tmp_path: Path) -> None:
    world = World(tmp_path, scope=Scope(user="alice", uid=1001, trusted=frozenset()))
    reads: list[tuple[int, str]] = []

    def steps(run: JobRun, directory: str) -> dict[str, object]:
        reads.append((run.attempt.job_id, directory))
        return {"count": 40, "per_s": 2.0, "last_at": START + 30.0}

    counted, plain = job(140, state="COMPLETED", exit_code=0, reason="None"), job(141)
    world.add(counted, plain)
    with_steps = submission(140, profile_key="resnet", profile_variant="bs32", step_dir="/home/alice/steps/1")
    world.spool_observations(
        submission_observation(with_steps, uid=-1), submission_observation(submission(141), uid=-1)
    )
    reconcile_once(replace(world.services(), steps=steps))
    assert reads == [(140, "/home/alice/steps/1")]
    measured = world.attempt(counted).measurement
    assert measured is not None and (measured.steps, measured.steps_per_s) == (40, 2.0)
    assert world.attempt(plain).measurement is None
    profile = world.store.profile("resnet")
    assert profile is not None and (profile.steps_per_s, profile.runs, profile.variant) == (2.0, 1, "bs32")


def test_steps_that_the_epilog_reported_are_not_read_again(world: World) -> None:
    done = job(142, state="COMPLETED", exit_code=0, reason="None")
    world.add(done)
    prolog, epilog, *rest = hooks(done)
    counted = replace(epilog, facts={**epilog.facts, "steps": {"count": 7, "per_s": 1.5}})
    world.spool_observations(
        submission_observation(submission(142, profile_key="k", step_dir="/s")), prolog, counted, *rest
    )

    def steps(run: JobRun, directory: str) -> dict[str, object]:
        raise AssertionError("the Epilog already reported the steps")

    reconcile_once(replace(world.services(), steps=steps))
    measured = world.attempt(done).measurement
    assert measured is not None and (measured.steps, measured.steps_per_s) == (7, 1.5)


# --- gated jobs whose pre-run does not release them ------------------------------------------------------------------

YEAR = 365 * 86400


def add_gated_job(
    world: World, *, mode: str = "gate", uid: int = 1001, prerun: str = "CANCELLED", begin: str | None = None
) -> None:
    """Job 21 is held until its pre-run, job 22, releases it."""
    change = {"option": "begin", "old": begin, "new": f"now+{YEAR}"}
    world.store.save_submission(
        Submission(
            cluster="lab",
            job_id=21,
            uid=uid,
            user="alice",
            at=START - 500.0,
            prerun_mode=mode,
            prerun_job_id=22,
            changes=(change,),
        )
    )
    waiting = job(21, state="PENDING", reason="BeginTime", start_time=None, end_time=None, nodes=())
    world.add(replace(waiting, submit_time=START - 500, eligible_time=START - 500 + YEAR))
    if prerun:
        world.add(job(22, state=prerun, end_time=START - 100))


def run_and_list_start_times(world: World) -> list[tuple[str, str]]:
    world.run()
    return [(a.target, a.value) for a in world.slurm.calls if a.key == "StartTime"]


@pytest.mark.parametrize("prerun", ["CANCELLED", "NODE_FAIL", "COMPLETED", ""])
def test_a_gated_job_whose_pre_run_is_gone_gets_the_users_begin_time(tmp_path: Path, prerun: str) -> None:
    world = World(tmp_path)
    add_gated_job(world, prerun=prerun, begin="2099-01-01T00:00:00")
    assert run_and_list_start_times(world) == [("21", "2099-01-01T00:00:00")]


@pytest.mark.parametrize(
    "case", [{"prerun": "PENDING"}, {"prerun": "RUNNING"}, {"mode": "auto"}, {"uid": 1002, "prerun": "CANCELLED"}]
)
def test_a_job_with_a_live_pre_run_or_without_a_gate_is_not_released(tmp_path: Path, case: dict[str, object]) -> None:
    world = World(tmp_path)
    add_gated_job(world, **case)  # type: ignore[arg-type]
    assert run_and_list_start_times(world) == []


def test_a_gated_job_whose_start_time_was_changed_is_not_released(tmp_path: Path) -> None:
    world = World(tmp_path)
    add_gated_job(world)
    world.add(replace(world.slurm.records[21], eligible_time=START + 86400))
    assert run_and_list_start_times(world) == []


def test_a_run_whose_job_id_a_killed_controller_used_again_is_recorded(world: World) -> None:
    """Slurm 22.05 forgets the jobs of its last seconds. Only the hooks reported the run of bob's job 81."""
    early = {"submit_time": START - 300, "start_time": START - 299, "end_time": START - 290}
    world.spool_observations(*hooks(job(81, uid=1002, user="bob", **early)))
    later = job(81)
    world.add(later)
    world.spool_observations(*hooks(later))
    world.run()
    found = [(run.uid, run.start_time, run.end_time) for run in world.store.attempts()]
    assert found == [(1002, START - 299, START - 290), (1001, later.start_time, later.end_time)]


def test_each_of_several_runs_that_a_killed_controller_forgot_is_recorded(world: World) -> None:
    """The controller shows the requeued job as it was before it started again, twice, and was killed each time."""
    shown = job(81, submit_time=START - 500, start_time=START - 100, end_time=START - 50, restarts=1)
    first = replace(shown, restarts=0, start_time=START - 501, end_time=START - 500)
    second = replace(shown, start_time=START - 380, end_time=START - 360)
    for run in (first, second):
        world.add(replace(shown, state="PENDING", start_time=None, end_time=None, nodes=()))
        world.spool_observations(*hooks(run))
        world.run()
    world.add(shown)
    world.spool_observations(*hooks(shown))
    world.run()
    found = sorted(run.start_time or 0 for run in world.store.attempts())
    assert found == [first.start_time, second.start_time, shown.start_time]
