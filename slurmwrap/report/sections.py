"""Build the sections of the page from a NightReport, the most urgent first; empty ones are left out. Pure."""

from __future__ import annotations

from slurmwrap.diagnosis.taxonomy import CATEGORIES, DOMAINS
from slurmwrap.fast_dataclasses import replace
from slurmwrap.report.night_report import DEMAND, Blocked, CategoryRow, NightReport, UsageRow
from slurmwrap.report.report_page import Column, ColumnKind, ReportTable, Section, TableRow
from slurmwrap.report.sections_running import make_running_section
from slurmwrap.report.sections_saved import make_saved_section, make_wrong_section
from slurmwrap.report.sections_site import list_site_sections
from slurmwrap.report.user_report import describe_unused_request


# The section of a user's own report: what jobs asked for and used, and what to change.
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
                    *_make_requested_and_used_columns("time", "time", ("limit", "ran"), ColumnKind.TIME, "_s"),
                    *_make_requested_and_used_columns("cpus", "CPUs", ("CPUs", "CPUs busy"), ColumnKind.NUMBER),
                    *_make_requested_and_used_columns("mem_gib", "GiB", ("GiB", "GiB peak"), ColumnKind.NUMBER),
                    Column(key="gpus", head="asked", kind=ColumnKind.COUNT, group="GPUs", alone="GPUs"),
                    Column(
                        key="gpu_util", head="busy", kind=ColumnKind.SHARE, group="GPUs", alone="GPU use", narrow=False
                    ),
                    Column(key="measured_by", head="measured by", data=True),
                    Column(key="change", head="ask for", kind=ColumnKind.NAMES, data=True),
                    Column(key="script", head="script", kind=ColumnKind.USER, data=True),
                ),
                rows=tuple(map(_make_usage_row, report.usage)),
            ),
        ),
    )


def _make_requested_and_used_columns(
    key: str, group: str, alone: tuple[str, str], kind: ColumnKind, unit: str = ""
) -> tuple[Column, ...]:
    named = zip(("asked", "used"), alone, strict=True)
    return tuple(
        Column(key=f"{key}_{word}{unit}", head=word, kind=kind, group=group, alone=name) for word, name in named
    )


def _make_usage_row(one: UsageRow) -> TableRow:
    values = (
        one.name,
        one.runs,
        one.time_asked_s,
        one.time_used_s,
        one.cpus_asked,
        one.cpus_used,
        _convert_to_gib(one.mem_mib_asked),
        _convert_to_gib(one.mem_mib_peak),
        one.gpus,
        one.gpu_util,
        one.measured_by or None,
        one.change,
        one.script or None,
    )
    enough = f"ask for {' '.join(one.change)}" if one.change else ""
    return TableRow(values, more=": ".join(part for part in (describe_unused_request(one), enough) if part))


def _convert_to_gib(mib: float | None) -> float | None:
    return None if mib is None else mib / 1024


# Sections that an administrator acts on: nodes under suspicion, slurmwrap's drains, blocked inputs.
def make_nodes_section(report: NightReport) -> Section:
    return Section(
        key="nodes",
        title="Nodes",
        tables=(_make_suspects_table(report), _make_lemons_table(report), _make_drains_table(report)),
        empty="" if report.user else "No node is under suspicion, and none is drained by slurmwrap.",
    )


def _make_suspects_table(report: NightReport) -> ReportTable:
    return ReportTable(
        key="suspects",
        title="Nodes under suspicion",
        lead="Reported by the kernel, NVML or Slurm; below each, the newest evidence.",
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
        title="Drained by slurmwrap",
        lead="With the command that ends the drain, once the nodes are repaired.",
        columns=(
            Column(key="nodes", head="nodes", kind=ColumnKind.NODES),
            Column(key="since", head="since", kind=ColumnKind.MOMENT),
            Column(key="reason", head="reason", kind=ColumnKind.USER),
        ),
        rows=tuple(TableRow((one.nodes, one.since, one.reason), command=one.command) for one in report.drains),
        limit=12,
    )


def make_inputs_section(report: NightReport) -> Section:
    """Return the blocked inputs, new ones first. Those of one owner with one reason share a row: the newest file."""
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
    """Return the reason without the path, which is shown above it."""
    return one.input.reason.removeprefix(f"{one.input.path}: ")


def list_sections(report: NightReport) -> tuple[Section, ...]:
    """Return the sections with content, and those whose empty state is worth a line."""
    site = list_site_sections(report)
    if report.own:
        kept = [section for section in site if section.key in _OWN_SECTIONS]
        found = (
            _make_failed_section(report),
            usage(report),
            make_inputs_section(report),
            *kept,
            make_running_section(report),
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
            make_running_section(report),
            *site,
        )
    if report.user:
        found = tuple(map(_drop_user_columns, found))
    left_out = _SITE_TABLES if report.own else ()
    full = (_drop_empty(section, left_out) for section in found)
    return tuple(section for section in full if section.has_something or section.empty)


# The site's sections that a user's own report has.
_OWN_SECTIONS = ("convergence", "queueing", "large")
# Tables that are useless in the report of one user.
_USER_TABLES = ("repeated_users", "users")
_SITE_TABLES = ("agreement", "rules", "locality")


def _drop_user_columns(section: Section) -> Section:
    """Remove columns that would contain the same user name in each row."""
    tables = tuple(_drop_users(table) for table in section.tables if table.key not in _USER_TABLES)
    return replace(section, tables=tables)


def _drop_users(table: ReportTable) -> ReportTable:
    kept = [index for index, column in enumerate(table.columns) if column.key not in ("user", "users")]

    def drop_columns(rows: tuple[TableRow, ...]) -> tuple[TableRow, ...]:
        return tuple(replace(row, values=tuple(row.values[index] for index in kept)) for row in rows)

    columns = tuple(table.columns[index] for index in kept)
    return replace(table, columns=columns, rows=drop_columns(table.rows), unfolded=drop_columns(table.unfolded))


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
    """Return the meaning of a category of the taxonomy; "" for a category that a site defined."""
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
            TableRow(
                (one.category, one.scope, one.began, one.over_at, one.jobs, one.users, one.gpu_hours), more=one.doubt
            )
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
