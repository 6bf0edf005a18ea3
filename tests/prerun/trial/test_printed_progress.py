"""Training steps in what programs print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmwrap.prerun.trial.printed_progress import TextProgress, end_progress, read

# What programs print (what, steps that it shows, printed): one case per line.
CASES = Path(__file__).parents[2] / "data/progress/cases.jsonl"
PRINTED: dict[str, tuple[int, str]] = {
    case["what"]: (case["steps"], case["printed"])
    for case in map(json.loads, CASES.read_text(encoding="utf-8").split("\n")[:-1])
}


def steps_in(output: bytes) -> int:
    return end_progress(read(output)).steps


@pytest.mark.parametrize("what", PRINTED)
def test_steps_are_read_from(what: str) -> None:
    steps, printed = PRINTED[what]
    assert steps_in(printed.encode()) == steps


@pytest.mark.parametrize("what", PRINTED)
def test_output_may_come_in_any_pieces(what: str) -> None:
    steps, printed = PRINTED[what]
    seen, raw = TextProgress(), printed.encode()
    for at in range(0, len(raw), 7):
        seen = read(raw[at : at + 7], seen)
    assert end_progress(seen).steps == steps


def test_a_bar_counts_once_a_loss_is_printed() -> None:
    bar = PRINTED["a bar that says nothing of itself"][1]
    assert steps_in((bar + "\n").encode()) == 0
    assert steps_in((bar + "\nloss: 0.3\n").encode()) == 6


def test_the_next_epoch_goes_on_counting() -> None:
    rows = "".join(f"epoch {e} step {s}/4 loss 0.1\n" for e in range(3) for s in range(1, 5))
    assert steps_in(rows.encode()) == 12


def test_the_step_that_is_named_is_not_taken_for_the_steps_made() -> None:
    seen = end_progress(read(b"step 50000 loss 0.1\nstep 50001 loss 0.1\n"))
    assert seen.best is not None
    assert (seen.steps, seen.best[0], seen.best[1].line) == (2, "step", "step 50001 loss 0.1")


def test_a_configuration_that_is_printed_is_no_step() -> None:
    assert steps_in(b"max_steps: 100 lr: 0.1\nbatch_size=32 lr=0.1\nepochs=5, lr=0.1\nbatch size: 32, lr: 3\n") <= 1


def test_a_line_without_end_costs_little() -> None:
    assert steps_in(b"50%|" * 5_000_000) == 0


@given(st.binary(max_size=300), st.integers(min_value=0, max_value=300))
def test_any_bytes_are_read_and_pieces_change_nothing(output: bytes, cut: int) -> None:
    assert end_progress(read(output[cut:], read(output[:cut]))).steps == steps_in(output)
