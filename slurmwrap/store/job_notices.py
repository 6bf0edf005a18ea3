"""What happened to a user's jobs since their last gsub call: one small file each, reported once."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from slurmwrap.fast_dataclasses import asdict, dataclass

FOLDER = "news"
_CAP = 1 << 14  # bytes of one file
_REASON = 1000  # characters that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """A job that its pre-run cancelled."""

    job_id: int
    name: str
    reason: str
    at: float  # Unix seconds


def leave_news(place: str, news: News) -> None:
    """For the next gsub call. `place`: the user's state directory. OSError."""
    folder = Path(place, FOLDER)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = f"{int(news.at):012d}-{news.job_id}"
    aside = folder / f".{name}.{os.getpid()}"
    aside.write_text(json.dumps({**asdict(news), "reason": news.reason[:_REASON]}), encoding="ascii")
    aside.replace(folder / name)


def take_news(place: str, most: int) -> tuple[tuple[News, ...], int]:
    """(the newest `most`, oldest first; how many there were). No other call reports what is taken."""
    folder = Path(place, FOLDER)
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError:
        return (), 0
    found = [_read(path) for path in paths[-most:]]
    mine = [_remove(path) for path in paths]
    with suppress(OSError):
        folder.rmdir()
    shown = tuple(news for news, ours in zip(found, mine[-most:], strict=True) if news is not None and ours)
    return shown, sum(mine)


def _read(path: Path) -> News | None:
    try:
        with path.open("rb") as file:
            plain = json.loads(file.read(_CAP))
        return News(
            job_id=int(plain["job_id"]), name=str(plain["name"]), reason=str(plain["reason"]), at=float(plain["at"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remove(path: Path) -> bool:
    with suppress(OSError):
        path.unlink()
        return True
    return False
