"""Detect a reconciler that makes no pass and a missing night report (adapter); remember what was reported last.

The service touches `heartbeat` in site.state_dir after each pass. A reconciler that runs but cannot complete a pass
(Slurm, MUNGE or the database is unavailable) counts as late as well, because the jobs are not being handled.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from slurmwrap.errors import StoreError
from slurmwrap.fast_dataclasses import asdict, dataclass
from slurmwrap.policy.time_limit import HEARTBEAT_LATE_S, WATCHDOG_EVERY_S
from slurmwrap.store.atomic_write import replace_file

HEARTBEAT, MEMORY, STATE, LAST = "heartbeat", "watchdog.json", "watchdog.late", "last"
# Seconds without a pass after which the reconciler is late. A pass is due every 15 s; while Slurm does not answer, it
# is tried every five minutes.
LATE_S = 900.0
REPORT_S = 26 * 3600.0
REMIND_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueState:
    """A service that is overdue. `at`: Unix seconds of its last sign of life; 0.0: never."""

    what: str  # "reconciler" or "report"
    at: float
    text: str
    hint: str


def beat(state_dir: Path, now: float) -> None:
    """Touch the reconciler's heartbeat file. Errors are ignored, because they must not stop the reconciler."""
    with contextlib.suppress(OSError):
        path = state_dir / HEARTBEAT
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.utime(handle, (now, now))
        finally:
            os.close(handle)


def since(state_dir: Path, now: float) -> float:
    """Return when the watchdog first ran here in Unix seconds; `now` if it never did."""
    at = _read_memory(state_dir / MEMORY).get("since")
    return at if isinstance(at, float) else now


def look(state_dir: Path, reports: Path, now: float, *, since: float = 0.0) -> tuple[OverdueState, ...]:
    """Return the services that are late; () when none is.

    `reports`: directory of the night reports. `since`: Unix seconds from which a service is due that has never run, so
    that a new installation is not late before its first night.
    """
    heartbeat, report = last_beat(state_dir), last_report(reports)
    found = []
    if not 0 <= now - (heartbeat or since) < LATE_S:
        hint = "systemctl status slurmwrap-reconcile; journalctl -u slurmwrap-reconcile; slurmwrap doctor"
        found.append(
            OverdueState(
                what="reconciler", at=heartbeat, text=f"no pass of the reconciler for {_ago(now, heartbeat)}", hint=hint
            )
        )
    if not -3600 <= now - (report or since) < REPORT_S:
        hint = "systemctl list-timers slurmwrap-report.timer; journalctl -u slurmwrap-report"
        found.append(OverdueState(what="report", at=report, text=f"no night report for {_ago(now, report)}", hint=hint))
    return tuple(found)


def last_beat(state_dir: Path) -> float:
    """Return when the reconciler last completed a pass, in Unix seconds; 0.0: never."""
    return _time(state_dir / HEARTBEAT)


def last_watch(state_dir: Path) -> float:
    """Return when the watchdog last ran, in Unix seconds; 0.0: never."""
    return _time(state_dir / MEMORY)


def is_watched(state_dir: Path, now: float) -> bool:
    """Return True if the reconciler is on time, and the watchdog would notice soon if it stopped.

    Then what the reconciler has changed for a while will be put back, even if it is killed.
    """
    return is_beating(state_dir, now) and is_watchdog_on_time(state_dir, now)


def is_watchdog_on_time(state_dir: Path, now: float) -> bool:
    """Return True if the watchdog ran within two of its periods."""
    return 0 <= now - last_watch(state_dir) < 2 * WATCHDOG_EVERY_S


def is_beating(state_dir: Path, now: float) -> bool:
    """Return True if the reconciler completed a pass a short time ago."""
    return -HEARTBEAT_LATE_S < now - last_beat(state_dir) < HEARTBEAT_LATE_S


def last_report(reports: Path) -> float:
    """Return when the last report was completed, as `report --nightly` recorded it, in Unix seconds; 0.0: never."""
    try:
        return float((reports / LAST).read_text(encoding="ascii")[:32])
    except (OSError, ValueError):
        return 0.0


def news(state_dir: Path, late: tuple[OverdueState, ...], now: float) -> str:
    """Return what to report now, and remember it.

    "late" when something else became late or a day has passed since the last report, "well" when everything works
    again, "" when there is nothing new. Raise StoreError when it cannot be remembered.
    """
    path, began = state_dir / MEMORY, since(state_dir, now)
    before = _read_memory(path)
    names = sorted(one.what for one in late)
    known, at = before.get("late"), before.get("at")
    known, at = known if isinstance(known, list) else [], at if isinstance(at, float) else 0.0
    if names and (set(names) - {str(name) for name in known} or not 0 <= now - at < REMIND_S):
        change = "late"
    else:
        change = "well" if known and not names else ""
    _save(state_dir, path, {"late": names, "at": now if change else at, "since": began}, late)
    return change


def _save(state_dir: Path, path: Path, memory: dict[str, Any], late: tuple[OverdueState, ...]) -> None:
    """Save the memory, and keep a file for monitoring tools that exists only while something is late."""
    state = state_dir / STATE
    try:
        replace_file(path, json.dumps(memory))
        if late:
            replace_file(state, "".join(json.dumps(asdict(one)) + "\n" for one in late))
        else:
            state.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{state_dir}: {error.strerror}", hint="Run it as SlurmUser or root.") from error


def _read_memory(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _ago(now: float, at: float) -> str:
    if not at:
        return "the whole time on record"
    minutes = max(0.0, now - at) / 60
    return f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"
