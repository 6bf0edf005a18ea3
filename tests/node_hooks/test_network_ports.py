"""Network ports: read from sysfs before and after a job, compared, and sent by real hooks."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hook_site import OLD_PYTHON, Site, epilog_facts, make_site, only
from port_tree import write_ib, write_net
from waiting import allow

from slurmwrap.node_hooks import network_ports

PORT = "mlx5_0/1"


class Node:
    """A node's /sys/class, and its private directory."""

    def __init__(self, root: Path) -> None:
        self.sysfs = root / "sys"
        (root / "state").mkdir(mode=0o700)
        self.settings = SimpleNamespace(sysfs=str(self.sysfs), node_state_dir=str(root / "state"))

    def read(self, before: Any = None, seconds: float = 5) -> tuple[dict[str, Any], str]:
        return network_ports.read(self.settings, time.monotonic() + allow(seconds), before)

    def compare(self, before: dict[str, Any]) -> list[dict[str, Any]]:
        now, error = self.read(before)
        assert not error
        changed: list[dict[str, Any]] = network_ports.compare(before, now)["changed"]
        return changed


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def ib(**facts: Any) -> list[dict[str, Any]]:
    return [{"port": PORT, "link": "infiniband", **facts}]


CHANGES = {
    "nothing": ({}, {}, []),
    "congestion is no fault": ({}, {"port_xmit_discards": 900}, []),
    "the link went down": ({"link_downed": 5}, {"link_downed": 7}, ib(new={"link_downed": 2}, downs=7)),
    "it is down now": (
        {"link_downed": 5},
        {"link_downed": 6, "state": "1: DOWN"},
        ib(new={"link_downed": 1}, downs=6, state="DOWN", was="ACTIVE"),
    ),
    "without a subnet manager": ({}, {"state": "2: INIT"}, ib(state="INIT", was="ACTIVE")),
    "errors": ({"symbol_error": 3}, {"symbol_error": 10}, ib(new={"symbol_error": 7})),
    "a lower rate": (
        {},
        {"rate": "100 Gb/sec (4X EDR)"},
        ib(rate="100 Gb/sec (4X EDR)", was_rate="200 Gb/sec (4X HDR)"),
    ),
    "a counter that was reset, or wrapped": (
        {"symbol_error": 900},
        {"symbol_error": 4},
        ib(new={"symbol_error": 4}, reset=["symbol_error"]),
    ),
    "reset, and nothing since": ({"symbol_error": 900}, {"symbol_error": 0}, ib(reset=["symbol_error"])),
    "a counter at its largest value": (
        {"link_downed": 250},
        {"link_downed": 255},
        ib(new={"link_downed": 5}, full=["link_downed"], downs=255),
    ),
    "a counter that stays at its largest value": ({"link_downed": 255}, {"link_downed": 255}, []),
    "no such counter": ({"symbol_error": "N/A (no PMA)"}, {"symbol_error": 9}, []),
    "the counter disappeared": ({"symbol_error": 3}, {"symbol_error": None}, []),
    "a port without a cable": ({"state": "1: DOWN"}, {"state": "1: DOWN", "symbol_error": 9}, []),
    "a port that came up": ({"state": "1: DOWN"}, {"link_downed": 9}, []),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changed_on_an_infiniband_port_is_found(node: Node, name: str) -> None:
    before, after, wanted = CHANGES[name]
    write_ib(node.sysfs, PORT, **before)
    earlier, _ = node.read()
    write_ib(node.sysfs, PORT, **after)
    assert node.compare(earlier) == wanted


def test_a_port_that_is_gone_is_reported_unless_the_reading_was_cut_short(node: Node) -> None:
    write_ib(node.sysfs, PORT)
    write_net(node.sysfs, "eth0")
    earlier, _ = node.read()
    (node.sysfs / "infiniband").rename(node.sysfs / "removed")
    (node.sysfs / "net").rename(node.sysfs / "in-a-container")
    assert node.compare(earlier) == ib(gone=True)
    assert network_ports.compare(earlier, node.read(earlier)[0], complete=False)["changed"] == []


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ({}, {"rx_dropped": 900}, {}),
        ({}, {"carrier_down_count": 3, "rx_crc_errors": 5}, {"new": {"carrier_down_count": 2, "rx_crc_errors": 5}}),
        ({}, {"operstate": "down"}, {"state": "down", "was": "up"}),
        ({}, {"speed": 10000}, {"rate": "10000 Mb/s", "was_rate": "25000 Mb/s"}),
        ({"speed": -1}, {"speed": -1}, {}),
        (
            {"carrier_down_count": None},
            {"carrier_down_count": None, "carrier_changes": 7},
            {"new": {"carrier_down_count": 2}},
        ),
    ],
)
def test_what_changed_on_an_ethernet_port_is_found(
    node: Node, before: dict[str, Any], after: dict[str, Any], wanted: dict[str, Any]
) -> None:
    write_net(node.sysfs, "eth0", **before)
    earlier, _ = node.read()
    write_net(node.sysfs, "eth0", **after)
    found = node.compare(earlier)
    assert [{**one, "downs": 3} for one in found] == (
        [{"port": "eth0", "link": "ethernet", "downs": 3, **wanted}] if wanted else []
    )


def test_only_physical_ports_are_read(node: Node) -> None:
    write_ib(node.sysfs, PORT)
    write_ib(node.sysfs, "mlx5_1/1")
    (node.sysfs / "infiniband" / "mlx5_1" / "ports" / "1" / "link_layer").write_text("Ethernet\n")  # RoCE
    write_ib(node.sysfs, "mlx5_2/1")
    (node.sysfs / "infiniband" / "mlx5_2" / "device" / "physfn").mkdir(parents=True)
    write_net(node.sysfs, "eth0")
    write_net(node.sysfs, "ib0", kind=32)
    write_net(node.sysfs, "veth1", device=False)
    write_net(node.sysfs, "eth0v3")
    (node.sysfs / "net" / "eth0v3" / "device" / "physfn").mkdir()
    write_net(node.sysfs, "usb0", device=False)
    (node.sysfs / "pci" / "usb1" / "1-14").mkdir(parents=True)
    (node.sysfs / "net" / "usb0" / "device").symlink_to(node.sysfs / "pci" / "usb1" / "1-14")  # of a BMC
    assert [name for _, name, _ in network_ports.find_ports(str(node.sysfs))] == [PORT, "eth0"]


def test_an_adapter_that_hangs_does_not_hold_the_hook(node: Node) -> None:
    write_ib(node.sysfs, PORT)
    write_ib(node.sysfs, "mlx5_1/1")
    counter = node.sysfs / "infiniband" / "mlx5_1" / "ports" / "1" / "counters" / "symbol_error"
    counter.unlink()
    os.mkfifo(counter)  # opening it waits for a writer
    found, error = node.read(seconds=0.2)
    assert sorted(found["ports"]) == [PORT]
    assert error == "the driver did not answer in time"


def test_after_a_reboot_nothing_is_compared(node: Node) -> None:
    write_ib(node.sysfs, PORT)
    earlier, _ = node.read()
    assert network_ports.compare(dict(earlier, boot="another"), earlier) == {}
    assert network_ports.compare(None, earlier) == {}


def test_jobs_that_share_a_node_compare_with_their_own_start(site: Site) -> None:
    sysfs = site.root / "sysfs-n0"
    write_ib(sysfs, PORT, link_downed=1)
    site.prolog(SLURM_JOB_ID="41")
    write_ib(sysfs, PORT, link_downed=2)
    site.prolog(SLURM_JOB_ID="42")
    write_ib(sysfs, PORT, link_downed=4)
    site.arrived()
    first, second = epilog_facts(site, SLURM_JOB_ID="41"), epilog_facts(site, SLURM_JOB_ID="42")
    assert [facts["network"]["changed"] for facts in (first, second)] == [
        ib(new={"link_downed": 3}, downs=4),
        ib(new={"link_downed": 2}, downs=4),
    ]
    site.prolog(SLURM_JOB_ID="41")  # requeued
    site.arrived()
    again = epilog_facts(site, SLURM_JOB_ID="41")
    assert again["network"]["changed"] == [] and again["network"]["ports"] == 1 and again["network"]["s"] >= 0


def test_a_mark_of_an_older_prolog_and_a_node_without_ports_are_accepted(site: Site) -> None:
    site.prolog()
    write_ib(site.root / "sysfs-n0", PORT)
    site.arrived()
    facts = epilog_facts(site)
    assert not facts.keys() & {"network", "network_error", "errors"}


def test_python_36_reads_the_ports(open_dir: Path, munge_socket: str) -> None:
    if os.geteuid() != 0 or not os.access(OLD_PYTHON, os.X_OK):
        pytest.skip("needs root and Python 3.6")
    site = make_site(open_dir, munge_socket, str(OLD_PYTHON))
    write_ib(site.root / "sysfs-n0", PORT)
    site.prolog()
    write_ib(site.root / "sysfs-n0", PORT, symbol_error=9)
    only(site.arrived())
    assert epilog_facts(site)["network"]["changed"] == ib(new={"symbol_error": 9})
