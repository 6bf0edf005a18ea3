"""Read the loss of a training from a file of metrics next to its output: CSV, JSON, TensorBoard. Pure.

The layout of TensorBoard's event files is that of TFRecord (tensorflow/core/lib/io/record_writer.h) with one `Event`
(tensorflow/core/util/event.proto) each. Checksums are not verified: a file of the user's own is not worth it.
"""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Iterator, Mapping
from io import StringIO

from slurmwrap.diagnosis.loss_format import name_format
from slurmwrap.diagnosis.loss_progress import Progress
from slurmwrap.diagnosis.loss_rows import LossRow, LossRows, Record, read_columns, read_mapping

# File names that are worth reading: those of Lightning, Ultralytics, Keras, timm, LLaMA-Factory, Detectron2, MMEngine.
NAMES = (
    *("metrics.csv", "results.csv", "training.csv", "summary.csv", "history.csv", "log.csv", "progress.csv"),
    *("trainer_log.jsonl", "trainer_state.json", "metrics.json", "metrics.jsonl", "log.json", "log.jsonl"),
    *("scalars.json", "log_history.json"),
)
EVENTS = "events.out.tfevents."
_MOST_RECORDS = 20000
_LONGEST_RECORD = 1 << 20
_NO_FLOAT = "a value that is no number"


def is_metrics_file(name: str) -> bool:
    """Return True for the name of a file that may hold a loss."""
    return name in NAMES or name.startswith(EVENTS)


def read_metrics_file(name: str, data: bytes) -> LossRows:
    """Return the records with a loss of one file. `name`: its base name."""
    if name.startswith(EVENTS):
        return _make_rows(_merge_events(_read_events(data)), "tensorboard")
    text = data.decode("utf-8", "replace")
    if name.endswith(".csv"):
        rows = csv.reader(StringIO(text))
        columns = [column.strip() for column in next(rows, [])]
        found = (read_columns(columns, [cell.strip() for cell in row]) for row in _limit_rows(rows))
        return _make_rows(found, name_format([f"table {' '.join(columns).lower()}", ",".join(columns).lower()]))
    return _make_rows((read_mapping(values) for values in _read_json(text)), "json")


def _limit_rows(rows: Iterator[list[str]]) -> Iterator[list[str]]:
    try:
        for _ in range(_MOST_RECORDS):
            yield next(rows)
    except (StopIteration, csv.Error):
        return


def _make_rows(found: Iterator[Record | None], source: str) -> LossRows:
    rows = tuple(
        LossRow(
            position=float(position),
            progress=record.progress,
            loss=record.loss,
            validation=record.validation,
            clock=record.clock,
            dated=record.clock is not None,
            utc=record.clock is not None,
            mean=record.mean,
        )
        for position, record in enumerate(found)
        if record is not None
    )
    return LossRows(source=source if rows else "", rows=rows)


def _read_json(text: str) -> Iterator[Mapping[str, object]]:
    """Yield the records of JSON lines, of a list, or of the `log_history` of a Trainer's state."""
    head = text[:2048].lstrip()
    if head.startswith("[") or '"log_history"' in text or '"best_metric"' in head:
        try:
            whole = json.loads(text)
        except (ValueError, RecursionError):
            whole = []
        records = whole.get("log_history") if isinstance(whole, dict) else whole
        if isinstance(records, list):
            yield from (one for one in records[:_MOST_RECORDS] if isinstance(one, dict))
        return
    for line in text.splitlines()[:_MOST_RECORDS]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


# ---- TensorBoard


def _merge_events(events: Iterator[tuple[float, int, Mapping[str, float]]]) -> Iterator[Record | None]:
    """Yield one record for each step: each scalar of a step has an event of its own."""
    steps: dict[int, tuple[float, dict[str, float]]] = {}
    for wall_time, step, values in events:
        known = steps.setdefault(step, (wall_time, {}))
        for tag, value in values.items():
            known[1].setdefault(tag, value)
    for step, (wall_time, values) in steps.items():
        found = read_mapping(values)
        if found is not None:
            progress = Progress(epoch=found.progress.epoch, step=float(step))
            yield Record(
                progress=progress, loss=found.loss, validation=found.validation, clock=wall_time, mean=found.mean
            )


def _read_events(data: bytes) -> Iterator[tuple[float, int, Mapping[str, float]]]:
    """Yield wall time, step and scalars of each event, up to the first incomplete record."""
    at = 0
    for _ in range(_MOST_RECORDS):
        if at + 12 > len(data):
            return
        (length,) = struct.unpack_from("<Q", data, at)
        start, end = at + 12, at + 12 + length
        if length > _LONGEST_RECORD or end + 4 > len(data):
            return
        try:
            event = _parse_event(data[start:end])
        except (IndexError, ValueError, struct.error):
            return
        if event[2]:
            yield event
        at = end + 4


def _parse_event(data: bytes) -> tuple[float, int, Mapping[str, float]]:
    wall_time, step, values = 0.0, 0, {}
    for field, value in _read_fields(data):
        if field == 1 and isinstance(value, bytes):
            (wall_time,) = struct.unpack("<d", value)
        elif field == 2 and isinstance(value, int):
            step = value
        elif field == 5 and isinstance(value, bytes):
            values = dict(_read_scalars(value))
    return wall_time, step, values


def _read_scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    for field, value in _read_fields(summary):
        if field == 1 and isinstance(value, bytes):
            tag, number = "", None
            for inner, content in _read_fields(value):
                if inner == 1 and isinstance(content, bytes):
                    tag = content.decode("utf-8", "replace")
                elif inner == 2 and isinstance(content, bytes) and len(content) == 4:
                    (number,) = struct.unpack("<f", content)
                elif inner == 8 and isinstance(content, bytes):
                    number = _read_tensor(content)
            if number is not None:
                yield tag, number


def _read_tensor(data: bytes) -> float | None:
    """Return the number in a TensorProto of one float (dtype 1); None for any other tensor."""
    fields = dict(_read_fields(data))
    content = fields.get(4) or fields.get(5)
    if fields.get(1) != 1 or not isinstance(content, bytes) or len(content) != 4:
        return None
    (number,) = struct.unpack("<f", content)
    return float(number)


def _read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and content of each field of a protocol buffer message. IndexError where it is cut off."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _read_varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = _read_varint(data, at)
        else:
            length = {1: 8, 5: 4}.get(kind, -1)
        if length < 0 or at + length > len(data):
            raise ValueError(_NO_FLOAT)
        yield key >> 3, data[at : at + length]
        at += length


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            break
        shift += 7
    return value, at
