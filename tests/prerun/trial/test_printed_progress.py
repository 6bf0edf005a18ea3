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
def test_steps_are_read_from_printed_output(what: str) -> None:
    steps, printed = PRINTED[what]
    assert steps_in(printed.encode()) == steps


@pytest.mark.parametrize("what", PRINTED)
def test_output_may_arrive_in_pieces(what: str) -> None:
    steps, printed = PRINTED[what]
    seen, raw = TextProgress(), printed.encode()
    for at in range(0, len(raw), 7):
        seen = read(raw[at : at + 7], seen)
    assert end_progress(seen).steps == steps


def test_a_progress_bar_counts_only_with_a_printed_loss() -> None:
    bar = PRINTED["a bar that says nothing of itself"][1]
    assert steps_in((bar + "\n").encode()) == 0
    assert steps_in((bar + "\nloss: 0.3\n").encode()) == 6


def test_steps_of_the_next_epoch_are_added() -> None:
    rows = "".join(f"epoch {e} step {s}/4 loss 0.1\n" for e in range(3) for s in range(1, 5))
    assert steps_in(rows.encode()) == 12


def test_a_printed_step_number_is_not_the_number_of_steps() -> None:
    seen = end_progress(read(b"step 50000 loss 0.1\nstep 50001 loss 0.1\n"))
    assert seen.best is not None
    assert (seen.steps, seen.best[0], seen.best[1].line) == (2, "step", "step 50001 loss 0.1")


def test_a_printed_configuration_is_not_a_step() -> None:
    assert steps_in(b"max_steps: 100 lr: 0.1\nbatch_size=32 lr=0.1\nepochs=5, lr=0.1\nbatch size: 32, lr: 3\n") <= 1


def test_a_very_long_line_gives_no_steps() -> None:
    assert steps_in(b"50%|" * 5_000_000) == 0


@given(st.binary(max_size=300), st.integers(min_value=0, max_value=300))
def test_any_bytes_in_any_pieces_give_the_same_steps(output: bytes, cut: int) -> None:
    assert end_progress(read(output[cut:], read(output[:cut]))).steps == steps_in(output)
