"""Rule `resume`: nodes that were rebooted since slurmwrap drained them are advised, or checked one at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import FakeSlurm, node
from test_reconcile_pass import World

from slurmwrap.config.load_config import Config
from slurmwrap.model.cluster import Reservation, Snapshot
from slurmwrap.policy.node_history import CheckedPart, Removal, make_node_check
from slurmwrap.reconcile.reconcile_context import ReconcilerState
from slurmwrap.reconcile.reconcile_pass import reconcile_once

DRAINED = frozenset({"DRAIN"})


class Nodes:
    """A site with two nodes that slurmwrap drained and one that a person drained, all rebooted since."""

    def __init__(self, path: Path) -> None:
        self.world = World(path)
        for name, reason in (("n1", "slurmwrap: xid_79"), ("n2", "slurmwrap: xid_79"), ("n3", "fan")):
            self.world.slurm.nodes[name] = node(name, flags=DRAINED, reason=reason)
            ours = reason.startswith("slurmwrap:")
            began = self.world.clock.now() - 1000
            self.world.store.save_removal(Removal(node=name, began=began, reason=reason, ours=ours))
        self.booted = self.world.clock.now() - 100
        self.state = ReconcilerState()
        self.started: list[str] = []
        self.exit_code: int | None = None

    def reconcile(self, mode: str, **changes: object) -> None:
        def start(node: str) -> Callable[[], int | None]:
            self.started.append(node)
            return lambda: self.exit_code

        self.world.clock.sleep(400)
        found = replace(
            self.world.services(), config=Config(rules={"resume": mode}), start_node_check=start,
            boot_times=lambda: dict.fromkeys(("n1", "n2", "n3"), self.booted), **changes,
        )  # fmt: skip
        assert reconcile_once(found, self.state).errors == []

    def actions(self) -> list[tuple[str, str, str, bool, str]]:
        found = [action for action in self.world.store.actions() if action.rule == "resume"]
        return [(one.verb, one.target, one.mode, one.done_at is not None, one.error) for one in found]


@pytest.fixture
def site(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def test_advice_is_recorded_once_for_each_node_that_slurmwrap_drained(site: Nodes) -> None:
    site.reconcile("advise")
    site.reconcile("advise")
    assert site.actions() == [("resume", "n1", "advise", False, ""), ("resume", "n2", "advise", False, "")]
    assert site.started == []


def test_in_mode_observe_nothing_is_recorded(site: Nodes) -> None:
    site.reconcile("observe")
    assert site.actions() == []


def test_nodes_are_checked_one_after_the_other(site: Nodes) -> None:
    site.reconcile("act")
    site.reconcile("act")
    assert site.started == ["n1"]
    site.exit_code = 3
    # What the child process records.
    failed = make_node_check("n1", site.world.clock.now(), "root", [CheckedPart(name="gpus", state="fail")])
    site.world.store.add_node_check(failed)
    site.reconcile("act")
    assert site.started == ["n1", "n2"]
    (first, second) = site.actions()
    assert first[:4] == ("resume", "n1", "act", True) and "exit code 3" in first[4]
    assert second == ("resume", "n2", "act", False, "")
    assert site.world.requested_actions() == []


def test_a_node_that_was_not_rebooted_is_left_alone(site: Nodes) -> None:
    site.booted = site.world.clock.now() - 2000
    site.reconcile("act")
    assert (site.started, site.actions()) == ([], [])


class CheckingSlurm(FakeSlurm):
    """n1 is being checked."""

    def snapshot(self) -> Snapshot:
        own = Reservation(name="slurmwrap_check_n1", start=0, end=1 << 31, nodes=("n1",))
        return replace(super().snapshot(), reservations=(own,))


def test_a_drain_that_is_lifted_for_a_check_is_no_repair(site: Nodes) -> None:
    site.world.slurm.nodes["n1"] = node("n1", flags=frozenset({"MAINTENANCE", "RESERVED"}))
    checking = CheckingSlurm(clock=site.world.clock, nodes=site.world.slurm.nodes)
    site.reconcile("observe", slurm=checking)
    assert "n1" in [removal.node for removal in site.world.store.removals()]
    assert site.world.store.repairs(since=0) == ()
    # After the reservation the node counts as back: a person lifted the drain.
    site.state = ReconcilerState()
    site.reconcile("observe")
    assert [(repair.node, repair.kind) for repair in site.world.store.repairs(since=0)] == [("n1", "lifted")]


def test_checks_are_stored_beside_the_repairs_and_are_none(site: Nodes) -> None:
    passed = make_node_check("n1", 5.0, "root", [CheckedPart(name="gpus", state="ok", text="8 GPUs")], reboot=False)
    site.world.store.add_node_check(passed)
    assert site.world.store.node_checks(since=0) == (passed,)
    assert site.world.store.repairs(since=0) == ()
    assert site.world.store.node_history(0).repairs == ()
