"""Render a Page as one self-contained HTML file, and as the HTML part of a mail. Names are untrusted.

The templates are in templates/report/. All text is made printable and then escaped (autoescape); commands are one line
each.
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

# Largest number of characters shown of a user's text, in a cell and below a row.
CELL, MORE = 120, 400
# Largest number of further rows that open at a click.
FOLDED = 60
_NOTHING = "–"
# Rows of a table in a mail: Gmail cuts a mail at 102 KB.
IN_MAIL = 6
_UNIT = re.compile(r"(?<=\d) (?=(?:%|s|min|h|d|GPU-hours|GiB)\b|%)")


def render(page: Page, plots: Mapping[str, str] | None, *, made_by: str) -> str:
    """Return the HTML page. `plots`: from report_plots.py; None if matplotlib is missing, which the page mentions."""
    notes = page.notes if plots is not None else (*page.notes, NO_MATPLOTLIB)
    return _fill_template("page.html.j2", page, plots=plots or {}, notes=notes, made_by=made_by, css="page.css")


def mail(page: Page, *, made_by: str) -> str:
    """Return the HTML part of a mail: no charts, no CSS variables, few rows; the whole page is attached to the mail."""
    return _fill_template("mail.html.j2", page, plots={}, notes=page.notes, made_by=made_by, css="mail.css")


def index(nights: Sequence[Any], whose: str) -> str:
    """Return a page that lists nights (day, word, sentence), in the given order."""
    return make_environment().get_template("index.html.j2").render(nights=nights, whose=whose, css="page.css")


def _fill_template(template: str, page: Page, **values: object) -> str:
    environment = make_environment()
    environment.globals.update(zone=page.zone)
    return environment.get_template(template).render(page=page, titles=TITLES, folded=FOLDED, in_mail=IN_MAIL, **values)


def list_cells(row: TableRow, table: ReportTable, zone: object) -> Iterator[tuple[Column, str, str]]:
    """Yield (column, text, CSS classes) of each cell; the first cell is the name of the row."""
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
    """Return headings above column heads: (text, number of columns); () if no column has one."""
    found = tuple((name, len(list(some))) for name, some in groupby(table.columns, key=lambda column: column.group))
    return found if any(name for name, _ in found) else ()


def join_number_and_unit(text: str) -> str:
    """Replace the space between a number and its unit by a no-break space."""
    return _UNIT.sub("\N{NO-BREAK SPACE}", text)


def make_environment() -> Environment:
    """Return the environment of the HTML templates, with autoescape; `zone` is still to be set."""
    # Autoescape, because users choose names.
    environment = make_template_environment("report", autoescape=True, keep_trailing_newline=False)
    environment.filters.update(visible=text_format.visible, fit=text_format.fit, tied=join_number_and_unit)
    environment.globals.update(
        count=text_format.count, cells=list_cells, groups=list_column_groups, moment=text_format.moment,
        numeric=NUMERIC,
        untrusted=UNTRUSTED,
        more_shown=MORE,
    )  # fmt: skip
    return environment
