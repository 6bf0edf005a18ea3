"""The history of nodes in the database: GPU faults, failures, runs, removals, and marks set by administrators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import START

from slurmwrap.model.decision import Strike
from slurmwrap.model.evidence import Citation, Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.observation import Context, Observation
from slurmwrap.policy.node_history import CLEARED, Exposure, GpuFault, NodeFailure, Removal, Repair
from slurmwrap.store.database import Database

XID = "NVRM: Xid (PCI:0000:05:00): 79, pid=7"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path / "site.db") as opened:
        yield opened


def make_run(job_id: int, *nodes: str, hours: float = 1.0, ended: int = START, **changes: Any) -> JobRun:
    attempt = RunKey(cluster="lab", job_id=job_id, submit_time=START - 9000)
    record = JobRun(
        attempt=attempt,
        nodes=nodes,
        uid=1001,
        start_time=ended - int(hours * 3600),
        end_time=ended,
        diagnosis=make_diagnosis(),
    )
    return replace(record, **changes)


def make_diagnosis(category: str = "node_failure", **changes: Any) -> Diagnosis:
    cited = (Citation(source="slurm", line=0, text="State NODE_FAIL"),)
    base = Diagnosis(
        category=category, domain="IF", decision="retry_elsewhere", confidence=1, signature="slurm.state_node_fail",
        evidence=cited,
    )  # fmt: skip
    return replace(base, **changes)


def make_epilog(nonce: str, job_id: int = 81, **changes: Any) -> Observation:
    facts = {"uid": 1001, "kernel": [{"text": XID, "at": START}]}
    base = Observation(
        nonce=nonce, cluster="lab", job_id=job_id, context=Context.EPILOG, at=START, node="n1", facts=facts
    )
    return replace(base, **changes)


def test_runs_and_hours_are_summed_per_node(store: Database) -> None:
    fine = make_diagnosis("success")
    for record in (
        make_run(1, "n1", "n2", hours=2, diagnosis=fine),
        make_run(2, "n1", hours=0.5, diagnosis=fine),
        make_run(3, "n1", ended=START - 99999, diagnosis=fine),
        make_run(4, "n3", start_time=None, diagnosis=fine),
        make_run(5, "n3", end_time=None, diagnosis=fine),
    ):
        store.save_attempt(record)
    found = store.node_history(START - 100)
    assert found.exposure == (Exposure(node="n1", runs=2, hours=2.5), Exposure(node="n2", runs=1, hours=2.0))
    assert found.failures == ()


def test_a_user_without_a_name_makes_no_node_suspect(store: Database) -> None:
    """Slurm cannot launch the jobs of a user who vanished from the directory service, on any node."""
    store.save_attempt(make_run(1, "n1", user="1001"))
    store.save_attempt(make_run(2, "n2", user="ada"))
    assert [failure.job_id for failure in store.node_history(0).failures] == [2]


def test_node_failures_include_the_named_node_and_the_incident(store: Database) -> None:
    store.save_attempt(make_run(1, "n1", "n2", diagnosis=make_diagnosis(node="n2")))
    store.save_attempt(make_run(2, "n1", incident="i1"))
    store.save_attempt(make_run(3, "n1", diagnosis=make_diagnosis(signature="hook.refused")))
    plain = NodeFailure(nodes=("n1",), at=START, job_id=2, uid=1001, text="slurm: State NODE_FAIL", incident="i1")
    named = replace(plain, nodes=("n1", "n2"), job_id=1, named="n2", incident="")
    assert sorted(store.node_history(0).failures, key=lambda f: f.job_id) == [named, plain]


def test_xids_of_an_epilog_are_stored_once_with_the_incident_of_their_job(store: Database) -> None:
    store.save_attempt(make_run(81, "n1", incident="i1"))
    assert [store.ingest(make_epilog("a")), store.ingest(make_epilog("a")), store.ingest(make_epilog("b", 82))] == [
        True,
        False,
        True,
    ]
    store.ingest(make_epilog("c", 83, context=Context.SUBMIT))
    plain = GpuFault(node="n1", at=START, job_id=82, uid=1001, text=XID)
    assert store.node_history(0).gpu_faults == (replace(plain, job_id=81, incident="i1"), plain)
    assert store.node_history(START + 1).gpu_faults == ()


def test_cleared_strikes_are_kept_but_do_not_count(store: Database) -> None:
    strike = Strike(node="n1", cause="gpu_hardware", conclusive=True, text="Xid 79")
    for at, node in ((START, "n1"), (START + 5, "n1"), (START, "n2")):
        store.add_strike(replace(strike, node=node), at, 81, 1001)
    assert store.clear_strikes("n1", "eve", START + 1) == 1
    assert store.clear_strikes("n1", "bob", START + 1) == 0
    assert [(s.node, s.at) for s in store.strikes(since=0)] == [("n2", START), ("n1", START + 5)]
    kept = [(s.node, s.at, s.cleared_at, s.cleared_by) for s in store.node_history(0).strikes if s.cleared_by]
    assert kept == [("n1", START, START + 1, "eve")]


def test_removals_are_listed_until_they_end_and_repairs_stay(store: Database) -> None:
    out = Removal(node="n1", began=START, reason="slurmwrap: x", ours=True)
    store.save_removal(out)
    assert store.removals() == (out,)
    store.save_removal(replace(out, ended=START + 9.0))
    assert store.removals() == ()
    mark = Repair(node="n1", at=START, who="eve", kind=CLEARED, note="it was the driver")
    store.add_repair(mark)
    store.add_repair(mark)
    found = store.node_history(0)
    assert (found.removals, found.repairs) == ((replace(out, ended=START + 9.0),), (mark,))
    assert store.repairs(since=START + 1) == ()
