"""Every cause under every ending and after every survived trouble: what follows never outranks what came first."""

from __future__ import annotations

import json
from pathlib import Path
from pprint import pformat

import pytest

from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.model.evidence import Evidence, LogTail

TABLES = json.loads((Path(__file__).parents[1] / "data/diagnosis/endings.json").read_text())
CAUSES, ENDINGS, TROUBLES = (
    {name: "\n".join(rows) for name, rows in TABLES[table].items()} for table in ("causes", "endings", "troubles")
)
PROGRESS = "".join(f"epoch 3 iter {number}/900 loss {3 - number / 100:.4f} lr 1e-4\n" for number in range(1, 5))
EXIT_CODES = {"signal6": 134, "abort core": 134, "noticed": 134, "killed": 137, "segv teardown": 139}
# The adapter's own error says more than that NCCL gave up.
EXCEPTIONS = {("nccl_error", "ucx peers")}


def found(text: str, code: int) -> str:
    return diagnose_run(Evidence(state="FAILED", exit_code=code, logs=(LogTail(name="out", text=text),))).category


def wrong(cause: str, texts: dict[str, str]) -> dict[str, str]:
    """Of `texts` those that are not given the cause's category, with what they are given."""
    category = cause.partition(":")[0]
    given = {f"{cause} / {name}": found(text, EXIT_CODES.get(name, 1)) for name, text in texts.items()}
    left_out = {f"{cause} / {name}" for one, name in EXCEPTIONS if one == category}
    return {name: got for name, got in given.items() if got != category and name not in left_out}


def wrong_of(each: int) -> dict[str, str]:
    """Each cause alone, under one of `each` endings and after one of `each` troubles, every ending in its turn."""
    all_wrong = {}
    for number, (cause, text) in enumerate(CAUSES.items()):
        began, ended = PROGRESS + text, text + ENDINGS["srun"]
        texts = {"alone": began}
        texts |= {name: began + ENDINGS[name] for name in list(ENDINGS)[number % each :: each]}
        texts |= {name: PROGRESS + TROUBLES[name] + ended for name in list(TROUBLES)[number % each :: each]}
        all_wrong |= wrong(cause, texts)
    return all_wrong


def test_neither_endings_nor_troubles_that_were_survived_outrank_the_cause() -> None:
    all_wrong = wrong_of(each=5)
    assert not all_wrong, pformat(all_wrong)


@pytest.mark.slow
def test_no_ending_and_no_trouble_outranks_any_cause() -> None:
    all_wrong = wrong_of(each=1)
    assert not all_wrong, pformat(all_wrong)
