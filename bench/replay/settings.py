"""The policy's settings of the gsub arm: set for the lab's user and reconciler, and recorded with the figures."""

from __future__ import annotations

from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from slurmwrap.config.load_config import Config, Tuning
from slurmwrap.placement.demand import GradedSettings

_POLICY = Path(__file__).resolve().parents[2] / "slurmwrap" / "placement"


def changed(policy: str, scale: float) -> dict[str, object]:
    """Return the settings that differ from the defaults. Only an assumed run time is compressed with the trace."""
    return {"tuning.policy": policy, "tuning.assumed_run_s": round(Tuning().assumed_run_s / scale, 3)}


def record(policy: str, scale: float) -> dict[str, object]:
    """Return the default settings, the replay's changes, and a digest of the sources that use them."""
    digest = sha256(b"".join(path.read_bytes() for path in sorted(_POLICY.glob("*.py"))))
    return {
        "policy": policy,
        "tuning": asdict(Config().tuning),
        "graded": asdict(GradedSettings()),
        "relax_updates_per_s": Config().placement.relax_updates_per_s,
        "relax_jobs": Config().placement.relax_jobs,
        "changed here": {**changed(policy, scale), "reconcile --poll": 1.0},
        "sha256 of slurmwrap/placement": digest.hexdigest()[:16],
    }


def line(policy: str, scale: float) -> str:
    """Return the settings in one line of text."""
    graded = ", ".join(f"{name} {value:g}" for name, value in asdict(GradedSettings()).items())
    return f"policy {policy} ({graded}; assumed run compressed to {Tuning().assumed_run_s / scale:.1f} s)"
