"""The tables of what is seen of jobs while they run: findings of the rule `early`, use of their GPUs, loss curves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from slurmwrap.model.evidence import RunKey
from slurmwrap.model.running_job import HOST, EarlyFinding, GpuUse, LossCurve, LossPoint
from slurmwrap.store.record_rows import Nested, RecordTable
from slurmwrap.store.sql_text import dump
from slurmwrap.store.sqlite_session import Session

_ATTEMPT = {"attempt": Nested(prefix="", marker="submit_time")}
_RUN = ("cluster", "job_id", "submit_time")
EARLY_FINDINGS = RecordTable(
    name="early_findings",
    record=EarlyFinding,
    key=(*_RUN, "kind"),
    columns=(*_RUN, "kind", "at", "n", "evidence", "uid", "address", "mode", "action", "notified", "gone_at"),
    boolean=frozenset({"notified"}),
    nested=_ATTEMPT,
)
GPU_USE = RecordTable(
    name="gpu_use",
    record=GpuUse,
    key=(*_RUN, "node", "gpu", "mig"),
    columns=(
        *(*_RUN, "node", "gpu", "mig", "began", "interval_s"),
        *("use_pct", "mem_mib", "processes", "mem_total_mib", "energy_j"),
    ),
    json=frozenset({"use_pct", "mem_mib", "processes"}),
    nested=_ATTEMPT,
)

_LOSS_CURVES = "loss_curves"
_OF_CURVE = ("end_time", "uid", "source", "lowest", "time_share", "epoch_share")
_SAVE_LOSS_CURVE = """INSERT INTO loss_curves
    VALUES (:cluster, :job_id, :submit_time, :end_time, :uid, :source, :points, :lowest, :time_share, :epoch_share)
    ON CONFLICT (cluster, job_id, submit_time) DO UPDATE SET end_time = excluded.end_time, uid = excluded.uid,
    source = excluded.source, points = excluded.points, lowest = excluded.lowest, time_share = excluded.time_share,
    epoch_share = excluded.epoch_share"""


class RunningJobTables(Session):
    """What was seen of jobs while they ran."""

    def save_early_finding(self, finding: EarlyFinding) -> None:
        """Insert or replace by run and kind."""
        self._upsert(EARLY_FINDINGS, finding)

    def early_findings(self, attempt: RunKey | None = None, *, since: float | None = None) -> tuple[EarlyFinding, ...]:
        """Return the findings about one run, or about all runs, oldest first. `since`: Unix seconds."""
        if not self._has_table(EARLY_FINDINGS.name):
            return ()
        return self._select(
            EARLY_FINDINGS, _select_run(attempt) | {"at >= ?": since}, order="at, cluster, job_id, kind"
        )

    def save_gpu_use(self, use: GpuUse) -> None:
        """Insert or replace by run, node and GPU."""
        self._upsert(GPU_USE, use)

    def gpu_use(self, attempt: RunKey, node: str | None = None) -> tuple[GpuUse, ...]:
        """Return the samples of the GPUs of one run, ordered by node and GPU. `node`: only those of one node."""
        return self._select_use(attempt, {"gpu >= ?": 0, "node = ?": node})

    def host_use(self, attempt: RunKey, node: str | None = None) -> tuple[GpuUse, ...]:
        """Return the samples of CPUs and memory of one run, ordered by node (model.running_job.HOST)."""
        return self._select_use(attempt, {"gpu = ?": HOST, "node = ?": node})

    def _select_use(self, attempt: RunKey, where: dict[str, str | int | None]) -> tuple[GpuUse, ...]:
        if not self._has_table(GPU_USE.name):
            return ()
        return self._select(GPU_USE, _select_run(attempt) | where, order="node, gpu, mig")

    def save_loss_curve(self, curve: LossCurve) -> None:
        """Insert or replace by run."""
        points = [[p.at_s, p.step, p.epoch, p.loss, p.validation_loss] for p in curve.points]
        row = {
            "cluster": curve.attempt.cluster,
            "job_id": curve.attempt.job_id,
            "submit_time": curve.attempt.submit_time,
            "points": dump(points),
        }
        self._write(_SAVE_LOSS_CURVE, row | {name: getattr(curve, name) for name in _OF_CURVE})

    def loss_curve(self, attempt: RunKey) -> LossCurve | None:
        """Return the loss curve of one run; None if none is stored."""
        return next(iter(self._select_loss_curves(_select_run(attempt))), None)

    def loss_curves(self, since: float, *, points: bool = True) -> tuple[LossCurve, ...]:
        """Return the curves of the runs that ended since then, in the order of their ends. `since`: Unix seconds.

        `points`: False leaves out the points, which are most of it.
        """
        return self._select_loss_curves({"end_time >= ?": since}, "points" if points else "'[]' AS points")

    def _select_loss_curves(self, where: Mapping[str, Any], points: str = "points") -> tuple[LossCurve, ...]:
        if not self._has_table(_LOSS_CURVES):
            return ()
        sql = f"SELECT {', '.join((*_RUN, *_OF_CURVE))}, {points} FROM {_LOSS_CURVES} WHERE {' AND '.join(where)}"
        rows = self._rows(f"{sql} ORDER BY end_time, cluster, job_id, submit_time", list(where.values()))
        return tuple(map(_curve_from_row, rows))


def _curve_from_row(row: Mapping[str, Any]) -> LossCurve:
    names = ("at_s", "step", "epoch", "loss", "validation_loss")
    points = (LossPoint(**dict(zip(names, point, strict=True))) for point in json.loads(row["points"]))
    return LossCurve(
        attempt=RunKey(cluster=row["cluster"], job_id=row["job_id"], submit_time=row["submit_time"]),
        points=tuple(points),
        **{name: row[name] for name in _OF_CURVE},
    )


def _select_run(attempt: RunKey | None) -> dict[str, str | int | None]:
    if attempt is None:
        return {}
    return {"cluster = ?": attempt.cluster, "job_id = ?": attempt.job_id, "submit_time = ?": attempt.submit_time}
