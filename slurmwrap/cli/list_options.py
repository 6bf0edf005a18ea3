"""What all lists have in common: the options of their filters, how much is shown, and their JSON row by row."""

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
# Rows of JSON that are written at once.
_TOGETHER = 500
# Rows that a list shows unless it is asked for more.
LIMIT = 50

_SEVERAL = "Several with commas between."
User = Annotated[str, typer.Option("--user", "-u", metavar="NAME", help=f"Only theirs. {_SEVERAL}")]
Account = Annotated[str, typer.Option("--account", "-A", metavar="NAME", help="Only what is charged to it.")]
Partition = Annotated[str, typer.Option("--partition", "-p", metavar="NAME", help="Only of this partition.")]
Name = Annotated[str, typer.Option("--name", metavar="PATTERN", help="Only jobs of this name: 'sweep*'.")]
Category = Annotated[str, typer.Option("--category", metavar="ID", help="Only this root cause: gpu_oom.")]
Decision = Annotated[str, typer.Option("--decision", metavar="ID", help="Only with this decision: stop, retry.")]
State = Annotated[str, typer.Option("--state", "-t", metavar="STATE", help="Slurm's: FAILED, TIMEOUT, RUNNING.")]
Node = Annotated[str, typer.Option("--node", "-w", metavar="HOSTLIST", help="Only what touched one of these: n[1-4].")]
Failed = Annotated[bool, typer.Option("--failed", help="Only failures.")]
Since = Annotated[str, typer.Option("--since", "-S", help="24h, 7d, or a date.")]
Until = Annotated[str, typer.Option("--until", "-E", help="The same; up to then.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="So many at most.")]
Everything = Annotated[bool, typer.Option("--all", "-a", help="All of them, however many.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs (docs/jobs.md).")]
Note = Annotated[str, typer.Option("--note", help="Why; it is kept and shown.")]


def make_run_filter(
    *,
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
    """The filters as one record. UsageError for a word that cannot be meant."""
    now, zone = time.time(), terminal.local_zone()
    return RunFilter(
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
    """ "ada,bob" -> ("ada", "bob")."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def check_known_names(given: Sequence[str], names: Iterable[str], option: str) -> tuple[str, ...]:
    """`given`, if each is one of `names`; UsageError names the nearest."""
    names = tuple(names)
    for word in given:
        if word not in names:
            near = find_nearest(word, names, 0.4)
            hint = f"did you mean {near}?" if near else f"one of {', '.join(names)}"
            raise UsageError(f"{option} '{text_format.fit(word, 60)}' is none that we know", hint=hint)
    return tuple(given)


def expand_hosts(hostlist: str, most: int = 65536) -> tuple[str, ...]:
    """A host list's names, each once. UsageError where it is none."""
    try:
        names = expand(hostlist)
    except ValueError as error:
        raise UsageError(f"'{text_format.fit(hostlist, 60)}' names no node: {error}") from error
    if not names or len(names) > most:
        raise UsageError(f"'{text_format.fit(hostlist, 60)}' names {len(names)} nodes; 1 to {most} can be asked for")
    return tuple(dict.fromkeys(names))


def cut_rows(rows: Sequence[T], limit: int, everything: bool) -> tuple[Sequence[T], int]:
    """The first `limit` rows, and how many are left out."""
    return (rows, 0) if everything else (rows[:limit], max(0, len(rows) - limit))


def say_list(kind: str, rows: Iterable[Mapping[str, Any]], text: str, *, as_json: bool, more: int = 0) -> None:
    """A list as JSON or as its table; the table says what is left out."""
    if as_json:
        say_rows(kind, {"rows": rows, "more": more})
        return
    typer.echo(text + (f"\nand {more:,} more (--all shows them)" if more else ""))


def say_rows(kind: str, content: Mapping[str, Any]) -> None:
    """The same of lists: each row on a line of its own, said as it is read. A site's month is half a gigabyte."""
    say_pieces(list_json_pieces(kind, content))


def say_pieces(pieces: Iterable[str]) -> None:
    """Text to standard output as it is made, several pieces at once."""
    pieces = iter(pieces)
    while several := "".join(islice(pieces, _TOGETHER)):
        typer.echo(several, nl=False)


def list_json_pieces(kind: str, content: Mapping[str, Any]) -> Iterator[str]:
    """The document that `say_rows` prints, in pieces: a list is not read before its rows are asked for."""
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
def nothing_is_garbage() -> Iterator[None]:
    """A year's figures, or all runs of a month, are 100,000s of tuples and records, all of them kept: up to a quarter
    of the time would go into looking for what is not."""
    looking = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looking:
            gc.enable()


def user_name(uid: int) -> str:
    """Of a uid; the number where it has no name, "everybody" for the site's."""
    if uid < 0:
        return "everybody"
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def get_user_name_of_caller() -> str:
    """Who asks, for what is kept: with sudo, whom they were before too."""
    name = user_name(os.getuid())
    sudo = os.environ.get("SUDO_USER", "") if os.getuid() == 0 else ""
    return f"{name} (sudo {text_format.fit(sudo, 40)})" if sudo else name
