"""Loss curves read from the output of runs that ended, as their user."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import loss_logs
import pytest

from slurmwrap.host import read_loss_curve
from slurmwrap.host.read_loss_curve import LATE_S, LossCurveFiles, find_curve
from slurmwrap.host.read_user_file import UserLogs
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.running_job import LossCurve

USER = 65534
END = 1_790_003_600
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
TEXT = "".join(f"step {step}: loss {1 + 8 / step:.4f}\n" for step in range(1, 101))


def make_run(path: Path, **changes: Any) -> JobRun:
    key = RunKey(cluster="lab", job_id=81, submit_time=END - 4000)
    values = {"attempt": key, "address": "81", "uid": USER, "state": "COMPLETED", "std_out": str(path)}
    return JobRun(**(values | {"start_time": END - 3600, "end_time": END, "gpus": 8, "nodes": ("n1",)} | changes))


def write(path: Path, content: str | bytes, at: float = END - 1.0, uid: int = USER) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if os.geteuid() == 0:
        os.chown(path, uid, -1)
    os.utime(path, (at, at))
    return path


def read(path: Path, **changes: Any) -> LossCurve | None:
    return LossCurveFiles()(make_run(path, **changes))


@root_only
def test_the_curve_of_a_run_is_read_as_its_user(open_dir: Path) -> None:
    curve = read(write(open_dir / "out", TEXT))
    assert curve is not None
    assert (curve.source, len(curve.points), curve.uid, curve.end_time) == ("plain", 100, USER, END)
    assert (curve.points[0].step, curve.points[-1].loss, curve.points[-1].at_s) == (1, 1.08, 3600)
    assert curve.time_share == pytest.approx(0.99, abs=0.01)
    assert curve.lowest == pytest.approx(1.08, abs=0.001)


@root_only
def test_what_the_user_may_not_read_or_does_not_own_is_not_read(open_dir: Path) -> None:
    closed = write(open_dir / "closed", TEXT)
    closed.chmod(0o000)
    roots = write(open_dir / "roots", TEXT, uid=0)
    link = open_dir / "link"
    link.symlink_to(write(open_dir / "out", TEXT))
    fifo = open_dir / "fifo"
    os.mkfifo(fifo)
    for path in (closed, roots, link, fifo, open_dir, open_dir / "none", Path("/dev/zero"), Path("relative")):
        assert read(path) is None


@root_only
def test_only_this_runs_part_of_a_file_counts(open_dir: Path) -> None:
    path = write(open_dir / "out", TEXT.replace("loss 1", "loss 0"))
    (before,) = UserLogs().tails(make_run(path))
    write(path, path.read_text() + TEXT)
    (mine,) = UserLogs().tails(make_run(path))
    write(path, path.read_text() + TEXT.replace("loss 1", "loss 0"))
    ends = {str(path): [mine.size, mine.mark]}
    curve = read(path, output_begins={str(path): [before.size, before.mark]}, output_ends=ends)
    assert curve is not None
    assert (len(curve.points), min(point.loss or 0 for point in curve.points)) == (100, 1.08)


@root_only
def test_a_user_whose_files_hang_is_left_alone_for_a_while(open_dir: Path) -> None:
    shift = [-60.0]  # with a clock 60 s behind, the child has no time at all
    files, run = LossCurveFiles(clock=lambda: time.monotonic() + shift[0]), make_run(write(open_dir / "out", TEXT))
    found = [files(run)]
    for shift[0] in (60.0, LATE_S + 60.0):
        found.append(files(run))
    assert [one is not None for one in found] == [False, False, True]


@root_only
def test_unknown_users_and_runs_without_a_length_have_no_curve(open_dir: Path) -> None:
    path = write(open_dir / "out", TEXT)
    assert [read(path, uid=uid) for uid in (-1, 0, 4_000_000)] == [None] * 3
    assert [read(path, start_time=None), read(path, end_time=None), read(path, end_time=END - 3600)] == [None] * 3


def find(path: Path, **changes: Any) -> dict[str, Any]:
    """Read in this process, as the child does after it became the user."""
    return find_curve(make_run(path, **({"uid": path.stat().st_uid if path.exists() else USER} | changes)), 0.0)


def test_a_large_file_is_read_in_parts_from_its_begin_to_its_end(
    open_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_loss_curve, "_MOST_BYTES", 1 << 17)
    steps = range(1, 50_001)
    rows = (
        f"Epoch 0:  50%|██| {i}/50000 [{i // 60:02d}:{i % 60:02d}<00:09, 1.0it/s, loss={1 + 50 / i:.5f}]\r"
        for i in steps
    )
    path = write(open_dir / "out", "".join(row for row in rows if len(row) < 99))
    found = find(path, start_time=END - 50_000)
    assert len(found["points"]) <= 256
    assert (found["points"][0][1], found["points"][-1][1]) == (1, 50_000)
    # 1 + 50 / i is within 0.1 % of its lowest value from i = 25,000 on.
    assert found["figures"][1] == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("name", loss_logs.FORMATS)
def test_both_shares_of_each_format_are_within_two_points(name: str, open_dir: Path) -> None:
    rows = [
        row._replace(loss=round(1 + 8 * math.exp(-row.step / 25) + 0.002 * max(0, row.step - 240), 4))
        for row in loss_logs.train(8, 40)
    ]
    text, shown = loss_logs.FORMATS[name](rows)
    values = [one[2] for one in shown if one[2] is not None]
    near = next(i for i, value in enumerate(values) if value <= min(values) * 1.001)
    # The clocks of these formats count one second for each step.
    found = find(write(open_dir / "out", text), start_time=END - len(rows))
    # Between the values of whole epochs straight lines are drawn.
    assert found["figures"][1] == pytest.approx((near + 1) / len(values), abs=0.02 + (len(values) < 20) / len(values))
    if found["figures"][2] is not None:
        assert found["figures"][2] == pytest.approx((values.index(min(values)) + 1) / len(values), abs=0.02)


def test_files_of_metrics_next_to_the_output_are_read_if_it_shows_no_loss(open_dir: Path) -> None:
    path = write(open_dir / "slurm-81.out", "hello\n")
    table = "epoch,train_loss\n" + "".join(f"{i},{9 - i}\n" for i in range(9))
    (open_dir / "lightning_logs" / "version_0").mkdir(parents=True)
    metrics = write(open_dir / "lightning_logs" / "version_0" / "metrics.csv", table)
    found = find(path)
    assert (len(found["points"]), found["points"][-1][3]) == (9, 1.0)
    write(path, TEXT)
    assert len(find(path)["points"]) == 100
    write(path, "hello\n")
    # One that another run may have written as well.
    os.utime(metrics, (END + 600, END + 600))
    assert find(path) == {}
    os.utime(metrics, (END - 9, END - 9))
    write(open_dir / "results.csv", table)
    assert find(path) == {}
    (open_dir / "81").mkdir()
    write(open_dir / "81" / "results.csv", table)
    assert len(find(path)["points"]) == 9
    assert len(find(path, attempt=RunKey(cluster="lab", job_id=8, submit_time=1), address="8")) == 0


def test_a_file_of_events_is_this_runs_if_its_name_has_the_node_and_the_time(open_dir: Path) -> None:
    path = write(open_dir / "out", "hello\n")
    for name in (f"events.out.tfevents.{END - 60}.n1.7.0", f"events.out.tfevents.{END - 90}.n2.7.0", "metrics.csv"):
        write(open_dir / name, "epoch,loss\n1,1\n")
    found = read_loss_curve._find_metrics_files([str(path)], make_run(path, uid=path.stat().st_uid))
    assert [os.path.basename(one) for one in found] == [f"events.out.tfevents.{END - 60}.n1.7.0"]  # noqa: PTH119


def test_what_the_child_sends_is_checked() -> None:
    run = make_run(Path("/none"))
    wild = b'{"source": "x", "points": [[1, "2", null, Infinity, NaN]], "figures": ["a", 2.5, null]}'
    curve = read_loss_curve._parse_answer(wild, run)
    assert curve is not None
    assert (curve.points[0].step, curve.points[0].loss, curve.lowest, curve.time_share) == (None, None, None, 2.5)
    assert read_loss_curve._parse_answer(b"{}", run) is None
