"""Is the reconciler at work, and was there a report last night? Reads two files; remembers what it said last.

The service touches `heartbeat` in site.state_dir after each pass. A reconciler that lives and cannot pass (Slurm, MUNGE
or the database away) is late as well: what matters is that no one looks after the jobs.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from slurmwrap.errors import StoreError
from slurmwrap.fast_dataclasses import asdict, dataclass
from slurmwrap.store.atomic_write import replace_file

HEARTBEAT, MEMORY, STATE, LAST = "heartbeat", "watchdog.json", "watchdog.late", "last"
# A pass is due every 15 s; while Slurm is away it is tried every five minutes.
LATE_S = 900.0
REPORT_S = 26 * 3600.0
REMIND_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueState:
    """What should have been heard of. `at`: when it last was, Unix seconds; 0.0 never."""

    what: str  # "reconciler" or "report"
    at: float
    text: str
    hint: str


def beat(state_dir: Path, now: float) -> None:
    """The reconciler's sign of life. That it cannot be left must not stop the work."""
    with contextlib.suppress(OSError):
        path = state_dir / HEARTBEAT
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.utime(handle, (now, now))
        finally:
            os.close(handle)


def since(state_dir: Path, now: float) -> float:
    """When the watchdog first looked here, Unix seconds; `now` where it never did."""
    at = _remembered(state_dir / MEMORY).get("since")
    return at if isinstance(at, float) else now


def look(state_dir: Path, reports: Path, now: float, *, since: float = 0.0) -> tuple[OverdueState, ...]:
    """() where all is well. `reports`: where the night's pages are kept. `since`: what was never heard of is due from
    then on; before its first night a new installation is not late."""
    heard, told = last_beat(state_dir), last_report(reports)
    found = []
    if not 0 <= now - (heard or since) < LATE_S:
        hint = "systemctl status slurmwrap-reconcile; journalctl -u slurmwrap-reconcile; slurmwrap doctor"
        found.append(
            OverdueState(
                what="reconciler", at=heard, text=f"no pass of the reconciler for {_ago(now, heard)}", hint=hint
            )
        )
    if not -3600 <= now - (told or since) < REPORT_S:
        hint = "systemctl list-timers slurmwrap-report.timer; journalctl -u slurmwrap-report"
        found.append(OverdueState(what="report", at=told, text=f"no night report for {_ago(now, told)}", hint=hint))
    return tuple(found)


def last_beat(state_dir: Path) -> float:
    """When the reconciler last passed; 0.0 never."""
    return _time(state_dir / HEARTBEAT)


def last_report(reports: Path) -> float:
    """When the last report was made whole, as `report --nightly` noted it; 0.0 never."""
    try:
        return float((reports / LAST).read_text(encoding="ascii")[:32])
    except (OSError, ValueError):
        return 0.0


def news(state_dir: Path, late: tuple[OverdueState, ...], now: float) -> str:
    """What people shall hear now: "late" when something new is late or a day has passed, "well" when all is well
    again, "" when they know. Keeps what they heard. StoreError where that cannot be kept."""
    path, began = state_dir / MEMORY, since(state_dir, now)
    before = _remembered(path)
    names = sorted(one.what for one in late)
    known, at = before.get("late"), before.get("at")
    known, at = known if isinstance(known, list) else [], at if isinstance(at, float) else 0.0
    if names and (set(names) - {str(name) for name in known} or not 0 <= now - at < REMIND_S):
        word = "late"
    else:
        word = "well" if known and not names else ""
    _keep(state_dir, path, {"late": names, "at": now if word else at, "since": began}, late)
    return word


def _keep(state_dir: Path, path: Path, memory: dict[str, Any], late: tuple[OverdueState, ...]) -> None:
    """The memory, and a file that is there as long as something is late, for monitors that look at files."""
    state = state_dir / STATE
    try:
        replace_file(path, json.dumps(memory))
        if late:
            replace_file(state, "".join(json.dumps(asdict(one)) + "\n" for one in late))
        else:
            state.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{state_dir}: {error.strerror}", hint="Run it as SlurmUser or root.") from error


def _remembered(path: Path) -> dict[str, Any]:
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
        return "as long as is known"
    minutes = max(0.0, now - at) / 60
    return f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"
