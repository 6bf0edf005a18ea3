"""Parse resources (TRES), memory and times as sacct prints them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from math import ceil

# Trackable resources as sacct prints them: "billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1".
_AMOUNT = re.compile(r"(\d{1,18}(?:\.\d{1,6})?)([KMGTPE]?)B?([nc]?)", re.ASCII | re.IGNORECASE)
_MIB = {"K": 2**-10, "": 1.0, "M": 1.0, "G": 2.0**10, "T": 2.0**20, "P": 2.0**30, "E": 2.0**40}
_COUNT = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50, "E": 2**60}
_OLD_GPU = re.compile(r"(?:gres[:/])?gpu(?::[^:,()]*[^:,()\d][^:,()]*)?(?::(\d{1,7}))?(?:\([^)]*\))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tres:
    """Trackable resources of a whole job. None: not reported."""

    gpus: int | None = None
    cpus: int | None = None
    mem_mib: int | None = None
    nodes: int | None = None


# Cached, because the jobs of a month have few different requests.
@lru_cache(maxsize=4096)
def parse_tres(text: str) -> Tres:
    """Parse AllocTRES and ReqTRES. Other resources, such as gres/gpumem and gres/gpuutil, are ignored.

    GPUs are "gres/gpu", or else the sum over the types, each as "gres/gpu:a100". ValueError for text that is no TRES
    list.
    """
    found: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(part)
        found[key.strip().lower()] = value.strip()
    typed = [_count(value) for key, value in found.items() if key.startswith("gres/gpu:")]
    return Tres(
        gpus=_count(found["gres/gpu"]) if "gres/gpu" in found else sum(typed) if typed else None,
        cpus=_count(found["cpu"]) if "cpu" in found else None,
        mem_mib=parse_memory(found["mem"])[0] if "mem" in found else None,
        nodes=_count(found["node"]) if "node" in found else None,
    )


def parse_memory(text: str) -> tuple[int, str]:
    """Return MiB and their scope: "n" per node or "c" per CPU (printed by Slurm before 21.08), "" for the whole job."""
    found = _AMOUNT.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return ceil(float(found[1]) * _MIB[found[2].upper()]), found[3].lower()


def parse_old_gres(text: str) -> int:
    """Return the GPUs per node of AllocGRES and ReqGRES: "gpu:4", "gres:gpu:a100:2,craynet:1".

    Slurm had these fields before 21.08.
    """
    matches = (_OLD_GPU.fullmatch(part) for part in text.split(","))
    return sum(int(found[1] or 1) for found in matches if found)


def _count(text: str) -> int:
    found = _AMOUNT.fullmatch(text)
    if found is None or found[3]:
        raise ValueError(text)
    return ceil(float(found[1]) * _COUNT[found[2].upper()])


# Times and durations as sacct prints them.
UNSET = frozenset(("", "unknown", "none", "n/a", "invalid"))
_NO_LIMIT = frozenset((*UNSET, "unlimited", "partition_limit", "infinite", "not_set"))
_CLOCK = re.compile(r"(?:(\d{1,6})-)?(?:(\d{1,6}):)?(\d{1,6}):(\d{1,6})(?:\.\d+)?", re.ASCII)


def parse_stamp(text: str) -> float | None:
    """Return Unix seconds; None if Slurm prints that the event did not happen. ValueError for anything else.

    Unix seconds (`SLURM_TIME_FORMAT=%s`) and times with a zone are exact. Slurm's usual "2026-11-01T03:04:05" is the
    local time where sacct ran, without a zone. It is read as UTC, so that the result does not depend on where the dump
    is read. Around a change to or from daylight saving time, times before and after the change are off by an hour
    against each other.
    """
    if text.isdecimal():
        return float(text) or None
    if text.lower() in UNSET:
        return None
    # Datetime.fromisoformat also accepts "20261101", which sacct does not print.
    if text[4:5] != "-":
        raise ValueError(text)
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def parse_elapsed(text: str) -> float | None:
    """Return the seconds of "[days-][hours:]minutes:seconds" or of plain seconds; None: not reported.

    Raises ValueError for other text.
    """
    if text.isdecimal():
        return float(text)
    if text.lower() in UNSET:
        return None
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise ValueError(text)
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def parse_limit(text: str) -> float | None:
    """Return the seconds of a time limit; None: no limit, or the partition's.

    It is given in minutes (TimelimitRaw) or as a duration.
    """
    if text.lower() in _NO_LIMIT:
        return None
    return float(text) * 60 if text.isdecimal() else parse_elapsed(text)
