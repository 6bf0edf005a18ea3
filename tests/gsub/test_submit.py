"""submit: the order of its steps; every adapter is a fake."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from slurmwrap.config.load_config import Config, Placement, Prerun
from slurmwrap.errors import PrerunFailed, RefusedError, SlurmError, SlurmUnreachable, StaticFailed
from slurmwrap.gsub.apply_verdict import HeldJob, apply_verdict
from slurmwrap.gsub.planning_inputs import read_planning_facts
from slurmwrap.gsub.prepare import find_free_gpus, prepare
from slurmwrap.gsub.prerun_sharing import release_all_orphans as look_after
from slurmwrap.gsub.sbatch_call import make_sbatch_call
from slurmwrap.gsub.send import send
from slurmwrap.gsub.submit_context import PreparedJob, PrerunChecks, SubmitContext, SubmitResult, TrialJob
from slurmwrap.gsub.waiting_job import JobIdentity, list_expected_start_times
from slurmwrap.model.cluster import Node, NodeLoad, Partition, Snapshot
from slurmwrap.model.decision import BlockedInput, SlurmAction, Verb
from slurmwrap.model.evidence import Citation
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import PrerunRecord
from slurmwrap.model.limits import Limits, Qos, Quotas
from slurmwrap.model.past_failure import PastFailure
from slurmwrap.model.resource_profile import CurvePoint, Measurement, ResourceProfile
from slurmwrap.model.submission import Submission
from slurmwrap.model.topology import Switch, Topology
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.placement.slurm_options import PlanningFacts
from slurmwrap.prerun.expected_saving import ScriptOutcome
from slurmwrap.profiling.job_key import derive_published_key, derive_site_key
from slurmwrap.profiling.run_time import GroupRuns, RunTimeGroup, RunTimeHistory
from slurmwrap.protocols import OpenIncident, Published, SbatchCall, SbatchResult
from slurmwrap.sbatch.job_request import JobRequest
from slurmwrap.sbatch.option_table import REQUIRED, SbatchOption
from slurmwrap.sbatch.parse_request import parse_request
from slurmwrap.store.prerun_registry import PrerunRegistry, list_waiting_jobs
from slurmwrap.store.prerun_registry import mark_submitted as submitted_trial

NOW = 1_800_000_000.0
SCRIPT = b"""#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=2
#SBATCH --mem=200000
srun python train.py
"""
NODES = tuple(
    Node(name=f"n{i}", state="IDLE", cpus=32, mem_mib=256000, gpus=8, gpu_type="a100", partitions=("gpu",))
    for i in range(8)
)
TREE = Topology(
    switches=(
        Switch(name="ib0", level=0, nodes=tuple(f"n{i}" for i in range(4))),
        Switch(name="ib1", level=0, nodes=tuple(f"n{i}" for i in range(4, 8))),
        Switch(name="core", level=1, nodes=tuple(f"n{i}" for i in range(8)), children=("ib0", "ib1")),
    ),
    source="tree",
)


@dataclass
class FakeSlurm:
    """Accepts every job except those that the test refuses."""

    refuse: Callable[[SbatchCall], SbatchResult | None] = lambda call: None
    refuse_keys: frozenset[str] = frozenset()
    jobs_by_address: dict[str, JobRecord] = field(default_factory=dict)
    calls: list[SbatchCall] = field(default_factory=list)
    applied: list[SlurmAction] = field(default_factory=list)
    next_id: int = 100
    away: int = 0  # number of job queries and updates that get no answer
    missed: int = 0  # number of job queries answered as if the job did not exist

    def cluster_name(self) -> str:
        return "lab"

    def snapshot(self) -> Snapshot:
        return Snapshot(taken_at=NOW, nodes=NODES, topology=TREE, default_partition="gpu")

    def sbatch(self, call: SbatchCall) -> SbatchResult:
        self.calls.append(call)
        refused = self.refuse(call)
        if refused is not None:
            return refused
        self.next_id += 1
        line = f"Submitted batch job {self.next_id}\n"
        return SbatchResult(exit_code=0, stdout=line, stderr="", job_id=self.next_id)

    def _answer(self) -> None:
        if self.away:
            self.away -= 1
            raise SlurmUnreachable("Unable to contact slurm controller (connect failure)")

    def job(self, address: str) -> JobRecord | None:
        self._answer()
        if self.missed:
            self.missed -= 1
            return None
        return self.jobs_by_address.get(address)

    def jobs(self, user: str | None = None) -> tuple[JobRecord, ...]:
        return tuple(self.jobs_by_address.values())

    def apply(self, action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        self._answer()
        if action.key in self.refuse_keys:
            raise SlurmError("Access/permission denied")
        self.applied.append(action)


@dataclass
class FakeMemory:
    profiles: dict[str, ResourceProfile] = field(default_factory=dict)
    blocked: tuple[BlockedInput, ...] = ()
    known_good: frozenset[str] = frozenset()
    measurement: Measurement | None = None  # of its last pre-run
    doubt: str = ""  # why its pre-run was inconclusive
    ran_well: bool = False  # whether a run completed
    runs: tuple[tuple[int, float], ...] = ()  # runs without diagnosis: (job id, time)
    completed_at: list[float] = field(default_factory=list)  # end times of runs that Slurm reported as completed
    past_failures: tuple[PastFailure, ...] = ()
    past_outcomes: tuple[ScriptOutcome, ...] = ()
    past_runs: RunTimeHistory | None = None
    submissions: list[Submission] = field(default_factory=list)
    preruns: list[PrerunRecord] = field(default_factory=list)
    listening: bool = True
    picked: float = 0.0

    def profile(self, key: str) -> ResourceProfile | None:
        return self.profiles.get(key)

    def blocked_inputs(self) -> tuple[BlockedInput, ...]:
        return self.blocked

    def passed(self, fingerprint: str) -> bool:
        return "*" in self.known_good

    def measured(self, fingerprint: str) -> Measurement | None:
        return self.measurement

    def undecided(self, fingerprint: str) -> str:
        return self.doubt

    def completed(self, script_sha256: str, fingerprint: str) -> bool:
        return self.ran_well

    def unjudged(self, script_sha256: str, fingerprint: str, cluster: str) -> tuple[tuple[int, float], ...]:
        return self.runs

    def remember_completed(self, fingerprint: str, at: float) -> None:
        self.completed_at.append(at)

    def outcomes(self) -> tuple[ScriptOutcome, ...]:
        return self.past_outcomes

    def has_runs(self) -> bool:
        return self.past_runs is not None

    def open_run_times(self, cluster: str) -> AbstractContextManager[Callable[[RunTimeGroup], GroupRuns]]:
        assert self.past_runs is not None
        return nullcontext(self.past_runs.runs)

    def failures(self, script_sha256: str, fingerprint: str) -> tuple[PastFailure, ...]:
        return self.past_failures

    def site_listens(self) -> bool:
        return self.listening

    def picked_at(self) -> float:
        return self.picked

    def remember_submission(self, submission: Submission) -> None:
        self.submissions.append(submission)

    def remember_prerun(self, record: PrerunRecord) -> None:
        self.preruns.append(record)

    def trial_dir(self) -> str:
        return "/trial"

    def retry_job_output(self) -> str:
        return "/retry/%j.out"

    def pack_dir(self) -> str:
        return "/pack/1"

    def step_dir(self) -> str:
        return "/steps/1"

    def keep_counter(self) -> str:
        return "/counter"


class FakeClock:
    def now(self) -> float:
        return NOW

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here waits")


def request(*words: str, script: bytes = SCRIPT) -> JobRequest:
    return parse_request(
        [*words, "train.sbatch"], environ={}, cwd="/home/alice", read_script=lambda path: script, read_stdin=lambda: b""
    )


def context(
    slurm: FakeSlurm, memory: FakeMemory, *, trials: Mapping[str, object] | None = None, **more: object
) -> SubmitContext:
    functions: dict[str, object] = {
        "check": lambda request: (),
        "named_files": lambda request: (),
        "digest": lambda path: None,
        "entry_files": lambda request: {"/home/alice/train.py": b"print(1)\n"},
    }
    return SubmitContext(
        slurm=slurm,
        clock=FakeClock(),
        memory=memory,
        config=Config(),
        trials=PrerunChecks(**{**functions, **(trials or {})}),  # type: ignore[arg-type]
        uid=1001,
        user="alice",
        environ={"HOME": "/home/alice"},
        **more,  # type: ignore[arg-type]
    )


def trial(prepared: object, job_id: int | None, release_at: str) -> TrialJob:
    call = SbatchCall(options=(f"--comment=pre-run of {job_id}, then {release_at}",), script_path="/wrapper.sh")
    return TrialJob(call=call, directory="/trial")


def submit_job(
    *words: str, slurm: FakeSlurm | None = None, memory: FakeMemory | None = None
) -> tuple[FakeSlurm, FakeMemory]:
    slurm, memory = slurm or FakeSlurm(), memory or FakeMemory()
    at = context(slurm, memory)
    send(prepare(request(*words), at), at, trial)
    return slurm, memory


# --- what goes to Slurm, and in which order --------------------------------------------------------------------------


def test_the_job_is_submitted_before_its_pre_run_and_waits_for_it() -> None:
    slurm, memory = submit_job()
    real, pre_run = slurm.calls
    assert "--begin=now+600" in real.options
    assert pre_run.options == ("--comment=pre-run of 101, then now",)
    (recorded,) = memory.submissions
    assert (recorded.job_id, recorded.prerun_job_id, recorded.prerun_mode, recorded.gpus) == (101, 102, "auto", 16)
    assert [c["option"] for c in recorded.changes if c["option"] == "begin"] == ["begin"]


@pytest.mark.parametrize("held_out", [True, False])
def test_a_held_out_job_gets_no_pre_run(held_out: bool) -> None:
    slurm, memory = FakeSlurm(), FakeMemory()
    config = Config(prerun=Prerun(holdout=0.5))
    at = next(
        one
        for uid in range(1001, 1100)
        if prepare(request(), one := replace(context(slurm, memory), config=config, uid=uid)).held_out is held_out
    )
    send(prepare(request(), at), at, trial)
    (recorded,) = memory.submissions
    assert (recorded.held_out, len(recorded.holdout_group), recorded.prerun_mode) == (
        held_out,
        16,
        "off" if held_out else "auto",
    )
    assert [option for call in slurm.calls for option in call.options if option == "--begin=now+600"] == (
        [] if held_out else ["--begin=now+600"]
    )
    other = prepare(request("--prerun=auto"), at)
    assert (other.prerun, other.holdout_group, other.held_out) == ("auto", "", False)


def test_a_job_without_pre_run_does_not_wait() -> None:
    slurm, memory = submit_job("--prerun=off")
    (real,) = slurm.calls
    assert not [option for option in real.options if option.startswith("--begin")]
    assert memory.submissions[0].prerun_job_id is None


def test_a_gated_job_waits_without_limit_once_its_pre_run_is_submitted() -> None:
    slurm, _ = submit_job("--prerun=gate")
    assert "--begin=now+600" in slurm.calls[0].options
    assert [(a.target, a.key, a.value) for a in slurm.applied] == [("101", "StartTime", f"now+{365 * 86400}")]


def test_a_gated_job_is_released_if_its_pre_run_already_ended(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    at = context(slurm, FakeMemory())
    (tmp_path / "verdict.json").write_text("{}")
    done = replace(trial(None, 101, "now"), directory=str(tmp_path))
    send(prepare(request("--prerun=gate"), at), at, lambda prepared, job_id, release_at: done)
    assert [a.value for a in slurm.applied] == [f"now+{365 * 86400}", "now"]


def test_release_restores_the_users_own_begin_time() -> None:
    slurm, _ = submit_job("--begin=2099-01-01T00:00:00")
    assert "--begin=2099-01-01T00:00:00" in slurm.calls[0].options
    assert slurm.calls[1].options == ("--comment=pre-run of 101, then 2099-01-01T00:00:00",)


def test_a_job_that_passed_before_gets_no_second_pre_run() -> None:
    slurm, _ = submit_job(memory=FakeMemory(known_good=frozenset("*")))
    assert len(slurm.calls) == 1


def test_a_one_gpu_job_that_can_start_now_is_its_own_pre_run() -> None:
    at = context(FakeSlurm(), FakeMemory())
    prepared = prepare(request(script=b"#!/bin/sh\n#SBATCH --gres=gpu:1\npython train.py\n"), at)
    assert (prepared.prerun, prepared.prerun_reason) == ("off", "a 1-GPU job that can start now is its own pre-run")


def test_a_job_in_a_container_gets_a_pre_run_unless_only_slurm_knows_the_container() -> None:
    at = context(FakeSlurm(), FakeMemory())
    assert prepare(request("--container=/bundle"), at).prerun == "auto"
    by_id = prepare(request("--container-id=c1"), at)
    assert (by_id.prerun, by_id.prerun_reason) == ("off", "only Slurm knows the container of --container-id")


def test_quiet_is_found_among_options_of_site_plugins() -> None:
    asked = parse_request(
        ["-Q", "--image", "a -Q", "--quiet", "train.sbatch"], environ={}, cwd="/home/alice",
        read_script=lambda path: SCRIPT, read_stdin=lambda: b"", extra=[SbatchOption("image", "", REQUIRED)],
    )  # fmt: skip
    at = context(FakeSlurm(), FakeMemory())
    batch = prepare(asked, at).batch
    assert make_sbatch_call(asked, replace(batch, changes=()), at).options == ("--image", "a -Q")


def test_an_unchanged_script_is_submitted_by_its_own_path() -> None:
    slurm, _ = submit_job("--no-tune")
    assert (slurm.calls[0].script_path, slurm.calls[0].stdin) == ("train.sbatch", None)


REFUSAL = SbatchResult(exit_code=1, stdout="", stderr="sbatch: error: Invalid partition\n", job_id=None)


def test_a_refused_job_gets_no_pre_run() -> None:
    slurm, memory = submit_job("--no-place", "--no-tune", slurm=FakeSlurm(refuse=lambda call: REFUSAL))
    assert (len(slurm.calls), memory.submissions, slurm.applied) == (1, [], [])


SWITCH = "--switches=1@1:15"


def test_a_refused_plan_is_dropped_and_the_job_submitted_as_requested() -> None:
    planned = FakeSlurm(refuse=lambda call: REFUSAL if SWITCH in call.options else None)
    slurm, memory = submit_job("--prerun=off", slurm=planned)
    first, second = slurm.calls
    assert set(first.options) - set(second.options) == {SWITCH}
    assert memory.submissions[0].job_id == 101


@pytest.mark.parametrize(
    ("words", "enabled", "expected"),
    [((), True, True), (("--no-place",), True, False), ((), False, False), (("--no-place",), False, False)],
)
def test_placement_is_recorded_only_if_the_user_and_the_site_want_it(
    words: tuple[str, ...], enabled: bool, expected: bool
) -> None:
    memory = FakeMemory()
    at = replace(context(FakeSlurm(), memory), config=Config(placement=Placement(enabled=enabled)))
    send(prepare(request("--prerun=off", *words), at), at, trial)
    assert [submission.place for submission in memory.submissions] == [expected]


def test_sbatch_wait_has_no_timeout() -> None:
    slurm, _ = submit_job("--wait", "--prerun=off")
    assert slurm.calls[0].timeout_s == float("inf")


def test_an_ambiguous_answer_does_not_cause_a_second_submission() -> None:
    silence = SbatchResult(exit_code=1, stdout="", stderr="Socket timed out", job_id=None, timed_out=True)
    slurm, memory = submit_job(slurm=FakeSlurm(refuse=lambda call: silence))
    assert (len(slurm.calls), memory.submissions) == (1, [])


def test_a_refused_pre_run_releases_the_job_at_once() -> None:
    no = SbatchResult(exit_code=1, stdout="", stderr="sbatch: error: invalid partition specified: x\n", job_id=None)
    slurm, memory = submit_job(slurm=FakeSlurm(refuse=lambda call: no if call.script_path == "/wrapper.sh" else None))
    assert [(a.verb, a.target, a.key, a.value) for a in slurm.applied] == [(Verb.UPDATE_JOB, "101", "StartTime", "now")]
    assert memory.submissions[0].prerun_job_id is None


def test_retry_sets_requeue_and_appends_to_the_output_file() -> None:
    slurm, memory = submit_job("--retry", "--prerun=off")
    assert {"--requeue", "--open-mode=append"} <= set(slurm.calls[0].options)
    assert (memory.submissions[0].retry, memory.submissions[0].output_appends) == (True, True)


def test_retry_does_not_append_to_a_shared_output_file() -> None:
    slurm, memory = submit_job("--retry", "--prerun=off", "--output=train.log")
    assert "--open-mode=append" not in slurm.calls[0].options
    assert memory.submissions[0].output_appends is False


def test_gsub_handles_quiet_itself_to_learn_the_job_id() -> None:
    slurm, memory = FakeSlurm(), FakeMemory()
    at = context(slurm, memory)
    sent = send(prepare(request("--quiet"), at), at, trial)
    assert [call.script_path == "/wrapper.sh" for call in slurm.calls] == [False, True]
    assert "--quiet" not in slurm.calls[0].options
    assert (sent.result.stdout, memory.submissions[0].job_id) == ("", 101)


def test_quiet_prints_errors_but_no_remarks() -> None:
    said = "sbatch: a remark\nsbatch: error: wrong\nlua: a line of the site's\n"
    slurm = FakeSlurm(refuse=lambda call: SbatchResult(exit_code=1, stdout="", stderr=said, job_id=None))
    at = context(slurm, FakeMemory())
    assert send(prepare(request("--quiet"), at), at, trial).result.stderr == said.partition("\n")[2]


def test_an_accepted_job_without_printed_id_is_not_submitted_again() -> None:
    silent = SbatchResult(exit_code=0, stdout="", stderr="", job_id=None)
    slurm, memory = submit_job(slurm=FakeSlurm(refuse=lambda call: silent))
    assert (len(slurm.calls), memory.submissions) == (1, [])


def test_with_wait_the_pre_run_is_submitted_first() -> None:
    prepared = prepare(request("--wait"), context(FakeSlurm(), FakeMemory()))
    assert prepared.prerun == "wait"
    assert prepared.prerun_reason.startswith(
        "--wait: the pre-run goes first, then the job; it saves more than it costs"
    )


def test_a_failed_job_submitted_with_wait_is_remembered() -> None:
    failed = SbatchResult(exit_code=7, stdout="Submitted batch job 55\n", stderr="", job_id=55)
    slurm, memory = submit_job("--wait", "--prerun=off", slurm=FakeSlurm(refuse=lambda call: failed))
    assert (len(slurm.calls), [recorded.job_id for recorded in memory.submissions]) == (1, [55])


@pytest.mark.parametrize(("options", "tune"), [((), True), (("--no-tune",), False), (("--reservation=night",), False)])
def test_tuning_is_allowed_unless_forbidden_or_the_job_has_a_reservation(options: tuple[str, ...], tune: bool) -> None:
    _, memory = submit_job(*options)
    assert memory.submissions[0].tune is tune


def test_a_tuned_job_uses_the_users_script_with_changes_on_the_command_line() -> None:
    known = ResourceProfile(key="mine", gpus_per_node=8, cpus_per_gpu=4, source="runs", runs=5, measured_at=NOW)
    small = SCRIPT.replace(b"--cpus-per-task=2", b"--cpus-per-task=1")
    slurm = FakeSlurm()
    at = context(slurm, FakeMemory(profiles={"mine": known}))
    prepared = prepare(request("--prerun=off", "-Hc1", "--resource-profile=mine", script=small), at)
    send(prepared, at, trial)
    assert [call.script_path for call in slurm.calls] == ["train.sbatch"]
    first, *changes = slurm.calls[0].options
    assert (first, sorted(changes)) == ("-Hc1", ["--cpus-per-task=4", "--switches=1@1:15"])


def test_ctrl_c_after_submission_releases_the_job_without_pre_run() -> None:
    def interrupted(prepared: object, job_id: int | None, release_at: str) -> TrialJob:
        raise KeyboardInterrupt

    slurm = FakeSlurm()
    at = context(slurm, FakeMemory())
    sent = send(prepare(request("--prerun=gate"), at), at, interrupted)
    assert (sent.result.job_id, [(a.key, a.value) for a in slurm.applied]) == (101, [("StartTime", "now")])


def test_an_internal_error_after_submission_loses_only_the_pre_run() -> None:
    def broken(prepared: object, job_id: int | None, release_at: str) -> TrialJob:
        raise ZeroDivisionError("ours")

    class Forgetful(FakeMemory):
        def remember_submission(self, submission: Submission) -> None:
            raise ZeroDivisionError("ours too")

    slurm, said = FakeSlurm(), []
    at = replace(context(slurm, Forgetful()), say=said.append)
    sent = send(prepare(request(), at), at, broken)
    assert (sent.result.job_id, [(a.key, a.value) for a in slurm.applied]) == (101, [("StartTime", "now")])
    assert said == [
        "no pre-run: ZeroDivisionError: ours; job 101 starts without",
        "this is not remembered for `slurmwrap why`: ours too",
    ]


# --- what is refused -------------------------------------------------------------------------------------------------


def test_a_blocked_input_refuses_the_job_unless_force_is_given() -> None:
    blocked = BlockedInput(digest="d1", path="/data/a.pt", uid=1001, reason="not a zip archive", at=NOW, job_id=7)
    memory = FakeMemory(blocked=(blocked,))
    trials = {"named_files": lambda request: ("/data/copy.pt",), "digest": lambda path: "d1"}
    at = context(FakeSlurm(), memory, trials=trials)
    with pytest.raises(
        RefusedError, match=r"input /data/copy.pt is blocked: not a zip archive \(your job 7 failed of it"
    ):
        prepare(request(), at)
    prepared = prepare(request("--force"), at)
    assert prepared.inputs == ("/data/copy.pt",)
    assert [text.partition(":")[0] for text in prepared.forced] == ["input /data/copy.pt is blocked"]
    forced = "submitted in spite of this (--force): input /data/copy.pt is blocked"
    assert prepared.warnings[0].message.startswith(forced)
    send(prepared, at, trial)
    assert memory.submissions[0].forced == prepared.forced


@pytest.mark.parametrize(
    ("block", "recorded"),
    [
        (
            BlockedInput(digest="d", path="", uid=1001, reason="it made job 7 fail", at=NOW, job_id=7),
            "your job 7 failed",
        ),
        (BlockedInput(digest="d", path="/x", uid=1001, reason="old", at=NOW), r"old \(by yourself on "),
        (
            BlockedInput(digest="d", path="", uid=-1, reason="jobs of several users failed of it", at=NOW, job_id=9),
            r"jobs of several users failed of it \(for all users, since job 9 on ",
        ),
        (
            BlockedInput(digest="d", path="", uid=-1, reason="labels are shifted", at=NOW),
            r"labels are shifted \(for all users, by an administrator on ",
        ),
        (BlockedInput(digest="d", path="", uid=1002, reason="it made job 5 fail", at=NOW, job_id=5), ""),
    ],
)
def test_a_refusal_names_the_blocking_job_and_ignores_blocks_of_other_users(block: BlockedInput, recorded: str) -> None:
    trials = {"named_files": lambda request: ("/data/a.pt",), "digest": lambda path: "d"}
    at = context(FakeSlurm(), FakeMemory(), trials=trials, published=Published(blocked=(block,)))
    if not recorded:
        assert prepare(request(), at).forced == ()
        return
    with pytest.raises(RefusedError, match=f"input /data/a.pt is blocked: {recorded}"):
        prepare(request(), at)


def test_the_users_own_block_reason_comes_before_the_published_one() -> None:
    mine = BlockedInput(digest="d", path="/a", uid=1001, reason="the log blames /a (o:7: bad)", at=NOW, job_id=7)
    others = replace(mine, path="", reason="it made job 7 fail")
    trials = {"named_files": lambda request: ("/a",), "digest": lambda path: "d"}
    at = context(FakeSlurm(), FakeMemory(blocked=(mine,)), trials=trials, published=Published(blocked=(others,)))
    with pytest.raises(RefusedError, match=r"the log blames /a \(o:7: bad\) \(your job 7"):
        prepare(request(), at)


def test_a_file_with_other_content_at_a_blocked_path_is_accepted() -> None:
    blocked = BlockedInput(digest="d1", path="/data/a.pt", uid=1001, reason="truncated", at=NOW)
    trials = {"named_files": lambda request: ("/data/a.pt",), "digest": lambda path: "d2"}
    assert prepare(request(), context(FakeSlurm(), FakeMemory(blocked=(blocked,)), trials=trials)).inputs == (
        "/data/a.pt",
    )


def failed(job_id: int, error: str = "KeyError: 'lr'", **more: Any) -> PastFailure:
    evidence = (Citation(source="out", line=8, text=error),)
    return PastFailure(
        **{"job_id": job_id, "at": NOW, "category": "traceback_from_crash", "reason": "Fix it", "evidence": evidence}
        | more
    )


PMIX = "srun: error: MPI: Cannot create context for mpi/pmix"
OTHER = failed(7, "ValueError: bad shape")


@pytest.mark.parametrize(
    ("failures", "said"),
    [
        ((), ""),
        ((failed(9),), ""),
        ((failed(9), failed(7)), "failed twice, unchanged, with: KeyError: 'lr' \\(job 9\\)$"),
        ((failed(9), failed(8), failed(7)), "failed 3 times, unchanged, with: KeyError: 'lr' \\(job 9\\)$"),
        ((failed(9), OTHER), "with: KeyError: 'lr' \\(job 9\\); before that: ValueError: bad shape \\(job 7\\)$"),
        ((failed(9, PMIX), failed(7, PMIX)), "with: MPI: Cannot create context for mpi/pmix \\(job 9\\)$"),
        ((failed(9, reason="no lr", prerun=True),) * 2, "with: no lr \\(pre-run job 9\\)$"),
    ],
)
def test_a_script_that_failed_twice_unchanged_is_refused_with_each_error_once(
    failures: tuple[PastFailure, ...], said: str
) -> None:
    at = context(FakeSlurm(), FakeMemory(past_failures=failures))
    if not said:
        assert prepare(request(), at).forced == ()
        return
    with pytest.raises(RefusedError, match=said) as caught:
        prepare(request(), at)
    assert caught.value.hint == "Fix it, or submit it anyway with --force."
    (overridden,) = prepare(request("--force"), at).forced
    assert overridden.startswith("this script failed ")


GPU, BIG = Partition(name="gpu", total_nodes=8), Partition(name="big", total_nodes=30)
CLOUD = replace(NODES[0], flags=frozenset({"CLOUD", "POWERED_DOWN"}))


@pytest.mark.parametrize(
    ("words", "partitions", "nodes", "refused"),
    [
        (("-N20",), (GPU,), NODES, True),
        (("-N8",), (GPU,), NODES, False),
        (("-N4-20",), (GPU,), NODES, False),
        (("-N20", "-pgpu,big"), (GPU, BIG), NODES, False),
        (("-N40", "-pgpu,big"), (GPU, BIG), NODES, True),
        (("-N20", "--reservation=x"), (GPU,), NODES, False),
        (("-N20", "-phidden"), (GPU,), NODES, False),
        (("-N20",), (replace(GPU, total_nodes=None),), NODES, False),
        (("-N20",), (GPU,), (CLOUD, *NODES[1:]), False),  # cloud nodes may be added
        (("-N20",), (GPU,), tuple(replace(n, state="DOWN") for n in NODES), True),
        (("-N20", "--prerun=only"), (GPU,), NODES, False),
    ],
)
def test_too_many_nodes_for_the_partition_are_refused_only_if_certain(
    words: tuple[str, ...], partitions: tuple[Partition, ...], nodes: tuple[Node, ...], refused: bool
) -> None:
    slurm = FakeSlurm()
    slurm.snapshot = lambda: Snapshot(taken_at=NOW, nodes=nodes, default_partition="gpu", partitions=partitions)  # type: ignore[method-assign]
    at = context(slurm, FakeMemory())
    if not refused:
        assert prepare(request(*words), at).forced == ()
        return
    with pytest.raises(RefusedError, match=r"\d+ nodes: partition \w+ has \d+, so the job could never start"):
        prepare(request(*words), at)
    (overridden,) = prepare(request(*words, "--force"), at).forced
    assert "could never start" in overridden


def test_a_failure_for_a_missing_file_does_not_count_once_the_file_exists() -> None:
    missing = failed(9, "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.csv'")
    memory = FakeMemory(past_failures=(missing, missing))
    with pytest.raises(RefusedError):
        prepare(request(), context(FakeSlurm(), memory))
    there = {"changed_at": {"/data/train.csv": NOW - 9e6}.get}
    assert prepare(request(), context(FakeSlurm(), memory, trials=there)).forced == ()


def test_a_static_error_refuses_the_job_and_a_static_warning_does_not() -> None:
    error = Finding(severity=Severity.ERROR, message="invalid syntax", file="train.py", line=3, fix="close the bracket")
    at = context(FakeSlurm(), FakeMemory(), trials={"check": lambda request: (error,)})
    with pytest.raises(PrerunFailed, match=r"train.py:3: invalid syntax \(close the bracket\)"):
        prepare(request(), at)
    warning = replace(error, severity=Severity.WARNING)
    at = context(FakeSlurm(), FakeMemory(), trials={"check": lambda request: (warning,)})
    assert prepare(request(), at).warnings == (warning,)


@pytest.mark.parametrize(
    ("message", "category", "refused"),
    [
        ("there is no directory /w/logs", "incorrect_inputs", False),
        ("/w/eval.py: no such file (started by python)", "incorrect_inputs", False),
        ("/w/eval.py cannot be read by you", "permission_error", False),
        ("No module named 'mine'", "import_error", False),
        ("cannot import name 'Net': /w/net.py does not define it", "import_error", True),
        ("SyntaxError: invalid syntax", "syntax_error", True),
    ],
)
def test_a_missing_file_is_only_a_warning_for_a_job_with_a_dependency(
    message: str, category: str, refused: bool
) -> None:
    error = Finding(severity=Severity.ERROR, message=message, category=category)
    at = context(FakeSlurm(), FakeMemory(), trials={"check": lambda request: (error,)})
    with pytest.raises(StaticFailed):
        prepare(request(), at)
    if refused:
        with pytest.raises(StaticFailed):
            prepare(request("--dependency=afterok:7"), at)
        return
    (warning,) = prepare(request("--dependency=afterok:7"), at).warnings
    assert warning.message.startswith(message) and warning.severity is Severity.WARNING


def test_a_delayed_job_is_not_refused_for_blocked_inputs_or_past_failures() -> None:
    blocked = BlockedInput(digest="d", path="/a", uid=1001, reason="truncated", at=NOW)
    trials = {"named_files": lambda request: ("/a",), "digest": lambda path: "d"}
    at = context(FakeSlurm(), FakeMemory(blocked=(blocked,), past_failures=("KeyError 'lr'", "x")), trials=trials)
    for word in ("--dependency=afterok:7", "--hold", "--begin=now+60"):
        assert prepare(request(word), at).forced == ()


def test_jobs_share_a_pre_run_only_if_they_wait_for_the_same_and_singletons_have_none() -> None:
    at = context(FakeSlurm(), FakeMemory())
    words = ((), ("--dependency=afterok:7",), ("--dependency=afterok:8",), ("--hold",), ("--begin=now+60",))
    groups = [prepare(request(*one), at).group for one in words]
    assert len(set(groups)) == len(words)
    assert prepare(request("--begin=now+90"), at).group == groups[-1]
    single = prepare(request("--dependency=singleton"), at)
    assert (single.prerun, single.prerun_reason) == ("off", "its pre-run cannot wait for --dependency=singleton")


def test_a_published_profile_is_found_only_by_its_owner() -> None:
    request_ = request("--resource-profile=vit")
    site = ResourceProfile(key=derive_published_key(derive_site_key(1001, "vit")), cpus_per_gpu=2.0, runs=3)
    context_ = context(FakeSlurm(), FakeMemory(), published=Published(profiles=(site,)))
    assert prepare(request_, context_).profile == replace(site, key="vit")
    assert prepare(request_, replace(context_, uid=1002)).profile is None


# --- applying the verdict --------------------------------------------------------------------------------------------


def held_job(at: SubmitContext, job_id: int | None = 101) -> HeldJob:
    prepared = prepare(request(), at)
    return HeldJob(
        request=prepared.request,
        plan=prepared.plan,
        job_id=job_id,
        prerun_job_id=102,
        release_at="now",
        profile_key=prepared.profile_key,
        fingerprint=prepared.fingerprint,
    )


def pending(comment: str = "") -> JobRecord:
    return JobRecord(job_id=101, state="PENDING", user="alice", uid=1001, comment=comment, num_nodes=2)


PASSED = Verdict(outcome=Outcome.PASS, layer="step", reason="3 optimizer steps", steps=3)
FAILED = Verdict(
    outcome=Outcome.FAIL,
    layer="exit",
    reason="train.py:9: KeyError",
    evidence=(Citation(source="o", line=9, text="K"),),
)


def test_a_failed_pre_run_sets_the_comment_and_cancels_the_job() -> None:
    slurm = FakeSlurm(jobs_by_address={"101": pending("mine")})
    memory = FakeMemory()
    at = context(slurm, memory)
    record = apply_verdict(held_job(at), FAILED, at)
    assert [(a.verb, a.key, a.value) for a in slurm.applied] == [
        (Verb.UPDATE_JOB, "Comment", "mine | slurmwrap: pre-run failed: train.py:9: KeyError"),
        (Verb.CANCEL, "", ""),
    ]
    first, last = memory.preruns
    assert (first, last) == (replace(record, changes=()), record)  # recorded before Slurm is changed, and after
    assert not record.released


def test_a_job_that_started_in_the_meantime_is_not_cancelled() -> None:
    slurm = FakeSlurm(jobs_by_address={"101": replace(pending(), state="RUNNING")})
    at = context(slurm, FakeMemory())
    apply_verdict(held_job(at), FAILED, at)
    assert slurm.applied == []


@pytest.mark.parametrize("outcome", [Outcome.PASS, Outcome.INCONCLUSIVE])
def test_a_passed_or_inconclusive_pre_run_releases_the_job_as_its_last_action(outcome: Outcome) -> None:
    slurm = FakeSlurm(jobs_by_address={"101": pending()})
    at = context(slurm, FakeMemory())
    record = apply_verdict(held_job(at), replace(PASSED, outcome=outcome), at)
    assert (slurm.applied[-1].key, slurm.applied[-1].value, record.released) == ("StartTime", "now", True)


@pytest.mark.parametrize(
    ("begins_at", "let_go"),
    [
        (NOW + 600, True),  # the grace period set at submission
        (NOW + 500, True),  # sbatch was slow
        (NOW + 365 * 86400, True),  # --prerun=gate
        (None, True),
        (NOW + 7200, False),
        (NOW + 60, False),
    ],
)
def test_a_start_time_that_the_user_changed_is_kept(begins_at: int | None, let_go: bool) -> None:
    slurm = FakeSlurm(jobs_by_address={"101": replace(pending(), eligible_time=begins_at)})
    at = context(slurm, FakeMemory())
    record = apply_verdict(replace(held_job(at), given=list_expected_start_times(None, 600, NOW)), PASSED, at)
    assert ([a.key for a in slurm.applied][-1:] == ["StartTime"], record.released) == (let_go, let_go)


def test_a_job_that_is_eligible_already_keeps_its_eligible_time() -> None:
    """Slurm counts a job's age from EligibleTime, which a new StartTime moves."""
    slurm = FakeSlurm(jobs_by_address={"101": replace(pending(), eligible_time=int(NOW) - 5)})
    at = context(slurm, FakeMemory())
    record = apply_verdict(held_job(at), PASSED, at)
    assert "StartTime" not in [action.key for action in slurm.applied]
    assert record.released


def test_a_job_that_cannot_be_looked_up_is_released_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm()

    def refuse(address: str) -> JobRecord | None:
        raise SlurmError(f"squeue does not know {address}")

    monkeypatch.setattr(slurm, "job", refuse)
    at = context(slurm, FakeMemory())
    record = apply_verdict(held_job(at), PASSED, at)
    assert ([action.key for action in slurm.applied], record.released) == (["StartTime"], True)


def test_expected_start_times_are_those_that_gsub_sets() -> None:
    assert list_expected_start_times(None, 600, NOW) == (NOW + 600, NOW + 365 * 86400)
    assert list_expected_start_times("now+2hours", 600, NOW) == (NOW + 7200, NOW + 365 * 86400)
    assert list_expected_start_times("some day", 600, NOW) == ()


def test_a_refused_update_is_recorded_and_the_job_is_still_released() -> None:
    measured = Measurement(seconds=5, steps=3, cpus_used=1.0, mem_peak_mib=300, gpus=1, mem_source="cgroup")
    slurm = FakeSlurm(
        jobs_by_address={"101": pending()}, refuse_keys=frozenset({"MinMemoryNode", "NumCPUs", "Switches"})
    )
    at = context(slurm, FakeMemory())
    record = apply_verdict(held_job(at), replace(PASSED, measurement=measured), at)
    assert slurm.applied[-1].key == "StartTime"
    assert record.released


def test_a_pre_run_without_job_changes_nothing() -> None:
    slurm = FakeSlurm()
    at = context(slurm, FakeMemory())
    record = apply_verdict(held_job(at, job_id=None), FAILED, at)
    assert (slurm.applied, record.job_id, record.released) == ([], None, False)


LOOSENING = {
    "published": Published(at=NOW, relaxing=True),
    "config": Config(placement=Placement(switch_wait_s=0)),
}


def list_changes_after_pass(
    record: JobRecord, memory: FakeMemory | None = None, **changes: object
) -> list[tuple[str, str]]:
    slurm = FakeSlurm(jobs_by_address={"101": record})
    at = replace(context(slurm, memory or FakeMemory()), **LOOSENING)  # type: ignore[arg-type]
    apply_verdict(replace(held_job(at), **changes), PASSED, at)  # type: ignore[arg-type]
    return [(a.key, a.value) for a in slurm.applied]


def test_a_released_job_gets_free_nodes_if_the_reconciler_relaxes_locality() -> None:
    assert list_changes_after_pass(pending()) == [("ReqNodeList", "n[0-1]"), ("StartTime", "now")]


def test_no_nodes_for_an_array_a_later_start_or_nodes_chosen_by_the_user() -> None:
    array = replace(pending(), array_job_id=101)
    assert list_changes_after_pass(array) == [("StartTime", "now")]
    later = "2030-01-01T00:00:00"
    assert list_changes_after_pass(pending(), release_at=later) == [("StartTime", later)]
    assert list_changes_after_pass(replace(pending(), req_nodes="n7")) == [("StartTime", "now")]


def test_no_nodes_without_reconciler_or_for_a_second_job_within_a_minute() -> None:
    assert list_changes_after_pass(pending(), FakeMemory(listening=False)) == [("StartTime", "now")]
    assert list_changes_after_pass(pending(), FakeMemory(picked=NOW - 59)) == [("StartTime", "now")]
    assert list_changes_after_pass(pending(), FakeMemory(picked=NOW - 60)) == [
        ("ReqNodeList", "n[0-1]"),
        ("StartTime", "now"),
    ]


@pytest.mark.parametrize(("kept", "picked"), [(False, "n[0-1]"), (True, None)])
def test_no_nodes_are_picked_from_a_cached_snapshot(kept: bool, picked: str | None) -> None:
    class Slurm(FakeSlurm):
        def snapshot(self) -> Snapshot:
            return replace(super().snapshot(), kept=kept)

    at = replace(context(Slurm(), FakeMemory()), **LOOSENING)  # type: ignore[arg-type]
    plan = prepare(request("--prerun=off"), at).plan
    assert next((line.value for line in plan.lines if line.option == "nodelist"), None) == picked


def quotas(cpus: int) -> Quotas:
    return Quotas(qos=(Qos(name="normal", limits=Limits(cpus_left=cpus)),))


@pytest.mark.parametrize(
    ("kept", "profiled", "questions", "given"),
    [
        (True, True, 1, "3"),  # an earlier call has used part of the quota
        (False, True, 0, "4"),
        (True, False, 0, None),  # a job without a profile is not changed, so Slurm is not asked
    ],
)
def test_quotas_are_read_again_before_cpus_are_raised(kept, profiled, questions, given) -> None:
    class Slurm(FakeSlurm):
        def snapshot(self) -> Snapshot:
            return replace(super().snapshot(), kept=kept, quotas_kept=kept, quotas=quotas(64))

    asked: list[int] = []

    def now() -> Quotas:
        asked.append(48)
        return quotas(48)

    hungry = {"hungry": ResourceProfile(key="hungry", cpus_per_gpu=4.0, runs=5)} if profiled else {}
    at = context(Slurm(), FakeMemory(profiles=hungry), quotas=now)
    plan = prepare(request("--prerun=off", "--resource-profile=hungry"), at).plan  # 16 tasks with 2 CPUs each
    cpus = next((line.value for line in plan.lines if line.option == "cpus-per-task"), None)
    assert (len(asked), cpus) == (questions, given)


def test_published_data_of_a_stopped_reconciler_is_ignored() -> None:
    load = NodeLoad(node="n1", cpus_busy=3.0)
    for age, believed in ((599.0, PlanningFacts(loads={"n1": load}, relaxing=True)), (600.0, PlanningFacts())):
        recorded = Published(at=NOW - age, loads=(load,), relaxing=True)
        assert (
            read_planning_facts(replace(context(FakeSlurm(), FakeMemory()), published=recorded), starts_now=False)
            == believed
        )


class RecordingClock(FakeClock):
    def __init__(self) -> None:
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.mark.parametrize(("verdict", "last"), [(PASSED, Verb.UPDATE_JOB), (FAILED, Verb.CANCEL)])
def test_applying_the_verdict_waits_for_an_unreachable_controller(verdict: Verdict, last: Verb) -> None:
    slurm, clock = FakeSlurm(jobs_by_address={"101": pending()}), RecordingClock()
    at = replace(context(slurm, FakeMemory()), clock=clock)
    named = held_job(at)
    slurm.away = 3
    apply_verdict(named, verdict, at)
    assert (slurm.applied[-1].verb, clock.slept) == (last, [1.0, 2.0, 5.0])


@pytest.mark.parametrize("missed", [1, 2])
@pytest.mark.parametrize(("verdict", "last"), [(PASSED, ("StartTime", "now")), (FAILED, ("", ""))])
def test_the_verdict_is_applied_to_a_job_that_squeue_missed_at_first(
    verdict: Verdict, last: tuple[str, str], missed: int
) -> None:
    slurm, clock = FakeSlurm(jobs_by_address={"101": pending()}), RecordingClock()
    at = replace(context(slurm, FakeMemory()), clock=clock)
    named = held_job(at)
    slurm.missed = missed
    record = apply_verdict(named, verdict, at)
    assert ((slurm.applied[-1].key, slurm.applied[-1].value), clock.slept) == (last, [2.0] * missed)
    assert record.released == (verdict is PASSED)


@pytest.mark.parametrize("verdict", [PASSED, FAILED])
def test_a_job_that_is_gone_is_looked_up_three_times_and_not_changed(verdict: Verdict) -> None:
    slurm, clock = FakeSlurm(), RecordingClock()
    at = replace(context(slurm, FakeMemory()), clock=clock)
    record = apply_verdict(held_job(at), verdict, at)
    assert (slurm.applied, record.changes, record.released, clock.slept) == ([], (), False, [2.0, 2.0])


def test_an_unreachable_controller_never_releases_a_job_that_failed() -> None:
    slurm = FakeSlurm(jobs_by_address={"101": pending()})
    at = replace(context(slurm, FakeMemory()), clock=RecordingClock())
    named = held_job(at)
    slurm.away = 1000
    record = apply_verdict(named, FAILED, at)
    assert (slurm.applied, record.released) == ([], False)
    assert [(c["verb"], c["error"]) for c in record.changes] == [
        ("cancel", "Unable to contact slurm controller (connect failure)")
    ]


@pytest.mark.parametrize("state", ["CANCELLED", "RUNNING", "COMPLETED"])
def test_a_job_that_is_no_longer_pending_is_not_changed(state: str) -> None:
    slurm = FakeSlurm(jobs_by_address={"101": replace(pending(), state=state)})
    at = context(slurm, FakeMemory())
    assert not apply_verdict(held_job(at), PASSED, at).released
    assert slurm.applied == []


# --- open incidents --------------------------------------------------------------------------------------------------


def list_warnings(one: OpenIncident, *words: str, at: float = NOW, inputs: tuple[str, ...] = ()) -> list[str]:
    """Warnings for one open incident when /home/alice/train.sbatch is submitted."""
    recorded = Published(at=at, incidents=(one,))
    where = context(FakeSlurm(), FakeMemory(), trials={"named_files": lambda request: inputs}, published=recorded)
    return [finding.message for finding in prepare(request(*words), where).warnings]


def open_incident(scope: str) -> OpenIncident:
    return OpenIncident(category="storage_io", scope=scope, since=NOW - 600, jobs=7, users=3)


def test_an_open_incident_gives_one_warning_and_the_job_is_submitted() -> None:
    since = time.strftime("%H:%M", time.localtime(NOW - 600))
    assert list_warnings(open_incident("path /home")) == [
        f"storage_io on /home since {since} (7 jobs of 3 users): the job may fail the same way; it is submitted anyway"
    ]
    slurm = FakeSlurm()
    at = context(slurm, FakeMemory(), published=Published(at=NOW, incidents=(open_incident("cluster"),)))
    assert send(prepare(request("--prerun=off"), at), at, trial).result.job_id == 101


@pytest.mark.parametrize(
    ("scope", "words", "inputs", "hit"),
    [
        ("cluster", (), (), True),
        ("host", (), (), True),
        ("path /home/alice", (), (), True),
        ("path /home/alic", (), (), False),
        ("path /data", (), (), False),
        ("path /data", (), ("/data/train.h5",), True),
        ("path /data", (), ("../../data/train.h5",), True),
        ("path /data", ("--chdir=/data/x",), (), True),
        ("path", (), (), False),
        ("switch ib0", (), (), True),
        ("switch ib0", ("--nodelist=n[4-5]",), (), False),
        ("switch ib0", ("--nodelist=n1",), (), True),
        ("switch ib0", ("--exclude=n[0-3]",), (), False),
        ("switch ib0", ("--partition=other",), (), False),
        ("switch gone", (), (), False),
    ],
)
def test_only_incidents_that_may_affect_the_job_are_warned_about(
    scope: str, words: tuple[str, ...], inputs: tuple[str, ...], hit: bool
) -> None:
    assert len(list_warnings(open_incident(scope), *words, inputs=inputs)) == hit


def test_incidents_of_a_stopped_reconciler_are_not_reported() -> None:
    assert list_warnings(open_incident("cluster"), at=NOW - 3600) == []


# --- steps of the real job --------------------------------------------------------------------------------------------


def test_with_count_steps_the_job_gets_the_counter_and_its_pre_run_does_not() -> None:
    slurm, memory = submit_job("--count-steps", "--prerun=gate")
    real, pre_run = slurm.calls
    ours = {name: real.environ.get(name) for name in ("SLURMWRAP_STEP_DIR", "SLURMWRAP_STEP_NAMED", "PYTHONPATH")}
    assert ours == {"SLURMWRAP_STEP_DIR": "/steps/1", "SLURMWRAP_STEP_NAMED": "1", "PYTHONPATH": "/counter"}
    assert "SLURMWRAP_STEP_DIR" not in (pre_run.environ or {})
    assert memory.submissions[0].step_dir == "/steps/1"


def test_a_job_that_is_to_be_stopped_counts_its_steps() -> None:
    slurm, memory = submit_job("--stop-at=plateau:1%/10%", "--prerun=off", "--signal=B:USR1@300")
    (call,) = slurm.calls
    assert (call.environ or {}).get("SLURMWRAP_STEP_DIR") == "/steps/1"
    stored = memory.submissions[0]
    assert (stored.stop_at, stored.stop_when, stored.stop_signal) == ("plateau:1%/10%", "", "B:USR1@300")
    _, memory = submit_job("--prerun=off", "--signal=B:USR1@300")
    assert (memory.submissions[0].stop_at, memory.submissions[0].stop_signal) == ("", "")


def test_the_counter_is_added_to_a_list_of_exported_variables() -> None:
    slurm, memory = submit_job("--count-steps", "--prerun=off", "--export=A=1")
    (call,) = slurm.calls
    assert "--export=A=1,SLURMWRAP_STEP_DIR,SLURMWRAP_STEP_NAMED,PYTHONPATH=/counter" in call.options
    assert memory.submissions[0].changes[-1]["reason"].startswith("--count-steps")


class MemoryWithoutSpace(FakeMemory):
    def step_dir(self) -> str:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("option", "memory", "why"),
    [
        ("--export=NONE", FakeMemory(), "--export=NONE keeps the counter's variables from the job"),
        ("--export-file=env", FakeMemory(), "--export-file alone says what the job's environment is"),
        ("--export='A=1,B'", FakeMemory(), "--export has a quoted value"),
        ("--export=ALL", MemoryWithoutSpace(), "[Errno 28] No space left on device"),
    ],
)
def test_a_counter_that_cannot_be_installed_is_reported_and_the_job_submitted(
    option: str, memory: FakeMemory, why: str
) -> None:
    slurm, said = FakeSlurm(), []
    at = replace(context(slurm, memory), say=said.append)
    sent = send(prepare(request("--count-steps", "--prerun=off", option), at), at, trial)
    assert sent.result.job_id is not None
    assert next(line for line in said if "not counted" in line).startswith(f"its steps are not counted: {why}")
    assert memory.submissions[0].step_dir == ""


SUBMITTED = JobIdentity(name="train.sbatch", prerun="train.sbatch.prerun", work_dir="/home/alice", before=NOW)


@pytest.mark.parametrize(
    ("seen", "other"),
    [
        ({"submit_time": int(NOW) - 1}, False),
        ({"submit_time": int(NOW) + 50}, False),  # clock difference
        ({"submit_time": int(NOW) + 61}, True),
        ({"submit_time": int(NOW), "name": "renamed", "work_dir": "/home/alice"}, False),
        ({"submit_time": int(NOW), "name": "train.sbatch", "work_dir": "/scratch"}, False),
        ({"submit_time": int(NOW), "name": "wrap", "work_dir": "/scratch"}, True),
        ({"submit_time": int(NOW), "name": "", "work_dir": ""}, False),  # not reported
    ],
)
@pytest.mark.parametrize("verdict", [PASSED, FAILED])
def test_another_job_that_reuses_the_id_is_not_changed(seen: dict[str, Any], other: bool, verdict: Verdict) -> None:
    slurm, said = FakeSlurm(jobs_by_address={"101": replace(pending(), **seen)}), []
    at = replace(context(slurm, FakeMemory()), say=said.append)
    record = apply_verdict(replace(held_job(at), job=SUBMITTED), verdict, at)
    left_alone = ["job 101 is left alone: Slurm gave the id to another job since"]
    assert (bool(slurm.applied), record.changes == (), left_alone == said) == (not other, other, other)


def array_task(job_id: int, task: int | None, state: str) -> JobRecord:
    return replace(pending(), job_id=job_id, array_job_id=101, array_task_id=task, state=state)


@pytest.mark.parametrize(
    ("other", "cancelled"), [("PENDING", True), ("CANCELLED", True), ("RUNNING", False), ("COMPLETED", False)]
)
def test_an_array_with_a_started_task_is_not_cancelled(other: str, cancelled: bool) -> None:
    slurm = FakeSlurm(jobs_by_address={"101": array_task(101, None, "PENDING"), "103": array_task(103, 1, other)})
    at = context(slurm, FakeMemory())
    apply_verdict(held_job(at), FAILED, at)
    assert [a.verb for a in slurm.applied] == ([Verb.UPDATE_JOB, Verb.CANCEL] if cancelled else [])


@pytest.mark.parametrize(("begins_at", "let_go"), [(NOW + 600, True), (NOW + 7200, False)])
def test_the_rest_of_an_array_is_released_after_the_user_released_one_task(begins_at: int, let_go: bool) -> None:
    rest = replace(array_task(101, None, "PENDING"), array_tasks="0,2-5", eligible_time=begins_at)
    slurm = FakeSlurm(jobs_by_address={"101": rest, "103": array_task(103, 1, "RUNNING")})
    at = context(slurm, FakeMemory())
    record = apply_verdict(replace(held_job(at), given=list_expected_start_times(None, 600, NOW)), PASSED, at)
    applied = [(a.target, a.key, a.value) for a in slurm.applied]
    assert (applied, record.released) == ([("101_[0,2-5]", "StartTime", "now")] if let_go else [], let_go)


def test_a_shared_verdict_releases_the_job_but_is_not_recorded_for_its_arguments() -> None:
    slurm, memory = FakeSlurm(jobs_by_address={"101": pending()}), FakeMemory()
    at = context(slurm, memory)
    measured = replace(PASSED, measurement=Measurement(seconds=9.0))
    record = apply_verdict(replace(held_job(at), borrowed=True), measured, at)
    assert (record.fingerprint, record.verdict.measurement, record.released) == ("", None, True)
    apply_verdict(replace(held_job(at), borrowed=True), FAILED, at)
    assert Verb.CANCEL not in [a.verb for a in slurm.applied]


# --- one pre-run for several jobs--------------------------------------------------------------------------------------


@dataclass
class Sweep:
    """Submissions of one script with different arguments: `gsub train.sbatch 1`, `gsub train.sbatch 2`."""

    state: Path
    slurm: FakeSlurm = field(default_factory=FakeSlurm)
    said: list[str] = field(default_factory=list)
    cluster: str = "lab"

    def context(self) -> SubmitContext:
        return replace(context(self.slurm, FakeMemory()), flights=PrerunRegistry(self.state), say=self.said.append)

    def submit(self, value: str, *words: str) -> SubmitResult:
        asked = replace(request(*words), args=(value,))
        return send(prepare(asked, self.context()), self.context(), self.trial)

    def trial(self, prepared: object, job_id: int | None, release_at: str) -> TrialJob:
        directory = self.state / "prerun" / str(job_id)
        directory.mkdir(parents=True)
        (directory / "spec.json").write_text(json.dumps({"real_job": str(job_id), "cluster": self.cluster}))
        (directory / "waiting.json").write_text(json.dumps({"release_at": release_at}))
        return TrialJob(call=SbatchCall(options=(), script_path="/wrapper.sh"), directory=str(directory))

    def knows(self, **states: str) -> None:
        """Set the state that Slurm reports for jobs: j101="PENDING"."""
        for name, state in states.items():
            number = int(name[1:])
            self.slurm.jobs_by_address[str(number)] = replace(pending(), job_id=number, state=state)

    def let_go(self) -> list[tuple[str, str]]:
        return [(a.target, a.value) for a in self.slurm.applied if a.key == "StartTime"]


def test_later_jobs_of_a_sweep_wait_for_the_pre_run_of_the_first(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    first = sweep.submit("1")
    assert (first.result.job_id, first.trial and first.trial.job_id, first.attached_to) == (101, 102, None)
    sweep.knows(j101="PENDING", j102="RUNNING")
    second = sweep.submit("2")
    assert (second.result.job_id, second.trial, second.attached_to) == (103, None, 102)
    assert "--begin=now+600" in sweep.slurm.calls[-1].options
    assert [(one.job_id, one.release_at) for one in list_waiting_jobs(tmp_path / "prerun" / "101")] == [(103, "now")]


@pytest.mark.parametrize("other", [("--mem=100000",), ("--prerun=profile",), ("--prerun=off",)])
def test_a_job_with_another_request_does_not_share_the_pre_run(tmp_path: Path, other: tuple[str, ...]) -> None:
    sweep = Sweep(tmp_path)
    sweep.submit("1")
    sweep.knows(j101="PENDING", j102="RUNNING")
    assert sweep.submit("2", *other).attached_to is None


@pytest.mark.parametrize("dead", [{"j102": "CANCELLED"}, {"j102": "NODE_FAIL"}, {}])
def test_a_dead_pre_run_releases_the_waiting_jobs_and_the_next_job_gets_its_own(
    tmp_path: Path, dead: dict[str, str]
) -> None:
    sweep = Sweep(tmp_path)
    sweep.submit("1", "--begin=2099-01-01T00:00:00")
    sweep.knows(j101="PENDING", j102="RUNNING")
    sweep.submit("2", "--begin=2099-01-01T00:00:00")
    sweep.slurm.jobs_by_address.pop("102")
    sweep.knows(j103="PENDING", **dead)
    third = sweep.submit("3", "--begin=2099-01-01T00:00:00")
    assert (third.trial and third.trial.job_id, third.attached_to) == (105, None)
    assert sweep.let_go() == [("101", "2099-01-01T00:00:00"), ("103", "2099-01-01T00:00:00")]


def test_a_refused_pre_run_releases_only_its_job_and_the_next_job_tries_again(tmp_path: Path) -> None:
    no = SbatchResult(exit_code=1, stdout="", stderr="sbatch: error: no\n", job_id=None)
    sweep = Sweep(tmp_path, FakeSlurm(refuse=lambda call: no if call.script_path == "/wrapper.sh" else None))
    assert (sweep.submit("1").trial, sweep.submit("2").attached_to) == (None, None)
    assert sweep.let_go() == [("101", "now"), ("102", "now")]


def test_gated_jobs_of_a_lost_pre_run_are_released_once(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    sweep.submit("1", "--prerun=gate")
    submitted_trial(str(tmp_path / "prerun" / "101"), 102)
    sweep.knows(j101="PENDING", j102="PENDING")
    sweep.submit("2", "--prerun=gate")
    sweep.knows(j103="PENDING")
    assert look_after(PrerunRegistry(tmp_path), sweep.context()) == ()
    sweep.knows(j102="CANCELLED")
    assert [look_after(PrerunRegistry(tmp_path), sweep.context()) for _ in range(2)] == [(101, 103), ()]
    unbound = f"now+{365 * 86400}"
    assert sweep.let_go() == [("101", unbound), ("103", unbound), ("101", "now"), ("103", "now")]


def test_a_reused_job_id_is_not_released_for_a_dead_pre_run(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    sweep.submit("1")
    submitted_trial(str(tmp_path / "prerun" / "101"), 102)
    sweep.knows(j101="PENDING", j102="RUNNING")
    sweep.submit("2")
    for number in (101, 103):
        path = tmp_path / "prerun" / str(number) / "waiting.json"
        path.write_text(json.dumps({**json.loads(path.read_bytes()), "job": asdict(SUBMITTED)}))
    sweep.knows(j103="PENDING", j102="CANCELLED")
    sweep.slurm.jobs_by_address["101"] = replace(pending(), submit_time=int(NOW) + 3600)
    assert look_after(PrerunRegistry(tmp_path), sweep.context()) == (103,)
    assert sweep.let_go() == [("103", "now")]
    assert sweep.said[-2:] == [
        "job 101 is left alone: Slurm gave the id to another job since",
        "job 103 was released: its pre-run is gone",
    ]


@pytest.mark.parametrize(
    ("seen", "gone"),
    [
        ({"name": "train.sbatch.prerun", "submit_time": int(NOW) + 100}, False),
        ({"name": "train.sbatch.prerun", "submit_time": int(NOW) + 181}, True),
        ({"name": "mine", "submit_time": int(NOW) + 1}, True),
    ],
)
def test_a_job_that_reuses_the_id_of_a_pre_run_is_not_taken_for_it(
    tmp_path: Path, seen: dict[str, Any], gone: bool
) -> None:
    sweep = Sweep(tmp_path)
    sweep.submit("1")
    submitted_trial(str(tmp_path / "prerun" / "101"), 102)
    path = tmp_path / "prerun" / "101" / "waiting.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "job": asdict(SUBMITTED)}))
    sweep.knows(j101="PENDING")
    sweep.slurm.jobs_by_address["102"] = replace(pending(), job_id=102, **seen)
    assert look_after(PrerunRegistry(tmp_path), sweep.context()) == ((101,) if gone else ())
    assert sweep.submit("2").attached_to == (None if gone else 102)


def test_a_dead_pre_run_releases_only_jobs_whose_start_time_gsub_set(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    sweep.submit("1")
    submitted_trial(str(tmp_path / "prerun" / "101"), 102)
    sweep.knows(j101="PENDING", j102="PENDING")
    sweep.submit("2")
    sweep.knows(j103="PENDING", j102="CANCELLED")
    for name, at in (("101", NOW + 7200), ("103", NOW + 600)):
        kept = tmp_path / "prerun" / name / "waiting.json"
        kept.write_text(json.dumps({"release_at": "now", "given": list_expected_start_times(None, 600, NOW)}))
        sweep.slurm.jobs_by_address[name] = replace(sweep.slurm.jobs_by_address[name], eligible_time=int(at))
    assert look_after(PrerunRegistry(tmp_path), sweep.context()) == (103,)


def test_a_pre_run_of_another_cluster_with_the_same_home_is_ignored(tmp_path: Path) -> None:
    elsewhere = Sweep(tmp_path, cluster="big")
    elsewhere.submit("1", "--prerun=gate")
    elsewhere.knows(j101="PENDING")
    assert look_after(PrerunRegistry(tmp_path), elsewhere.context()) == ()


def test_a_pre_run_that_left_its_verdict_is_ignored(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    sweep.submit("1")
    (tmp_path / "prerun" / "101" / "verdict.json").write_text("{}")
    sweep.knows(j101="PENDING", j102="COMPLETED")
    assert look_after(PrerunRegistry(tmp_path), sweep.context()) == ()


# --- pre-run modes ---------------------------------------------------------------------------------------------------


def test_auto_on_the_command_line_overrides_a_configured_off() -> None:
    off = replace(context(FakeSlurm(), FakeMemory()), config=Config(prerun=Prerun(mode="off")))
    assert prepare(request(), off).prerun == "off"
    assert prepare(request("--prerun=auto"), off).prerun == "auto"


def test_prerun_profile_always_runs_and_extends_the_grace_period() -> None:
    slurm, _ = submit_job("--prerun=profile", memory=FakeMemory(known_good=frozenset("*")))
    assert "--begin=now+900" in slurm.calls[0].options
    assert len(slurm.calls) == 2


@pytest.mark.parametrize(("known", "seconds"), [(False, 120.0), (True, 0.0)])
def test_the_sites_profiling_time_is_for_jobs_without_a_curve(known: bool, seconds: float) -> None:
    curve = (CurvePoint(cpus=4, steps_per_s=1.0),) if known else ()
    memory = FakeMemory(profiles={"mine": ResourceProfile(key="mine", cpu_curve=curve)})
    at = replace(context(FakeSlurm(), memory), config=Config(prerun=Prerun(profile_s=120)))
    assert prepare(request("--resource-profile=mine"), at).profile_s == seconds


def test_prerun_only_is_not_refused_for_past_failures() -> None:
    at = context(FakeSlurm(), FakeMemory(past_failures=(failed(9), failed(7))))
    prepared = prepare(request("--prerun=only"), at)
    assert [warning.severity for warning in prepared.warnings] == [Severity.WARNING]


def test_with_prerun_only_a_static_error_is_a_verdict_with_its_findings() -> None:
    error = Finding(severity=Severity.ERROR, message="bad", file="train.py", line=3, category="syntax_error")
    hint = Finding(severity=Severity.WARNING, message="hm")
    at = context(FakeSlurm(), FakeMemory(), trials={"check": lambda request: (hint, error)})
    with pytest.raises(StaticFailed) as caught:
        prepare(request("--prerun=only"), at)
    assert caught.value.verdict == Verdict(
        outcome=Outcome.FAIL,
        layer="static",
        reason="train.py:3: bad",
        category="syntax_error",
        findings=(error, hint),
    )


def test_a_heterogeneous_job_is_submitted_unchanged_except_for_begin() -> None:
    slurm = FakeSlurm()
    at = context(slurm, FakeMemory())
    words = ["--prerun=auto", "-N1", "--gres=gpu:2", ":", "-N1", "--mem=10", "train.sbatch", "x"]
    asked = parse_request(words, environ={}, cwd="/home/alice", read_script=lambda path: SCRIPT, read_stdin=lambda: b"")
    send(prepare(asked, at), at, trial)
    assert slurm.calls[0].options == ("-N1", "--gres=gpu:2", "--begin=now+600", ":", "-N1", "--mem=10")
    assert (slurm.calls[0].script_path, slurm.calls[0].args) == ("train.sbatch", ("x",))


# --- when a pre-run could show nothing new ---------------------------------------------------------------------------


def ended_job(**changes: object) -> JobRecord:
    well = JobRecord(job_id=7, uid=1001, state="COMPLETED", submit_time=int(NOW) - 90, end_time=int(NOW) - 20)
    return replace(well, **changes)  # type: ignore[arg-type]


def choose_prerun(
    *words: str, memory: FakeMemory | None = None, slurm: FakeSlurm | None = None, holder: str = ""
) -> tuple[str, str]:
    at = context(slurm or FakeSlurm(), memory or FakeMemory(), trials={"holder": lambda request: holder})
    prepared = prepare(request(*words), at)
    return prepared.prerun, prepared.prerun_reason


def test_an_inconclusive_pre_run_is_repeated_only_on_request() -> None:
    memory = FakeMemory(doubt="nothing in its code trains")
    why = "an earlier pre-run was inconclusive: nothing in its code trains; --prerun=auto tries again"
    assert choose_prerun(memory=memory) == ("off", why)
    assert choose_prerun("--prerun=auto", memory=memory)[0] == "auto"


def test_a_script_with_only_known_servers_gets_a_pre_run_only_on_request() -> None:
    why = "the script starts only 'vllm serve', which does not train: a pre-run could show nothing"
    assert choose_prerun(holder="vllm serve") == ("off", why)
    assert choose_prerun("--prerun=gate", holder="vllm serve")[0] == "gate"


def test_a_completed_run_replaces_a_pre_run() -> None:
    assert choose_prerun(memory=FakeMemory(ran_well=True)) == (
        "off",
        "a run of this script, its code and its arguments completed",
    )


@pytest.mark.parametrize(
    ("record", "mode"),
    [
        (ended_job(), "off"),
        (ended_job(state="RUNNING"), "auto"),
        (ended_job(state="FAILED", exit_code=1), "auto"),
        (ended_job(derived_exit_code=1), "auto"),  # a step failed before `echo done`
        (ended_job(array_job_id=7, array_task_id=3), "auto"),  # one task of several
        (ended_job(uid=1002), "auto"),
        (ended_job(submit_time=int(NOW) - 900), "auto"),  # Slurm reused the id
        (None, "auto"),
    ],
)
def test_slurm_is_asked_how_the_last_identical_run_ended(record: JobRecord | None, mode: str) -> None:
    slurm, memory = FakeSlurm(), FakeMemory(runs=((7, NOW - 91.0),))
    if record is not None:
        slurm.jobs_by_address["7"] = record
    assert choose_prerun(memory=memory, slurm=slurm)[0] == mode
    assert memory.completed_at == ([NOW - 20] if mode == "off" else [])


def test_an_unreachable_slurm_does_not_prevent_a_submission() -> None:
    assert choose_prerun(memory=FakeMemory(runs=((7, NOW),)), slurm=FakeSlurm(away=1))[0] == "auto"


# --- which jobs are worth a pre-run ----------------------------------------------------------------------------------

FULL = tuple(replace(node, state="ALLOCATED", gpus_used=8) for node in NODES)


def prepare_with(
    *words: str, nodes: tuple[Node, ...] = NODES, memory: FakeMemory | None = None, **prerun: object
) -> PreparedJob:
    slurm = FakeSlurm()
    slurm.snapshot = lambda: replace(FakeSlurm().snapshot(), nodes=nodes)  # type: ignore[method-assign]
    config = Config(prerun=replace(Prerun(), **prerun))  # type: ignore[arg-type]
    at = replace(context(slurm, memory or FakeMemory()), config=config)
    return prepare(request(*words), at)


@pytest.mark.parametrize(
    ("words", "nodes", "mode", "reason"),
    [
        (("-N2", "--gres=gpu:8", "--time=1-0"), NODES, "auto", "it saves more than it costs"),
        (("-N1", "--gres=gpu:2", "--time=10"), NODES, "off", "it would cost more than it saves"),
        (("-N1", "--gres=gpu:1", "--time=1-0"), NODES, "off", "a 1-GPU job that can start now is its own pre-run"),
        (("-N1", "--gres=gpu:1", "--time=1-0"), FULL, "off", "fewer than 2 GPUs"),
        (("-N1", "--gres=gpu:1", "--time=1-0", "--prerun=auto"), NODES, "auto", "first run"),
        (("-N1", "--gres=gpu:2", "--time=10", "--prerun=gate"), NODES, "gate", "first run"),
        (("-N1", "--gres=gpu:2", "--time=10", "--prerun-steps=9"), NODES, "auto", "first run"),
    ],
)
def test_the_expected_value_decides_unless_the_user_asks(
    words: tuple[str, ...], nodes: tuple[Node, ...], mode: str, reason: str
) -> None:
    prepared = prepare_with(*words, nodes=nodes)
    assert (prepared.prerun, prepared.prerun_reason[: len(reason)]) == (mode, reason)


def test_a_site_can_have_all_jobs_pre_run() -> None:
    words = ("-N1", "--gres=gpu:2", "--time=10")
    assert prepare_with(*words, select="all").prerun == "auto"
    assert prepare_with("-N1", "--gres=gpu:1", "--time=10", nodes=FULL, select="all", min_gpus=1).prerun == "auto"


def test_the_delay_of_a_job_that_could_start_now_counts() -> None:
    """Two GPUs for an hour: worth the pre-run's own GPU time, but not the delay as well."""
    words = ("-N1", "--gres=gpu:2", "--time=3:00:00")
    now, later = prepare_with(*words), prepare_with(*words, nodes=FULL)
    assert now.estimate is not None
    assert later.estimate is not None
    assert (now.estimate.delay_cost, later.estimate.delay_cost) == (60.0, 0.0)
    assert prepare_with(*words, wait_weight=0.0).estimate == later.estimate


def test_a_user_whose_changes_never_fail_needs_no_pre_run() -> None:
    words = ("--resource-profile=mine", "-N1", "--gres=gpu:4", "--time=4:00:00")
    sound = tuple(ScriptOutcome(key="mine", fingerprint=str(n), failed=False) for n in range(40))
    broken = tuple(replace(one, failed=True) for one in sound)
    modes = [prepare_with(*words, memory=FakeMemory(past_outcomes=past)).prerun for past in ((), sound, broken)]
    assert modes == ["auto", "off", "auto"]


def test_a_job_without_free_gpus_keeps_its_place_in_the_queue() -> None:
    slurm, said = FakeSlurm(), []  # type: ignore[var-annotated]
    at = replace(context(slurm, FakeMemory()), say=said.append)
    prepared = prepare_with(nodes=FULL)
    assert prepared.keeps_place
    sent = send(prepared, at, trial)
    assert [option for option in slurm.calls[0].options if option.startswith("--begin")] == []
    assert sent.trial is not None


@pytest.mark.parametrize(
    ("words", "nodes"),
    [((), NODES), (("--prerun=gate",), FULL), (("--begin=now+2hours",), FULL), (("--dependency=afterok:9",), FULL)],
)
def test_a_job_is_held_if_it_could_start_or_starts_later_anyway(
    words: tuple[str, ...], nodes: tuple[Node, ...]
) -> None:
    assert not prepare_with(*words, nodes=nodes).keeps_place


@pytest.mark.parametrize(
    ("words", "free", "expected"),
    [
        (("-N2", "--gres=gpu:8"), (8, 8, 0, 0), True),
        (("-N2", "--gres=gpu:8"), (8, 7, 7, 7), False),
        (("-N1", "--gres=gpu:4"), (3, 3, 3, 3), False),
        (("-N1", "--gres=gpu:0", "--gpus=6"), (3, 3, 0, 0), True),
        (("-N1", "--gres=gpu:h100:1"), (8, 8, 8, 8), False),
        (("-N1", "--gres=gpu:1", "--partition=other"), (8, 8, 8, 8), False),
    ],
)
def test_free_gpus_are_counted_where_the_job_may_run(
    words: tuple[str, ...], free: tuple[int, ...], expected: bool
) -> None:
    nodes = tuple(replace(node, gpus_used=8 - count) for node, count in zip(NODES, free, strict=False))
    script = b"#!/bin/bash\npython train.py\n"
    assert find_free_gpus(request(*words, script=script), replace(FakeSlurm().snapshot(), nodes=nodes)) is expected
