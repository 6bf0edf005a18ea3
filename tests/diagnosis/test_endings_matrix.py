"""Every cause under every ending and after every survived trouble: what follows never outranks what came first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurmwrap.diagnosis.classify import classify
from slurmwrap.diagnosis.evidence import Evidence, LogTail

TABLES = json.loads((Path(__file__).parents[1] / "data/diagnosis/endings.json").read_text())
CAUSES, ENDINGS, TROUBLES = (
    {name: "\n".join(rows) for name, rows in TABLES[table].items()} for table in ("causes", "endings", "troubles")
)
PROGRESS = "".join(f"epoch 3 iter {number}/900 loss {3 - number / 100:.4f} lr 1e-4\n" for number in range(1, 5))
EXIT_CODES = {"signal6": 134, "abort core": 134, "noticed": 134, "killed": 137, "segv teardown": 139}
# The adapter's own error says more than that NCCL gave up.
EXCEPTIONS = {("nccl_error", "ucx peers")}


def found(text: str, code: int) -> str:
    return classify(Evidence(state="FAILED", exit_code=code, logs=(LogTail(name="out", text=text),))).category


def wrong(cause: str, texts: dict[str, str]) -> dict[str, str]:
    """Of `texts` those that are not given the cause's category, with what they are given."""
    category = cause.partition(":")[0]
    given = {name: found(text, EXIT_CODES.get(name, 1)) for name, text in texts.items()}
    return {name: got for name, got in given.items() if got != category and (category, name) not in EXCEPTIONS}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_alone_is_found(cause: str) -> None:
    assert wrong(cause, {"alone": PROGRESS + CAUSES[cause]}) == {}


@pytest.mark.parametrize("cause", CAUSES)
def test_no_ending_outranks_the_cause(cause: str) -> None:
    began = PROGRESS + CAUSES[cause]
    assert wrong(cause, {name: began + ending for name, ending in ENDINGS.items()}) == {}


@pytest.mark.parametrize("cause", CAUSES)
def test_no_trouble_that_was_survived_outranks_the_cause(cause: str) -> None:
    ended = CAUSES[cause] + ENDINGS["srun"]
    assert wrong(cause, {name: PROGRESS + trouble + ended for name, trouble in TROUBLES.items()}) == {}
