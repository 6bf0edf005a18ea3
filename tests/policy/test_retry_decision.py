"""Every decision of the retry policy, computed from records only."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import START, job, node

from slurmwrap.config.load_config import RULES, Config, Retry
from slurmwrap.model.cluster import Partition
from slurmwrap.model.decision import BlockedInput, RetryDecision, Strike, Verb
from slurmwrap.model.evidence import Citation, Diagnosis
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.lowered_limit import TimeRequest
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.submission import Submission
from slurmwrap.policy import incident as incident_module
from slurmwrap.policy.blocked_inputs import make_published_block
from slurmwrap.policy.decision_context import InputFailure
from slurmwrap.policy.incident import Incident
from slurmwrap.policy.retry_budget import Entry, Ledger
from slurmwrap.policy.retry_decision import DecisionContext, decide
from slurmwrap.policy.run_from_slurm import record_of
from slurmwrap.policy.strikes import Fleet
from slurmwrap.sbatch.job_request import ResourceShape

ACT = Config(rules=dict.fromkeys(RULES, "act"))
CONSENT = Submission(
    cluster="lab", job_id=81, uid=1001, user="alice", at=START - 100.0, retry=True, output_appends=True
)
FLEET = Fleet(nodes=tuple(node(f"n{i}") for i in range(8)))
KERNEL = (Citation(source="kernel:n1", line=1, text="NVRM: Xid (PCI:0000:05:00): 79"),)


def diagnosis(category: str, decision: str, **changes: object) -> Diagnosis:
    plain = Diagnosis(category=category, domain="IF", decision=decision, confidence=0.9, signature="some.id")
    return replace(plain, **changes)  # type: ignore[arg-type]


def make_context(found: Diagnosis, run: JobRecord | None = None, **changes: object) -> DecisionContext:
    run = run or job(81)
    plain = DecisionContext(
        diagnosis=found, record=record_of(run, "lab"), job=run, submission=CONSENT, fleet=FLEET, now=START
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def steps(decision: RetryDecision) -> list[str]:
    """The actions without the Comment, which test_launch_failure.py tests."""
    shown = [r.action for r in decision.actions if r.action.key != "Comment"]
    return [f"{action.verb.value} {action.key}={action.value}".rstrip(" =") for action in shown]


NCCL = diagnosis("nccl_error", "retry")
HARDWARE = diagnosis("gpu_hardware", "retry_elsewhere", node="n1", conclusive=True, evidence=KERNEL)
OOM = diagnosis("cpu_oom", "resize")
INPUT = diagnosis("incorrect_inputs", "blacklist_input", input_path="/data/x")


def test_a_success_needs_no_action() -> None:
    assert decide(make_context(diagnosis("success", "none")), ACT) == RetryDecision(
        decision="none", reason="nothing failed"
    )


def test_a_deterministic_failure_leads_to_stop_with_its_advice() -> None:
    found = diagnosis("import_error", "stop", advice="install numpy")
    assert decide(make_context(found), ACT) == RetryDecision(decision="stop", reason="install numpy")


def test_a_transient_failure_is_retried_with_backoff() -> None:
    found = decide(make_context(NCCL), ACT)
    assert found.decision == "retry"
    assert found.reason == "nccl_error, retry 1 of 3; after 60 s"
    assert steps(found) == ["requeuehold", "release", "update job StartTime=now+60"]


def test_the_retry_after_three_failures_of_one_root_cause_is_refused() -> None:
    spent = Ledger(entries=(Entry(category="nccl_error", entity="", node=""),) * 3)
    found = decide(make_context(NCCL, ledger=spent), ACT)
    assert (found.decision, found.reason) == ("stop", "failed 4 times of nccl_error; the limit is 3 retries")


def test_a_job_that_was_stopped_as_its_user_asked_is_not_run_again() -> None:
    context = make_context(diagnosis("nccl_error", "retry"), stopped="stopped at your --stop-at=plateau")
    found = decide(context, ACT)
    assert (found.decision, found.reason, found.actions) == ("none", "stopped at your --stop-at=plateau", ())


def test_failures_of_another_root_cause_do_not_count() -> None:
    spent = Ledger(entries=(Entry(category="network_error", entity="", node=""),) * 3)
    assert decide(make_context(NCCL, ledger=spent), ACT).decision == "retry"


def test_an_unrecognised_failure_is_retried_once() -> None:
    unknown = diagnosis("no_signature", "retry")
    once = Ledger(entries=(Entry(category="no_signature", entity="", node=""),))
    assert decide(make_context(unknown), ACT).decision == "retry"
    assert decide(make_context(unknown, ledger=once), ACT).decision == "stop"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"submission": None}, "it was not submitted by gsub"),
        ({"submission": replace(CONSENT, retry=False)}, "it was submitted without --retry"),
        ({"job": None}, "Slurm has forgotten it"),
        ({"job": job(81, requeue=False)}, "it is not requeueable (Requeue=0)"),
        ({"job": job(81, state="RUNNING")}, "Slurm says it is RUNNING"),
        ({"record": record_of(job(81, state="PREEMPTED"), "lab")}, "Slurm preempted it for good (PreemptMode)"),
        ({"record": record_of(job(81, state="COMPLETED"), "lab")}, "Slurm counts it as COMPLETED"),
    ],
)
def test_without_consent_a_transient_failure_leads_to_stop(changes: dict[str, object], why: str) -> None:
    found = decide(make_context(NCCL, **changes), ACT)
    assert (found.decision, found.actions) == ("stop", ())
    assert why in found.reason


def test_a_cancelled_job_is_not_retried_whatever_its_log_contains() -> None:
    cancelled = job(81, state="CANCELLED")
    for found in (NCCL, HARDWARE, OOM):
        assert [r for r in decide(make_context(found, cancelled), ACT).actions if r.rule != "drain"] == []


def test_a_job_that_slurm_requeued_itself_gets_no_action() -> None:
    ended = job(81)
    again = replace(ended, state="PENDING", restarts=1, submit_time=START)
    found = decide(make_context(NCCL, ended, job=again), ACT)
    assert (found.decision, found.actions) == ("retry", ())


def test_a_conclusive_fault_gives_a_strike_a_drain_and_a_retry_elsewhere() -> None:
    found = decide(make_context(HARDWARE), ACT)
    assert steps(found) == [
        "drain =slurmwrap: gpu_hardware (some.id), seen by job 81",
        "requeuehold",
        "update job ExcNodeList=n1",
        "release",
        "update job StartTime=now+3",
    ]
    assert found.strikes == (
        Strike(node="n1", cause="gpu_hardware", conclusive=True, text="NVRM: Xid (PCI:0000:05:00): 79"),
    )


def test_a_node_that_the_job_did_not_have_gets_no_strike_and_no_drain() -> None:
    found = decide(make_context(replace(HARDWARE, node="n7")), ACT)
    assert found.strikes == () and "drain" not in {r.rule for r in found.actions}


def test_a_node_that_only_the_log_names_gets_no_strike() -> None:
    log = (Citation(source="slurm-81.out", line=3, text="node n1 is broken"),)
    found = decide(make_context(diagnosis("cuda_init_failed", "retry_elsewhere", node="n1", evidence=log)), ACT)
    assert found.strikes == ()
    assert "update job ExcNodeList=n1" in steps(found)  # n1 was the only node of this job


def test_a_node_that_only_the_log_blames_leads_to_one_retry_elsewhere() -> None:
    lost = diagnosis("cuda_init_failed", "retry_elsewhere")
    once = Ledger(entries=(Entry(category="cuda_init_failed", entity="", node="n1"),))
    assert decide(make_context(lost), ACT).decision == "retry_elsewhere"
    assert decide(make_context(lost, job(81, nodes=("n2",)), ledger=once), ACT).decision == "stop"


def test_no_more_nodes_are_excluded_than_the_cap_allows() -> None:
    earlier = Ledger(entries=(Entry(category="gpu_hardware", entity="", node="n3"),))
    found = decide(make_context(HARDWARE, ledger=earlier), ACT)
    assert found.decision == "retry_elsewhere"
    assert not any(step.startswith("update job ExcNodeList") for step in steps(found))


def test_memory_is_raised_from_the_request_or_the_measured_peak() -> None:
    peak = record_of(job(81), "lab")
    measured = replace(peak, measurement=Measurement(mem_peak_mib=6000))
    assert "update job MinMemoryNode=6000" in steps(decide(make_context(OOM), ACT))
    assert "update job MinMemoryNode=9000" in steps(decide(make_context(OOM, record=measured), ACT))


def test_memory_that_no_node_has_is_not_requested() -> None:
    full = job(81, mem_mib_per_node=256_000)
    found = decide(make_context(OOM, full), ACT)
    assert (found.decision, found.actions) == ("stop", ())
    assert "no node of its partition has more" in found.reason


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((Partition(name="gpu", max_mem_mib_per_node=5000),), "update job MinMemoryNode=5000"),
        ((Partition(name="gpu", max_mem_mib_per_cpu=600),), "update job MinMemoryNode=4800"),  # of 8 CPUs
        ((Partition(name="gpu", max_mem_mib_per_node=4000),), None),
    ],
)
def test_memory_stays_within_the_partition_limits(limits: tuple[Partition, ...], expected: str | None) -> None:
    found = decide(make_context(OOM, limits=limits), ACT)
    assert (expected in steps(found)) if expected else (found.decision, found.actions) == ("stop", ())


def test_memory_that_slurm_refused_is_not_requested_again() -> None:
    found = decide(make_context(OOM, ledger=Ledger(refused=frozenset({"cpu_oom"}))), ACT)
    assert (found.decision, found.actions) == ("stop", ())
    assert "Slurm refused the larger job last time" in found.reason


TIME = diagnosis("time_limit", "resize", advice="ask for more time")
RESUMES = replace(TIME, resumed=True, checkpoint_step=100, step=120)


@pytest.mark.parametrize("found", [TIME, replace(RESUMES, resumed=False), replace(RESUMES, checkpoint_step=None)])
def test_more_time_requires_a_sign_that_the_job_resumes(found: Diagnosis) -> None:
    assert decide(make_context(found), ACT) == RetryDecision(decision="stop", reason="ask for more time")


def test_a_resuming_job_gets_more_time_between_hold_and_release() -> None:
    found = decide(make_context(RESUMES), ACT)
    assert found.reason == "time_limit, retry 1 of 3; with 90 minutes, because it resumes from its checkpoint"
    assert steps(found) == ["requeuehold", "update job TimeLimit=90", "release", "update job StartTime=now+3"]


def test_a_run_with_less_time_than_its_user_asked_for_gets_the_rest_again() -> None:
    told = replace(CONSENT, shape=ResourceShape(time_limit_s=86400), time=TimeRequest())
    for found in (TIME, replace(TIME, resumed=True, checkpoint_step=500)):
        assert "update job TimeLimit=1440" in steps(decide(make_context(found, job(81), submission=told), ACT))
    own = replace(told, time=TimeRequest(fixed="--time-min"))
    assert decide(make_context(TIME, job(81), submission=own), ACT).decision == "stop"


def test_a_resuming_job_at_its_partitions_limit_keeps_its_time_limit() -> None:
    found = decide(make_context(RESUMES, limits=(Partition(name="gpu", max_time_s=3600),)), ACT)
    assert (found.decision, [step for step in steps(found) if "TimeLimit" in step]) == ("retry", [])


# --- inputs ----------------------------------------------------------------------------------------------------------

ONCE = Ledger(entries=(Entry(category="incorrect_inputs", entity="/data/x", node="n1"),))
LINE = (Citation(source="slurm-81.out", line=7, text="OSError: truncated file /data/x"),)
OWN = BlockedInput(digest="d", path="/data/x", uid=1001, reason="the log blames /data/x", at=START, job_id=81)


def test_an_input_failure_is_first_retried_elsewhere() -> None:
    found = decide(make_context(INPUT, digest="d"), ACT)
    assert (found.decision, found.blocked) == ("retry_elsewhere", ())
    assert "update job ExcNodeList=n1" in steps(found)


def test_a_confirmed_broken_input_is_blocked_for_its_user_only() -> None:
    found = decide(make_context(INPUT, digest="d", ledger=ONCE), ACT)
    assert found.decision == "blacklist_input"
    assert found.blocked == (OWN,)
    assert [(r.rule, r.action.verb, r.action.target, r.action.key, r.action.value) for r in found.actions] == [
        ("block_input", Verb.BLOCK_INPUT, "/data/x", "user", "d")
    ]


def test_the_log_line_that_names_the_input_is_the_reason() -> None:
    (found,) = decide(make_context(replace(INPUT, evidence=LINE), digest="d", ledger=ONCE), ACT).blocked
    assert found.reason == "the log blames /data/x (slurm-81.out:7: OSError: truncated file /data/x)"


def test_an_input_of_a_job_without_consent_is_blocked_at_once() -> None:
    found = decide(make_context(INPUT, digest="d", submission=None), ACT)
    assert [blocked.uid for blocked in found.blocked] == [1001]


def test_an_input_that_could_not_be_read_is_not_blocked() -> None:
    found = decide(make_context(INPUT, submission=None), ACT)
    assert (found.decision, found.blocked, found.actions) == ("blacklist_input", (), ())


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_an_input_block_outside_mode_act_is_only_recorded(mode: str) -> None:
    found = decide(make_context(INPUT, submission=None, digest="d"), Config(rules={"block_input": mode}))
    assert (found.decision, found.blocked) == ("blacklist_input", ())
    assert [(r.rule, r.action.verb, r.action.target) for r in found.actions] == [
        ("block_input", Verb.BLOCK_INPUT, "/data/x")
    ]


BOB_ELSEWHERE = InputFailure(uid=1002, nodes=("n5",))


@pytest.mark.parametrize(
    ("changes", "uids"),
    [
        ({}, [1001]),
        ({"also_failed": (BOB_ELSEWHERE,)}, [1001, -1]),
        (
            {"also_failed": (replace(BOB_ELSEWHERE, nodes=("n1",)),)},
            [1001],
        ),  # on the same node, whose mount may be broken
        ({"also_failed": (replace(BOB_ELSEWHERE, nodes=()),)}, [1001]),  # on several nodes, so the node is unknown
        ({"also_failed": (replace(BOB_ELSEWHERE, uid=1001),)}, [1001]),  # two failures of the same user
        ({"also_failed": (BOB_ELSEWHERE,), "site": False}, [1001]),
        ({"fault": "it is truncated", "theirs": True}, [1001, -1]),
        ({"fault": "it is truncated"}, [1001]),  # a file that the user owns could be made to have any digest
        ({"fault": "it is truncated", "theirs": True, "site": False}, [1001]),
        (
            {"fault": "cannot be read: Input/output error", "theirs": True},
            [1001],
        ),  # the reconciler's own mount may be at fault
        ({"fault": "it is truncated", "theirs": True, "digest": ""}, []),
    ],
)
def test_an_input_is_blocked_for_all_users_only_with_independent_evidence(
    changes: dict[str, object], uids: list[int]
) -> None:
    found = decide(make_context(INPUT, **{"digest": "d", "submission": None, **changes}), ACT)
    assert [blocked.uid for blocked in found.blocked] == uids
    for blocked in found.blocked:
        if blocked.uid == -1:
            assert "/data" not in blocked.reason


def test_a_published_input_block_contains_no_path_and_no_log_line() -> None:
    private = replace(OWN, reason="the log blames /home/alice/x (slurm-81.out:7: secret)")
    assert make_published_block(private) == replace(OWN, path="", reason="it made job 81 fail")
    assert make_published_block(replace(OWN, uid=-1, reason="labels are shifted", job_id=0)) == replace(
        OWN, uid=-1, path="", reason="labels are shifted", job_id=0
    )


# --- caps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [NCCL, OOM, INPUT, RESUMES, diagnosis("cuda_init_failed", "retry_elsewhere")])
@pytest.mark.parametrize(
    ("ledger", "why"),
    [
        (Ledger(failures=20), "failed 21 times in all; after 20 a person decides (retry.max_restarts)"),
        (
            Ledger(lost_gpu_hours=1234.5),
            "its failed runs lost 1,234 GPU-hours; from 1,000 on a person decides (retry.max_lost_gpu_hours)",
        ),
    ],
)
def test_the_hard_caps_apply_to_every_kind_of_retry(found: Diagnosis, ledger: Ledger, why: str) -> None:
    decision = decide(make_context(found, ledger=ledger), ACT)
    assert [r for r in decision.actions if r.action.verb is Verb.REQUEUEHOLD] == []
    assert decision.reason == why or decision.decision == "blacklist_input"


def test_without_hard_caps_a_job_is_retried() -> None:
    free = Config(rules=ACT.rules, retry=Retry(max_restarts=0, max_lost_gpu_hours=0))
    assert decide(make_context(NCCL, ledger=Ledger(failures=500, lost_gpu_hours=1e6)), free).decision == "retry"


def test_a_retry_above_the_hourly_limit_is_delayed_with_a_reason() -> None:
    slow = Config(rules=ACT.rules, retry=Retry(max_per_hour=2))
    found = decide(make_context(NCCL, starts=(START - 10.0, START + 30.0)), slow)
    assert (found.decision, found.start_at) == ("retry", START - 10 + 3600.0)
    assert steps(found)[-1] == "update job StartTime=now+3590"
    assert found.reason.endswith("after 3590 s, because 2 retries an hour are the limit (retry.max_per_hour)")


def test_an_advised_retry_does_not_count_for_the_hourly_limit() -> None:
    advised = Config(retry=Retry(max_per_hour=1))
    found = decide(make_context(NCCL, starts=(float(START),)), advised)
    assert (found.start_at, steps(found)[-1]) == (None, "update job StartTime=now+60")


# --- incidents -------------------------------------------------------------------------------------------------------

STORAGE = Incident(
    incident_id="i1", category="storage_io", scope="path /scratch", began=START - 300, last=START - 30, jobs=(80, 81)
)


def test_a_failure_of_an_incident_neither_strikes_nor_excludes_the_node() -> None:
    lost = diagnosis(
        "node_failure", "retry_elsewhere", node="n1", evidence=(Citation(source="slurm", line=0, text=""),)
    )
    assert [s.node for s in decide(make_context(lost), ACT).strikes] == ["n1"]
    found = decide(make_context(lost, incident=STORAGE), ACT)
    assert (found.decision, found.strikes) == ("retry_elsewhere", ())
    assert not any("ExcNodeList" in step for step in steps(found))


def test_a_conclusive_node_fault_counts_during_an_incident() -> None:
    found = decide(make_context(HARDWARE, incident=STORAGE), ACT)
    assert [strike.node for strike in found.strikes] == ["n1"]
    assert steps(found)[0].startswith("drain") and "update job ExcNodeList=n1" in steps(found)


def test_retries_of_an_incident_wait_and_use_no_retry_budget() -> None:
    spent = Ledger(entries=(Entry(category="storage_io", entity="", node=""),) * 3)
    io = diagnosis("storage_io", "retry")
    found = decide(make_context(io, ledger=spent, incident=STORAGE), ACT)
    wait = getattr(incident_module, "wait_s", lambda *_: 0)(STORAGE, 81, START)
    assert decide(make_context(io, ledger=spent), ACT).decision == "stop"
    assert found.decision == "retry"
    assert found.start_at is not None and found.start_at >= START + max(wait, 480)
    assert found.reason.startswith("storage_io, part of an incident (storage_io, path /scratch, 2 jobs)")


def test_an_input_that_was_unavailable_during_an_incident_is_not_blocked() -> None:
    found = decide(make_context(INPUT, digest="d", ledger=ONCE, incident=STORAGE), ACT)
    assert (found.decision, found.blocked) == ("retry", ())


def test_the_hard_caps_apply_during_an_incident() -> None:
    assert decide(make_context(NCCL, ledger=Ledger(failures=20), incident=STORAGE), ACT).decision == "stop"


# --- refusals of Slurm (facts/slurm.md 3), row by row ----------------------------------------------------------------

PENDING = replace(job(81), state="PENDING", nodes=(), start_time=None, end_time=None)
AGAIN = replace(PENDING, restarts=1, submit_time=START)


@pytest.mark.parametrize("found", [NCCL, HARDWARE, OOM, INPUT, RESUMES])
@pytest.mark.parametrize(
    "run",
    [
        AGAIN,  # requeued by Slurm, by RequeueExit, by its user, or preempted: BeginTime
        replace(AGAIN, reason="job requeued in held state"),  # RequeueExitHold, scontrol requeuehold
        replace(AGAIN, state="RUNNING", start_time=START + 130),
        replace(AGAIN, state="COMPLETED", start_time=START + 130, end_time=START + 190),
        job(81, requeue=False),  # Requested operation is presently disabled
        job(81, state="CANCELLED"),  # Slurm would requeue it without an error
        job(81, uid=1002, user="bob"),  # the job id was reused
        job(81, array_job_id=81),  # a bare array id means every task
        job(81, state="COMPLETING"),
        PENDING,  # Job is pending execution
        job(81, state="PREEMPTED"),
        None,  # Invalid job id specified
    ],
)
def test_actions_that_slurm_would_refuse_or_misapply_are_not_planned(found: Diagnosis, run: JobRecord | None) -> None:
    ended = job(81, state=run.state) if run is not None and run.state in ("CANCELLED", "PREEMPTED") else job(81)
    record = record_of(ended, "lab")
    decision = decide(make_context(found, ended, job=run, record=record), ACT)
    assert [r for r in decision.actions if r.rule not in ("drain", "block_input")] == []


def test_an_array_task_is_addressed_by_its_task_id() -> None:
    task = job(77, array_job_id=77, array_task_id=3)  # the last task keeps the array's own id
    found = decide(make_context(OOM, task, submission=replace(CONSENT, job_id=77)), ACT)
    assert {r.action.target for r in found.actions} == {"77_3"}


def test_actions_come_in_the_working_order_and_skip_the_restart_delay() -> None:
    truncating = replace(CONSENT, output_appends=False)
    found = decide(make_context(OOM, submission=truncating), ACT)
    assert steps(found) == [
        "requeuehold",
        "update job MinMemoryNode=6000",
        "update job StdOut=/home/alice/slurm-81.retry1.out",
        "release",
        "update job StartTime=now+3",
    ]


def test_the_same_context_gives_the_same_decision() -> None:
    for found in (NCCL, HARDWARE, OOM, INPUT, RESUMES):
        assert decide(make_context(found), ACT) == decide(make_context(found), ACT)


def test_the_retry_budgets_come_from_the_configuration() -> None:
    strict = Config(rules=ACT.rules, retry=Retry(per_root_cause=1, backoff_s=5))
    spent = Ledger(entries=(Entry(category="nccl_error", entity="", node=""),))
    assert "update job StartTime=now+5" in steps(decide(make_context(NCCL), strict))
    assert decide(make_context(NCCL, ledger=spent), strict).decision == "stop"


def test_a_node_that_only_the_log_names_is_avoided_by_this_job_and_gets_no_strike() -> None:
    named = replace(
        HARDWARE, conclusive=False, evidence=(Citation(source="slurm-81.out", line=7, text="n1: GPU is lost"),)
    )
    found = decide(make_context(named, job(81, nodes=("n1", "n2"))), ACT)
    assert "update job ExcNodeList=n1" in steps(found)
    assert (found.strikes, [r for r in found.actions if r.rule == "drain"]) == ((), [])


@pytest.mark.parametrize(("nodes", "excludes"), [(1, False), (2, True)])
def test_no_node_is_excluded_if_too_few_would_be_left(nodes: int, excludes: bool) -> None:
    few = Fleet(nodes=FLEET.nodes[:nodes])
    log_only = replace(HARDWARE, node="n0", conclusive=False, evidence=())
    found = decide(make_context(log_only, job(81, nodes=("n0",)), fleet=few), ACT)
    assert found.decision == "retry_elsewhere"
    assert ("update job ExcNodeList=n0" in steps(found)) is excludes


# Endings that the user named with --retry-on.
NAMED = replace(CONSENT, retry=False, retry_on=("93", "SIGUSR1"))
BUG = diagnosis("import_error", "stop", advice="install numpy")


def test_an_exit_code_that_the_user_named_is_consent_and_has_its_own_reason() -> None:
    found = decide(make_context(BUG, job(81, exit_code=93), submission=NAMED), ACT)
    assert (found.decision, found.reason) == (
        "retry",
        "exit code 93, which --retry-on names, retry 1 of 3; after 60 s",
    )
    assert steps(found) == ["requeuehold", "release", "update job StartTime=now+60"]
    assert [r.action.value for r in found.actions if r.action.key == "Comment"] == [
        "slurmwrap: exit code 93 (slurmwrap why 81)"
    ]
    by_signal = decide(make_context(BUG, job(81, exit_code=0, signal=10), submission=NAMED), ACT)
    assert by_signal.reason.startswith("SIGUSR1, which --retry-on names")


def test_another_ending_is_decided_as_without_retry_on() -> None:
    assert decide(make_context(BUG, submission=NAMED), ACT).reason == "install numpy"
    found = decide(make_context(NCCL, submission=NAMED), ACT)
    assert (found.decision, found.reason) == ("stop", "nccl_error; not run again: it was submitted without --retry")


@pytest.mark.parametrize("state", ["TIMEOUT", "CANCELLED", "COMPLETED", "PREEMPTED", "OUT_OF_MEMORY"])
def test_only_a_run_that_failed_by_itself_has_an_ending_of_its_own(state: str) -> None:
    found = decide(make_context(BUG, job(81, exit_code=93, state=state), submission=NAMED), ACT)
    assert found.reason == "install numpy"


def test_only_named_endings_count_against_their_budget() -> None:
    entries = [Entry(category=f"c{n}", entity="", node="", exit_code=code) for n, code in enumerate((93, 1, 93, 138))]
    context = make_context(BUG, job(81, exit_code=93), submission=NAMED, ledger=Ledger(entries=tuple(entries)))
    found = decide(context, ACT)
    assert (found.decision, found.reason) == (
        "stop",
        "ended 4 times with exit code 93, which --retry-on names; the limit is 3 retries",
    )
    fewer = Ledger(entries=tuple(entries[:3]))
    assert "retry 3 of 3" in decide(replace(context, ledger=fewer), ACT).reason


def test_a_node_that_the_kernel_blames_is_avoided_whatever_the_user_named() -> None:
    found = decide(make_context(HARDWARE, job(81, exit_code=93), submission=NAMED), ACT)
    assert found.decision == "retry_elsewhere" and "away from n1" in found.reason


def test_in_advise_mode_a_named_ending_is_advised() -> None:
    found = decide(make_context(BUG, job(81, exit_code=93), submission=NAMED), Config())
    assert found.decision == "retry" and found.start_at is None
