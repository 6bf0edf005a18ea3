"""Datasette on the database, with what every table and column means. Starts a program of its own, which replaces us."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from slurmwrap.console import Console
from slurmwrap.errors import SlurmwrapError, StoreError
from slurmwrap.resources import shipped
from slurmwrap.store.database import Database
from slurmwrap.store.schema_docs import describe_tables

_HIDDEN = ("seen", "names", "job_names", "migrations")  # what says something to programs only
_SETTINGS = {
    "sql_time_limit_ms": "10000",  # a year of runs is read in a few seconds
    "default_page_size": "50",
    "allow_download": "off",  # a copy of all of it is `slurmwrap db backup`
    "suggest_facets": "off",  # each page of a large table would be counted several times
    "facet_time_limit_ms": "1000",
}


def run_datasette(database: Path, host: str, port: int, voice: Console) -> None:
    """Replaces this process by Datasette; returns only by an error. StoreError where there is no database to show."""
    if importlib.util.find_spec("datasette") is None:
        raise SlurmwrapError(
            "Datasette is not installed here", hint="install it beside slurmwrap: pip install 'slurmwrap[datasette]'"
        )
    with Database.open(database, readonly=True):  # says what is wrong with it, if anything is
        pass
    if not _is_loopback(host):
        voice.say(f"everybody who reaches {host} may read everybody's log lines: there is no password", "yellow")
    arguments = arguments_of(database, host, port, _write_metadata(make_metadata(database)))
    sys.stdout.flush()
    try:
        os.execv(sys.executable, [sys.executable, *arguments])
    except OSError as error:
        raise StoreError(f"Datasette cannot be started: {error.strerror}") from error


def arguments_of(database: Path, host: str, port: int, described_in: Path) -> list[str]:
    """Python's arguments: `-I` keeps the caller's directory and variables out of what it imports."""
    settings = [word for name, value in _SETTINGS.items() for word in ("--setting", name, value)]
    where = ["--host", host, "--port", str(port), "--metadata", str(described_in)]
    return ["-I", "-m", "datasette", "serve", str(database), *where, *settings]


def make_metadata(database: Path) -> dict[str, Any]:
    """What Datasette is told: the shipped titles and queries, and every table and column out of the schema."""
    told: Mapping[str, Any] = json.loads((shipped("templates") / "datasette" / "metadata.json").read_text("utf-8"))
    tables = {
        one.name: {"description": f"{one.meaning[:1].upper()}{one.meaning[1:]}.", "columns": dict(one.columns)}
        | ({"hidden": True} if one.name in _HIDDEN else {})
        for one in describe_tables()
    }
    about = {"title": told["title"], "description": told["description"]}
    return {**about, "databases": {database.stem: {**about, "tables": tables, "queries": told["queries"]}}}


def _write_metadata(found: Mapping[str, Any]) -> Path:
    """In memory: Datasette reads it by our descriptor after we became it, and nothing of it stays (memfd_create(2))."""
    handle = os.memfd_create("metadata", 0)  # without MFD_CLOEXEC: exec keeps it
    with os.fdopen(os.dup(handle), "w", encoding="utf-8") as file:
        json.dump(found, file)
    return Path(f"/proc/self/fd/{handle}")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
