"""The input of the replays on labs: the shared traces, and the speed of each model as the job script reads it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from slurmwrap.cli.profile.profile_files import parse_profiles
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.trace.read_trace import read_load

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"
STATIC100 = DATA / "traces" / "synergy_static100.csv"  # Synergy's own: 100 jobs, submitted at once
MATRICES = DATA / "profiles" / "synergy_profiles.csv"


def read_trace(path: Path) -> tuple[SimJob, ...]:
    """Return the jobs in the order of submission."""
    return read_load(path).jobs


def speed_table(path: Path) -> dict[str, tuple[tuple[int, int, float], ...]]:
    """Return model → sorted (CPUs, MiB, speed relative to the share) per GPU: Synergy's points, not interpolated."""
    with path.open(newline="") as lines:
        return {
            profile.key: tuple(sorted((point.cpus, point.mem_mib, point.speed) for point in profile.surface))
            for profile in parse_profiles(lines, at=0.0)
        }


def speed_lines(points: Iterable[tuple[int, int, float]]) -> str:
    """Return one model's points in the format of the job script."""
    return "".join(f"{cpus} {memory} {speed}\n" for cpus, memory, speed in points)
