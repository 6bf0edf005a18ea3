"""Profiles as a lab's jobs would have left them: known to the user and to the site before the replay begins."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from replay.labs import USER, Lab
from slurmwrap.config.load_config import Tuning

_LEAST_GB = 20.83  # with so much memory every model of the matrices ran, slowly or not: more of it is cache
RUNS = 3  # tuning.runs_before_shrink: complete runs after which memory may go below what was asked for


def teach(lab: Lab, matrices: Path) -> int:
    """Takes Synergy's matrices in by `slurmwrap profile import`, as the result of RUNS complete runs each.

    A profile that was only imported counts as hearsay: it may raise a request, not lower its memory. The replay is
    about models that ran on this cluster before, so runs, confidence and the curve's date are those of such a model.
    Speeds stay the matrices'; the peak of a model's own memory, which they do not tell, is what fits into the least
    memory that all of them ran with.
    Returns how many profiles there are.
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
    """Models of which complete runs told the skew (largest tensor / model size), and nothing else."""
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
