"""Xid and SXid lines of the kernel log, and what each code says about the node. Pure.

The table is NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors, catalogue of 2025-10), with the actions that
this project takes. Only `conclusive` codes drain a node by themselves. A recovery action that the driver reports (Xid
154) is authoritative. An unknown code is only logged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import MappingProxyType

from slurmwrap.fast_dataclasses import dataclass

ACTIONS = ("APP", "FOLLOW", "RESET", "REBOOT", "DRAIN", "LOG")
FALLEN_OFF_BUS = 79
RECOVERY_ACTION_CHANGED = 154


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """One Xid code. `category` is "" if the code alone names no cause."""

    code: int
    meaning: str
    # APP: the program's fault; FOLLOW: another code decides; RESET, REBOOT, DRAIN: the node's fault; LOG: recorded
    # only.
    action: str
    # The code alone is a reason to drain the node.
    conclusive: bool
    category: str


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEvent:
    """One line that reports a fault. `code` is the Xid, or the negated SXid; `line` counts from 1."""

    code: int
    bus_id: str  # "0000:05:00", as printed
    text: str
    line: int


_ROWS = (
    (13, "graphics engine exception", "APP", False, "cuda_failure"),
    (31, "GPU memory page fault (MMU)", "APP", False, "invalid_memory_access"),
    (32, "invalid or corrupted push buffer stream", "APP", False, "cuda_failure"),
    (43, "GPU stopped processing: channel reset", "APP", False, "cuda_failure"),
    (45, "pre-emptive channel clean-up", "FOLLOW", False, ""),
    (46, "GPU stopped processing: time-out", "RESET", False, "gpu_hardware"),
    (48, "double-bit ECC error", "RESET", True, "gpu_ecc_error"),
    (61, "internal micro-controller breakpoint", "DRAIN", False, "gpu_hardware"),
    (62, "internal micro-controller halt", "RESET", True, "gpu_hardware"),
    (63, "row remapping or page retirement recorded", "LOG", False, "gpu_ecc_error"),
    (64, "row remapping or page retirement failed", "RESET", True, "gpu_ecc_error"),
    (68, "NVDEC0 exception", "APP", False, "cuda_failure"),
    (69, "graphics engine class error", "APP", False, "cuda_failure"),
    (73, "NVENC2 error", "LOG", False, ""),
    (74, "NVLink error", "RESET", True, "gpu_hardware"),
    (79, "GPU has fallen off the bus", "REBOOT", True, "gpu_hardware"),
    (92, "high rate of single-bit ECC errors", "LOG", False, "gpu_ecc_error"),
    (94, "contained memory error", "LOG", False, "gpu_ecc_error"),
    (95, "uncontained memory error", "RESET", True, "gpu_ecc_error"),
    (109, "context switch time-out", "RESET", False, "gpu_hardware"),
    (110, "security fault", "RESET", False, "gpu_hardware"),
    (119, "GSP RPC time-out", "RESET", True, "gpu_hardware"),
    (120, "GSP error", "RESET", True, "gpu_hardware"),
    (121, "C2C link error", "LOG", False, "gpu_hardware"),
    (123, "SPI PMU RPC write failure", "DRAIN", False, "gpu_hardware"),
    (136, "NVLink ALI training failed", "RESET", False, "gpu_hardware"),
    (137, "NVLink privilege error (often a peer process died)", "APP", False, "invalid_memory_access"),
    (140, "unrecovered ECC error", "RESET", True, "gpu_ecc_error"),
    (143, "GPU initialisation error", "RESET", False, "gpu_hardware"),
    (144, "NVLink SAW error", "RESET", False, "gpu_hardware"),
    (145, "NVLink RLW error", "RESET", False, "gpu_hardware"),
    (146, "NVLink TLW error", "RESET", False, "gpu_hardware"),
    (147, "NVLink TREX error", "RESET", False, "gpu_hardware"),
    (148, "NVLink NVLPW_CTRL error", "RESET", False, "gpu_hardware"),
    (149, "NVLink NETIR error", "RESET", False, "gpu_hardware"),
    (150, "NVLink MSE error", "RESET", False, "gpu_hardware"),
    (151, "key rotation error (confidential computing)", "DRAIN", False, "gpu_hardware"),
    (154, "GPU recovery action changed", "FOLLOW", False, ""),
    (155, "NVLink software-defined error", "RESET", False, "gpu_hardware"),
    (156, "resource retirement event", "RESET", False, "gpu_hardware"),
    (157, "resource retirement failure", "LOG", False, ""),
    (158, "GPU fatal time-out", "RESET", False, "gpu_hardware"),
    (160, "channel retirement event", "LOG", False, ""),
    (161, "channel retirement failure", "LOG", False, ""),
    (171, "uncorrectable DRAM error (detail of 48)", "FOLLOW", False, "gpu_ecc_error"),
    (172, "uncorrectable SRAM error (detail of 48)", "FOLLOW", False, "gpu_ecc_error"),
)

XIDS = MappingProxyType(
    {
        code: Xid(code=code, meaning=meaning, action=action, conclusive=conclusive, category=category)
        for code, meaning, action, conclusive, category in _ROWS
    }
)

# Recovery actions in Xid 154's text and NVML field 230 (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION), longest names first. Only
# "None" leaves the node in use; the others name what must be done before another job may use the GPU.
_RECOVERY = (
    ("drain and reset", "RESET"),
    ("gpu reset", "RESET"),
    ("bus reset", "RESET"),
    ("node reboot", "REBOOT"),
    ("system reboot", "REBOOT"),
    ("drain p2p", "DRAIN"),
    ("imex", "DRAIN"),
    ("none", "LOG"),
)

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{4,20})\)[^:]{0,80}: (\d{1,4})\b")
# "45, pid=1, name=python3, Ch 00000001 caused by previous Xid 149": the channel was cleaned up after that fault.
_PREVIOUS = re.compile(r"caused by previous Xid (\d{1,4})\b")
_SXID = re.compile(r"nvidia-nvswitch\d{1,3}: SXid \((?:PCI:)?([0-9a-fA-F:.]{4,20})\): (\d{4,6})\b")
# Two forms without "Xid"; both mean 79 (open-gpu-kernel-modules osinit.c and nv-pci.c).
_OFF_BUS = re.compile(r"NVRM: GPU (?:at PCI:)?([0-9a-fA-F:.]{4,20}): GPU has fallen off the bus")
_OFF_BUS_START = re.compile(r"NVRM: The NVIDIA GPU ([0-9a-fA-F:.]{4,20})")
_LINE_CAP = 2000
# Number of lines over which the multi-line form is printed.
_SPREAD = 4


def parse_xids(lines: Iterable[str]) -> tuple[XidEvent, ...]:
    """Return every Xid, SXid and "fallen off the bus" line among kernel lines, in their order."""
    rows = [line[:_LINE_CAP] for line in lines]
    events = (_parse_event(rows, index) for index in range(len(rows)))
    return tuple(event for event in events if event is not None)


def _parse_event(rows: list[str], index: int) -> XidEvent | None:
    text = rows[index]
    if "NVRM" not in text and "SXid" not in text:
        return None
    if found := _XID.search(text):
        return _make_event(int(found[2]), found[1], text, index)
    if found := _SXID.search(text):
        return _make_event(-int(found[2]), found[1], text, index)
    if found := _OFF_BUS.search(text):
        return _make_event(FALLEN_OFF_BUS, found[1], text, index)
    found = _OFF_BUS_START.search(text)
    if found and "fallen off the bus" in " ".join(rows[index : index + _SPREAD]):
        return _make_event(FALLEN_OFF_BUS, found[1], text, index)
    return None


def _make_event(code: int, bus_id: str, text: str, index: int) -> XidEvent:
    return XidEvent(code=code, bus_id=bus_id, text=text.strip(), line=index + 1)


def get_action(event: XidEvent) -> str:
    """Return one of ACTIONS for this line; LOG for unknown codes. Xid 154 and NVLink 5 codes give it in the text."""
    if event.code < 0:
        return "RESET" if _is_fatal(event.text) else "LOG"
    if event.code == RECOVERY_ACTION_CHANGED:
        return _find_recovery_action(event.text)
    if previous := _find_previous(event):
        return "APP" if previous.action == "APP" else "FOLLOW"
    known = XIDS.get(event.code)
    if known is None:
        return "LOG"
    if 144 <= event.code <= 150 and not _is_fatal(event.text):
        return "LOG"
    return known.action


def is_conclusive(event: XidEvent) -> bool:
    """Return True if this line alone drains the node. A fatal NVLink 5 code (144-150) does not: Xid 154 follows it."""
    if event.code == RECOVERY_ACTION_CHANGED:
        return get_action(event) in ("RESET", "REBOOT", "DRAIN")
    known = XIDS.get(event.code)
    return known is not None and known.conclusive


def get_category(event: XidEvent) -> str:
    """Return the failure category of this line, "" if it has none."""
    if event.code < 0:
        return "gpu_hardware"
    if event.code == RECOVERY_ACTION_CHANGED:
        return "gpu_hardware" if is_conclusive(event) else ""
    known = _find_previous(event) or XIDS.get(event.code)
    return known.category if known is not None else ""


def get_meaning(event: XidEvent) -> str:
    """Return the meaning of the code, in words."""
    if event.code < 0:
        return f"NVSwitch error (SXid {-event.code})"
    if previous := _find_previous(event):
        return f"clean-up after Xid {previous.code}, {previous.meaning} (Xid {event.code})"
    known = XIDS.get(event.code)
    return f"{known.meaning} (Xid {event.code})" if known else f"unknown Xid {event.code}"


def _find_previous(event: XidEvent) -> Xid | None:
    """Return the Xid that an Xid 45 names as its cause; None if it names none, or an unknown one."""
    found = _PREVIOUS.search(event.text) if event.code == 45 else None
    return XIDS.get(int(found[1])) if found else None


def _is_fatal(text: str) -> bool:
    lowered = text.lower().replace("non-fatal", "nonfatal")
    return "fatal" in lowered.replace("nonfatal", "")


def _find_recovery_action(text: str) -> str:
    lowered = text.lower()
    _, _, tail = lowered.partition("changed from")
    _, arrow, new = tail.partition(" to ")
    wanted = new if arrow else lowered
    return next((action for name, action in _RECOVERY if name in wanted), "LOG")
