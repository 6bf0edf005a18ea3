"""How Slurm orders its queue (PriorityScheme), and how slurmwrap does within that (PublishedOrder).

Measured on 22.05, 24.11 and 26.05 (docs/scheduling.md, "Queue order"; tests/slurm/test_order_lab.py).
"""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass

SITE_FACTOR, NICE = "SiteFactor", "Nice"  # keys of `scontrol update job`
# Largest priority, an unsigned 32-bit number. Under priority/basic a smaller Nice makes a larger one wrap around.
MAX_PRIORITY = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityScheme:
    """Slurm's configuration of priorities. `plugin`: "basic", "multifactor" or a site's own; "" if unknown."""

    plugin: str = ""
    weights: int = 0  # sum of all PriorityWeight* settings
    site_factor_plugin: bool = False  # a PrioritySiteFactorPlugin sets SiteFactor, and would undo any other value

    @property
    def key(self) -> str:
        """Return the term that root may set without taking over the priority: SITE_FACTOR or NICE; "" if none."""
        if self.plugin == "multifactor":
            return NICE if self.site_factor_plugin else SITE_FACTOR
        return NICE if self.plugin == "basic" else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedOrder:
    """What users may know of the rule `order`: with it and a job's expected run time the job's class is known.

    `index`, `thresholds` and `most_wait_s` are those of policy.queue_order.OrderSettings.
    """

    acts: bool  # False: the rule only advises
    index: str
    thresholds: tuple[float, ...]
    most_wait_s: float
