"""The last training step, from the progress lines of training frameworks."""

from __future__ import annotations

import pytest

from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.diagnosis.log_progress import TrainingSteps, find_last_progress
from slurmwrap.diagnosis.log_rows import read_log
from slurmwrap.model.evidence import Evidence, LogTail


def steps(*texts: str) -> TrainingSteps:
    return find_last_progress([read_log(LogTail(name=str(index), text=text)) for index, text in enumerate(texts)])


@pytest.mark.parametrize(
    ("row", "step"),
    [
        ("step 120/900 loss=3.1", 120),
        ("step: 100 | train loss: 3.571614 | dt: 135.99ms", 100),
        ("{'loss': 2.09, 'global_step': 1500, 'epoch': 0.11}", 1500),
        (" iteration      120/    5000 | consumed samples: 9 | loss: 1", 120),
        ("iter 42: loss 2.5, time 12.1ms", 42),
        ("Epoch 2:  11%|█         | 100/860 [06:19<20:59, 2.33it/s, loss=1.2]", 1820),
        (" 11%|█         | 100/860 [06:19<20:59, 2.33it/s]", 100),
        ("Epoch 3/10\n 50/390 [===>.........] - ETA: 23s - loss: 2.0922", 1220),
        ("Epoch [3/100] loss=0.3", 3),
        ("INFO:tensorflow:loss = 0.3, step = 700 (3.1 sec)", 700),
        ("train_inner | epoch 004:  100 / 900 loss=1, num_updates=3100", 3100),
    ],
)
def test_progress_rows_of_training_frameworks_give_a_step(row: str, step: int) -> None:
    assert steps(row) == TrainingSteps(step=step)


@pytest.mark.parametrize(
    "row",
    [
        "max_steps=1000",
        "val step 500/500 loss=1.0",
        "Validation: 100%|██| 500/500 [00:10<00:00]",
        "model.safetensors:  45%|████  | 230/500 [00:10<00:12, 100MB/s]",
        "warmup step 50",
        "epoch time: 12.1",
        "step time 3.5 s",
    ],
)
def test_other_rows_give_no_step(row: str) -> None:
    assert steps(row) == TrainingSteps()


def test_the_highest_step_of_all_files_counts() -> None:
    assert steps("step 1 loss=1\nstep 7 loss=1\n", "step 9 loss=1\n").step == 9


@pytest.mark.parametrize(
    "row",
    [
        "Resuming from step 500",
        "successfully loaded checkpoint from /c [ t 1/1, p 1/1 ] at iteration 1000",
        "Continuing training from global step 500",
        "Restored all states from the checkpoint at /c/last.ckpt",
        "INFO:tensorflow:Restoring parameters from /c/model.ckpt-100",
    ],
)
def test_a_row_about_loading_a_checkpoint_means_resumed(row: str) -> None:
    assert steps(row).resumed


@pytest.mark.parametrize(
    "row",
    [
        "could not resume from checkpoint: no checkpoint found, training from scratch",
        "resume_from_checkpoint=None",
        "Loading checkpoint shards: 100%|███| 2/2 [00:01<00:00]",
        "loaded pretrained weights",
    ],
)
def test_other_rows_do_not_mean_resumed(row: str) -> None:
    assert not steps(row).resumed


def test_a_first_step_far_from_zero_means_resumed() -> None:
    late = "".join(f"step {number} loss=1\n" for number in range(500, 560, 10))
    first = "".join(f"step {number} loss=1\n" for number in range(10, 70, 10))
    assert (steps(late).resumed, steps(first).resumed) == (True, False)


def test_a_log_tail_without_its_start_does_not_mean_resumed() -> None:
    text = "".join(f"step {number} loss=1\n" for number in range(500, 560, 10))
    log = read_log(LogTail(name="out", text=text, truncated=True))  # the number of the first line is unknown
    assert not find_last_progress([log]).resumed


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("Saving model checkpoint to out/checkpoint-500\nstep 501 loss=1\n", 500),
        (
            "Saving model checkpoint to out/checkpoint-500\n",
            None,
        ),  # the run may have ended while it was writing the checkpoint
        ("  successfully saved checkpoint from iteration     500 to /c\n", 500),
        ("[Torch] Saved /c/global_step500/mp_rank_00_model_states.pt.\n", 500),
        ("saved step=400.ckpt\nsaved step=800.ckpt\n", 800),
    ],
)
def test_the_newest_completed_checkpoint_is_found(text: str, step: int | None) -> None:
    assert steps(text).checkpoint_step == step


def test_a_diagnosis_has_step_resumed_and_checkpoint_step() -> None:
    text = "Resuming from step 500\nstep 510 loss=1\nsaved checkpoint-510\nstep 520 loss=1\nKilled\n"
    found = diagnose_run(Evidence(state="FAILED", exit_code=1, logs=(LogTail(name="out", text=text),)))
    assert (found.step, found.resumed, found.checkpoint_step) == (520, True, 510)
