"""Faults of network ports: their lines, what they explain, and what they do not."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import START

from slurmwrap.diagnosis.build_evidence import join
from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.diagnosis.network_facts import DOWN, NOISY, SLOWER, SOME_ERRORS, format_port_lines, parse_port_event
from slurmwrap.model.evidence import Diagnosis, Evidence, LogTail, RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.observation import Context, Observation
from slurmwrap.policy.strikes import find_blamed_node, make_drain_actions, make_strikes

# NVIDIA/nccl issue 905: a completion with error 12, the transport's retries are exceeded.
NCCL = (
    "n01:441:512 [3] transport/net_ib.cc:1480 NCCL WARN NET/IB : Got completion from peer 10.0.0.4<4791> with status=12"
)
WATCHDOG = "[rank6]:[E703 11:31:02.118 ProcessGroupNCCL.cpp:616] [Rank 6] Watchdog caught collective operation timeout"


def epilog(node: str = "n3", seconds: float = 7200, **port: Any) -> Observation:
    found = {"port": "mlx5_0/1", "link": "infiniband", **port}
    facts = {"network": {"ports": 8, "s": seconds, "changed": [found]}}
    return Observation(nonce=node, cluster="c", job_id=41, context=Context.EPILOG, at=START, node=node, facts=facts)


START_OF_LINE = "network on n3: InfiniBand port mlx5_0/1 "
LINES = {
    "lost twice": (
        {"new": {"link_downed": 2}, "downs": 7},
        DOWN,
        "went down 2 times while the job ran (link_downed 7)",
    ),
    "at the largest value": (
        {"new": {"link_downed": 5}, "full": ["link_downed"], "downs": 255},
        DOWN,
        "went down at least 5 times while the job ran (link_downed 255)",
    ),
    "down at the end": (
        {"new": {"link_downed": 1}, "downs": 7, "state": "DOWN", "was": "ACTIVE"},
        DOWN,
        "is DOWN, it was ACTIVE (link_downed 7)",
    ),
    "gone": ({"gone": True}, DOWN, "is gone"),
    "few errors": ({"new": {"symbol_error": 240}}, SOME_ERRORS, "has errors: symbol_error 240 in 2.0 h"),
    "more than a healthy link has": (
        {"new": {"symbol_error": 241, "port_rcv_errors": 3}},
        NOISY,
        "has too many errors: symbol_error 241, port_rcv_errors 3 in 2.0 h",
    ),
    "any of these": (
        {"new": {"local_link_integrity_errors": 1}},
        NOISY,
        "has too many errors: local_link_integrity_errors 1 in 2.0 h",
    ),
    "slower": ({"rate": "100 Gb/sec", "was_rate": "200 Gb/sec"}, SLOWER, "runs at 100 Gb/sec, it ran at 200 Gb/sec"),
}


@pytest.mark.parametrize("name", LINES)
def test_a_fault_of_a_port_is_one_line_that_can_be_read_again(name: str) -> None:
    port, kind, text = LINES[name]
    (line,) = format_port_lines(epilog(**port))
    event = parse_port_event(line)
    assert line == START_OF_LINE + text
    assert event is not None and (event.node, event.port, event.kind) == ("n3", "mlx5_0/1", kind)


@pytest.mark.parametrize("changed", [None, 7, {}, [7], [{"port": 3, "new": "x", "rate": 7, "state": ["y"]}], [{}]])
def test_malformed_facts_break_nothing(changed: object) -> None:
    facts = {"network": {"ports": "x", "s": float("inf"), "changed": changed}}
    found = Observation(nonce="", cluster="c", job_id=1, context=Context.EPILOG, at=1.0, node="n3", facts=facts)
    assert all(parse_port_event(line) for line in format_port_lines(found))


def diagnose(log: str, *epilogs: Observation, nodes: tuple[str, ...] = ("n3", "n4")) -> Diagnosis:
    job = JobRecord(job_id=41, state="FAILED", exit_code=1, nodes=nodes, start_time=0, end_time=7200)
    return diagnose_run(
        join(RunKey(cluster="c", job_id=41, submit_time=0), job, epilogs, logs=(LogTail(name="out", text=log),))
    )


LOST = epilog(new={"link_downed": 2}, downs=7)


@pytest.mark.parametrize("log", [NCCL, WATCHDOG])
def test_a_link_that_went_down_explains_a_lost_peer_and_names_the_node(log: str) -> None:
    found = diagnose(log, LOST)
    assert (found.category, found.decision, found.node) == ("node_failure", "retry_elsewhere", "n3")
    assert "port mlx5_0/1 went down 2 times" in found.advice and "(link_downed 7)" in found.advice
    assert found.evidence[0].source == "network:n3" and found.evidence[1].role == "cascade"
    run = JobRun(attempt=RunKey(cluster="c", job_id=41, submit_time=0), uid=7, nodes=("n3", "n4"), diagnosis=found)
    assert find_blamed_node(found, run) == "n3"
    assert [strike.node for strike in make_strikes(found, run)] == ["n3"] and not make_drain_actions(found, run)


@pytest.mark.parametrize(
    ("log", "epilogs", "nodes"),
    [
        (NCCL, (LOST, epilog("n4", new={"link_downed": 1}, downs=1)), ("n3", "n4")),  # rather the switch
        (NCCL, (LOST,), ("n3",)),  # on one node
        (NCCL, (epilog(new={"symbol_error": 9}),), ("n3", "n4")),
        (NCCL, (LOST,), ("n1", "n2")),  # Slurm does not list n3
        ("NCCL WARN Duplicate GPU detected : rank 1 and rank 0", (LOST,), ("n3", "n4")),
        (
            "torch.distributed.DistBackendError: NCCL error: unhandled cuda error, NCCL version 2.21",
            (LOST,),
            ("n3", "n4"),
        ),
        (
            "Traceback (most recent call last):\n  File 'a.py', line 1, in <module>\nKeyError: 'x'",
            (LOST,),
            ("n3", "n4"),
        ),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", (LOST,), ("n3", "n4")),
        ("", (LOST,), ("n3", "n4")),
        ("requests.exceptions.ConnectionError: huggingface.co: Max retries exceeded", (LOST,), ("n3", "n4")),
    ],
)
def test_what_a_link_does_not_explain_names_no_node(
    log: str, epilogs: tuple[Observation, ...], nodes: tuple[str, ...]
) -> None:
    found = diagnose(log, *epilogs, nodes=nodes)
    assert found.node == "" and found.category != "node_failure"


def test_broken_links_of_several_nodes_are_cited_but_name_no_node() -> None:
    found = diagnose(NCCL, LOST, epilog("n4", state="DOWN", was="ACTIVE"))
    cited = [(one.source, one.role) for one in found.evidence if one.source.startswith("network")]
    assert (found.category, cited) == ("nccl_error", [("network:n3", "support"), ("network:n4", "support")])


def test_few_errors_are_shown_but_are_no_evidence_about_the_node() -> None:
    found = diagnose(NCCL, epilog(new={"symbol_error": 9}))
    assert [(one.source, one.text) for one in found.evidence if one.role == "support"] == [
        ("hook", START_OF_LINE + "has errors: symbol_error 9 in 2.0 h")
    ]


def test_a_user_cannot_write_such_evidence() -> None:
    claimed = START_OF_LINE + "went down 2 times while the job ran (link_downed 7)\n"
    found = diagnose_run(
        Evidence(state="FAILED", exit_code=1, nodes=("n3", "n4"), logs=(LogTail(name="o", text=claimed + NCCL),))
    )
    assert (found.category, found.node) == ("nccl_error", "")
