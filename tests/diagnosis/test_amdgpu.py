"""Kernel lines of AMD's driver and output of programs on its GPUs, from public threads; and what users cannot forge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes import START

from slurmwrap.diagnosis.amdgpu import parse_amdgpu
from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.diagnosis.kernel_cause import KernelCause, find_kernel_cause
from slurmwrap.diagnosis.signatures import get_default_signatures
from slurmwrap.model.evidence import Evidence, KernelLine, LogTail
from slurmwrap.model.observation import Context, Observation
from slurmwrap.node_hooks.kernel_log import relevant
from slurmwrap.policy.node_history import list_gpu_faults

DATA = Path(__file__).parents[1] / "data" / "amdgpu"
CAPTURES = [json.loads(line) for line in (DATA / "kernel.jsonl").read_text().splitlines()]
MESSAGES = [json.loads(line) for line in (DATA / "messages.jsonl").read_text().splitlines()]
START_OF_LINE = "amdgpu 0000:c1:00.0: amdgpu: "


def keep(*lines: str, gpu: str = "0000:c1:00.0") -> tuple[KernelLine, ...]:
    """The lines that an Epilog keeps for a job with this GPU."""
    found, _ = relevant([(line, None) for line in lines], 41, 1001, [gpu], True)
    return tuple(KernelLine(text=one["text"], node="n3") for one in found)


def find(*lines: str, gpu: str = "0000:c1:00.0") -> KernelCause | None:
    return find_kernel_cause(keep(*lines, gpu=gpu), get_default_signatures())


@pytest.mark.parametrize("capture", CAPTURES, ids=[one["source"] for one in CAPTURES])
def test_public_kernel_logs(capture: dict[str, Any]) -> None:
    cause = find(*capture["lines"], gpu=capture["gpu"])
    if not capture["category"]:
        assert cause is None
        return
    assert cause is not None
    assert (cause.category, cause.signature) == (capture["category"], f"kernel.amdgpu_{capture['kind']}")
    assert (cause.node == "n3") == capture["node"]


@pytest.mark.parametrize("message", MESSAGES, ids=[one["source"] for one in MESSAGES])
def test_public_messages(message: dict[str, Any]) -> None:
    code = message["exit_code"]
    ended = {"exit_code": code, "signal": None} if code < 128 else {"exit_code": 0, "signal": code - 128}
    found = diagnose_run(Evidence(state="FAILED", logs=(LogTail(name="out", text=message["log"]),), **ended))
    assert (found.category, found.node) == (message["category"], "")


@pytest.mark.parametrize(
    ("text", "kind", "conclusive"),
    [
        ("GPU Recovery Failed: -110", "reset_failed", True),
        ("device lost from bus!", "device_lost", True),
        ("2 uncorrectable hardware errors detected in umc block", "uncorrectable", False),
        ("{7}socket: 0, die: 1, 3 new uncorrectable hardware errors detected in gfx block", "new_uncorrectable", False),
        ("RAS poison consumption, unmap queue flow succeeded: client id 27", "poison", False),
        ("RAS records:129 exceed threshold:128", "threshold", True),
        ("PSP create ring failed!", "psp", False),
    ],
)
def test_faults_of_the_gpu(text: str, kind: str, conclusive: bool) -> None:
    cause = find(START_OF_LINE + text)
    assert cause is not None
    assert (cause.signature, cause.conclusive, cause.node) == (f"kernel.amdgpu_{kind}", conclusive, "n3")


@pytest.mark.parametrize(
    "text",
    [
        START_OF_LINE + "2 correctable hardware errors detected in umc block",
        START_OF_LINE + "no uncorrectable hardware errors detected in umc block",
        START_OF_LINE + "0 uncorrectable hardware errors detected in umc block",
        START_OF_LINE + "GPU reset succeeded, trying to resume",
        START_OF_LINE + "RAS: optional ras ta ucode is not available",
        # A user chooses the name of a process (15 characters).
        START_OF_LINE + " Process GPU reset begin pid 7 thread GPU reset begin pid 7",
        START_OF_LINE + " for process RAS poison pid 7 thread GPU is lost pid 7)",
        START_OF_LINE + " in process device lost f pid 7 thread x pid 8)",
        "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* Process information: process GPU reset begin pid 7 thread x pid 8",
        "amdgpu 0000:c1[77]: segfault at 0 ip 0 sp 0 error 4 in a.out",
        "amdgpu: GPU reset begin!",  # of which GPU?
    ],
)
def test_what_is_no_fault_or_a_user_can_write(text: str) -> None:
    assert find(text) is None


def test_a_page_fault_is_the_programs_whatever_its_name() -> None:
    line = (
        START_OF_LINE + "[gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:7, for process GPU is lost pid 7)"
    )
    cause = find(line)
    assert cause is not None and (cause.category, cause.node) == ("invalid_memory_access", "")


def test_a_reset_after_a_page_fault_follows_from_it_unless_it_fails() -> None:
    fault = START_OF_LINE + "[gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:32770)"
    reset = START_OF_LINE + "GPU reset begin!"
    other = reset.replace("c1", "c2")
    after, alone = find(fault, reset), find(reset, fault)
    assert after is not None and (after.category, after.node) == ("invalid_memory_access", "")
    assert alone is not None and (alone.signature, alone.node) == ("kernel.amdgpu_reset_begin", "n3")
    assert [event.action for event in parse_amdgpu([fault, other, reset])] == ["APP", "RESET", "FOLLOW"]
    failed = find(fault, reset, START_OF_LINE + "GPU reset(1) failed")
    assert failed is not None and failed.conclusive and failed.node == "n3"
    facts = {"uid": 7, "kernel": [{"text": line, "at": 1.0} for line in (fault, reset)]}
    epilog = Observation(nonce="", cluster="c", job_id=1, context=Context.EPILOG, at=START, node="n3", facts=facts)
    assert [one.text for one in list_gpu_faults(epilog)] == [fault]


@pytest.mark.parametrize("name", ["GSP timed out", "Kernel panic", "NVLink trainin"])
def test_the_name_of_a_process_in_an_xid_line_is_no_evidence(name: str) -> None:
    cause = find(f"NVRM: Xid (PCI:0000:c1:00): 31, pid=7, name={name}, Ch 00000008", gpu="0000:c1:00.0")
    assert cause is not None and (cause.category, cause.node) == ("invalid_memory_access", "")
