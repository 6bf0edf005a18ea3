"""What is replayed: jobs of a trace, and how fast each model runs with so many CPUs and so much memory."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"
MIB_PER_GB = 1024  # Synergy's servers have 500 "GB"; its share of 62.5 is an eighth of that
SHARE = (3, 64_000)  # CPUs and MiB per GPU at which every speed of the profiles is 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One job of a trace, in the trace's own seconds."""

    number: int
    model: str
    submit_s: float
    work_s: float  # its run time at the proportional share, nothing else slowing it
    gpus: int = 1


def read_trace(path: Path) -> tuple[TraceJob, ...]:
    """A CSV with submit_s, duration_s, gpus and model; in the file's order, which is that of submission."""
    with path.open(newline="") as lines:
        return tuple(
            TraceJob(
                number=number,
                model=row["model"],
                submit_s=float(row["submit_s"]),
                work_s=float(row["duration_s"]),
                gpus=int(row["gpus"]),
            )
            for number, row in enumerate(csv.DictReader(lines))
        )


def speed_table(path: Path) -> dict[str, tuple[tuple[int, int, float], ...]]:
    """Model → (CPUs, MiB, speed relative to SHARE) per GPU, sorted. Synergy's measured points, nothing in between."""
    table: dict[str, list[tuple[int, int, float]]] = {}
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            memory = int(float(row["mem_gb"]) * MIB_PER_GB)
            table.setdefault(row["model"], []).append((int(row["cpus"]), memory, float(row["throughput"])))
    return {model: tuple(sorted(points)) for model, points in table.items()}


def speed_lines(points: Iterable[tuple[int, int, float]]) -> str:
    """One model's points as the job script reads them."""
    return "".join(f"{cpus} {memory} {speed}\n" for cpus, memory, speed in points)
