"""`slurmwrap db`: print the path of the database, back it up, check, migrate, prune, query, export and serve it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any

import typer

from slurmwrap.cli import db_tables, terminal
from slurmwrap.cli.list_options import LIMIT, check_known_names, print_json_rows, print_pieces, split_list
from slurmwrap.cli.record_access import find_record_source
from slurmwrap.config.load_config import Config, Retention, load
from slurmwrap.console import Console, columns
from slurmwrap.errors import SlurmwrapError, StoreError, UsageError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.json_output import format_json_document
from slurmwrap.package_files import shipped
from slurmwrap.report import text_format
from slurmwrap.store import db_maintenance, retention, table_reader
from slurmwrap.store.database import Database
from slurmwrap.store.schema_docs import describe_tables
from slurmwrap.store.serialize import to_json_dict
from slurmwrap.store.table_reader import TableReader, open_tables

app = typer.Typer(
    no_args_is_help=True,
    help="""The database: the site's for root and SlurmUser, your own otherwise.

    \b
    Examples:
      slurmwrap db backup /var/backups/slurmwrap/ --keep 7
      slurmwrap db check
      slurmwrap db prune --dry-run
      slurmwrap db search out of memory          which failures were like this?
      slurmwrap db rows failures --limit 10
      slurmwrap db serve                         look around in it with Datasette
    """,
)

File = Annotated[str, typer.Option("--file", metavar="FILE", help="This file, not the configured one.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="CSV, safe to open in a spreadsheet.")]
AsLines = Annotated[bool, typer.Option("--nl", help="JSON, a row on each line.")]
_DAYS = re.compile(r"([0-9]{1,5})(d|w|y)?")
_UNITS = {"d": 1, "w": 7, "y": 365}


@app.command()
def path(file: File = "") -> None:
    """Print the path of the database file.

    \b
    Example:
      sqlite3 -readonly "$(slurmwrap db path)" .tables
    """
    typer.echo(_find_database(file)[0])


@app.command()
def backup(
    target: Annotated[str, typer.Argument(metavar="FILE", help="A new file, or a folder for dated ones.")],
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.")] = False,
    keep: Annotated[int, typer.Option(min=0, help="In a folder: keep this many of the newest; 0: all.")] = 0,
    file: File = "",
) -> None:
    """Copy the database while other programs use it.

    The copy is consistent (the state at one moment), has mode 0600, and is checked.

    \b
    Examples:
      slurmwrap db backup site-before-upgrade.db
      slurmwrap db backup /var/backups/slurmwrap/ --keep 7     each night
    To restore: stop the reconciler, put the copy in place of the database,
    remove its -wal and -shm, start the reconciler.
    """
    source, _ = _find_database(file)
    wanted = Path(target)
    dated = wanted.is_dir()
    if keep and not dated:
        raise UsageError("--keep needs a folder that is there", hint=f"mkdir -m 700 {target}")
    into = wanted / f"{source.stem}-{datetime.now():%Y%m%d-%H%M%S}.db" if dated else wanted
    console = Console.of_terminal("slurmwrap")
    size = db_maintenance.backup(source, into, force=force, progress=_make_progress(console))
    typer.echo(f"{into}: {_format_bytes(size)}, checked")
    for gone in db_maintenance.rotate(wanted, source.stem, keep) if keep else ():
        typer.echo(f"removed {gone}")


@app.command()
def check(
    file_: Annotated[str, typer.Argument(metavar="[FILE]", help="Another database, such as a backup.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Do not compare indexes with tables.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check the database: damage, references, schema, sizes.

    Exit code 0: sound; 1: not sound; 6: it cannot be opened.

    \b
    Examples:
      slurmwrap db check --quick
      slurmwrap db check /var/backups/slurmwrap/site-20261121-030000.db
    """
    found = db_maintenance.check(_find_database(file_)[0], thorough=not quick)
    typer.echo(format_json_document("db_check", to_json_dict(found)) if as_json else _format_health(found))
    if found.faults:
        raise typer.Exit(1)


@app.command()
def migrate(file: File = "") -> None:
    """Migrate the database to this version's schema.

    The reconciler does it by itself when it starts.
    """
    database_file, _ = _find_database(file)
    _check_exists(database_file)
    before = db_maintenance.check(database_file, thorough=False).version
    with Database.open(database_file):
        pass
    after = db_maintenance.check(database_file, thorough=False).version
    typer.echo(f"{database_file}: schema {after}" + (f", was {before}" if after != before else ", nothing to do"))


@app.command()
def prune(
    keep: Annotated[str, typer.Option(metavar="400d", help="Runs, [retention] keep_d.")] = "",
    detail: Annotated[str, typer.Option(metavar="35d", help="Their details, detail_d.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be removed.")] = False,
    vacuum: Annotated[bool, typer.Option("--vacuum", help="Then rewrite the file, as small as it can be.")] = False,
    file: File = "",
    as_json: AsJson = False,
) -> None:
    """Remove old records. The reconciler does so by itself, a little each hour.

    Details (log lines, paths, plans, measurements) are removed after --detail, runs
    with all about them after --keep, logs of settled runs within hours. Pruning works
    in small steps, so that reconciler and gsub can continue. --vacuum does not: stop
    the reconciler first, and have as much free disk space as the file takes.

    \b
    Examples:
      slurmwrap db prune --dry-run
      slurmwrap db prune --keep 180d
    """
    config = load(os.environ)
    database_file, site = _find_database(file, config)
    kept, now = _read_retention(config.retention, keep, detail), time.time()
    window = config.nodes.window_days
    _check_exists(database_file)
    if dry_run:
        found, freed = retention.plan(database_file, kept, now, window_d=window), 0
    else:
        # Migrate an older database first: the statements need the newest schema.
        with Database.open(database_file):
            pass
        found = retention.prune(database_file, kept, now, window_d=window, short_digests=site)
        freed = retention.vacuum(database_file) if vacuum else 0
    if as_json:
        typer.echo(
            format_json_document("db_prune", {**to_json_dict(found), "vacuum_freed_bytes": freed, "dry_run": dry_run})
        )
        return
    typer.echo(_format_pruned(found, retention.compute_cutoffs(kept, now, window_d=window), dry_run))
    if vacuum and not dry_run:
        typer.echo(f"written anew: {_format_bytes(freed)} smaller, now {_format_bytes(database_file.stat().st_size)}")


@app.command(cls=db_tables.RowsCommand)
def rows(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A table or view: docs/database.md.")],
    where: Annotated[str, typer.Option(metavar="SQL", help="Only rows for which this expression holds.")] = "",
    param: Annotated[
        list[str] | None, typer.Option(metavar="NAME VALUE", help="Text for :NAME in --where. Repeatable.")
    ] = None,
    shown: Annotated[str, typer.Option("--columns", metavar="A,B", help="Only these columns.")] = "",
    order: Annotated[str, typer.Option(metavar="COLUMN", help="Sort by it; 'COLUMN desc': highest first.")] = "",
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=1, help=f"Show at most this many. A table shows {LIMIT}, others all."),
    ] = None,
    as_csv: AsCsv = False,
    as_json: AsJson = False,
    as_nl: AsLines = False,
    file: File = "",
) -> None:
    """Print rows of a table.

    Values of --param are text; compared with a column, they are converted to the
    column's type. Elsewhere write CAST(:NAME AS INTEGER). Nothing is written.

    \b
    Examples:
      slurmwrap db rows failures --limit 10
      slurmwrap db rows attempts --where 'user = :u AND gpus > 8' --param u ada \\
          --columns address,state,end_time --order 'end_time desc'
      slurmwrap db rows strikes --csv > strikes.csv
    """
    form = db_tables.choose_format(as_csv=as_csv, as_json=as_json, as_nl=as_nl, otherwise="")
    values = db_tables.read_pairs(param or ())
    with _open_database(file) as reader:
        name = db_tables.find_table(reader, table)
        known = reader.list_columns(name)
        names = check_known_names(split_list(shown), known, "--columns") or known
        by, descending = db_tables.parse_order(order, known)
        most = limit or (None if form else LIMIT)
        found = reader.read_rows(
            name, where=where, values=values, columns=names, order=by, descending=descending, limit=most
        )
        counts = most and form in ("", "json")
        more = max(0, reader.count_rows(name, where, values) - most) if counts and most else 0
        if form:
            print_pieces(db_tables.list_row_pieces(form, names, found, more))
            return
        typer.echo(db_tables.format_rows(names, list(found), terminal.columns()))
        if more:
            typer.echo(f"and {more:,} more (--limit {LIMIT + more if limit is None else limit + more} shows them)")


@app.command()
def search(
    words: Annotated[
        list[str],
        typer.Argument(metavar="WORDS...", help="All must occur; quoted words side by side: 'out of memory'."),
    ],
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most this many.")] = 20,
    as_json: AsJson = False,
    file: File = "",
) -> None:
    """Search the failures.

    The words are searched for in the cited lines of each diagnosis, in its category,
    node and file, in the advice and in the decision; English words match whatever their
    ending. The most relevant failure comes first. Each search builds the index anew.

    \b
    Examples:
      slurmwrap db search CUDNN_STATUS_EXECUTION_FAILED
      slurmwrap db search 'illegal memory access' --limit 5
    """
    for word in words:
        if not any(letter.isalnum() for letter in word):
            raise UsageError(f"'{word}' has no letter or digit to search for")
    database_file, _ = _find_database(file)
    _check_exists(database_file)
    console = Console.of_terminal("slurmwrap")
    try:
        found, total = table_reader.search_failures(
            database_file, words, limit, lambda share: console.redraw(f"slurmwrap: {share:4.0%} indexed"[: columns()])
        )
    finally:
        console.progress_done()
    more = total - len(found)
    if as_json:
        print_json_rows(
            "db_search", {"rows": (to_json_dict(db_tables.remove_marks(one)) for one in found), "more": more}
        )
    elif found:
        typer.echo(db_tables.format_found(found, terminal.columns()))
        if more:
            typer.echo(f"and {more:,} more (--limit {total} shows them)")
    else:
        typer.echo("No failure has all of these words.")


@app.command()
def export(
    directory: Annotated[str, typer.Argument(metavar="DIRECTORY", help="Created with mode 0700 if it does not exist.")],
    tables: Annotated[str, typer.Option(metavar="A,B", help="Only these tables or views.")] = "",
    as_csv: AsCsv = False,
    as_json: AsJson = False,
    as_nl: AsLines = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    file: File = "",
) -> None:
    """Write every table to a file: CSV by default.

    All files show the state of one moment and have mode 0600: they hold users' log
    lines. In CSV, text that a spreadsheet would take for a formula begins with ';
    programs should read --nl or --json, which leave text unchanged.

    \b
    Example:
      slurmwrap db export /var/backups/slurmwrap/tables --nl
    """
    form = db_tables.choose_format(as_csv=as_csv, as_json=as_json, as_nl=as_nl, otherwise="csv")
    with _open_database(file) as reader:
        names = check_known_names(split_list(tables), reader.names, "--tables") or reader.tables
        db_tables.export_tables(reader, Path(directory), names, form, force=force, say=typer.echo)


@app.command()
def analyze(
    tables: Annotated[list[str] | None, typer.Argument(metavar="[TABLE]...", help="All, if none is named.")] = None,
    as_json: AsJson = False,
    file: File = "",
) -> None:
    """Count the values in each column of tables.

    For each column: rows without a value, distinct values, the most common and the
    least common ones. A table is read several times per column, which takes minutes
    for a database of a year.

    \b
    Example:
      slurmwrap db analyze strikes blocked_inputs
    """
    console = Console.of_terminal("slurmwrap")
    with _open_database(file) as reader:
        names = db_tables.find_plain_tables(reader, tables or ()) or reader.tables
        try:
            if as_json:
                figures = (one for name in names for one in reader.analyze_columns(name))
                print_json_rows("db_analysis", {"rows": map(to_json_dict, figures), "more": 0})
                return
            for index, name in enumerate(names):
                found = list(
                    reader.analyze_columns(name, lambda column: console.redraw(f"slurmwrap: {column}"[: columns()]))
                )
                console.progress_done()
                head = f"{name}: {text_format.count(found[0].rows, 'row')}"
                shown = db_tables.format_figures(found, terminal.columns()) if found[0].rows else ""
                typer.echo("\n".join(filter(None, ["" if index == 0 else "\n", head, shown])))
        finally:
            console.progress_done()


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free port.")] = 8001,
    file: File = "",
) -> None:
    """Explore the database with Datasette, read-only.

    Every column is explained, and there are prepared queries.

    \b
    Example, from your own machine:
      ssh -L 8001:127.0.0.1:8001 controller slurmwrap db serve
    then open http://127.0.0.1:8001. It asks for no password: anyone who reaches the
    port reads other people's log lines. Needs: pip install 'slurmwrap[datasette]'
    """

    run_datasette(_find_database(file)[0], host, port, Console.of_terminal("slurmwrap"))


def _find_database(file: str, config: Config | None = None) -> tuple[Path, bool]:
    """Return the path of the database file, and whether it is a site's."""
    if file:
        return Path(file), Path(file).stem.startswith("site")
    source = find_record_source(config or load(os.environ), os.environ, os.geteuid())
    return source.database, source.site


@contextmanager
def _open_database(file: str) -> Iterator[TableReader]:
    database_file, _ = _find_database(file)
    _check_exists(database_file)
    with open_tables(database_file) as reader:
        yield reader


def _check_exists(database_file: Path) -> None:
    """Raise StoreError if there is no file: opening a mistyped path for writing, or as root, would create one."""
    if not database_file.exists():
        raise StoreError(f"there is no database at {database_file} yet", hint="it is made when the first job is seen")


def _read_retention(configured: Retention, keep: str, detail: str) -> Retention:
    kept = replace(configured, keep_d=_parse_days(keep, "--keep")) if keep else configured
    kept = replace(kept, detail_d=_parse_days(detail, "--detail")) if detail else kept
    if kept.keep_d < kept.detail_d:
        raise UsageError(f"details cannot be kept for {kept.detail_d} days of runs that go after {kept.keep_d}")
    return kept


def _parse_days(text: str, option: str) -> int:
    found = _DAYS.fullmatch(text)
    if not found or int(found[1]) == 0:
        raise UsageError(f"{option} '{text}' is no number of days", hint="write it as 400d, 52w or 1y")
    return int(found[1]) * _UNITS[found[2] or "d"]


def _make_progress(console: Console) -> Callable[[float], None]:
    """Return a function that rewrites a progress line in place; it prints nothing if stderr is not a terminal."""
    if not console.tty:
        return lambda share: None

    def print_progress(share: float) -> None:
        end = "\n" if share >= 1 else ""
        sys.stderr.write(f"\rslurmwrap: {share:4.0%} copied{end}")
        sys.stderr.flush()

    return print_progress


def _format_health(found: db_maintenance.Health) -> str:
    paint, zone = terminal.choose_painter(), terminal.get_local_zone()
    lines = [
        f"{found.path}: schema {found.version}, {found.journal_mode.upper()}, {_format_bytes(found.bytes)}"
        f" ({_format_bytes(found.free_bytes)} free in it, {_format_bytes(found.wal_bytes)} of log next to it)"
    ]
    if found.first_run is not None and found.last_run is not None:
        first, last = text_format.moment(found.first_run, zone), text_format.moment(found.last_run, zone)
        lines.append(f"Runs that ended from {first} to {last}.")
    rows = [[t.name, f"{t.rows:,}", "" if t.bytes is None else _format_bytes(t.bytes)] for t in found.tables if t.rows]
    lines += ["", text_format.table(("table", ">rows", ">with indexes"), rows)] if rows else []
    if found.pruned:
        newest = max(one.at for one in found.pruned)
        removed = sum(one.rows for one in found.pruned)
        lines += ["", f"Last pruned {text_format.moment(newest, zone)}; {removed:,} rows cut or removed in all."]
    lines += ["", *(paint(f"! {fault}", "red") for fault in found.faults)] if found.faults else []
    lines += ["", *(f"Note: {note}" for note in found.notes)] if found.notes else []
    return "\n".join([*lines, "", paint("not sound", "red") if found.faults else paint("sound", "green")])


def _format_pruned(found: retention.Pruned, over: dict[str, float], dry_run: bool) -> str:
    zone = terminal.get_local_zone()
    head = "would go" if dry_run else "gone"
    lines = [
        f"Details of runs from before {text_format.moment(over['detail'], zone)},",
        f"runs from before {text_format.moment(over['keep'], zone)}:",
        "",
    ]
    rows = [[kind, f"{rows:,}"] for kind, rows in found.rows.items()]
    lines.append(text_format.table(("what", f">rows {head}"), rows) if rows else "  nothing")
    if found.freed_bytes:
        of_it = "about" if dry_run else "given back to the file system:"
        lines += ["", f"{of_it} {_format_bytes(found.freed_bytes)}"]
    return "\n".join(lines)


def _format_bytes(count: int) -> str:
    """Format a size as `ls -h` does."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


# Serving the database with Datasette, with the meaning of every table and column. Datasette replaces this process.
# Tables that mean something only to programs.
_HIDDEN = ("seen", "names", "job_names", "migrations")
_SETTINGS = {
    # Reading the runs of a year takes a few seconds.
    "sql_time_limit_ms": "10000",
    "default_page_size": "50",
    # `slurmwrap db backup` makes a consistent copy instead.
    "allow_download": "off",
    # Suggesting facets would count each page of a large table several times.
    "suggest_facets": "off",
    "facet_time_limit_ms": "1000",
}


def run_datasette(database: Path, host: str, port: int, console: Console) -> None:
    """Replace this process by Datasette; return only by an exception. StoreError if there is no database to show."""
    if importlib.util.find_spec("datasette") is None:
        raise SlurmwrapError(
            "Datasette is not installed here", hint="install it next to slurmwrap: pip install 'slurmwrap[datasette]'"
        )
    # Opening the database reports what is wrong with it.
    with Database.open(database, readonly=True):
        pass
    if not _is_loopback(host):
        console.say(f"anyone who reaches {host} can read all users' log lines: there is no password", "yellow")
    arguments = arguments_of(database, host, port, _write_metadata(make_metadata(database)))
    sys.stdout.flush()
    try:
        os.execv(sys.executable, [sys.executable, *arguments])
    except OSError as error:
        raise StoreError(f"Datasette cannot be started: {error.strerror}") from error


def arguments_of(database: Path, host: str, port: int, described_in: Path) -> list[str]:
    """Return Python's arguments. `-I` keeps the caller's directory and variables out of the import path."""
    settings = [word for name, value in _SETTINGS.items() for word in ("--setting", name, value)]
    where = ["--host", host, "--port", str(port), "--metadata", str(described_in)]
    return ["-I", "-m", "datasette", "serve", str(database), *where, *settings]


def make_metadata(database: Path) -> dict[str, Any]:
    """Return Datasette's metadata: the shipped titles and queries, and every table and column from the schema."""
    shipped_metadata: Mapping[str, Any] = json.loads(
        (shipped("templates") / "datasette" / "metadata.json").read_text("utf-8")
    )
    tables = {
        one.name: {"description": f"{one.meaning[:1].upper()}{one.meaning[1:]}.", "columns": dict(one.columns)}
        | ({"hidden": True} if one.name in _HIDDEN else {})
        for one in describe_tables()
    }
    about = {"title": shipped_metadata["title"], "description": shipped_metadata["description"]}
    return {**about, "databases": {database.stem: {**about, "tables": tables, "queries": shipped_metadata["queries"]}}}


def _write_metadata(found: Mapping[str, Any]) -> Path:
    """Write the metadata to memory, so that no file remains; Datasette inherits the descriptor (memfd_create(2))."""
    # Without MFD_CLOEXEC, so that the descriptor stays open across exec.
    handle = os.memfd_create("metadata", 0)
    with os.fdopen(os.dup(handle), "w", encoding="utf-8") as file:
        json.dump(found, file)
    return Path(f"/proc/self/fd/{handle}")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
