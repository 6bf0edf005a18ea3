"""What is replayed on labs: the shared traces, and how fast each model runs, as a job script reads it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from slurmwrap.cli.profile.profile_files import parse_profiles
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.trace.read_trace import open_load

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"
STATIC100 = DATA / "traces" / "synergy_static100.csv"  # Synergy's own: 100 jobs, all there at once
MATRICES = DATA / "profiles" / "synergy_profiles.csv"


def read_trace(path: Path) -> tuple[SimJob, ...]:
    """In the order of submission."""
    return open_load(path).jobs


def speed_table(path: Path) -> dict[str, tuple[tuple[int, int, float], ...]]:
    """Model → (CPUs, MiB, speed relative to the share) per GPU, sorted. Synergy's points, nothing in between."""
    with path.open(newline="") as lines:
        return {
            profile.key: tuple(sorted((point.cpus, point.mem_mib, point.speed) for point in profile.surface))
            for profile in parse_profiles(lines, at=0.0)
        }


def speed_lines(points: Iterable[tuple[int, int, float]]) -> str:
    """One model's points as the job script reads them."""
    return "".join(f"{cpus} {memory} {speed}\n" for cpus, memory, speed in points)
