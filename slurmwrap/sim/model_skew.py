"""Select the jobs that need locality: all, none, or only models that lose speed on distant servers.

Skew is the size of the largest tensor over the size of the model (Gu et al., NSDI 2019). For Tiresias's nine CNNs it
follows from the tensors in the authors' simulator (SymbioticLab/Tiresias, 959f9b08, models.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from slurmwrap.config.load_config import Placement
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.sim.arrays import Bools
from slurmwrap.sim.sim_job import SimJob

LIMIT = Placement().skew_limit
PLACEMENTS = ("any", "consolidate", "skew")
SKEW: Mapping[str, float] = {
    "vgg19": 0.717,
    "vgg16": 0.744,
    "vgg11": 0.774,
    "alexnet": 0.611,
    "resnet152": 0.060,
    "resnet101": 0.075,
    "resnet50": 0.112,
    "inception4": 0.044,
    "inception3": 0.138,
}


def select_tied_jobs(
    jobs: Sequence[SimJob], placement: str, profiles: Mapping[str, ResourceProfile], limit: float = LIMIT
) -> Bools:
    """Return which jobs wait for as few servers as possible. An unknown skew counts as low.

    ValueError for an unknown placement.
    """
    if placement not in PLACEMENTS:
        raise ValueError(f"there is no placement '{placement}': {', '.join(PLACEMENTS)}")
    if placement == "consolidate":
        return np.ones(len(jobs), dtype=np.bool_)
    skews = {model: profile.skew for model, profile in profiles.items() if profile.skew is not None}
    known = {**SKEW, **skews}
    skewed = {model for model, skew in known.items() if placement == "skew" and skew > limit}
    return np.array([job.model in skewed for job in jobs], dtype=np.bool_)
