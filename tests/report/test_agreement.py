"""A rule's decision is compared with the runs that followed, in the same way for every mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from fakes import START, job

from slurmwrap.model.decision import Verb
from slurmwrap.model.evidence import Diagnosis
from slurmwrap.model.job_run import ActionRecord, JobRun, StrikeRecord
from slurmwrap.model.submission import Submission
from slurmwrap.policy.run_from_slurm import record_of
from slurmwrap.report.agreement import compare_rules_with_outcomes
from slurmwrap.report.night_report import Agreement

DAY = 86400


def make_run(
    job_id: int,
    at: int,
    category: str,
    *,
    restarts: int = 0,
    nodes: Sequence[str] = ("n1",),
    decided: str = "",
    **more: object,
) -> JobRun:
    """Make a run of one hour that began `at` seconds after START."""
    begin = START + at
    shown = job(
        job_id,
        submit_time=begin,
        start_time=begin,
        end_time=begin + 3600,
        restarts=restarts,
        nodes=tuple(nodes),
        **more,  # type: ignore[arg-type]
    )
    decision = "none" if category == "success" else decided or "retry"
    found = Diagnosis(category=category, domain="", decision=decision, confidence=1, signature="", input_path="/x")
    return replace(record_of(shown, "lab"), diagnosis=found, decision=decided)


def make_action(record: JobRun, rule: str, mode: str = "advise", target: str = "") -> ActionRecord:
    verb = {"drain": Verb.DRAIN, "block_input": Verb.BLOCK_INPUT}.get(rule, Verb.REQUEUEHOLD)
    return ActionRecord(
        action_id=1,
        attempt=record.attempt,
        rule=rule,
        mode=mode,
        verb=verb.value,
        target=target or record.address,
        key="",
        value="",
        reason="",
        intended_at=START,
    )


def make_submission(job_id: int, fingerprint: str = "f") -> Submission:
    return Submission(
        cluster="lab", job_id=job_id, uid=1001, user="alice", at=START, script_sha256="a", fingerprint=fingerprint
    )


SAME = (make_submission(81), make_submission(82))
FIRST = make_run(81, 0, "nccl_error")


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ((), (0, 0, 1)),
        ((make_run(81, 5000, "success", restarts=1),), (1, 0, 0)),
        ((make_run(81, 5000, "nccl_error", restarts=1),), (0, 1, 0)),
        ((make_run(81, 5000, "gpu_oom", restarts=1),), (0, 0, 1)),  # another root cause proves nothing
        ((make_run(81, 5000, "cancelled", restarts=1), make_run(81, 9000, "success", restarts=2)), (1, 0, 0)),
        ((make_run(82, 5000, "success"),), (1, 0, 0)),  # the user submitted the same program again
        ((make_run(83, 5000, "success"),), (0, 0, 1)),  # another script
        ((make_run(81, 5000, "success", uid=1002),), (0, 0, 1)),  # another job with a reused id
    ],
)
def test_a_retry_is_compared_with_the_next_run(after: tuple[JobRun, ...], expected: tuple[int, int, int]) -> None:
    for mode in ("observe", "advise", "act"):
        found = compare_rules_with_outcomes((FIRST, *after), (make_action(FIRST, "retry", mode),), (), SAME)
        assert found == (Agreement(rule="retry", agree=expected[0], disagree=expected[1], open=expected[2]),)


LOST = make_run(81, 0, "cuda_init_failed")


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (make_run(81, 5000, "success", restarts=1, nodes=("n2",)), (1, 0, 0)),
        (make_run(81, 5000, "success", restarts=1), (0, 0, 1)),  # on the same node: proves nothing
        (make_run(81, 5000, "cuda_init_failed", restarts=1, nodes=("n2",)), (0, 1, 0)),
        (make_run(90, 5000, "gpu_hardware"), (1, 0, 0)),  # the node failed another job
        (make_run(90, 5000 + 8 * DAY, "gpu_hardware"), (0, 0, 1)),
        (make_run(90, 5000, "gpu_oom"), (0, 0, 1)),
        (make_run(90, 5000, "gpu_hardware", nodes=("n1", "n2")), (0, 0, 1)),  # the faulty node is not known
    ],
)
def test_a_retry_elsewhere_is_compared_with_later_runs(after: JobRun, expected: tuple[int, int, int]) -> None:
    found = compare_rules_with_outcomes((LOST, after), (make_action(LOST, "retry_elsewhere"),), (), ())
    assert found == (Agreement(rule="retry_elsewhere", agree=expected[0], disagree=expected[1], open=expected[2]),)


OOM = make_run(81, 0, "cpu_oom")


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (make_run(81, 5000, "success", restarts=1, mem_mib_per_node=6000), (1, 0, 0)),
        (make_run(81, 5000, "cpu_oom", restarts=1, mem_mib_per_node=6000), (0, 1, 0)),
        (make_run(81, 5000, "success", restarts=1), (0, 0, 1)),  # it had no more memory than before
    ],
)
def test_a_resize_is_compared_with_the_next_run(after: JobRun, expected: tuple[int, int, int]) -> None:
    found = compare_rules_with_outcomes((OOM, after), (make_action(OOM, "resize"),), (), ())
    assert found == (Agreement(rule="resize", agree=expected[0], disagree=expected[1], open=expected[2]),)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ((), (0, 0, 1)),
        ((make_run(82, 5000, "gpu_oom", decided="stop"),), (1, 0, 1)),
        ((make_run(82, 5000, "success"),), (0, 1, 0)),
        ((make_run(84, 5000, "success"),), (0, 0, 1)),  # its program was changed
    ],
)
def test_a_stop_is_compared_with_the_next_submission(after: tuple[JobRun, ...], expected: tuple[int, int, int]) -> None:
    first = make_run(81, 0, "gpu_oom", decided="stop")
    found = compare_rules_with_outcomes((first, *after), (), (), (*SAME, make_submission(84, "changed")))
    assert found == (Agreement(rule="stop", agree=expected[0], disagree=expected[1], open=expected[2]),)


def test_a_job_stopped_without_retry_consent_is_not_counted() -> None:
    assert (
        compare_rules_with_outcomes((replace(FIRST, decision="stop"), make_run(82, 5000, "success")), (), (), SAME)
        == ()
    )


BROKEN = make_run(81, 0, "gpu_hardware")


@pytest.mark.parametrize(
    ("after", "struck", "taken", "expected"),
    [
        ((), (), (), (0, 0, 1)),
        ((), (), ("n1",), (1, 0, 0)),
        ((), ((90, 5 * DAY),), (), (1, 0, 0)),
        ((), ((81, 5 * DAY),), (), (0, 0, 1)),  # a strike of the same job is no confirmation
        ((), ((90, 9 * DAY),), (), (0, 0, 1)),
        ((make_run(90, 5000, "gpu_ecc_error"),), (), (), (1, 0, 0)),
        (tuple(make_run(90 + n, 5000, "success") for n in range(3)), (), (), (0, 1, 0)),
        # three runs of one job
        (
            tuple(make_run(90, 5000 * n, "success", restarts=n) for n in (1, 2, 3)),
            (),
            (),
            (0, 0, 1),
        ),
        (tuple(make_run(90 + n, 5000, "success", nodes=("n2",)) for n in range(3)), (), (), (0, 0, 1)),
    ],
)
def test_a_drain_is_compared_with_later_faults_of_the_node(
    after: tuple[JobRun, ...],
    struck: tuple[tuple[int, int], ...],
    taken: tuple[str, ...],
    expected: tuple[int, int, int],
) -> None:
    strikes = [
        StrikeRecord(node="n1", cause="gpu_hardware", conclusive=True, text="", at=START + at, job_id=job_id)
        for job_id, at in struck
    ]
    actions = (make_action(BROKEN, "drain", target="n1"),)
    found = compare_rules_with_outcomes((BROKEN, *after), actions, strikes, (), out_of_service=taken)
    assert found == (Agreement(rule="drain", agree=expected[0], disagree=expected[1], open=expected[2]),)


@pytest.mark.parametrize(
    ("category", "expected"), [("success", (0, 1, 0)), ("incorrect_inputs", (1, 0, 0)), ("cancelled", (0, 0, 1))]
)
def test_a_blocked_input_is_compared_with_the_next_run(category: str, expected: tuple[int, int, int]) -> None:
    bad = make_run(81, 0, "incorrect_inputs", decided="blacklist_input")
    found = compare_rules_with_outcomes(
        (bad, make_run(82, 5000, category)), (make_action(bad, "block_input", target="/x"),), (), SAME
    )
    assert found == (Agreement(rule="block_input", agree=expected[0], disagree=expected[1], open=expected[2]),)


def test_a_decision_with_several_actions_counts_once_and_unknown_runs_do_not_count() -> None:
    steps = [replace(make_action(FIRST, "retry"), key=key) for key in ("", "StartTime", "StdOut")]
    stray = replace(make_action(FIRST, "retry"), attempt=replace(FIRST.attempt, job_id=999))
    assert compare_rules_with_outcomes((FIRST,), (*steps, stray, replace(stray, attempt=None)), (), ()) == (
        Agreement(rule="retry", open=1),
    )


def make_order(run: JobRun, order_class: int, text: str = "usually runs 20 min on 2 GPUs", at: int = 0) -> ActionRecord:
    reason = f"class {order_class + 1} of 6: {text}"
    return replace(make_action(run, "order"), reason=reason, intended_at=START + at)


def test_the_order_is_compared_with_how_long_jobs_took() -> None:
    hour, day, crashed = make_run(81, 0, "success"), make_run(82, 0, "time_limit", gpus=48), make_run(83, 0, "gpu_oom")
    right = (make_order(hour, 5, at=-9), make_order(hour, 1), make_order(day, 4), make_order(crashed, 0))
    wrong = (make_order(hour, 4), make_order(day, 1))
    unknown = (make_order(hour, 0, "it has waited 12 h"), make_order(day, 3, "nothing is known about its run time"))
    runs = (hour, day, crashed)
    assert compare_rules_with_outcomes(runs, right, (), ()) == (Agreement(rule="order", agree=2, open=1),)
    assert compare_rules_with_outcomes(runs, wrong, (), ()) == (Agreement(rule="order", disagree=2),)
    assert compare_rules_with_outcomes(runs, unknown, (), ()) == ()


@pytest.mark.parametrize(
    ("saved_s", "run_s", "expected"),
    [
        (4000.0, 9000, Agreement(rule="limit", agree=1)),
        (8000.0, 9000, Agreement(rule="limit", disagree=1)),
        (None, 9000, Agreement(rule="limit", disagree=1)),
        (None, 3600, Agreement(rule="limit", open=1)),
    ],
)
def test_a_time_min_is_compared_with_the_first_checkpoint(
    saved_s: float | None, run_s: int, expected: Agreement
) -> None:
    run = make_run(81, 0, "time_limit")
    run = replace(run, end_time=(run.start_time or 0) + run_s, saved_after_s=saved_s)
    advised = replace(make_action(run, "limit"), key="TimeMin", value="70", reason="it resumes from checkpoints")
    removed = replace(advised, value="0", reason="time limits are not lowered now: its user's limit again")
    assert compare_rules_with_outcomes([run], [advised, removed], (), ()) == (expected,)


@pytest.mark.parametrize(
    ("run_s", "category", "expected"),
    [
        (3600, "success", Agreement(rule="limit", agree=1, freed_hours=166.0)),
        (7200, "success", Agreement(rule="limit", agree=1, freed_hours=166.0)),
        (7201, "success", Agreement(rule="limit", disagree=1)),  # the limit would have been too short
        (90_000, "time_limit", Agreement(rule="limit", disagree=1)),
        (3600, "nccl_error", Agreement(rule="limit", open=1)),
    ],
)
def test_an_advised_time_limit_is_compared_with_the_run_itself(run_s: int, category: str, expected: Agreement) -> None:
    run = make_run(81, 0, category)
    run = replace(run, end_time=(run.start_time or 0) + run_s, time_limit_s=7 * DAY)
    advised = replace(make_action(run, "limit"), key="TimeLimit", value="120", reason="14 runs of it")
    comment = replace(advised, key="Comment", value="slurmwrap: time limit")
    restored = replace(advised, value="10080", reason="it started: its user's limit again")
    assert compare_rules_with_outcomes([run], [advised, comment, restored], (), ()) == (expected,)
