"""The section of a user's own report: asked for and used, and what to change. Pure."""

from __future__ import annotations

from slurmwrap.report.night_report import NightReport, UsageRow
from slurmwrap.report.report_page import Column, ColumnKind, ReportTable, Section, TableRow
from slurmwrap.report.user_report import used_words


def usage(report: NightReport) -> Section:
    by_prerun = any(one.measured_by == "the pre-run" for one in report.usage)
    how = "Of runs that completed: the longest run, the mean of CPUs in use, the peak of memory, both per node."
    scaled = " Where no run was measured they are the pre-run's, times the GPUs of a node." if by_prerun else ""
    return Section(
        key="usage",
        title="Asked for and used",
        tables=(
            ReportTable(
                key="usage",
                title="Asked for and used",
                lead=how + scaled,
                columns=(
                    Column(key="name", head="job name", kind=ColumnKind.USER),
                    Column(key="runs", head="runs", kind=ColumnKind.COUNT),
                    *_pair("time", "time", ("limit", "ran"), ColumnKind.TIME, "_s"),
                    *_pair("cpus", "CPUs", ("CPUs", "CPUs busy"), ColumnKind.NUMBER),
                    *_pair("mem_gib", "GiB", ("GiB", "GiB peak"), ColumnKind.NUMBER),
                    Column(key="gpus", head="asked", kind=ColumnKind.COUNT, group="GPUs", alone="GPUs"),
                    Column(
                        key="gpu_util", head="busy", kind=ColumnKind.SHARE, group="GPUs", alone="GPU use", narrow=False
                    ),
                    Column(key="measured_by", head="measured by", data=True),
                    Column(key="change", head="ask for", kind=ColumnKind.NAMES, data=True),
                    Column(key="script", head="script", kind=ColumnKind.USER, data=True),
                ),
                rows=tuple(map(_row, report.usage)),
            ),
        ),
    )


def _pair(key: str, group: str, alone: tuple[str, str], kind: ColumnKind, unit: str = "") -> tuple[Column, ...]:
    named = zip(("asked", "used"), alone, strict=True)
    return tuple(
        Column(key=f"{key}_{word}{unit}", head=word, kind=kind, group=group, alone=name) for word, name in named
    )


def _row(one: UsageRow) -> TableRow:
    values = (
        one.name,
        one.runs,
        one.time_asked_s,
        one.time_used_s,
        one.cpus_asked,
        one.cpus_used,
        _gib(one.mem_mib_asked),
        _gib(one.mem_mib_peak),
        one.gpus,
        one.gpu_util,
        one.measured_by or None,
        one.change,
        one.script or None,
    )
    enough = f"ask for {' '.join(one.change)}" if one.change else ""
    return TableRow(values, more=": ".join(part for part in (used_words(one), enough) if part))


def _gib(mib: float | None) -> float | None:
    return None if mib is None else mib / 1024
