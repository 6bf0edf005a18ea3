"""Read and write files of resource profiles: slurmwrap's export (JSON) and Synergy's matrices (CSV) (adapter)."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor, isfinite
from pathlib import Path
from typing import Any

from slurmwrap.errors import UsageError
from slurmwrap.model.cpu_sweep import GOOD, least_cpus
from slurmwrap.model.resource_profile import GPU_SHARES, IMPORTED, CurvePoint, ResourceProfile, SpeedPoint
from slurmwrap.profiling.merge_profiles import are_plausible_layers, is_plausible_surface
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.serialize import to_json_dict

# Synergy's throughput matrices are CSV files with a header. `cpus` and `mem_gb` are per GPU. `throughput` is per GPU
# and relative to the speed at the authors' share of 3 CPUs and 62.5 GB (Synergy, OSDI'22; its simulator's
# models/*_1.py). So the rates of the curve are relative as well, and `steps_per_s` is not known.
NEEDED = ("model", "cpus", "mem_gb", "throughput")
# The confidence of one pre-run: the values were measured, but on another machine.
CONFIDENCE = 0.25
# The authors' servers have 500 "GB" of 1024^3.
_MIB = 1024

_Grid = dict[tuple[int, float], float]  # (CPUs, GB) -> throughput


def parse_profiles(lines: Iterable[str], *, at: float) -> tuple[ResourceProfile, ...]:
    """Parse Synergy's CSV: one profile per model, in the file's order. `at`: time of the import, Unix seconds.

    Raise ValueError, which names the line.
    """
    rows = csv.DictReader(lines)
    missing = [name for name in NEEDED if name not in (rows.fieldnames or ())]
    if missing:
        raise ValueError(f"line 1: there is no column '{missing[0]}'")
    grids: dict[str, _Grid] = {}
    for row in rows:
        model, cpus, memory, rate = _parse_row(row, rows.line_num)
        grids.setdefault(model, {})[cpus, memory] = rate
    return tuple(_make_profile(model, grid, at) for model, grid in grids.items())


def _parse_row(row: Mapping[str, str | None], line: int) -> tuple[str, int, float, float]:
    model = (row["model"] or "").strip()
    try:
        cpus, memory, rate = float(row["cpus"] or ""), float(row["mem_gb"] or ""), float(row["throughput"] or "")
    except ValueError:
        raise ValueError(f"line {line}: cpus, mem_gb and throughput must be numbers") from None
    if not model or not model.isprintable():
        raise ValueError(f"line {line}: it names no model")
    if not cpus.is_integer() or not 0 < cpus <= 100_000 or not 0 < memory <= 1e9 or not isfinite(rate) or rate < 0:
        raise ValueError(f"line {line}: a number is out of range")
    return model, int(cpus), memory, rate


def _make_profile(model: str, grid: _Grid, at: float) -> ResourceProfile:
    """Return the profile of a model.

    CPUs: the least by the curve at the most memory. Memory: the least within 5 % of the best speed at those CPUs.
    """
    most = max(memory for _, memory in grid)
    curve = tuple(
        CurvePoint(cpus=cpus, steps_per_s=rate)
        for (cpus, memory), rate in sorted(grid.items())
        if memory == most and rate > 0
    )
    least = least_cpus(curve)
    if least is None:
        return ResourceProfile(key=model, source=IMPORTED, measured_at=at)
    return ResourceProfile(
        key=model,
        cpus_per_gpu=float(least),
        mem_mib_per_gpu=_find_least_memory(
            sorted((memory, rate) for (cpus, memory), rate in grid.items() if cpus == least)
        ),
        confidence=CONFIDENCE,
        source=IMPORTED,
        measured_at=at,
        cpu_curve=curve,
        surface=_make_surface(grid),
        # curve_at is not set: the first curve that is measured on this site replaces one of another machine.
        cpu_curve_end="allocation",
    )


def _make_surface(grid: _Grid) -> tuple[SpeedPoint, ...]:
    return tuple(
        SpeedPoint(cpus=cpus, mem_mib=floor(memory * _MIB), speed=rate)
        for (cpus, memory), rate in sorted(grid.items())
        if rate > 0
    )


def _find_least_memory(rates: Sequence[tuple[float, float]]) -> int:
    best = max(rate for _, rate in rates)
    return ceil(next(memory for memory, rate in rates if rate >= GOOD * best) * _MIB)


VERSION = 1
_MARK = "slurmwrap_profiles"
_CAP = 64 << 20
_KEY_CAP = 250


def export_profiles(profiles: Sequence[ResourceProfile]) -> str:
    """Return the profiles as JSON text, from which `read_profiles` returns the same records."""
    return json.dumps({_MARK: VERSION, "profiles": [to_json_dict(one) for one in profiles]}, indent=2)


def read_profiles(path: Path, now: float) -> tuple[ResourceProfile, ...]:
    """Read the profiles of a file, or of standard input for "-". Raise UsageError, which names the error's place."""
    content = _read_content(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text file with profiles", hint=_WANTED, exit_code=1) from None
    try:
        found = _parse_export(text) if text.lstrip()[:1] in ("{", "[") else parse_profiles(text.splitlines(), at=now)
        _check_numbers(found)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: {error}", hint=_WANTED, exit_code=1) from error
    return found


_WANTED = "give a file from 'slurmwrap profile export', or a CSV with model, cpus, mem_gb and throughput"


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


def _parse_export(text: str) -> tuple[ResourceProfile, ...]:
    plain: Any = json.loads(text)
    if not isinstance(plain, dict) or not isinstance(plain.get("profiles"), list):
        raise ValueError("it is JSON, but not an export of profiles")
    if plain.get(_MARK) != VERSION:
        raise ValueError(f"it was written by another version ({plain.get(_MARK)!r}; this one knows {VERSION})")
    return tuple(record_from_json(ResourceProfile, one) for one in plain["profiles"])


def _check_numbers(profiles: Sequence[ResourceProfile]) -> None:
    """Raise ValueError, which names the profile, for values that would mislead placement."""
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
        of_gpu = (getattr(one, f"gpu_{name}") for name in ("util", "mem_util", *GPU_SHARES))
        if not all(0 <= (share or 0.0) <= 1 for share in (one.confidence, one.skew, *of_gpu)):
            raise ValueError(f"'{one.key}': a share that is not between 0 and 1")
        if any(point.cpus <= 0 or point.steps_per_s <= 0 for point in one.cpu_curve):
            raise ValueError(f"'{one.key}': a point of its curve is not positive")
        if not is_plausible_surface(one.surface):
            raise ValueError(f"'{one.key}': its surface has too many points, or an implausible one")
        if not are_plausible_layers(one.layers):
            raise ValueError(f"'{one.key}': its model has too many layers, or an implausible one")
