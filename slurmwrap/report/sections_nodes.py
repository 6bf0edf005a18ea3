"""The sections that an administrator acts on: nodes under suspicion, our drains, blocked inputs. Pure."""

from __future__ import annotations

from slurmwrap.report.night_report import Blocked, NightReport
from slurmwrap.report.report_page import Column, ColumnKind, ReportTable, Section, TableRow


def make_nodes_section(report: NightReport) -> Section:
    return Section(
        key="nodes",
        title="Nodes",
        tables=(_make_suspects_table(report), _make_lemons_table(report), _make_drains_table(report)),
        empty="" if report.user else "No node is under suspicion, and none is drained by us.",
    )


def _make_suspects_table(report: NightReport) -> ReportTable:
    return ReportTable(
        key="suspects",
        title="Nodes under suspicion",
        lead="By the word of the kernel, NVML or Slurm; below each, the newest evidence.",
        columns=(
            Column(key="nodes", head="nodes", kind=ColumnKind.NODES),
            Column(key="strikes", head="strikes", kind=ColumnKind.COUNT),
            Column(key="conclusive", head="proof"),
            Column(key="causes", head="causes", kind=ColumnKind.NAMES),
            Column(key="jobs", head="jobs", kind=ColumnKind.COUNT),
            Column(key="users", head="users", kind=ColumnKind.COUNT),
            Column(key="last", head="last", kind=ColumnKind.MOMENT),
        ),
        rows=tuple(
            TableRow(
                (
                    one.nodes,
                    one.strikes,
                    "conclusive" if one.conclusive else "not yet",
                    one.causes,
                    one.jobs,
                    one.users,
                    one.last_at,
                ),
                more=one.text,
            )
            for one in report.suspects
        ),
        limit=12,
    )


def _make_lemons_table(report: NightReport) -> ReportTable:
    return ReportTable(
        key="lemons",
        title="Suspect and lemon nodes of 28 days",
        columns=(
            Column(key="nodes", head="nodes", kind=ColumnKind.NODES),
            Column(key="status", head="status"),
            Column(key="ratio", head="times the fleet", kind=ColumnKind.NUMBER),
            Column(key="jobs", head="jobs", kind=ColumnKind.COUNT),
            Column(key="users", head="users", kind=ColumnKind.COUNT),
        ),
        rows=tuple(
            TableRow((one.nodes, one.status, one.ratio, one.jobs, one.users), more=one.why, command=one.command)
            for one in report.lemons
        ),
        limit=12,
    )


def _make_drains_table(report: NightReport) -> ReportTable:
    return ReportTable(
        key="drains",
        title="Drained by us",
        lead="With the command that lifts it, once they are repaired.",
        columns=(
            Column(key="nodes", head="nodes", kind=ColumnKind.NODES),
            Column(key="since", head="since", kind=ColumnKind.MOMENT),
            Column(key="reason", head="reason", kind=ColumnKind.USER),
        ),
        rows=tuple(TableRow((one.nodes, one.since, one.reason), command=one.command) for one in report.drains),
        limit=12,
    )


def make_inputs_section(report: NightReport) -> Section:
    """The new ones first. Those of one owner that are blocked for the same reason are one row: the newest."""
    ordered = sorted(report.blocked, key=lambda one: (not one.new, -one.input.at))
    alike: dict[tuple[str, str, bool], list[Blocked]] = {}
    for one in ordered:
        alike.setdefault((_describe_owner(one), _format_reason(one), one.new), []).append(one)
    return Section(
        key="inputs",
        title="Blocked inputs",
        tables=(
            ReportTable(
                key="inputs",
                title="Blocked inputs",
                lead="Jobs that read them are refused until the file changes. slurmwrap inputs shows and clears them.",
                columns=(
                    Column(key="path", head="newest file", kind=ColumnKind.USER),
                    Column(key="files", head="files", kind=ColumnKind.COUNT),
                    Column(key="for", head="for", kind=ColumnKind.USER),
                    Column(key="since", head="since", kind=ColumnKind.MOMENT),
                    Column(key="new", head="state"),
                    Column(key="job", head="job", kind=ColumnKind.USER, narrow=False),
                ),
                rows=tuple(_make_blocked_row(some[0], len(some)) for some in alike.values()),
                unfolded=tuple(_make_blocked_row(one, 1) for one in ordered),
            ),
        ),
    )


def _make_blocked_row(one: Blocked, files: int) -> TableRow:
    job = str(one.input.job_id) if one.input.job_id else None
    state = "new" if one.new else "known"
    return TableRow((one.input.path, files, _describe_owner(one), one.input.at, state, job), more=_format_reason(one))


def _describe_owner(one: Blocked) -> str:
    return "everyone" if one.input.uid == -1 else one.user or f"uid {one.input.uid}"


def _format_reason(one: Blocked) -> str:
    """Without the path, which stands above it."""
    return one.input.reason.removeprefix(f"{one.input.path}: ")
