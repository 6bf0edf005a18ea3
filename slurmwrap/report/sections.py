"""Turns a NightReport into the sections of its page, the most urgent first. What is empty is left out. Pure."""

from __future__ import annotations

from slurmwrap.diagnosis.taxonomy import CATEGORIES, DOMAINS
from slurmwrap.fast_dataclasses import replace
from slurmwrap.report.night_report import DEMAND, CategoryRow, NightReport
from slurmwrap.report.report_page import Column, ColumnKind, ReportTable, Section, TableRow
from slurmwrap.report.sections_nodes import make_inputs_section, make_nodes_section
from slurmwrap.report.sections_saved import make_saved_section, make_wrong_section
from slurmwrap.report.sections_site import list_site_sections
from slurmwrap.report.sections_usage import usage


def list_sections(report: NightReport) -> tuple[Section, ...]:
    """Sections with something in them, and those whose emptiness is worth a line."""
    site = list_site_sections(report)
    if report.own:
        kept = [section for section in site if section.key in _OWN]
        found = (
            _make_failed_section(report),
            usage(report),
            make_inputs_section(report),
            *kept,
            make_saved_section(report),
            make_wrong_section(report),
        )
    else:
        found = (
            _make_failed_section(report),
            make_saved_section(report),
            make_wrong_section(report),
            make_nodes_section(report),
            make_inputs_section(report),
            *site,
        )
    if report.user:
        found = tuple(map(_drop_user_columns, found))
    left_out = _NOT_OWN if report.own else ()
    full = (_drop_empty(section, left_out) for section in found)
    return tuple(section for section in full if section.has_something or section.empty)


_OWN = ("queueing", "large")  # of the site's sections, those that a user's own report has
_ABOUT_USERS = ("repeated_users", "users")  # tables that say nothing of one user alone
_NOT_OWN = ("agreement", "rules", "locality")


def _drop_user_columns(section: Section) -> Section:
    """Without what would say the same name in each row."""
    tables = tuple(_drop_users(table) for table in section.tables if table.key not in _ABOUT_USERS)
    return replace(section, tables=tables)


def _drop_users(table: ReportTable) -> ReportTable:
    kept = [place for place, column in enumerate(table.columns) if column.key not in ("user", "users")]

    def of(rows: tuple[TableRow, ...]) -> tuple[TableRow, ...]:
        return tuple(replace(row, values=tuple(row.values[place] for place in kept)) for row in rows)

    columns = tuple(table.columns[place] for place in kept)
    return replace(table, columns=columns, rows=of(table.rows), unfolded=of(table.unfolded))


def _drop_empty(section: Section, left_out: tuple[str, ...] = ()) -> Section:
    tables = tuple(table for table in section.tables if table.rows and table.key not in left_out)
    return Section(
        key=section.key,
        title=section.title,
        lead=tuple(line for line in section.lead if line),
        tables=tables,
        charts=section.charts,
        empty=section.empty,
    )


def describe_category(category: str) -> str:
    """What a category of the taxonomy means; "" for one of a site's own."""
    known = CATEGORIES.get(category)
    return known.meaning if known else ""


# ---- what failed


def _make_failed_section(report: NightReport) -> Section:
    return Section(
        key="failed",
        title="What failed, and why",
        tables=(
            _make_categories_table(report),
            _make_incidents_table(report),
            _make_repeated_table(report),
            _make_repeated_users_table(report),
            _make_repeated_inputs_table(report),
        ),
        charts=("categories", "held", "runtimes") if report.categories or report.incidents else ("held",),
        empty="No run failed." if report.headline.attempts else "",
    )


def _make_categories_table(report: NightReport) -> ReportTable:
    known = report.before is not None
    return ReportTable(
        key="categories",
        title="What failed",
        lead="By category, most GPU-hours first.",
        columns=(
            Column(key="category", head="category", kind=ColumnKind.CATEGORY),
            Column(key="domain", head="domain", data=True),
            Column(key="runs", head="runs", kind=ColumnKind.COUNT),
            Column(key="runs_before", head="before", kind=ColumnKind.COUNT, data=True),
            Column(key="change", head="change", kind=ColumnKind.CHANGE),
            Column(key="jobs", head="jobs", kind=ColumnKind.COUNT),
            Column(key="users", head="users", kind=ColumnKind.COUNT),
            *(
                Column(
                    key=f"{name}_run_s",
                    head=name,
                    kind=ColumnKind.TIME,
                    narrow=narrow,
                    group="runtime to failure",
                    alone=f"{name} run",
                )
                for name, narrow in (("median", True), ("p90", False), ("p95", False))
            ),
            *(
                Column(
                    key=f"gpus_{name}",
                    head=short,
                    kind=ColumnKind.COUNT,
                    narrow=False,
                    group="runs by GPUs asked for",
                    alone=f"{short} GPUs",
                )
                for name, short in zip(("1", "2_4", "5_8", "over_8"), _DEMAND_HEADS, strict=True)
            ),
            Column(key="gpu_hours", head="GPU-hours", kind=ColumnKind.HOURS),
            Column(key="gpu_hours_before", head="before", kind=ColumnKind.HOURS, narrow=False),
            Column(key="share", head="of all", kind=ColumnKind.SHARE),
        ),
        rows=tuple(_make_category_row(row, known) for row in report.categories),
        limit=12,
        explained=True,
    )


_DEMAND_HEADS = tuple(name.replace("more than ", "> ") for name in DEMAND)


def _make_category_row(row: CategoryRow, known: bool) -> TableRow:
    before = (row.attempts_before, row.attempts - row.attempts_before) if known else (None, None)
    spread = (row.median_run_s, row.p90_run_s, row.p95_run_s)
    return TableRow(
        (
            row.category,
            DOMAINS.get(row.domain, row.domain),
            row.attempts,
            *before,
            row.jobs,
            row.users,
            *spread,
            *row.demand,
            row.gpu_hours,
            row.gpu_hours_before if known else None,
            row.share,
        ),
        more=_explain_category(row),
    )


def _explain_category(row: CategoryRow) -> str:
    return ": ".join(part for part in (DOMAINS.get(row.domain, ""), describe_category(row.category)) if part)


def _make_incidents_table(report: NightReport) -> ReportTable:
    return ReportTable(
        key="incidents",
        title="Incidents",
        lead="One cause, several jobs; no node is blamed, and these runs are counted in no other row.",
        columns=(
            Column(key="category", head="category", kind=ColumnKind.CATEGORY),
            Column(key="scope", head="scope", kind=ColumnKind.USER),
            Column(key="began", head="from", kind=ColumnKind.MOMENT),
            Column(key="over", head="to", kind=ColumnKind.MOMENT, none="still open"),
            Column(key="jobs", head="jobs", kind=ColumnKind.COUNT),
            Column(key="users", head="users", kind=ColumnKind.COUNT),
            Column(key="gpu_hours", head="GPU-hours", kind=ColumnKind.HOURS),
        ),
        rows=tuple(
            TableRow((one.category, one.scope, one.began, one.over_at, one.jobs, one.users, one.gpu_hours))
            for one in report.incidents
        ),
    )


def _make_repeated_table(report: NightReport) -> ReportTable:
    whose = "" if report.user else "user's "
    return ReportTable(
        key="repeated_jobs",
        title="The same again",
        lead=f"The same failure of the same {whose}job name, twice or more.",
        columns=(
            Column(key="user", head="user", kind=ColumnKind.USER),
            Column(key="name", head="job name", kind=ColumnKind.USER),
            Column(key="category", head="category", kind=ColumnKind.CATEGORY),
            Column(key="runs", head="runs", kind=ColumnKind.COUNT),
            Column(key="gpu_hours", head="GPU-hours", kind=ColumnKind.HOURS),
            Column(key="jobs", head="jobs", kind=ColumnKind.NAMES, narrow=False),
        ),
        rows=tuple(
            TableRow((one.user, one.name, one.category, one.attempts, one.gpu_hours, one.jobs), more=one.advice)
            for one in report.repeated
        ),
    )


def _make_repeated_users_table(report: NightReport) -> ReportTable:
    return ReportTable(
        key="repeated_users",
        title="The same user again",
        lead="Of one category twice or more, whatever the job's name.",
        columns=(
            Column(key="user", head="user", kind=ColumnKind.USER),
            Column(key="category", head="category", kind=ColumnKind.CATEGORY),
            Column(key="runs", head="runs", kind=ColumnKind.COUNT),
            Column(key="jobs", head="jobs", kind=ColumnKind.COUNT),
            Column(key="gpu_hours", head="GPU-hours", kind=ColumnKind.HOURS),
        ),
        rows=tuple(
            TableRow((one.user, one.category, one.attempts, one.jobs, one.gpu_hours)) for one in report.repeated_users
        ),
        limit=8,
    )


def _make_repeated_inputs_table(report: NightReport) -> ReportTable:
    return ReportTable(
        key="repeated_inputs",
        title="The same input again",
        lead="Files that failures blame, twice or more.",
        columns=(
            Column(key="path", head="file", kind=ColumnKind.USER),
            Column(key="runs", head="runs", kind=ColumnKind.COUNT),
            Column(key="users", head="users", kind=ColumnKind.COUNT),
            Column(key="categories", head="categories", kind=ColumnKind.NAMES, narrow=False),
            Column(key="gpu_hours", head="GPU-hours", kind=ColumnKind.HOURS),
            Column(key="blocked", head="now"),
        ),
        rows=tuple(
            TableRow(
                (
                    one.path,
                    one.attempts,
                    one.users,
                    one.categories,
                    one.gpu_hours,
                    "blocked" if one.blocked else "not blocked",
                )
            )
            for one in report.repeated_inputs
        ),
        limit=8,
    )
