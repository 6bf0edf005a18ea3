"""Kernel lines of AMD's driver (amdgpu), and what each says about the node. Pure.

The texts are those of drivers/gpu/drm/amd/amdgpu in Linux, and of logs in the issue trackers of ROCm and amdgpu. Every
expression is anchored at the start of the line: the driver also prints names of processes, and a user who named their
program "GPU reset begin" would else have written evidence about the node.

A program that computes without an end, or accesses memory that is not its own, makes the driver reset the GPU. So a
reset after a page fault on the same GPU follows from it, and a reset that succeeded is a suspicion like Xid 109. A
reset that failed is conclusive: the GPU stays unusable until the node is booted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from slurmwrap.fast_dataclasses import dataclass, replace

# What the line means for the node, as in xid.ACTIONS.
_APP, _FOLLOW, _RESET, _REBOOT, _DRAIN, _LOG = "APP", "FOLLOW", "RESET", "REBOOT", "DRAIN", "LOG"
_START = re.compile(
    r"amdgpu (?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})\.[0-7]: (?:amdgpu: )?"
    r"(?:\[drm(?::\w{1,60} \[amdgpu\])?\] )?(?:\*ERROR\* )?(?:\{\d{1,20}\} ?)?"
    r"(?:socket: \d{1,4},? (?:die: \d{1,4},? )?)?"
)
# Old kernels print this line without an address.
_JOB_TIMEOUT = re.compile(r"\[drm:amdgpu_job_timedout \[amdgpu\]\] \*ERROR\* ring \S{1,40} timeout")
_LINE_CAP = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdgpuEvent:
    """One line that reports a fault. `category` is "" if it follows from another; `line` counts from 1."""

    kind: str
    bus_id: str  # "0000:c1:00", as printed; "" if the line names none
    meaning: str
    action: str
    conclusive: bool  # the line alone is a reason to drain the node
    category: str
    text: str
    line: int


# Kind, expression after the start of the line, meaning, action, conclusive, category.
_GPU, _ECC, _ACCESS = "gpu_hardware", "gpu_ecc_error", "invalid_memory_access"
_MES = r"MES (?:failed to respon[ds]|ring buffer is full|might be in unrecoverable state)"
_FAULT = r"\[(?:gfx|mm)hub\d?\] (?:no-retry |retry )?page fault \(|(?:VM|GPU) fault (?:detected|\()"
_RESET_FAILED = r"GPU reset(?:\(\d{1,4}\))? failed|GPU [Rr]ecovery [Ff]ailed: "
_PREEMPTION = r"qcm fence wait loop timeout|The cp might be in an unrecoverable|HIQ MQD's queue_doorbell_id0 is not 0"
_RING_TEST = r"ring \S{1,40} test failed|IB test failed on |ib ring test failed"
_NEW_ERRORS = r"[1-9]\d{0,9} new uncorrectable hardware errors? detected"
# Older kernels print the sum since the driver was loaded, and each time that anyone reads the counter in sysfs.
_ERRORS = r"[1-9]\d{0,9} uncorrectable hardware errors? detected"
_ATHUB = r"uncorrectable hardware error ?\(ERREVENT_ATHUB_INTERRUPT\) detected"
_PSP = r"(?:PSP|psp) .{0,60}(?:failed|timed? ?out)"
_THRESHOLD = r"RAS records: ?\d{1,9} exceed threshold"
_SMU = r"SMU: I'm not done with your previous command"
_ROWS = (
    ("page_fault", _FAULT, "GPU page fault", _APP, False, _ACCESS),
    ("ring_timeout", r"ring \S{1,40} timeout", "a ring of the GPU timed out", _RESET, False, _GPU),
    ("reset_begin", r"GPU reset begin", "the GPU was reset", _RESET, False, _GPU),
    ("reset_failed", _RESET_FAILED, "the GPU could not be reset", _REBOOT, True, _GPU),
    ("device_lost", r"device lost from bus|GPU is lost", "the GPU is lost from the bus", _REBOOT, True, _GPU),
    ("pci_error", r"PCI error: ", "PCIe error of the GPU", _RESET, False, _GPU),
    ("mes", _MES, "the scheduler of the GPU does not answer", _RESET, False, _GPU),
    ("preemption", _PREEMPTION, "a queue of the GPU could not be stopped", _RESET, False, _GPU),
    ("ring_test", _RING_TEST, "a ring of the GPU failed its test", _RESET, False, _GPU),
    ("init", r"Fatal error during GPU init", "the GPU could not be initialised", _REBOOT, True, _GPU),
    ("psp", _PSP, "the security processor of the GPU failed", _RESET, False, _GPU),
    ("resume", r"resume of IP block <\w{1,30}> failed", "a block of the GPU did not start", _RESET, False, _GPU),
    ("smu", _SMU, "the power controller of the GPU does not answer", _LOG, False, _GPU),
    ("new_uncorrectable", _NEW_ERRORS, "uncorrectable memory errors", _RESET, False, _ECC),
    ("uncorrectable", _ERRORS, "uncorrectable memory errors", _LOG, False, _ECC),
    ("ras_fatal", _ATHUB, "a fatal RAS error", _RESET, False, _ECC),
    ("poison", r"RAS poison ", "poisoned data was used", _RESET, False, _ECC),
    ("threshold", _THRESHOLD, "more bad memory pages than AMD's threshold", _DRAIN, True, _ECC),
)
_EVENTS = tuple((re.compile(row[1]), row) for row in _ROWS)
# The GPU hangs. After a page fault on the same GPU these follow from it.
_HANGS = frozenset(("ring_timeout", "reset_begin", "mes", "preemption"))
_OWN_FAULT = re.compile(r"\bvmid:0\b")


def parse_amdgpu(lines: Iterable[str]) -> tuple[AmdgpuEvent, ...]:
    """Return every line of AMD's driver that reports a fault, in their order.

    Page faults of the driver itself (vmid 0) are left out: they follow from a reset.
    """
    found, faulted = [], set[str]()
    for number, text in enumerate(lines, 1):
        event = _parse_event(text[:_LINE_CAP], number) if "amdgpu" in text else None
        if event is None or (event.action == _APP and _OWN_FAULT.search(event.text)):
            continue
        if event.action == _APP:
            faulted.add(event.bus_id)
        follows = event.kind in _HANGS and event.bus_id in faulted
        found.append(replace(event, action=_FOLLOW, category="") if follows else event)
    return tuple(found)


def _parse_event(text: str, number: int) -> AmdgpuEvent | None:
    if _JOB_TIMEOUT.match(text):
        row = next(row for row in _ROWS if row[0] == "ring_timeout")
        return _make_event(row, "", text, number)
    start = _START.match(text)
    if start is None:
        return None
    row_found = next((row for expression, row in _EVENTS if expression.match(text, start.end())), None)
    return _make_event(row_found, start["bus"], text, number) if row_found else None


def _make_event(row: tuple[str, str, str, str, bool, str], bus: str, text: str, number: int) -> AmdgpuEvent:
    kind, _, meaning, action, conclusive, category = row
    return AmdgpuEvent(
        kind=kind,
        bus_id=bus,
        meaning=meaning,
        action=action,
        conclusive=conclusive,
        category=category,
        text=text.strip(),
        line=number,
    )
