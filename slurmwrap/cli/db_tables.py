"""Tables of `slurmwrap db rows | search | export | analyze`: option parsing, formats and export files."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from typer.core import TyperCommand

from slurmwrap.cli import terminal
from slurmwrap.cli.list_options import check_known_names, list_json_pieces
from slurmwrap.errors import StoreError, UsageError
from slurmwrap.escape import cell, visible
from slurmwrap.fast_dataclasses import replace
from slurmwrap.report import text_format
from slurmwrap.store.atomic_write import replace_file
from slurmwrap.store.db_maintenance import reject_open_directory
from slurmwrap.store.table_reader import MARKS, ColumnFigures, FoundFailure, TableReader

# Least width to which a column of text is cut.
_MIN_TEXT_WIDTH = 8
# Least width of a value when each value has a line of its own, after the name of its column.
_MIN_VALUE_WIDTH = 20
ENDINGS = {"csv": ".csv", "json": ".json", "nl": ".jsonl"}
KIND = "db_rows"


class RowsCommand(TyperCommand):
    """The command `db rows`. Its --param takes two values and may be repeated, for which Typer has no type."""

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        for one in self.params:
            if one.name == "param":
                one.nargs = 2


def read_pairs(param: Sequence[str]) -> dict[str, str]:
    """Return the values of --param as RowsCommand parses them: name -> value."""
    return {name.removeprefix(":"): value for name, value in cast(Sequence[tuple[str, str]], param)}


def choose_format(*, as_csv: bool, as_json: bool, as_nl: bool, otherwise: str) -> str:
    """Return "csv", "json" or "nl" according to the flags, else `otherwise`. UsageError if two flags are given."""
    wanted = [name for name, flag in (("csv", as_csv), ("json", as_json), ("nl", as_nl)) if flag]
    if len(wanted) > 1:
        raise UsageError(f"--{wanted[0]} and --{wanted[1]} exclude each other", hint="choose one of them")
    return wanted[0] if wanted else otherwise


def find_table(reader: TableReader, name: str) -> str:
    """Return `name` if it is a table or view; otherwise raise UsageError that suggests the nearest name."""
    return check_known_names([name], reader.names, "TABLE")[0]


def find_plain_tables(reader: TableReader, names: Sequence[str]) -> tuple[str, ...]:
    """Return `names` if all are tables; raise UsageError for a view or an unknown name."""
    for name in names:
        if find_table(reader, name) not in reader.tables:
            raise UsageError(f"'{name}' is a view", hint="its columns are those of tables: docs/database.md")
    return tuple(names)


def parse_order(text: str, known: Sequence[str]) -> tuple[str, bool]:
    """Parse "end_time desc" to ("end_time", True). Raise UsageError."""
    name, _, way = text.partition(" ")
    if way.strip().lower() not in ("", "asc", "desc"):
        raise UsageError(
            f"--order '{visible(text)}' is no column", hint="write it as COLUMN, or 'COLUMN desc' for the highest first"
        )
    if not name:
        return "", False
    return check_known_names([name], known, "--order")[0], way.strip().lower() == "desc"


def list_row_pieces(form: str, names: Sequence[str], rows: Iterable[Mapping[str, Any]], more: int = 0) -> Iterator[str]:
    """Return rows as text in "csv", "json" or "nl" format, in pieces."""
    if form == "json":
        return list_json_pieces(KIND, {"rows": rows, "more": more})
    return _list_csv_lines(names, rows) if form == "csv" else (f"{json.dumps(row)}\n" for row in rows)


class _LineWriter:
    """A file object for csv.writer. Its `write` returns the text, which csv.writer then returns from `writerow`."""

    def write(self, text: str) -> str:
        return text


def _list_csv_lines(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Return lines of CSV (RFC 4180) in which no text of a user can become a formula in a spreadsheet."""
    writer = csv.writer(_LineWriter())
    yield cast(str, writer.writerow(map(cell, names)))
    for row in rows:
        yield cast(str, writer.writerow(cell(v) if isinstance(v, str) else v for v in row.values()))


def format_rows(names: Sequence[str], rows: Sequence[Mapping[str, Any]], wide: int) -> str:
    """Format a table; if it cannot fit `wide`, one line per value and an empty line between rows."""
    cells = [[_format_value(row[name]) for name in names] for row in rows]
    numbers = [_is_numeric(row[name] for row in rows) for name in names]
    widths = [max(text_format.width(line[i]) for line in [list(names), *cells]) for i in range(len(names))]
    least = [width if number else min(width, _MIN_TEXT_WIDTH) for width, number in zip(widths, numbers, strict=True)]
    if sum(least) + 2 * len(least) <= wide:
        head = [f"{'>' if number else '~'}{name}" for name, number in zip(names, numbers, strict=True)]
        return text_format.table(head, cells, columns=wide)
    longest = max(map(len, names))
    value_width = max(_MIN_VALUE_WIDTH, wide - longest - 4)
    return "\n\n".join(
        "\n".join(
            f"  {name:{longest}}  {text_format.fit(text, value_width)}".rstrip()
            for name, text in zip(names, line, strict=True)
        )
        for line in cells
    )


def _format_value(value: Any) -> str:
    return "" if value is None else visible(str(value))


def _is_numeric(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float | None) for value in values)


def format_found(found: Sequence[FoundFailure], wide: int) -> str:
    """Format two lines per failure: its run, and the text around the words that were searched for."""
    zone, paint = terminal.get_local_zone(), terminal.choose_painter()
    rows = [
        [one.job, one.category, "" if one.ended_at is None else text_format.moment(one.ended_at, zone), one.user]
        for one in found
    ]
    head, *lines = text_format.table(("job", "category", "ended", "~user"), rows, columns=wide).split("\n")
    snippets = (f"      {_format_snippet(one.snippet, wide - 6, paint)}" for one in found)
    return "\n".join([head, *(line for pair in zip(lines, snippets, strict=True) for line in pair)])


def _format_snippet(snippet: str, wide: int, paint: text_format.Paint) -> str:
    shown = ""
    for place, part in enumerate(re.split(f"[{''.join(MARKS)}]", snippet)):
        part = text_format.fit(part, wide) if part else ""
        shown += paint(part, "bold") if place % 2 else part
        wide -= text_format.width(part)
        if wide <= 0:
            break
    return shown


def remove_marks(one: FoundFailure) -> FoundFailure:
    """Return the failure without the marks around matching words, for JSON."""
    return replace(one, snippet=re.sub(f"[{''.join(MARKS)}]", "", one.snippet))


def format_figures(figures: Sequence[ColumnFigures], wide: int) -> str:
    """Format the columns of one table: a line of figures for each, and its values below."""
    rows = [[one.column, f"{one.nulls:,}", f"{one.distinct:,}"] for one in figures]
    head, *lines = text_format.table(("column", ">NULL", ">distinct"), rows, columns=wide).split("\n")
    shown = [head]
    for line, one in zip(lines, figures, strict=True):
        shown.append(line)
        if one.most_common:
            shown.append(text_format.fit(f"      most common: {_format_common(one.most_common)}", wide))
        if len(one.most_common) < one.distinct and one.least_common:
            shown.append(text_format.fit(f"      least common: {_format_common(one.least_common)}", wide))
    return "\n".join(shown)


def _format_common(found: Iterable[Any]) -> str:
    return ", ".join(f"{_name_value(one.value)} ({one.count:,})" for one in found)


def _name_value(value: Any) -> str:
    if value is None:
        return "NULL"
    return text_format.fit(str(value), 20) if value != "" else '""'


def export_tables(
    reader: TableReader, directory: Path, tables: Sequence[str], form: str, *, force: bool, say: Callable[[str], None]
) -> None:
    """Write each table to a file of mode 0600, such as `directory`/TABLE.csv.

    Raise StoreError if a file exists already and `force` is not set, or if a table cannot be written; the previous file
    of that table is then unchanged.
    """
    targets = {table: directory / f"{table}{ENDINGS[form]}" for table in tables}
    existing = next((target for target in targets.values() if target.exists()), None)
    if existing and not force:
        raise StoreError(f"{existing} exists already", hint="name another directory, or use --force")
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        reject_open_directory(directory)
        for table, target in targets.items():
            counted = _CountedRows(reader.read_rows(table))
            replace_file(target, list_row_pieces(form, reader.list_columns(table), counted), 0o600)
            say(f"{target}: {text_format.count(counted.count, 'row')}")
    except OSError as error:
        raise StoreError(
            f"cannot write {error.filename or directory}: {error.strerror}", hint=f"see: ls -ld {directory}"
        ) from error


class _CountedRows:
    """Rows that are counted while they are iterated over."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self.count, self._rows = 0, rows

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for row in self._rows:
            self.count += 1
            yield row
