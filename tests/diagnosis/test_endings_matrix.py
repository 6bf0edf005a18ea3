"""Every cause with every ending and after every survived error: neither may outrank the cause."""

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
# The error of the network adapter is more specific than the NCCL error.
EXCEPTIONS = {("nccl_error", "ucx peers")}


def classify(text: str, code: int) -> str:
    return diagnose_run(Evidence(state="FAILED", exit_code=code, logs=(LogTail(name="out", text=text),))).category


def find_wrong(cause: str, texts: dict[str, str]) -> dict[str, str]:
    """Return those of `texts` that do not get the category of `cause`, with the category that they get."""
    category = cause.partition(":")[0]
    given = {f"{cause} / {name}": classify(text, EXIT_CODES.get(name, 1)) for name, text in texts.items()}
    left_out = {f"{cause} / {name}" for one, name in EXCEPTIONS if one == category}
    return {name: got for name, got in given.items() if got != category and name not in left_out}


def find_all_wrong(each: int) -> dict[str, str]:
    """Check each cause alone, with every `each`-th ending and after every `each`-th trouble, from a shifting start."""
    all_wrong = {}
    for number, (cause, text) in enumerate(CAUSES.items()):
        began, ended = PROGRESS + text, text + ENDINGS["srun"]
        texts = {"alone": began}
        texts |= {name: began + ENDINGS[name] for name in list(ENDINGS)[number % each :: each]}
        texts |= {name: PROGRESS + TROUBLES[name] + ended for name in list(TROUBLES)[number % each :: each]}
        all_wrong |= find_wrong(cause, texts)
    return all_wrong


def test_a_fifth_of_the_endings_and_survived_troubles_do_not_outrank_the_cause() -> None:
    all_wrong = find_all_wrong(each=5)
    assert not all_wrong, pformat(all_wrong)


@pytest.mark.slow
def test_no_ending_and_no_survived_trouble_outranks_any_cause() -> None:
    all_wrong = find_all_wrong(each=1)
    assert not all_wrong, pformat(all_wrong)
