"""Turns a Page into one HTML file that needs nothing else, and into the HTML part of a mail. Names are untrusted.

By templates/report/: everything is escaped (autoescape) after it was made printable; commands are one line each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from slurmwrap.package_files import make_template_environment
from slurmwrap.report import text_format
from slurmwrap.report.report_page import NUMERIC, UNTRUSTED, Column, Page, ReportTable, TableRow, format_value
from slurmwrap.report.report_plots import TITLES
from slurmwrap.report.svg_charts import NO_MATPLOTLIB

if TYPE_CHECKING:
    from jinja2 import Environment

# Characters of someone's words that are shown.
CELL, MORE = 120, 400
# Rows that open at a click, beyond those shown.
FOLDED = 60
_NOTHING = "–"
# Rows of a table in a mail: Gmail cuts at 102 KB.
IN_MAIL = 6
_UNIT = re.compile(r"(?<=\d) (?=(?:%|s|min|h|d|GPU-hours|GiB)\b|%)")


def render(page: Page, plots: Mapping[str, str] | None, *, made_by: str) -> str:
    """The page. `plots`: report/report_plots.py's; None: there is no matplotlib, and the page says so."""
    notes = page.notes if plots is not None else (*page.notes, NO_MATPLOTLIB)
    return _fill_template("page.html.j2", page, plots=plots or {}, notes=notes, made_by=made_by, css="page.css")


def mail(page: Page, *, made_by: str) -> str:
    """For programs that read mail: no drawing, no variables, few rows; the whole page is attached."""
    return _fill_template("mail.html.j2", page, plots={}, notes=page.notes, made_by=made_by, css="mail.css")


def index(nights: Sequence[Any], whose: str) -> str:
    """A page that lists nights (day, word, sentence), as they come."""
    return _make_environment().get_template("index.html.j2").render(nights=nights, whose=whose, css="page.css")


def _fill_template(template: str, page: Page, **values: object) -> str:
    environment = _make_environment()
    environment.globals.update(zone=page.zone)
    return environment.get_template(template).render(page=page, titles=TITLES, folded=FOLDED, in_mail=IN_MAIL, **values)


def list_cells(row: TableRow, table: ReportTable, zone: object) -> Iterator[tuple[Column, str, str]]:
    """Column, what is in the cell, and its classes; a row's own name comes first."""
    for column, value in zip(table.columns, row.values, strict=True):
        text = text_format.fit(format_value(value, column, zone), CELL)  # type: ignore[arg-type]
        yield column, text, _list_classes(column, value)


def _list_classes(column: Column, value: object) -> str:
    absent = value is None or value == ()
    found = {
        "n": column.kind in NUMERIC,
        "u": column.kind in UNTRUSTED,
        "wide": not column.narrow,
        "none": absent,
        "blank": absent and column.none == _NOTHING,
    }
    return " ".join(name for name, yes in found.items() if yes)


def list_column_groups(table: ReportTable) -> tuple[tuple[str, int], ...]:
    """Heads above heads: (text, columns); () where no column has one."""
    found = tuple((name, len(list(some))) for name, some in groupby(table.columns, key=lambda column: column.group))
    return found if any(name for name, _ in found) else ()


def join_number_and_unit(text: str) -> str:
    """A number keeps its unit on its line."""
    return _UNIT.sub("\N{NO-BREAK SPACE}", text)


def _make_environment() -> Environment:
    # Users choose names.
    environment = make_template_environment("report", autoescape=True, keep_trailing_newline=False)
    environment.filters.update(visible=text_format.visible, fit=text_format.fit, tied=join_number_and_unit)
    environment.globals.update(
        count=text_format.count, cells=list_cells, groups=list_column_groups, moment=text_format.moment,
        numeric=NUMERIC,
        untrusted=UNTRUSTED,
        more_shown=MORE,
    )  # fmt: skip
    return environment
