"""Checks of the databases, the site's and this user's: whole, of our version, with room on their disk."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from slurmwrap.cli.doctor.check_records import FAIL, OK, SKIP, WARN, CheckContext, CheckResult
from slurmwrap.errors import StoreError
from slurmwrap.store.migrations import VERSION
from slurmwrap.store.sqlite_connection import connect_readonly, read_version, translate_sqlite_errors

# Of a file of 2 GB a whole check takes half a minute.
CHECK_S = 5.0
# Of the disk; SQLite needs as much again as the file to vacuum it.
_LEAST_FREE = 0.05
_LEAST_FREE_BYTES = 1 << 30
# It is folded back at 4 MiB; larger ones have a reader that never ends.
_LARGEST_WAL = 256 << 20
_SLACK_D = 30.0
_RESTORE = "Restore a backup, or move the file away and a new one is begun: mv {path} {path}.damaged"
NOBODY = "only root and SlurmUser can look: sudo slurmwrap doctor"


def check_own_database(context: CheckContext) -> CheckResult:
    """The database that this user's commands read."""
    path = context.own_database
    if not path.exists():
        return CheckResult(name="database", state=OK, text=f"{path}: begins with the first reconcile")
    return _looked_into("database", path)


def check_site_database(context: CheckContext) -> CheckResult:
    """The site's."""
    path = context.site_database
    if path is None:
        return CheckResult(name="site database", state=SKIP, text="site.state_dir is not configured")
    if not os.access(path.parent, os.R_OK | os.X_OK):
        return CheckResult(name="site database", state=SKIP, text=out_of_sight(path.parent))
    if not path.exists():
        hint = "It begins with the reconciler's first pass: `slurmwrap reconcile --once` as SlurmUser."
        return CheckResult(name="site database", state=WARN, text=f"{path}: there is none", hint=hint)
    return _looked_into("site database", path, context.config.retention.keep_d, context.now)


def out_of_sight(path: Path) -> str:
    """Why what is in the site's state directory cannot be looked at here."""
    try:
        path.lstat()
    except FileNotFoundError:
        return f"there is no {path} here: it is the controller's, and begins with the reconciler's first pass"
    except OSError:
        pass
    return NOBODY


def _looked_into(name: str, path: Path, keep_d: float = 0.0, now: float = 0.0) -> CheckResult:
    try:
        with translate_sqlite_errors(path), closing(connect_readonly(path, busy_s=5.0)) as connection:
            version = read_version(connection, path)
            faults = _find_faults(connection)
            oldest = _read_oldest(connection) if version else None
    except StoreError as error:
        return CheckResult(name=name, state=FAIL, text=str(error), hint=error.hint)
    if faults not in (["ok"], []):
        text = f"database {path} is damaged"
        return CheckResult(name=name, state=FAIL, text=text, hint=_RESTORE.format(path=path), details=tuple(faults))
    odd = tuple(_find_oddities(path, version, oldest, keep_d, now))
    size, wal = _get_size(path), _get_size(path.with_name(f"{path.name}-wal"))
    figures = {
        "db_mib": _convert_to_mib(size),
        "wal_mib": _convert_to_mib(wal),
        "disk_free_mib": _convert_to_mib(shutil.disk_usage(path.parent).free),
    }
    checked = "whole" if faults else f"not checked to the end in {CHECK_S:g} s: `slurmwrap db check` does"
    text = f"{path}: {checked}, {_convert_to_mib(size):.1f} MiB, schema {version}"
    return CheckResult(name=name, state=WARN if odd else OK, text=text, details=odd, figures=figures)


def _find_faults(connection: sqlite3.Connection) -> list[str]:
    """What quick_check reports, ["ok"] where nothing is wrong; [] where it did not come to its end in time.

    A thread interrupts it: SQLite before 3.41 calls no progress handler within a check.
    """
    done = threading.Event()
    watch = threading.Thread(target=_interrupt_late, args=(connection, done))
    watch.start()
    try:
        return [str(row[0]) for row in connection.execute("PRAGMA quick_check(5)")]
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_INTERRUPT:
            raise
        return []
    finally:
        done.set()
        watch.join()


def _interrupt_late(connection: sqlite3.Connection, done: threading.Event) -> None:
    """Again and again, for what has not begun yet is not interrupted (https://sqlite.org/c3ref/interrupt.html)."""
    if not done.wait(CHECK_S):
        connection.interrupt()
        while not done.wait(0.01):
            connection.interrupt()


def _find_oddities(path: Path, version: int, oldest: float | None, keep_d: float, now: float) -> Iterator[str]:
    # The site's; a user's own is brought forward by their next command.
    if keep_d and version < VERSION:
        yield f"schema {version}, and this slurmwrap's is {VERSION}: the next reconcile brings it forward"
    disk = shutil.disk_usage(path.parent)
    if disk.free < min(_LEAST_FREE * disk.total, _LEAST_FREE_BYTES):
        yield f"only {_convert_to_mib(disk.free):.0f} MiB are free on its disk: `slurmwrap db prune`, or a larger one"
    if _get_size(path.with_name(f"{path.name}-wal")) > _LARGEST_WAL:
        yield f"its WAL is larger than {_LARGEST_WAL >> 20} MiB: who reads it without end? `fuser {path}`"
    if keep_d and oldest is not None and now - oldest > (keep_d + _SLACK_D) * 86400:
        age = (now - oldest) / 86400
        yield f"the oldest run is {age:.0f} days old, and retention.keep_d is {keep_d}: `slurmwrap db prune`"


def _read_oldest(connection: sqlite3.Connection) -> float | None:
    found: Sequence[float | None] = connection.execute("SELECT min(end_time) FROM attempts").fetchone()
    return found[0]


def _get_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _convert_to_mib(size: int) -> float:
    return round(size / (1 << 20), 1)
