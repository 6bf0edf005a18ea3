"""Turns a Page into CSV: one tidy file per table, values as they are (seconds, shares of 1, ISO times).

A spreadsheet reads a cell that begins with = + - @ as a formula. Where someone chose the words, an apostrophe stands
in front of those (OWASP, "CSV Injection").
"""

from __future__ import annotations

import csv
from datetime import UTC, datetime
from io import StringIO

from slurmwrap.escape import cell
from slurmwrap.model.hostlist import fold
from slurmwrap.report.report_page import UNTRUSTED, Column, ColumnKind, Page, ReportTable

MAIN = "categories"


def render_files(page: Page) -> dict[str, str]:
    """File name -> text: "categories.csv", "nodes.csv", …; only of tables that hold something. "figures.csv" always."""
    tables = {table.key: table for section in page.sections for table in section.tables}
    return {"figures.csv": render_headline(page)} | {f"{key}.csv": _render_file(table) for key, table in tables.items()}


def render_main_file(page: Page) -> str:
    """The table of failures by category, or its head where none failed."""
    return render_files(page).get(f"{MAIN}.csv", "category\r\n")


def render_headline(page: Page) -> str:
    """The headline."""
    rows = [[one.key, _format_number(one.number), _format_number(one.before), one.detail] for one in page.figures]
    return _write_csv(["figure", "value", "before", "detail"], rows)


def _render_file(table: ReportTable) -> str:
    every = table.unfolded or table.rows
    more = any(row.more for row in every)
    commands = any(row.command for row in every)
    heads = [column.key for column in table.columns] + ["more"] * more + ["command"] * commands
    rows = [
        [_format_csv_cell(value, column) for column, value in zip(table.columns, row.values, strict=True)]
        + ([cell(row.more)] if more else [])
        + ([cell(row.command)] if commands else [])
        for row in every
    ]
    return _write_csv(heads, rows)


def _format_csv_cell(value: object, column: Column) -> str:
    if value is None:
        return ""
    if column.kind is ColumnKind.MOMENT:
        return datetime.fromtimestamp(float(value), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")  # type: ignore[arg-type]
    if column.kind is ColumnKind.NODES:
        return cell(fold(value))  # type: ignore[arg-type]
    if column.kind is ColumnKind.NAMES:
        return cell(" ".join(value))  # type: ignore[arg-type]
    if isinstance(value, float):
        return _format_number(value)
    return cell(str(value)) if column.kind in UNTRUSTED else str(value)


def _format_number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"


def _write_csv(heads: list[str], rows: list[list[str]]) -> str:
    out = StringIO(newline="")
    writer = csv.writer(out)  # RFC 4180: CRLF, quotes where needed
    writer.writerow(heads)
    writer.writerows(rows)
    return out.getvalue()
