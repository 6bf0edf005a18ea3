"""Which drained nodes may return, and which nodes must be rebooted."""

from __future__ import annotations

import pytest

from slurmwrap.model.cluster import Node, Reservation
from slurmwrap.model.job_run import StrikeRecord
from slurmwrap.policy.node_history import (
    CheckedPart,
    GpuFault,
    NodeCheck,
    NodeHistory,
    Removal,
    Repair,
    make_node_check,
)
from slurmwrap.policy.node_return import (
    format_advice,
    get_newest_checks,
    list_nodes_in_check,
    list_rebooted_drains,
    list_reboots_due,
)

DRAINED = Node(name="n1", state="IDLE", flags=frozenset({"DRAIN"}), reason="slurmwrap: xid_79, seen by job 7")
REMOVAL = Removal(node="n1", began=1000.0, ours=True)


def make_check(at: float, state: str = "ok", *, reboot: bool = False) -> NodeCheck:
    return make_node_check("n1", at, "root", [CheckedPart(name="gpus", state=state)], reboot=reboot)


def make_strike(at: float, text: str) -> StrikeRecord:
    return StrikeRecord(node="n1", cause="gpu_hardware", conclusive=True, text=text, at=at, job_id=7, uid=1001)


def test_a_check_fails_with_one_part_and_without_any() -> None:
    skipped = CheckedPart(name="nccl", state="skipped")
    failed = CheckedPart(name="disk", state="fail", text="/tmp: read-only")
    assert make_node_check("n1", 1.0, "root", [skipped]).passed
    found = make_node_check("n1", 1.0, "root", [skipped, failed])
    assert (found.passed, found.note) == (False, "disk: /tmp: read-only")
    assert not make_node_check("n1", 1.0, "root", []).passed


@pytest.mark.parametrize(
    ("node", "removal", "booted", "checked_at", "expected"),
    [
        (DRAINED, REMOVAL, 2000.0, None, ("n1",)),
        (DRAINED, REMOVAL, 2000.0, 1500.0, ("n1",)),
        (DRAINED, REMOVAL, 2000.0, 2500.0, ()),  # checked since the reboot, and it did not pass
        (DRAINED, REMOVAL, 900.0, None, ()),  # not rebooted since
        (DRAINED, REMOVAL, None, None, ()),
        (DRAINED, Removal(node="n1", began=1000.0, ours=False), 2000.0, None, ()),
        (Node(name="n1", state="IDLE", flags=frozenset({"DRAIN"}), reason="fan"), REMOVAL, 2000.0, None, ()),
        (Node(name="n1", state="IDLE"), REMOVAL, 2000.0, None, ()),
    ],
)
def test_a_drain_of_slurmwraps_may_end_after_a_reboot(
    node: Node, removal: Removal, booted: float | None, checked_at: float | None, expected: tuple[str, ...]
) -> None:
    checks = {} if checked_at is None else {"n1": make_check(checked_at, "fail")}
    assert list_rebooted_drains([node], [removal], {} if booted is None else {"n1": booted}, checks) == expected


def test_a_reboot_is_due_until_the_node_was_rebooted_repaired_or_passed_a_check() -> None:
    history = NodeHistory(strikes=(make_strike(1000.0, "GPU 3 asks for recovery action node_reboot"),))
    assert list_reboots_due(history, {}, {}) == ("n1",)
    assert list_reboots_due(history, {}, {"n1": 900.0}) == ("n1",)
    assert list_reboots_due(history, {}, {"n1": 1100.0}) == ()
    assert list_reboots_due(history, {"n1": make_check(1100.0)}, {}) == ()
    repaired = NodeHistory(strikes=history.strikes, repairs=(Repair(node="n1", at=1100.0, who="root"),))
    assert list_reboots_due(repaired, {}, {}) == ()
    kernel = (
        "NVRM: Xid (PCI:0000:0f:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    )
    fault = GpuFault(node="n1", at=1000.0, job_id=7, uid=1001, text=kernel)
    assert list_reboots_due(NodeHistory(gpu_faults=(fault,)), {}, {}) == ("n1",)
    reset = NodeHistory(strikes=(make_strike(1000.0, "GPU 3 asks for recovery action gpu_reset"),))
    assert list_reboots_due(reset, {}, {}) == ()
    assert list_reboots_due(NodeHistory(), {"n1": make_check(1200.0, "fail", reboot=True)}, {}) == ("n1",)


def test_nodes_in_a_reservation_of_the_check_are_in_check() -> None:
    own = Reservation(name="slurmwrap_check_n1", start=0, end=1, nodes=("n1",))
    other = Reservation(name="maintenance", start=0, end=1, nodes=("n2",))
    assert list_nodes_in_check([own, other]) == {"n1"}


def test_advice_names_the_command_for_all_nodes_at_once() -> None:
    reboot, resume = format_advice(["n4"], ["n2", "n1"])[::-1]
    assert 'scontrol reboot ASAP nextstate=RESUME reason="slurmwrap: NVML asks for a reboot"' in reboot
    assert "n[1-2]" in reboot and "slurmwrap nodes repaired n4 --resume" in resume.replace("'", "")
    assert format_advice([], []) == ()
    assert get_newest_checks([make_check(2.0), make_check(1.0)])["n1"].at == 2.0
