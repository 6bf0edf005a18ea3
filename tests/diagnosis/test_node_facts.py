"""Facts that the hooks reported about GPUs and about their own errors, formatted as lines of evidence."""

from __future__ import annotations

from typing import Any

import pytest

from slurmwrap.diagnosis.node_facts import format_gpu_lines, format_hook_lines
from slurmwrap.model.observation import Context, Observation

GPU = {"index": 0, "bus_id": "0000:05:00.0"}


def observation(context: Context = Context.EPILOG, **facts: Any) -> Observation:
    return Observation(nonce="", cluster="c", job_id=1, context=context, at=0.0, node="n3", facts=facts)


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        ({"recovery_action": "gpu_reset"}, "asks for recovery action gpu_reset"),
        ({"error": "GPU is lost", "error_code": 15}, "is lost"),
        ({"remapped_rows": {"failed": True, "pending": False}}, "has a failed row remapping"),
        ({"remapped_rows": {"failed": False, "pending": True}}, "has a row remapping that waits for a reset"),
        ({"ecc_uncorrected": {"volatile": 2, "aggregate": 9}}, "has 2 uncorrected ECC errors since its last reset"),
        ({"sram": {"volatile": 0, "threshold_exceeded": True}}, "has more SRAM errors than its threshold"),
        ({"retired_pages": {"double_bit": 1, "pending": True}}, "has pages to retire at the next reset"),
        ({"nvlink": {"links": 18, "active": 17, "was_active": 18}}, "has 17 of 18 NVLinks left"),
        ({"nvlink": {"active": 18, "new_errors": {"replay": 2}}}, "has new NVLink errors: replay 2"),
        ({"pcie": {"width": 4, "max_width": 16}}, "runs on 4 of 16 PCIe lanes"),
        ({"clock_reasons": ["hw_thermal", "hw_power_brake"]}, "is slowed down: hw_thermal, hw_power_brake"),
        ({"processes": [{"pid": 7}, {"pid": 8}]}, "still had 2 processes after the job"),
        ({"error": "Unknown Error", "error_code": 999}, "does not answer: Unknown Error"),
    ],
)
def test_each_problem_of_a_gpu_is_one_line(fact: dict[str, Any], words: str) -> None:
    assert format_gpu_lines(observation(gpu=[{**GPU, **fact}])) == [f"NVML on n3: GPU 0 (0000:05:00.0) {words}"]


def test_a_healthy_gpu_gives_no_line() -> None:
    healthy = {
        "recovery_action": "none",
        "remapped_rows": {"correctable": 0, "uncorrectable": 1, "pending": False, "failed": False},
        "ecc_uncorrected": {"volatile": 0, "aggregate": 3},
        "sram": {"volatile": 0, "aggregate": 1, "threshold_exceeded": False},
        "nvlink": {"links": 18, "active": 18, "errors": {"replay": 7}},
        "pcie": {"width": 16, "max_width": 16, "replays": 1},
        "processes": [],
        "clock_reasons": [],
        "persistence": True,
    }
    assert format_gpu_lines(observation(gpu=[{**GPU, **healthy}])) == []


def test_conclusive_facts_come_first_and_a_hung_driver_last() -> None:
    hot = {**GPU, "clock_reasons": ["hw_thermal"]}
    lost = {"index": 1, "bus_id": "0000:06:00.0", "error": "GPU is lost", "error_code": 15}
    assert format_gpu_lines(observation(gpu=[hot, lost], driver_hung={"pid": 9, "since": 1, "call": "nvmlInit"})) == [
        "NVML on n3: GPU 1 (0000:06:00.0) is lost",
        "NVML on n3: GPU 0 (0000:05:00.0) is slowed down: hw_thermal",
        "NVML on n3: the driver hangs in nvmlInit",
    ]


@pytest.mark.parametrize("gpu", [7, [7, None], [{"remapped_rows": 1, "nvlink": [], "pcie": {"width": "x"}}], [{}]])
def test_malformed_gpu_facts_give_no_line(gpu: Any) -> None:
    assert format_gpu_lines(observation(gpu=gpu, driver_hung=1)) == []


def test_a_formatted_line_is_printable_and_at_most_500_characters() -> None:
    (line,) = format_gpu_lines(
        observation(gpu=[{"index": "0\n1", "bus_id": "\x1b[31m", "recovery_action": "x\ny" * 500}])
    )
    assert line.isprintable() and len(line) == 500


def test_errors_of_a_hook_are_formatted_as_lines() -> None:
    facts = {"gpu_error": "NVML: Driver Not Loaded", "kernel_error": "lines lost", "errors": ["logs: a", "usage: b"]}
    assert format_hook_lines(observation(**facts)) == [
        "epilog on n3: GPUs could not be read: NVML: Driver Not Loaded",
        "epilog on n3: kernel log: lines lost",
        "epilog on n3: failed in part: logs: a; usage: b",
    ]
    assert format_hook_lines(observation(Context.PROLOG, lost="no mark")) == ["prolog on n3: lost: no mark"]


def test_the_reason_for_unread_output_is_given_without_its_path() -> None:
    forged = "/home/a/prolog on n3: refused: x.out: not a regular file"
    assert format_hook_lines(observation(log_error=forged, logs=[])) == [
        "epilog on n3: the output was not read: not a regular file"
    ]
    assert format_hook_lines(observation(log_error="a job of root")) == [
        "epilog on n3: the output was not read: a job of root"
    ]
    assert format_hook_lines(observation(log_error=forged, logs=[{"name": "/home/a/x.err", "text": ""}])) == []


def test_decisions_of_the_prolog_gate_are_formatted_as_lines() -> None:
    gate = {"refused": True, "cause": "gpu_lost", "text": "the GPU is lost", "source": "nvml"}
    assert format_hook_lines(observation(Context.PROLOG, gate=gate)) == [
        "prolog on n3: refused: gpu_lost: the GPU is lost"
    ]
    held = {**gate, "refused": False, "why_not": "no permit"}
    assert format_hook_lines(observation(Context.PROLOG, gate=held)) == [
        "gate on n3: let the job start (no permit) in spite of gpu_lost: the GPU is lost"
    ]


def test_a_prolog_gate_line_does_not_show_the_kernel_line_to_the_next_user() -> None:
    line = "NVRM: Xid (PCI:0000:05:00): 48, pid=7, name=secret_project"
    gate = {"refused": True, "cause": "xid_48", "text": line, "source": "kernel"}
    assert format_hook_lines(observation(Context.PROLOG, gate=gate)) == ["prolog on n3: refused: xid_48"]


def test_observations_other_than_hooks_give_no_line() -> None:
    assert format_hook_lines(observation(Context.SUBMIT, gate={"refused": True}, lost="x")) == []
