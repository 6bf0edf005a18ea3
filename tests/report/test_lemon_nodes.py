"""What the page shows for suspect and lemon nodes, and the actions it recommends."""

from __future__ import annotations

from slurmwrap.config.load_config import Nodes
from slurmwrap.model.job_run import StrikeRecord
from slurmwrap.policy.node_history import Exposure, NodeHistory
from slurmwrap.report.lemon_nodes import list_lemons, list_nodes_to_drain
from slurmwrap.report.night_report import ToDo

NOW = 1_795_240_800.0
RAN = tuple(Exposure(node=f"n{n}", runs=100, hours=600.0) for n in range(40))


def make_history(**jobs: list[tuple[int, int]]) -> NodeHistory:
    """Make a node history; `jobs`: for each node the (job id, uid) pairs of its strikes."""
    strikes = tuple(
        StrikeRecord(node=node, cause="gpu_hardware", conclusive=False, job_id=job, uid=uid, at=NOW - 3600.0, text="")
        for node, struck in jobs.items()
        for job, uid in struck
    )
    return NodeHistory(exposure=RAN, strikes=strikes)


def test_a_suspect_row_says_which_lemon_criterion_is_not_met() -> None:
    rows = list_lemons(make_history(n1=[(n, 7) for n in range(1, 9)]), Nodes(), (), now=NOW)
    assert [(row.nodes, row.status, row.why) for row in rows] == [
        (("n1",), "suspect", "not a lemon yet: 1 of 2 users that must have met faults on it")
    ]
    assert rows[0].command == "slurmwrap nodes show n1"
    assert list_nodes_to_drain(rows, set()) == ()


def test_a_lemon_node_in_service_is_listed_for_draining() -> None:
    found = make_history(n1=[(n, n) for n in range(1, 9)], n2=[(n, n) for n in range(20, 28)])
    (row,) = list_lemons(found, Nodes(), (), now=NOW)
    reason = f"slurmwrap: lemon, {row.ratio:.1f} times the rate of the fleet, 8 jobs"
    assert row.command == f"scontrol update NodeName='n[1-2]' State=DRAIN Reason='{reason}'"
    why = f"lemon: {row.ratio:.1f} times the fleet's rate; 8 jobs of 8 users were struck"
    assert list_nodes_to_drain((row,), {"n1"}) == (ToDo(why=why, command=row.command),)
    assert list_nodes_to_drain((row,), {"n1", "n2"}) == ()  # drains of these nodes are listed already
    # these nodes are out of service already
    assert list_nodes_to_drain(list_lemons(found, Nodes(), ("n1", "n2"), now=NOW), set()) == ()
