"""Xid events from kernel lines, and what each event means for the node."""

from __future__ import annotations

import pytest

from slurmwrap.diagnosis.xid import (
    ACTIONS,
    XIDS,
    XidEvent,
    get_action,
    get_category,
    get_meaning,
    is_conclusive,
    parse_xids,
)

BUS = "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def event(text: str) -> XidEvent:
    (found,) = parse_xids([text])
    return found


def test_an_xid_line_gives_code_bus_id_text_and_line() -> None:
    assert parse_xids(["usb 1-1: new device", f"[ 12.5] {BUS}"]) == (
        XidEvent(code=79, bus_id="0000:05:00", text=f"[ 12.5] {BUS}", line=2),
    )


def test_older_lines_without_pci_are_parsed() -> None:
    assert event("NVRM: Xid (0000:03:00): 13, Graphics Exception").code == 13


@pytest.mark.parametrize(
    ("previous", "category", "action"),
    [(149, "gpu_hardware", "FOLLOW"), (31, "invalid_memory_access", "APP"), (9999, "", "FOLLOW")],
)
def test_an_xid_45_has_the_category_of_the_xid_that_it_names(previous: int, category: str, action: str) -> None:
    found = event(f"NVRM: Xid (PCI:0000:dc:00): 45, pid=7, name=python3, Ch 00000001 caused by previous Xid {previous}")
    assert (get_category(found), get_action(found), is_conclusive(found)) == (category, action, False)


def test_both_forms_of_off_the_bus_without_a_code_are_xid_79() -> None:
    lines = [
        "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.",
        "NVRM: The NVIDIA GPU 0000:b3:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ]
    assert [(found.code, found.bus_id, found.line) for found in parse_xids(lines)] == [
        (79, "0000:18:00.0", 1),
        (79, "0000:b3:00.0", 2),
    ]


def test_a_line_that_only_names_a_gpu_is_no_event() -> None:
    assert (
        parse_xids(["NVRM: The NVIDIA GPU 0000:b3:00.0", "NVRM: is not supported", "", "", "fallen off the bus"]) == ()
    )


def test_sxids_are_negative_and_require_a_reset_only_when_fatal() -> None:
    fatal = event("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
    mild = event("nvidia-nvswitch0: SXid (PCI:0000:8b:00.0): 12028, Non-fatal, Link 32 egress error")
    assert (fatal.code, get_action(fatal), mild.code, get_action(mild)) == (-20034, "RESET", -12028, "LOG")
    assert get_category(fatal) == "gpu_hardware"
    assert get_meaning(fatal) == "NVSwitch error (SXid 20034)"


def test_exactly_nine_codes_are_conclusive() -> None:
    assert {code for code, known in XIDS.items() if known.conclusive} == {48, 62, 64, 74, 79, 95, 119, 120, 140}


@pytest.mark.parametrize("code", [63, 92, 94, 13, 31, 43, 45])
def test_informational_and_application_codes_are_not_conclusive(code: int) -> None:
    found = event(f"NVRM: Xid (PCI:0000:05:00): {code}, pid=1, name=python, x")
    assert not is_conclusive(found)
    assert get_action(found) in ("LOG", "APP", "FOLLOW")


@pytest.mark.parametrize(
    ("text", "action", "drains"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "RESET", True),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "REBOOT", True),
        ("GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", "DRAIN", True),
        ("GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", "RESET", True),
        ("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "LOG", False),
    ],
)
def test_xid_154_has_the_action_that_it_names(text: str, action: str, drains: bool) -> None:
    found = event(f"NVRM: Xid (PCI:0000:0f:00): 154, {text}")
    assert (get_action(found), is_conclusive(found)) == (action, drains)
    assert get_category(found) == ("gpu_hardware" if drains else "")


@pytest.mark.parametrize(("word", "action"), [("Fatal", "RESET"), ("Nonfatal", "LOG"), ("Non-fatal", "LOG")])
def test_the_action_of_nvlink5_codes_depends_on_fatal_or_nonfatal(word: str, action: str) -> None:
    found = event(f"NVRM: Xid (PCI:0000:0f:00): 149, NETIR_LINK_EVT {word} XC0 i0 Link 02 (0x004a4406)")
    assert (get_action(found), is_conclusive(found)) == (action, False)


def test_an_unknown_xid_is_only_logged() -> None:
    found = event("NVRM: Xid (PCI:0000:0f:00): 998, something new")
    assert (get_action(found), is_conclusive(found), get_category(found)) == ("LOG", False, "")
    assert get_meaning(found) == "unknown Xid 998"


def test_the_xid_table_uses_only_known_actions() -> None:
    assert {known.action for known in XIDS.values()} <= set(ACTIONS)
    assert len(XIDS) == 46
