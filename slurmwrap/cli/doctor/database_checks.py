"""Checks of the site's and this user's database: integrity, schema version, size, and free space on the disk."""

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

# Seconds after which quick_check is interrupted; a complete check of a file of 2 GB takes half a minute.
CHECK_S = 5.0
# Share of the disk that must be free; to vacuum the file SQLite needs free space of the file's size.
_LEAST_FREE = 0.05
_LEAST_FREE_BYTES = 1 << 30
# SQLite checkpoints the WAL at 4 MiB. A much larger one means that a reader never ends its transaction.
_LARGEST_WAL = 256 << 20
_PRUNE_SLACK_D = 30.0
_RESTORE = "Restore a backup, or move the file away, then a new one is created: mv {path} {path}.damaged"
NO_PERMISSION = "only root and SlurmUser can look: sudo slurmwrap doctor"


def check_own_database(context: CheckContext) -> CheckResult:
    """Check the database that this user's commands read."""
    path = context.own_database
    if not path.exists():
        return CheckResult(name="database", state=OK, text=f"{path}: the first reconcile creates it")
    return _check_database_file("database", path)


def check_site_database(context: CheckContext) -> CheckResult:
    """Check the site's database."""
    path = context.site_database
    if path is None:
        return CheckResult(name="site database", state=SKIP, text="site.state_dir is not configured")
    if not os.access(path.parent, os.R_OK | os.X_OK):
        return CheckResult(name="site database", state=SKIP, text=explain_unreadable_path(path.parent))
    if not path.exists():
        hint = "The reconciler's first pass creates it: `slurmwrap reconcile --once` as SlurmUser."
        return CheckResult(name="site database", state=WARN, text=f"{path} does not exist", hint=hint)
    return _check_database_file("site database", path, context.config.retention.keep_d, context.now)


def explain_unreadable_path(path: Path) -> str:
    """Return why a path in the site's state directory cannot be read: it does not exist, or permission is missing."""
    try:
        path.lstat()
    except FileNotFoundError:
        return f"there is no {path} here: it is the controller's, and the reconciler's first pass creates it"
    except OSError:
        pass
    return NO_PERMISSION


def _check_database_file(name: str, path: Path, keep_d: float = 0.0, now: float = 0.0) -> CheckResult:
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
    """Return what quick_check reports: ["ok"] if nothing is wrong, [] if it did not end in time.

    A thread interrupts it: SQLite before 3.41 calls no progress handler during a check.
    """
    done = threading.Event()
    watch = threading.Thread(target=_interrupt_after_deadline, args=(connection, done))
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


def _interrupt_after_deadline(connection: sqlite3.Connection, done: threading.Event) -> None:
    """Interrupt the check after CHECK_S seconds, repeatedly until it ends.

    An interrupt has no effect on a statement that has not begun yet (https://sqlite.org/c3ref/interrupt.html).
    """
    if not done.wait(CHECK_S):
        connection.interrupt()
        while not done.wait(0.01):
            connection.interrupt()


def _find_oddities(path: Path, version: int, oldest: float | None, keep_d: float, now: float) -> Iterator[str]:
    # Only for the site's database: a user's own is migrated by the user's next command.
    if keep_d and version < VERSION:
        yield f"schema {version}, and this slurmwrap's is {VERSION}: the next reconcile migrates it"
    disk = shutil.disk_usage(path.parent)
    if disk.free < min(_LEAST_FREE * disk.total, _LEAST_FREE_BYTES):
        yield f"only {_convert_to_mib(disk.free):.0f} MiB are free on its disk: `slurmwrap db prune`, or a larger one"
    if _get_size(path.with_name(f"{path.name}-wal")) > _LARGEST_WAL:
        yield f"its WAL is larger than {_LARGEST_WAL >> 20} MiB: a reader does not end; `fuser {path}` shows it"
    if keep_d and oldest is not None and now - oldest > (keep_d + _PRUNE_SLACK_D) * 86400:
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
