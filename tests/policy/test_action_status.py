"""The status of an intended action: to be done now, to be done later, done or void."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import START, job, node

from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import ActionRecord
from slurmwrap.policy.action_status import ActionState, get_status_of_drain, get_status_of_job_action
from slurmwrap.policy.run_from_slurm import record_of
from slurmwrap.policy.strikes import Fleet

ENDED = job(81)
RECORD = record_of(ENDED, "lab")
HELD = replace(
    ENDED,
    state="PENDING",
    reason="job requeued in held state",
    restarts=1,
    submit_time=START,
    start_time=None,
    end_time=None,
    eligible_time=START + 121,
)
FREE = replace(HELD, reason="BeginTime")


def action(verb: str, key: str = "", value: str = "", target: str = "81") -> ActionRecord:
    return ActionRecord(
        action_id=1,
        attempt=RECORD.attempt,
        rule="retry",
        mode="act",
        verb=verb,
        target=target,
        key=key,
        value=value,
        reason="",
        intended_at=START,
    )


@pytest.mark.parametrize(
    ("now", "due"),
    [
        (ENDED, ActionState.NOW),
        (replace(ENDED, state="COMPLETING"), ActionState.LATER),
        (HELD, ActionState.DONE),
        (FREE, ActionState.VOID),  # Slurm or its user requeued it
        (replace(HELD, restarts=2), ActionState.VOID),
        (replace(ENDED, state="CANCELLED"), ActionState.VOID),
        (replace(ENDED, uid=1002), ActionState.VOID),
        (replace(FREE, state="RUNNING"), ActionState.VOID),
        (None, ActionState.VOID),
    ],
)
def test_status_of_a_requeuehold(now: JobRecord | None, due: ActionState) -> None:
    assert get_status_of_job_action(action("requeuehold"), RECORD, now, START).due is due


@pytest.mark.parametrize(
    ("now", "due"),
    [
        (HELD, ActionState.NOW),
        (replace(HELD, exc_nodes="n[1-2]"), ActionState.DONE),
        (replace(FREE, state="RUNNING"), ActionState.VOID),
        (ENDED, ActionState.VOID),  # the requeue was refused
        (replace(HELD, state="CANCELLED"), ActionState.VOID),
    ],
)
def test_status_of_an_update(now: JobRecord, due: ActionState) -> None:
    assert get_status_of_job_action(action("update job", "ExcNodeList", "n2,n1"), RECORD, now, START).due is due


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("StdOut", "/a b.out", {"std_out": "/a b.out"}),
        ("ReqNodeList", "", {"req_nodes": ""}),
    ],
)
def test_an_update_that_slurm_shows_is_done(key: str, value: str, shown: dict[str, object]) -> None:
    pinned = replace(HELD, req_nodes="n1")
    assert get_status_of_job_action(action("update job", key, value), RECORD, pinned, START).due is ActionState.NOW
    assert (
        get_status_of_job_action(action("update job", key, value), RECORD, replace(HELD, **shown), START).due
        is ActionState.DONE
    )


def test_a_clock_set_back_does_not_leave_the_job_held() -> None:
    earlier = replace(HELD, submit_time=ENDED.submit_time - 86400)
    assert get_status_of_job_action(action("release"), RECORD, earlier, START - 86400).due is ActionState.NOW
    assert (
        get_status_of_job_action(action("release"), RECORD, replace(earlier, restarts=0), START - 86400).due
        is ActionState.VOID
    )


def test_release_is_done_once_the_job_is_no_longer_held() -> None:
    assert get_status_of_job_action(action("release"), RECORD, HELD, START).due is ActionState.NOW
    assert get_status_of_job_action(action("release"), RECORD, FREE, START).due is ActionState.DONE


def test_a_start_time_is_done_once_the_job_starts_at_or_before_it() -> None:
    start = action("update job", "StartTime", "now+60")
    assert get_status_of_job_action(start, RECORD, FREE, START).due is ActionState.NOW
    assert (
        get_status_of_job_action(start, RECORD, replace(FREE, eligible_time=START + 60), START).due is ActionState.DONE
    )
    assert get_status_of_job_action(start, RECORD, replace(FREE, state="RUNNING"), START).due is ActionState.DONE


def test_a_later_start_time_than_slurms_own_is_not_done() -> None:
    start = action("update job", "StartTime", "now+3600")
    assert get_status_of_job_action(start, RECORD, FREE, START + 5).due is ActionState.NOW
    assert (
        get_status_of_job_action(start, RECORD, replace(FREE, eligible_time=START + 3603), START + 5).due
        is ActionState.DONE
    )


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("MinMemoryNode", "6000", {"mem_mib_per_node": 6000}),
        ("MinMemoryCPU", "600", {"mem_mib_per_cpu": 600}),
        ("TimeLimit", "90", {"time_limit_s": 5400}),
    ],
)
def test_a_size_update_is_repeated_because_slurm_also_shows_refused_values(
    key: str, value: str, shown: dict[str, object]
) -> None:
    visible = replace(HELD, **shown)  # type: ignore[arg-type]
    assert get_status_of_job_action(action("update job", key, value), RECORD, visible, START).due is ActionState.NOW


def fleet(**changes: object) -> Fleet:
    return Fleet(nodes=(node("n1", **changes), *(node(f"n{i}") for i in range(2, 9))))


DRAINED = frozenset({"DRAIN"})


@pytest.mark.parametrize(
    ("nodes", "due"),
    [
        (fleet(), ActionState.NOW),
        (fleet(flags=DRAINED, reason="slurmwrap: gpu_hardware"), ActionState.DONE),
        (fleet(flags=DRAINED, reason="bob: fans"), ActionState.VOID),
        (fleet(flags=DRAINED), ActionState.VOID),
        (fleet(state="DOWN", reason="bob: moved"), ActionState.VOID),
        (Fleet(nodes=(node("n2"),)), ActionState.VOID),
    ],
)
def test_status_of_a_drain(nodes: Fleet, due: ActionState) -> None:
    assert get_status_of_drain(action("drain", target="n1"), nodes, 0.2).due is due


def test_a_drain_above_the_cap_is_void_and_names_the_count() -> None:
    taken = Fleet(nodes=(node("n1"), node("n2", flags=DRAINED, reason="slurmwrap: x"), node("n3")))
    found = get_status_of_drain(action("drain", target="n1"), taken, 0.3)
    assert (found.due, found.why) == (
        ActionState.VOID,
        "1 of 3 nodes are already drained by slurmwrap: placement.exclude_cap is used up",
    )
