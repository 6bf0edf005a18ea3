"""Notices about a user's jobs since their last gsub call: one small file per job, each reported once."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from slurmwrap.fast_dataclasses import asdict, dataclass

FOLDER = "news"
_MAX_BYTES = 1 << 14  # bytes of one file
_MAX_REASON = 1000  # maximum number of characters of a reason


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """A job that its pre-run cancelled, or about which the check of its input files reports something."""

    job_id: int
    name: str
    reason: str
    at: float  # Unix seconds
    cancelled: bool = True


def leave_notice(place: str, news: News) -> None:
    """Leave a notice for the next gsub call. `place`: the user's state directory. Raises OSError."""
    folder = Path(place, FOLDER)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = f"{int(news.at):012d}-{news.job_id}"
    temporary = folder / f".{name}.{os.getpid()}"
    temporary.write_text(json.dumps({**asdict(news), "reason": news.reason[:_MAX_REASON]}), encoding="ascii")
    temporary.replace(folder / name)


def take_notices(place: str, most: int) -> tuple[tuple[News, ...], int]:
    """Return the newest `most` notices, oldest first, and how many there were. Each is taken by one call only."""
    folder = Path(place, FOLDER)
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError:
        return (), 0
    found = [_read(path) for path in paths[-most:]]
    removed_here = [_remove(path) for path in paths]
    with suppress(OSError):
        folder.rmdir()
    shown = tuple(
        news for news, removed in zip(found, removed_here[-most:], strict=True) if news is not None and removed
    )
    return shown, sum(removed_here)


def _read(path: Path) -> News | None:
    try:
        with path.open("rb") as file:
            plain = json.loads(file.read(_MAX_BYTES))
        return News(
            job_id=int(plain["job_id"]),
            name=str(plain["name"]),
            reason=str(plain["reason"]),
            at=float(plain["at"]),
            cancelled=bool(plain.get("cancelled", True)),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remove(path: Path) -> bool:
    with suppress(OSError):
        path.unlink()
        return True
    return False
