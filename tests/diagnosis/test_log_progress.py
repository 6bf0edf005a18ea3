"""Progress lines, NaN losses and lines that report a successful end."""

from __future__ import annotations

import pytest

from slurmwrap.diagnosis.log_progress import LogProgress, find_progress
from slurmwrap.diagnosis.log_rows import read_log
from slurmwrap.model.evidence import LogTail


def progress(text: str) -> LogProgress:
    return find_progress(read_log(LogTail(name="out", text=text)))


@pytest.mark.parametrize(
    "row",
    [
        "step: 100 | train loss: 3.571614 | dt: 135.99ms",
        "{'loss': 2.0942, 'grad_norm': 0.78, 'epoch': 0.11}",
        " 50/390 [===>.........] - ETA: 23s - loss: 2.0922",
        "Epoch 2:  11%|█         | 100/860 [06:19<20:59, 2.33it/s]",
        " iteration      120/    5000 | consumed samples: 9 |",
        "INFO:tensorflow:global_step/sec: 3.11",
        "I0203 12:37:57 local.py:45] [0] train/loss=1.59633, train/grad_norm=0.9",
    ],
)
def test_progress_lines_of_training_frameworks_are_recognised(row: str) -> None:
    assert progress(row).rows == (0,)


@pytest.mark.parametrize("row", ["loading 3 files", "loss function: cross entropy", "Error at step 3", "50% done"])
def test_other_lines_are_not_progress(row: str) -> None:
    assert progress(row).rows == ()


def test_an_error_is_survived_when_two_different_progress_lines_follow() -> None:
    once = progress("Error\nloss=1.0\nloss=1.0\n")
    twice = progress("Error\nloss=1.0\nloss=0.9\n")
    ended = progress("Error\nloss=1.0\nTraining finished.\n")
    assert [once.survived(0), twice.survived(0), ended.survived(0)] == [False, True, True]


@pytest.mark.parametrize("row", ["loss=nan", "'grad_norm': nan", "ppl: inf", "train_loss nan", "Loss is NaN"])
def test_nan_losses_are_detected(row: str) -> None:
    assert progress(f"x\n{row}").nan_before(5) == 1


@pytest.mark.parametrize("row", ["nan_count=0", "number of nan iterations:   0", "info: loss ok", "val_auc: 0.5"])
def test_counters_with_nan_in_their_name_are_not_nan_losses(row: str) -> None:
    assert progress(row).nan == ()
