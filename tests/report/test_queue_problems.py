"""Why pending jobs wait: requests that never fit, nodes that are missing, and chains of dependencies."""

from __future__ import annotations

import json

import pytest
from fakes import job, node

from slurmwrap.cli import list_options
from slurmwrap.cli import queue as queue_command
from slurmwrap.model.cluster import Node, Partition, Snapshot
from slurmwrap.report.queue_problems import ExplainedJob, PendingJob, QueueProblem, explain_queue

NODES = tuple(node(f"n{i}") for i in range(8))


def make_snapshot(*nodes: Node, **limits: object) -> Snapshot:
    partitions = (Partition(name="gpu", **limits), Partition(name="big"))  # type: ignore[arg-type]
    return Snapshot(taken_at=0.0, nodes=nodes or NODES, partitions=partitions)


def wait(job_id: int, dependency: str = "", **changes: object) -> PendingJob:
    reason = "Dependency" if dependency else "Priority"
    plain: dict[str, object] = {"state": "PENDING", "reason": reason, "nodes": (), "gpus": 1, "cpus_per_task": 1}
    return PendingJob(record=job(job_id, **(plain | changes)), dependency=dependency)


def explain(*jobs: PendingJob, snapshot: Snapshot | None = None) -> dict[int, ExplainedJob]:
    return {one.job.record.job_id: one for one in explain_queue(jobs, snapshot or make_snapshot())}


@pytest.mark.parametrize(
    ("changes", "limits", "words"),
    [
        ({"num_nodes": 7}, {"max_nodes": 6}, "it asks for 7 nodes; gpu gives at most 6"),
        ({"time_limit_s": 7200}, {"max_time_s": 3600}, "it asks for 2 h; gpu gives at most 60 min"),
        ({"gpus": 65, "num_nodes": 8}, {}, "it asks for 65 GPUs; all nodes of gpu together have 64"),
        ({"gpus": 9}, {}, "it asks for 1 node with 9 GPUs, 1 CPU, 4,000 MiB; gpu has none"),
        ({"gpus": 0, "min_cpus": 33}, {}, "it asks for 1 node with 33 CPUs, 4,000 MiB; gpu has none"),
        ({"mem_mib_per_node": 300_000}, {}, "it asks for 1 node with 1 GPU, 1 CPU, 300,000 MiB; gpu has none"),
        ({"features": "h100"}, {}, "it asks for 1 node with 1 GPU, 1 CPU, 4,000 MiB, feature h100; gpu has none"),
    ],
)
def test_a_request_that_no_empty_node_can_satisfy_never_starts(
    changes: dict[str, object], limits: dict[str, object], words: str
) -> None:
    found = explain(wait(1, **changes), snapshot=make_snapshot(**limits))[1]
    assert (found.problem, found.words) == (QueueProblem.NEVER, words)
    assert "scontrol update JobId=1" in found.way_out


@pytest.mark.parametrize(
    "changes",
    [
        {"num_nodes": 8, "gpus": 64},
        {"features": "h100|a100"},  # an expression is not judged here
        {"partition": "gpu,big", "num_nodes": 7},  # big has no limit of nodes
        {"partition": "hidden", "gpus": 99},
    ],
)
def test_a_request_that_fits_or_cannot_be_judged_waits_for_its_turn(changes: dict[str, object]) -> None:
    nodes = tuple(node(f"n{i}", partitions=("gpu", "big")) for i in range(8))
    limits = {"max_nodes": 6} if "partition" in changes else {}
    assert explain(wait(1, **changes), snapshot=make_snapshot(*nodes, **limits))[1].problem is QueueProblem.TURN


def test_a_partition_with_hidden_nodes_is_not_judged() -> None:
    assert explain(wait(1, gpus=9), snapshot=make_snapshot(total_nodes=9))[1].problem is QueueProblem.TURN


def test_a_job_that_needs_drained_nodes_names_them_and_their_reasons() -> None:
    out = {
        "n6": {"flags": frozenset({"DRAIN"}), "reason": "GPU 3 [root@2026-11-20T06:00:00]"},
        "n7": {"state": "DOWN", "reason": "Not responding"},
    }
    nodes = tuple(node(one.name, **out.get(one.name, {})) for one in NODES)
    found = explain(wait(1, num_nodes=7, gpus=7, mem_mib_per_node=None), snapshot=make_snapshot(*nodes))[1]
    assert found.problem is QueueProblem.NODES
    assert found.words == (
        'it needs 7 nodes with 1 GPU, 1 CPU; of 8 in gpu n6 is drained ("GPU 3"); n7 is down ("Not responding")'
    )


def test_a_chain_is_explained_by_its_first_job_however_long_it_is() -> None:
    chain = [wait(n, f"afterok:{n - 1}(unfulfilled)") for n in range(2, 3001)]
    held = wait(1, reason="JobHeldUser")
    found = explain(*chain, held)
    assert found[2].words == "it waits for 1: it is held by its user"
    assert found[3].words == "it waits for 2, which waits for 1: it is held by its user"
    assert found[3000].words == (
        "it waits for 2999, which waits for 2997 more, which waits for 1: it is held by its user"
    )
    assert {one.problem for one in found.values()} == {QueueProblem.HELD, QueueProblem.CHAIN}


def test_of_alternatives_all_must_be_held_up() -> None:
    held, runs = wait(1, reason="JobHeldUser"), wait(2)
    either = wait(3, "afterok:1(unfulfilled)?afterok:2(unfulfilled)")
    both = wait(4, "afterok:1(unfulfilled),afterok:2(unfulfilled)")
    found = explain(held, runs, either, both)
    assert (found[3].problem, found[4].problem) == (QueueProblem.LATER, QueueProblem.CHAIN)
    held_too = wait(2, reason="JobHeldAdmin")
    assert explain(held, held_too, either)[3].problem is QueueProblem.CHAIN


def test_jobs_that_wait_for_each_other_or_for_running_jobs_only_wait() -> None:
    found = explain(
        wait(1, "after:2(unfulfilled)"), wait(2, "after:1(unfulfilled)"), wait(3, "afterok:77_*(unfulfilled)")
    )
    assert {one.problem for one in found.values()} == {QueueProblem.LATER}


def test_a_dependency_that_failed_names_the_job() -> None:
    found = explain(wait(3, "afterok:2(failed)", reason="DependencyNeverSatisfied"))[3]
    assert (found.problem, found.words) == (QueueProblem.CHAIN, "job 2 did not end as afterok asks")
    assert found.way_out.endswith("scontrol update JobId=3 Dependency=")


@pytest.mark.parametrize(
    ("reason", "problem"),
    [
        ("QOSMaxGRESPerUser", QueueProblem.LIMIT),
        ("QOSMaxGRESPerJob", QueueProblem.NEVER),
        ("AssocGrpGRES", QueueProblem.LIMIT),
        ("ReqNodeNotAvail, UnavailableNodes:n1", QueueProblem.NODES),
        ("BeginTime", QueueProblem.LATER),
        ("Resources", QueueProblem.TURN),
        ("BadConstraints", QueueProblem.NEVER),
        ("launch failed requeued held", QueueProblem.HELD),
        ("Licenses", QueueProblem.LATER),
    ],
)
def test_slurms_own_reasons_are_sorted_by_what_a_person_can_do(reason: str, problem: QueueProblem) -> None:
    assert explain(wait(1, reason=reason))[1].problem is problem


def test_jobs_that_need_a_person_come_first_then_those_with_most_gpus() -> None:
    jobs = (wait(1, gpus=8), wait(2, reason="JobHeldUser"), wait(3, gpus=9), wait(4, gpus=2))
    assert [one.job.record.job_id for one in explain_queue(jobs, make_snapshot())] == [3, 2, 1, 4]


EVIL = "\x1b]0;x\x07\x1b[2J\r\n\u202e=cmd()"


def test_text_that_users_chose_is_shown_without_control_characters_and_adds_no_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Slurm checks features, names of nodes, reasons and dependencies, but not in every release."""
    nodes = (*NODES[:7], node("n7", state="DOWN", reason=f"bad {EVIL} [ada@2026-11-20T06:00:00]"))
    jobs = (
        wait(1, features=f"h100{EVIL}", user=EVIL, name=EVIL, account=EVIL, num_nodes=9),
        wait(2, f"afterok:1(unfulfilled),{EVIL},afterok:{'9' * 300}(failed)", user=EVIL),
        wait(3, reason=f"{EVIL} {EVIL}"),
        wait(4, reason="DependencyNeverSatisfied", features=EVIL),
        wait(5, reason=f"ReqNodeNotAvail, UnavailableNodes:n7,{EVIL}[["),
        wait(6, num_nodes=8, mem_mib_per_node=None),
        wait(7, partition=f"gpu,{EVIL}"),
    )
    explained = explain_queue(jobs, make_snapshot(*nodes))
    assert len(explained) == 7
    plain = "\n".join(queue_command._format_page(explained, 0.0, True, private=False))
    assert all(character.isprintable() or character == "\n" for character in plain)
    lines = [line for line in plain.splitlines() if line.strip()]
    assert [line for line in lines if not line.startswith("  ") and "GPU" not in line] == []
    assert 'n7 is down ("bad ' in " ".join(plain.split())
    list_options.print_json_rows("queue", {"rows": map(queue_command._make_row, explained), "more": 0})
    written = capsys.readouterr().out
    assert written.isascii() and "\x1b" not in written
    assert len(json.loads(written)["rows"]) == 7


@pytest.mark.parametrize("text", ["after" * 9000, "after:1," * 9000, "(" * 9000, "afterok:1+" + "9" * 9000, "?" * 9000])
def test_a_long_dependency_of_a_user_is_read_in_one_go(text: str) -> None:
    found = explain(wait(1, text), wait(2, f"afterok:1(unfulfilled)?{text}"))
    assert {one.problem for one in found.values()} == {QueueProblem.LATER}
