"""Losses read from files of metrics: CSV, JSON, TensorBoard."""

# ruff: noqa: E501  (rows of files are not wrapped)

from __future__ import annotations

import json
import struct
from collections.abc import Iterable

import pytest

from slurmwrap.diagnosis.loss_files import is_metrics_file, read_metrics_file
from slurmwrap.diagnosis.loss_points import RunSpan, make_points
from slurmwrap.model.running_job import LossPoint

EVENTS = "events.out.tfevents.1700000000.n1.81.0"


def read(name: str, content: str | bytes) -> list[LossPoint]:
    data = content if isinstance(content, bytes) else content.encode()
    return list(make_points(read_metrics_file(name, data), RunSpan(run_s=1000.0, began=1_700_000_000.0)))


def show(name: str, content: str | bytes) -> list[tuple[float | None, ...]]:
    return [(point.step, point.epoch, point.loss, point.validation_loss) for point in read(name, content)]


def test_names() -> None:
    assert all(map(is_metrics_file, ("metrics.csv", "results.csv", "trainer_state.json", EVENTS)))
    assert not any(map(is_metrics_file, ("data.csv", "a.json", "events.out", "")))


def test_csv_of_lightning() -> None:
    text = "epoch,step,train_loss_epoch,train_loss_step,val_loss\n0,49,,2.5,\n0,99,,2.0,\n0,99,,,1.9\n0,99,2.3,,\n1,149,,1.5,\n"
    assert show("metrics.csv", text) == [(49, 0, 2.5, None), (99, 0, 2.0, 1.9), (149, 1, 1.5, None)]


def test_csv_of_ultralytics_has_the_parts_of_the_loss() -> None:
    head = "                  epoch,         train/box_loss,         train/cls_loss,         train/dfl_loss,   metrics/mAP50(B),"
    text = f"{head}           val/box_loss,           val/cls_loss,           val/dfl_loss\n 1, 1.5, 2.5, 1.0, 0.3, 1.25, 2.25, 1.0\n"
    assert show("results.csv", text) == [(None, 1, 5.0, 4.5)]


def test_csv_of_keras_and_timm() -> None:
    assert show("training.csv", "epoch,accuracy,loss,val_accuracy,val_loss\n0,0.5,2.0,0.5,1.9\n") == [
        (None, 0, 2.0, 1.9)
    ]
    assert show("summary.csv", "epoch,train_loss,eval_loss,eval_top1\n0,2.0,1.9,50\n1,1.5,,\n") == [
        (None, 0, 2.0, 1.9),
        (None, 1, 1.5, None),
    ]


def test_state_of_a_transformers_trainer() -> None:
    history = [
        {"epoch": 0.1, "loss": 2.5, "step": 10},
        {"epoch": 0.2, "eval_loss": 2.0, "step": 20},
        {"train_runtime": 5, "train_loss": 9, "step": 20},
    ]
    text = json.dumps({"best_metric": None, "epoch": 0.2, "log_history": history})
    assert show("trainer_state.json", text) == [(10, 0.1, 2.5, None), (20, 0.2, None, 2.0)]


def test_json_lines_with_clocks() -> None:
    lines = [
        {"iteration": 19, "total_loss": 1.5, "loss_cls": 0.5, "timestamp": 1_700_000_100},
        {"iteration": 39, "total_loss": 1.0, "timestamp": 1_700_000_300},
    ]
    text = "\n".join(map(json.dumps, lines)) + "\nnot json\n[1]\n"
    assert [(point.at_s, point.step, point.loss) for point in read("metrics.json", text)] == [
        (100, 19, 1.5),
        (300, 39, 1.0),
    ]


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def write_events(events: Iterable[tuple[float, int, str, float]], *, tensor: bool = False) -> bytes:
    """Return an event file as TensorFlow (`tensor`) or another writer writes it. Checksums are 0."""
    data = b""
    for wall_time, step, tag, value in events:
        number = struct.pack("<f", value)
        content = _field(8, b"\x08\x01" + _field(4, number)) if tensor else b"\x15" + number
        event = (
            b"\x09"
            + struct.pack("<d", wall_time)
            + b"\x10"
            + _varint(step)
            + _field(5, _field(1, _field(1, tag.encode()) + content))
        )
        data += struct.pack("<Q", len(event)) + bytes(4) + event + bytes(4)
    return data


@pytest.mark.parametrize("tensor", [False, True])
def test_tensorboard(tensor: bool) -> None:
    began = 1_700_000_000.0
    events = [
        (began + 100, 300, "train/loss", 2.5),
        (began + 100, 300, "train/epoch", 0.5),
        (began + 100, 300, "lr", 0.1),
        (began + 200, 600, "eval/loss", 2.25),
    ]
    data = write_events(events, tensor=tensor)
    found = read(EVENTS, data)
    assert [(p.at_s, p.step, p.epoch, p.loss, p.validation_loss) for p in found] == [
        (100, 300, 0.5, 2.5, None),
        (200, 600, None, None, 2.25),
    ]
    assert read_metrics_file(EVENTS, data).source == "tensorboard"


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_file_that_is_still_written_is_read_as_far_as_it_goes(cut: int) -> None:
    data = write_events([(1_700_000_000.0 + i, i, "loss", 9.0 - i) for i in range(5)])
    assert len(read(EVENTS, data[:-cut])) in (3, 4)


@pytest.mark.parametrize("name", ["metrics.csv", "metrics.json", "trainer_state.json", EVENTS])
def test_broken_files_are_no_error(name: str) -> None:
    for data in (
        b"",
        b"\xff" * 999,
        b"[[[[" * 999,
        b'{"log_history": 5, "best_metric": 1}',
        b"epoch,loss\n1,\x00\n" * 9,
        bytes(999),
    ):
        assert read(name, data) == []
