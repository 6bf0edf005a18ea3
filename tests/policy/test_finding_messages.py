"""Messages about findings: one per array and cause, at most N in an hour per user, the last one a summary."""

from __future__ import annotations

from dataclasses import replace

from slurmwrap.model.evidence import RunKey
from slurmwrap.model.running_job import DIVERGED, FINDING_KINDS, IDLE, STUCK, EarlyFinding
from slurmwrap.policy.finding_messages import MessagePlan, list_due, list_message_times, plan_messages
from slurmwrap.report.finding_text import (
    FindingText,
    format_finding,
    format_finding_summary,
    format_public_finding,
    get_finding_title,
)

PLAIN = EarlyFinding(
    attempt=RunKey(cluster="lab", job_id=81, submit_time=1),
    kind=STUCK,
    at=1000.0,
    n=700,
    evidence="last step 12 of secret.py",
    uid=1001,
    address="81",
    mode="advise",
)


def finding(job_id: int, address: str = "", **changes: object) -> EarlyFinding:
    key = RunKey(cluster="lab", job_id=job_id, submit_time=1)
    return replace(PLAIN, attempt=key, address=address or str(job_id), **changes)  # type: ignore[arg-type]


def plan(due: list[EarlyFinding], earlier: list[EarlyFinding] | None = None, capacity: int = 10) -> MessagePlan:
    return plan_messages(due, earlier or [], lambda uid: capacity)


def addresses(found: MessagePlan) -> list[list[str]]:
    return [[one.address for one in group.findings] for group in found.single]


def test_what_is_gone_ended_observed_or_reported_is_not_due() -> None:
    every = [
        PLAIN,
        replace(PLAIN, mode="observe"),
        replace(PLAIN, notified=True),
        replace(PLAIN, gone_at=5.0),
        finding(82),
        finding(82, action="cancel"),
    ]
    assert list_due(every, lambda one: one.attempt.job_id == 81) == (PLAIN, every[5])


def test_tasks_of_an_array_with_one_cause_are_one_message() -> None:
    tasks = [finding(1000 + number, f"77_{number}", at=1000.0 - number) for number in (1, 2, 10)]
    other = [finding(1003, "77_3", kind=IDLE), finding(1004, "77_4", uid=4711), finding(90), finding(91)]
    assert addresses(plan([*tasks, *other])) == [["77_10", "77_2", "77_1"], ["90"], ["91"], ["77_3"], ["77_4"]]


def test_a_later_task_of_a_reported_cause_is_covered_but_a_new_array_or_run_is_not() -> None:
    reported = [finding(1001, "77_1", notified=True), finding(90, notified=True)]
    later = finding(1002, "77_2", at=5000.0)
    again = replace(finding(90), attempt=RunKey(cluster="lab", job_id=90, submit_time=2))
    found = plan([later, again], reported)
    assert found.silent == (later,) and addresses(found) == [["90"]]
    reused = finding(5002, "77_2", at=1000.0 + 90 * 86400)
    assert addresses(plan([reused], reported)) == [["77_2"]]


def test_more_than_the_limit_becomes_a_summary_and_without_capacity_all_wait() -> None:
    due = [finding(number, at=float(number)) for number in range(1, 6)]
    found = plan(due, capacity=3)
    assert addresses(found) == [["1"], ["2"]]
    assert [[group.first.address for group in groups] for groups in found.summaries] == [["3", "4", "5"]]
    assert plan(due, capacity=0) == MessagePlan()
    assert addresses(plan(due, capacity=5)) == [["1"], ["2"], ["3"], ["4"], ["5"]]


def test_stored_findings_show_when_messages_were_sent() -> None:
    stored = [
        finding(1001, "77_1", notified=True, at=5000.0),
        finding(1002, "77_2", notified=True, at=9000.0),
        finding(90, notified=True, at=8000.0),
        finding(91, at=8000.0),
    ]
    assert list_message_times(stored, since=4000.0) == ((1001, 5000.0), (1001, 8000.0))
    assert list_message_times(stored, since=6000.0) == ((1001, 8000.0),)


def test_the_owner_gets_the_evidence_and_others_get_figures() -> None:
    (group,) = plan([PLAIN]).single
    assert format_finding(group, "ada", "train") == FindingText(
        subject="Slurm job 81 train: it makes no progress",
        text="no step for 12 min\nlast step 12 of secret.py\n\nslurmwrap watch 81\nslurmwrap why 81",
        facts=format_public_finding(group, "ada").facts,
    )
    public = format_public_finding(group, "ada")
    assert public.subject == "Slurm job 81 of ada: it makes no progress"
    assert public.text == "no step for 12 min\n\nslurmwrap watch 81\nslurmwrap why 81"
    assert public.facts["findings"] == [{"jobs": ["81"], "kind": "stuck", "n": 700, "action": "", "at": 1000}]


def test_a_message_about_an_array_names_its_tasks_and_what_was_done() -> None:
    tasks = [finding(1000 + number, f"77_{number}", kind=DIVERGED, n=5, action="cancel") for number in range(10, 0, -1)]
    (group,) = plan(tasks).single
    found = format_finding(group, "ada")
    assert found.subject == "Slurm array 77, 10 tasks: its loss is NaN or infinite"
    assert found.text.splitlines()[:4] == [
        "77_1, 77_2, 77_3, 77_4, 77_5, 77_6, 77_7, 77_8, .... "
        "No message follows about further tasks of array 77 with the same cause.",
        "seen in 5 lines",
        "last step 12 of secret.py",
        "slurmwrap has cancelled it.",
    ]


def test_a_summary_has_a_line_for_each_and_no_evidence() -> None:
    groups = plan([finding(number, at=float(number), n=0) for number in range(1, 31)], capacity=1).summaries[0]
    found = format_finding_summary(groups, "ada")
    assert found.subject == "Slurm: 30 further findings about running jobs of ada"
    assert found.text.splitlines()[1] == "job 1: it makes no progress"
    assert found.text.splitlines()[-1] == "... and 10 more" and "secret" not in found.text


def test_each_kind_has_a_title() -> None:
    assert len({get_finding_title(kind) for kind in FINDING_KINDS}) == len(FINDING_KINDS)
    assert not any(get_finding_title(kind) == kind.replace("_", " ") for kind in FINDING_KINDS)
