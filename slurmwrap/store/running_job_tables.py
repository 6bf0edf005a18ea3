"""The tables of what is seen of jobs while they run: findings of the rule `early`, and the use of their GPUs."""

from __future__ import annotations

from slurmwrap.model.evidence import RunKey
from slurmwrap.model.running_job import HOST, EarlyFinding, GpuUse
from slurmwrap.store.record_rows import Nested, RecordTable
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


def _select_run(attempt: RunKey | None) -> dict[str, str | int | None]:
    if attempt is None:
        return {}
    return {"cluster = ?": attempt.cluster, "job_id = ?": attempt.job_id, "submit_time = ?": attempt.submit_time}
