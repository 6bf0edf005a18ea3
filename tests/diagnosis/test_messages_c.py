"""Messages of Slurm, shells, containers and kernels, one each: tests/data/diagnosis/messages_c.jsonl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurmwrap.diagnosis.classify import classify
from slurmwrap.diagnosis.evidence import Evidence, KernelLine, LogTail

ROWS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data/diagnosis/messages_c.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: (row["log"] or row["kernel"])[:60])
def test_a_message_is_told_apart(row: dict[str, Any]) -> None:
    kernel = tuple(KernelLine(text=line, node="n3") for line in row.get("kernel", "").split("\n") if line)
    log = LogTail(name="out", text=row["log"] + "\n")
    assert classify(Evidence(state="FAILED", exit_code=1, logs=(log,), kernel=kernel)).category == row["category"]
