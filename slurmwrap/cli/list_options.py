"""What all list commands share: filter options, the limit on the number of rows, and printing of JSON row by row."""

from __future__ import annotations

import gc
import json
import os
import pwd
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Any, TypeVar

import typer

from slurmwrap.cli import terminal
from slurmwrap.diagnosis.taxonomy import CATEGORIES, DECISIONS
from slurmwrap.errors import UsageError
from slurmwrap.json_output import make_json_document
from slurmwrap.model.hostlist import expand
from slurmwrap.nearest_name import find_nearest
from slurmwrap.policy.run_filter import RunFilter
from slurmwrap.report import text_format

T = TypeVar("T")
# Number of pieces of JSON text that are written at once.
_PIECES_PER_WRITE = 500
# Default number of rows that a list shows.
LIMIT = 50

_SEVERAL_HELP = "Separate several with commas."
Cluster = Annotated[
    str,
    typer.Option(
        "--clusters", "--cluster", "-M", metavar="NAME", help="Of this cluster, of those that share your home."
    ),
]
Clusters = Annotated[
    str,
    typer.Option("--clusters", "--cluster", "-M", metavar="NAME|all", help=f"Only of this cluster. {_SEVERAL_HELP}"),
]
User = Annotated[str, typer.Option("--user", "-u", metavar="NAME", help=f"Only of this user. {_SEVERAL_HELP}")]
Account = Annotated[str, typer.Option("--account", "-A", metavar="NAME", help="Only what is charged to this account.")]
Partition = Annotated[str, typer.Option("--partition", "-p", metavar="NAME", help="Only of this partition.")]
Name = Annotated[str, typer.Option("--name", metavar="PATTERN", help="Only jobs of this name: 'sweep*'.")]
Category = Annotated[str, typer.Option("--category", metavar="ID", help="Only this root cause: gpu_oom.")]
Decision = Annotated[str, typer.Option("--decision", metavar="ID", help="Only with this decision: stop, retry.")]
State = Annotated[
    str, typer.Option("--state", "-t", metavar="STATE", help="Only this Slurm state: FAILED, TIMEOUT, RUNNING.")
]
Node = Annotated[
    str, typer.Option("--node", "-w", metavar="HOSTLIST", help="Only what involved one of these nodes: n[1-4].")
]
Failed = Annotated[bool, typer.Option("--failed", help="Only failures.")]
Since = Annotated[str, typer.Option("--since", "-S", help="24h, 7d, or a date.")]
Until = Annotated[str, typer.Option("--until", "-E", help="24h, 7d, or a date; only before then.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most this many.")]
Everything = Annotated[bool, typer.Option("--all", "-a", help="Show all.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs (docs/jobs.md).")]
Note = Annotated[str, typer.Option("--note", help="The reason; it is stored and shown.")]


def make_run_filter(
    *,
    clusters: tuple[str, ...] = (),
    user: str = "",
    account: str = "",
    partition: str = "",
    name: str = "",
    category: str = "",
    decision: str = "",
    state: str = "",
    node: str = "",
    since: str = "",
    until: str = "",
    failed: bool = False,
) -> RunFilter:
    """Return the filters as one record. Raise UsageError for a value that cannot be right."""
    now, zone = time.time(), terminal.get_local_zone()
    return RunFilter(
        clusters=clusters,
        users=split_list(user),
        accounts=split_list(account),
        partitions=split_list(partition),
        names=split_list(name),
        categories=check_known_names(split_list(category), CATEGORIES, "--category"),
        decisions=check_known_names(split_list(decision), DECISIONS, "--decision"),
        states=tuple(one.upper() for one in split_list(state)),
        nodes=expand_hosts(node) if node else (),
        since=terminal.since(since, now, zone) if since else None,
        until=terminal.since(until, now, zone, option="--until") if until else None,
        failed=failed,
    )


def split_list(text: str) -> tuple[str, ...]:
    """Split at commas: "ada,bob" -> ("ada", "bob")."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def check_known_names(given: Sequence[str], names: Iterable[str], option: str) -> tuple[str, ...]:
    """Return `given` if each is one of `names`; otherwise raise UsageError that suggests the nearest name."""
    names = tuple(names)
    for word in given:
        if word not in names:
            near = find_nearest(word, names, 0.4)
            hint = f"did you mean {near}?" if near else f"one of {', '.join(names)}"
            raise UsageError(f"{option} '{text_format.fit(word, 60)}' is unknown", hint=hint)
    return tuple(given)


def expand_hosts(hostlist: str, most: int = 65536) -> tuple[str, ...]:
    """Return the node names of a host list, each once. Raise UsageError for an invalid list or too many names."""
    try:
        names = expand(hostlist)
    except ValueError as error:
        raise UsageError(f"'{text_format.fit(hostlist, 60)}' names no node: {error}") from error
    if not names or len(names) > most:
        raise UsageError(f"'{text_format.fit(hostlist, 60)}' names {len(names)} nodes; 1 to {most} can be asked for")
    return tuple(dict.fromkeys(names))


def cut_rows(rows: Sequence[T], limit: int, everything: bool) -> tuple[Sequence[T], int]:
    """Return the first `limit` rows, and how many are left out."""
    return (rows, 0) if everything else (rows[:limit], max(0, len(rows) - limit))


def print_list(kind: str, rows: Iterable[Mapping[str, Any]], text: str, *, as_json: bool, more: int = 0) -> None:
    """Print a list as JSON or as its table, with the number `more` of rows that are left out."""
    if as_json:
        print_json_rows(kind, {"rows": rows, "more": more})
        return
    typer.echo(text + (f"\nand {more:,} more (--all shows them)" if more else ""))


def print_json_rows(kind: str, content: Mapping[str, Any]) -> None:
    """Print a JSON document whose lists have each row on a line of its own, written while the rows are read.

    The runs of a large site for one month are half a gigabyte of JSON.
    """
    print_pieces(list_json_pieces(kind, content))


def print_pieces(pieces: Iterable[str]) -> None:
    """Print text while it is made, several pieces per write."""
    pieces = iter(pieces)
    while several := "".join(islice(pieces, _PIECES_PER_WRITE)):
        typer.echo(several, nl=False)


def list_json_pieces(kind: str, content: Mapping[str, Any]) -> Iterator[str]:
    """Return the document that `print_json_rows` prints, in pieces; a list is not read before its rows are needed."""
    before = "{"
    for name, value in make_json_document(kind, content).items():
        yield f'{before}\n  "{name}": '
        before = ","
        if isinstance(value, Iterable) and not isinstance(value, str | Mapping):
            yield from _list_rows(value)
        else:
            yield json.dumps(value)
    yield "\n}\n"


def _list_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    before = "["
    for row in rows:
        yield f"{before}\n    {json.dumps(row)}"
        before = ","
    yield "[]" if before == "[" else "\n  ]"


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Context manager that turns Python's cyclic garbage collector off.

    The figures of a year, or all runs of a month, are 100,000s of tuples and records that are all kept. Up to a quarter
    of the time would be spent on searching them for garbage.
    """
    looking = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looking:
            gc.enable()


def user_name(uid: int) -> str:
    """Return the name of a uid; the number if it has no name, "everybody" for the negative uid of site-wide records."""
    if uid < 0:
        return "everybody"
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def get_user_name_of_caller() -> str:
    """Return the name of the calling user for stored notes; under sudo also the name of the user who called sudo."""
    name = user_name(os.getuid())
    sudo = os.environ.get("SUDO_USER", "") if os.getuid() == 0 else ""
    return f"{name} (sudo {text_format.fit(sudo, 40)})" if sudo else name
