"""Losses read from outputs: every format of loss_logs.py, and what must not be taken for a loss."""

from __future__ import annotations

import math

import pytest
from loss_logs import FORMATS, Shown, train

from slurmwrap.diagnosis.log_rows import clean_rows
from slurmwrap.diagnosis.loss_points import RunSpan, make_points
from slurmwrap.diagnosis.loss_rows import LossRows, read_loss_rows

TRAININGS = {"short": train(2, 4), "long": train(3, 11, start=9.0)}


def read(text: str) -> LossRows:
    return read_loss_rows([(float(at), row) for at, row in enumerate(clean_rows(text))])


def show(text: str) -> list[Shown]:
    points = make_points(read(text), RunSpan(run_s=1000.0))
    found = [(point.step, point.epoch, point.loss, point.validation_loss) for point in points]
    return [tuple(value if value is None else round(value, 9) for value in one) for one in found]  # type: ignore[misc]


def test_the_formats_are_at_least_twenty() -> None:
    assert len(FORMATS) >= 45


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_read_exactly(name: str, training: str) -> None:
    text, shown = FORMATS[name](TRAININGS[training])
    assert show(text) == [tuple(value if value is None else round(value, 9) for value in one) for one in shown]


@pytest.mark.parametrize("name", ["transformers", "megatron", "keras", "mmengine", "plain_steps"])
def test_output_of_srun_and_of_a_logger_is_read_as_well(name: str) -> None:
    text, shown = FORMATS[name](TRAININGS["short"])
    labelled = "".join(f"0: {line}\n1: {line.replace('loss', 'loss_of_rank_1')}\n" for line in clean_rows(text) if line)
    assert [one[2:] for one in show(labelled)] == [one[2:] for one in shown]


@pytest.mark.parametrize(
    "text",
    [
        "loss_weight=1.0, loss=dict(type='CrossEntropyLoss', loss_weight=1.0)\n" * 9,
        "label_smoothing_loss: 0.1\nloss scale: 65536.0\nloss_scaler: 128\n" * 9,
        "10 packets transmitted, 9 received, 10% packet loss, time 9s\n" * 9,
        "TPE using 20/20 trials with best loss 3.135835\n" * 9,
        "Epoch 3, global step 100: 'val_loss' reached 0.31 (best 0.31), saving model to epoch=3-val_loss=0.31.ckpt\n"
        * 9,
        "wandb: Run summary:\nwandb:       train_loss 0.5\n" * 9,
        "Start train CrossEntropyLoss_25CS in 12.5 seconds\n" * 9,
        '  File "loss.py", line 143, in advance\n    loss, preds = self.step(batch)\n' * 9,
        "",
    ],
)
def test_other_rows_with_the_word_are_no_losses(text: str) -> None:
    assert show(text) == []


def test_a_few_losses_without_progress_are_not_a_curve_but_many_are() -> None:
    assert show("loss: 0.5\n" * 4) == []
    assert len(show("".join(f"loss: {value / 8}\n" for value in range(8)))) == 8


def test_a_loss_that_is_no_number_is_a_step_without_a_loss() -> None:
    assert show("step 1: loss 0.5\nstep 2: loss nan\nstep 3: loss tensor(inf)\nstep 4: loss tensor(0.25)\n") == [
        (1, None, 0.5, None),
        (2, None, None, None),
        (3, None, None, None),
        (4, None, 0.25, None),
    ]


def test_rows_that_several_ranks_print_count_once() -> None:
    row = "[titan] 2026-02-24 19:46:17,508 - root - INFO - step: {0}  loss:  {1}  memory: 66GiB(37%)  tps: 10,0{2}\n"
    text = "".join(row.format(step, 8 / step, rank) for step in (1, 2, 4) for rank in (50, 51, 52))
    assert show(text) == [(1, None, 8.0, None), (2, None, 4.0, None), (4, None, 2.0, None)]


def test_a_mean_of_an_epoch_is_a_point_only_where_nothing_shows_more() -> None:
    means = "".join(f"Epoch {epoch} - Average Train Loss: {6 / epoch}\n" for epoch in (1, 2, 3))
    assert [one[2] for one in show(means)] == [6.0, 3.0, 2.0]
    steps = "".join(f"Epoch 1 - Step {step} - Loss: {9 / step}\n" for step in (1, 2, 3))
    assert [one[2] for one in show(steps + means[: means.index("\n") + 1])] == [9.0, 4.5, 3.0]


def test_of_very_many_rows_a_part_is_read_and_all_validations() -> None:
    rows = [f"step {step}: loss {1 + 1 / step:.6f}" for step in range(1, 20001)]
    rows[11111] = "step 11112: val loss 0.75"
    points = make_points(read("\n".join(rows)), RunSpan(run_s=1.0))
    assert 7000 < len(points) <= 8010
    assert [point.step for point in points if point.validation_loss == 0.75] == [11112]
    assert points[-1].step == 20000


def test_a_row_without_end_and_binary_data_are_read_in_time() -> None:
    evil = [
        "loss" * 300 + " " * 300,
        "epoch " * 100 + "loss train " * 50 + "[" * 300,
        "a" * 10**6 + "loss " + "9" * 10**5,
    ]
    assert read("\n".join(evil * 50) + "\0\x1b[").rows == ()


@pytest.mark.parametrize(
    ("text", "source"),
    [("nan", ""), ("{'loss': 1.5, 'epoch': 0.1}\n", "transformers"), ("iter 1: loss 2.5, time 9ms\n", "nanogpt")],
)
def test_the_format_is_named(text: str, source: str) -> None:
    assert read(text).source == source


def test_chinese_output_is_read() -> None:
    text = "训练次数：100, Loss：1.98\n训练次数：200, Loss：1.5\n整体测试集上的Loss: 262.5\n"
    assert show(text) == [(100, None, 1.98, None), (200, None, 1.5, 262.5)]


def test_numbers_are_finite() -> None:
    points = make_points(read("step 1: loss inf\nstep 2: loss 1e400\nstep 3: loss -0.5\n"), RunSpan(run_s=9.0))
    assert [point.loss for point in points] == [None, None, -0.5]
    assert all(math.isfinite(point.at_s) for point in points)


def test_a_bar_without_blocks_is_read() -> None:
    bar = "Epoch 0:  34% 1020/3000 [01:04<02:05, 15.73it/s, loss=1.2, v_num=1024]\n"
    assert show(bar) == [(1020, 0, 1.2, None)]


def test_the_means_after_an_epoch_are_no_point() -> None:
    row = "[07:15:39] Epoch: [2]  [{0}/1504]  lr: 0.000005  closs: {1} (0.8558)  time: 4.3713\n"
    means = "[07:17:15] Averaged stats: lr: 0.000005  closs: 0.6884 (0.8518)\n"
    assert [one[2] for one in show(row.format(1480, 0.75) + row.format(1490, 0.5) + means)] == [0.75, 0.5]


def test_joined_names_are_read() -> None:
    text = "Epoch 80, Loss: 0.0024, ValLoss: 0.0035\nEpoch 81, Loss: 0.0021, ValLoss: 0.0034\n"
    assert show(text) == [(None, 80, 0.0024, 0.0035), (None, 81, 0.0021, 0.0034)]
