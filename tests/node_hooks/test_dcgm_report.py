"""The reports of NVIDIA's dcgmi, and the part of the node's check that uses them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import allow

from slurmwrap.node_hooks import node_check
from slurmwrap.node_hooks.dcgm_report import find_failures, find_health, find_health_faults

DATA = Path(__file__).parents[1] / "data" / "dcgm"
THREE, FOUR = (DATA / "diag-3.1.0.txt").read_text(), (DATA / "diag-4-persistence.txt").read_text()


def report(*results: dict[str, Any], name: str = "memory", key: str = "DCGM Diagnostic") -> str:
    tests = [{"name": name, "results": list(results)}]
    return json.dumps({key: {"test_categories": [{"category": "Hardware", "tests": tests}]}})


def test_public_reports_of_dcgm_3_and_4() -> None:
    assert find_failures(THREE) == ([], [])
    failures, settings = find_failures(FOUR)
    assert failures == [] and len(settings) == 8
    assert settings[3] == "software, GPU 3: Persistence Mode: Persistence mode for GPU 3 is disabled."


def test_a_failed_test_names_its_gpu_and_reason() -> None:
    fault = {"warning": "Uncorrectable ECC memory error detected", "error_severity": 2}
    four = report({"entity_id": 0, "status": "Pass"}, {"entity_id": 3, "status": "Fail", "warnings": [fault]})
    assert find_failures(four) == (["memory, GPU 3: Uncorrectable ECC memory error detected"], [])
    three = report({"gpu_ids": "2", "status": "FAIL", "warnings": ["DBE"]}, name="PCIe", key="DCGM GPU Diagnostic")
    assert find_failures(three) == (["PCIe, GPU 2: DBE"], [])
    assert find_failures(report({"entity_id": 1, "status": "Skip"})) == ([], [])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Error: unable to establish a connection to the specified host: localhost",
        "{}",
        '{"DCGM Diagnostic": {"runtime_error": "GPU is busy"}}',
        '{"DCGM Diagnostic": {"test_categories": []}}',
        '{"DCGM Diagnostic": {"test_categories"',
        "[1]{",
    ],
)
def test_what_is_no_diagnosis_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"dcgmi|Expecting"):
        find_failures(text)


def test_the_health_that_dcgm_watches() -> None:
    table = "| Health Monitor Report |\n+====+\n| Overall Health  | Failure |\n| -> 2 | PCIe Failure: replays |"
    assert (find_health(table), find_health_faults(table)) == ("failure", ["-> 2 PCIe Failure: replays"])
    assert find_health("| Overall Health:   Healthy |") == "healthy"
    assert find_health("Error: Health watches not enabled. Please enable watches.") == ""


@pytest.mark.parametrize(
    ("diagnosis", "health", "state", "text"),
    [
        (THREE, "| Overall Health | Healthy |", "ok", "found no fault, the health is: healthy"),
        (FOUR, "Error: Health watches not enabled.", "ok", "Persistence mode for GPU 0 is disabled"),
        (report({"entity_id": 3, "status": "Fail"}), "", "fail", "memory, GPU 3: failed"),
        (THREE, "| Overall Health | Failure |", "fail", "dcgmi health: failure"),
        ("Error: no connection", "", "fail", "dcgmi printed no diagnosis: Error: no connection"),
    ],
)
def test_the_part_of_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, diagnosis: str, health: str, state: str, text: str
) -> None:
    program = tmp_path / "dcgmi"
    for name, said in (("diag", diagnosis), ("health", health)):
        (tmp_path / name).write_text(said + "\n")
    program.write_text(f'#!/bin/sh\ncat {tmp_path}/"$1"\nexit 226\n')
    program.chmod(0o755)
    node = node_check.CheckedNode(
        SimpleNamespace(dcgmi=str(program)), node_check.Request({}), time.monotonic() + allow(20)
    )
    monkeypatch.setattr(node_check, "_why_no_gpu_facts", lambda node: None)
    found = node_check._run_check("dcgm", node_check.check_dcgm, node)
    assert found["state"] == state and text in found["text"]


def test_a_dcgm_that_hangs_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "dcgmi"
    program.write_text("#!/bin/sh\nsleep 60\n")
    program.chmod(0o755)
    node = node_check.CheckedNode(SimpleNamespace(dcgmi=str(program)), node_check.Request({}), time.monotonic() + 0.3)
    monkeypatch.setattr(node_check, "_why_no_gpu_facts", lambda node: None)
    assert node_check.check_dcgm(node) == ("fail", "dcgmi diag -r 1: no answer in time")
