"""Turns files of profiles into records and back: our own export (JSON), and Synergy's matrices (CSV)."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurmwrap.errors import UsageError
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.profiling.plausible_measurement import is_plausible_surface
from slurmwrap.profiling.synergy_matrices import parse_profiles
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.serialize import to_json_dict

VERSION = 1
_MARK = "slurmwrap_profiles"
_CAP = 64 << 20
_KEY_CAP = 250


def export_profiles(profiles: Sequence[ResourceProfile]) -> str:
    """JSON text; `read_profiles` gives the very same records back."""
    return json.dumps({_MARK: VERSION, "profiles": [to_json_dict(one) for one in profiles]}, indent=2)


def read_profiles(path: Path, now: float) -> tuple[ResourceProfile, ...]:
    """The profiles of a file, of standard input for "-". UsageError says where it cannot be read."""
    content = _read_content(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text of profiles", hint=_WANTED, exit_code=1) from None
    try:
        found = _parse_profiles(text) if text.lstrip()[:1] in ("{", "[") else parse_profiles(text.splitlines(), at=now)
        _check_numbers(found)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: {error}", hint=_WANTED, exit_code=1) from error
    return found


_WANTED = "wanted is what 'slurmwrap profile export' writes, or a CSV with model, cpus, mem_gb and throughput"


def _read_content(path: Path) -> bytes:
    try:
        if str(path) == "-":
            content = sys.stdin.buffer.read(_CAP + 1)
        else:
            with path.open("rb") as stream:
                content = stream.read(_CAP + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", exit_code=1) from error
    if len(content) > _CAP:
        raise UsageError(f"{path} is larger than {_CAP >> 20} MiB", hint=_WANTED, exit_code=1)
    return content


def _parse_profiles(text: str) -> tuple[ResourceProfile, ...]:
    plain: Any = json.loads(text)
    if not isinstance(plain, dict) or not isinstance(plain.get("profiles"), list):
        raise ValueError("it is JSON, but no export of profiles")
    if plain.get(_MARK) != VERSION:
        raise ValueError(f"it was written by another version ({plain.get(_MARK)!r}; this one knows {VERSION})")
    return tuple(record_from_json(ResourceProfile, one) for one in plain["profiles"])


def _check_numbers(profiles: Sequence[ResourceProfile]) -> None:
    """Numbers that placement would believe; ValueError names the profile."""
    seen = set()
    for one in profiles:
        if not 0 < len(one.key) <= _KEY_CAP or not one.key.isprintable() or one.key != one.key.strip():
            raise ValueError(f"{one.key[:40]!r} cannot be a key")
        if one.key in seen:
            raise ValueError(f"'{one.key}' is in it twice")
        seen.add(one.key)
        amounts = (one.cpus_per_gpu, one.mem_mib_per_gpu, one.steps_per_s, one.model_mib, one.gpu_mem_mib)
        if any(amount is not None and amount <= 0 for amount in amounts) or min(one.runs, one.preruns) < 0:
            raise ValueError(f"'{one.key}': a need that is not positive")
        shares = (one.confidence, one.skew or 0.0, one.gpu_util or 0.0, one.gpu_mem_util or 0.0)
        if not all(0 <= share <= 1 for share in shares):
            raise ValueError(f"'{one.key}': a share that is not between 0 and 1")
        if any(point.cpus <= 0 or point.steps_per_s <= 0 for point in one.cpu_curve):
            raise ValueError(f"'{one.key}': a point of its curve is not positive")
        if not is_plausible_surface(one.surface):
            raise ValueError(f"'{one.key}': its surface has too many points, or one that nobody can have measured")
