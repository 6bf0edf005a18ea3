"""Resource profiles as earlier jobs on a lab would have left them: known to user and site before the replay begins."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from replay.labs import USER, Lab
from slurmwrap.config.load_config import Tuning

_LEAST_GB = 20.83  # every model of the matrices ran with this memory, even if slowly; more is used as cache
RUNS = 3  # tuning.runs_before_shrink: complete runs after which memory may go below what was asked for


def teach(lab: Lab, matrices: Path) -> int:
    """Import Synergy's matrices by `slurmwrap profile import`, as if each model had RUNS complete runs.

    A profile that was only imported may raise a request, but not lower its memory. The replay is about models that ran
    on this cluster before, so runs, confidence and the curve's date are those of such a model. Speeds are those of the
    matrices. They do not have the peak of a model's own memory; it is assumed to fit into the least memory with which
    all models ran. Return the number of profiles.
    """
    lab.user(["slurmwrap", "profile", "import", "-"], stdin=matrices.read_text(encoding="utf-8"))
    exported = json.loads(lab.user(["slurmwrap", "profile", "export"]))
    for one in _profiles(exported):
        one |= {"runs": RUNS, "confidence": 0.9, "source": "epilog", "curve_at": time.time()}
        one["mem_mib_per_gpu"] = int(_LEAST_GB * 1024 / Tuning().memory_margin)
    text = json.dumps(exported)
    lab.user(["slurmwrap", "profile", "import", "--replace", "-"], stdin=text)
    lab.root(["slurmwrap", "profile", "import", "--site", "--user", USER, "-"], stdin=text)
    return len(_profiles(exported))


def teach_skew(lab: Lab, skews: Mapping[str, float]) -> None:
    """Record models of which complete runs reported only the skew (largest tensor / model size)."""
    now = time.time()
    known = [
        {"key": model, "skew": skew, "runs": RUNS, "confidence": 0.9, "source": "epilog", "measured_at": now}
        for model, skew in skews.items()
    ]
    text = json.dumps({"slurmwrap_profiles": 1, "profiles": known})
    lab.user(["slurmwrap", "profile", "import", "-"], stdin=text)
    lab.root(["slurmwrap", "profile", "import", "--site", "--user", USER, "-"], stdin=text)


def _profiles(exported: object) -> list[dict[str, object]]:
    found = exported.get("profiles") if isinstance(exported, dict) else exported
    assert isinstance(found, list)
    return found
