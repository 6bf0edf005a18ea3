"""The mechanisms by name: the values of `--mechanism`."""

from __future__ import annotations

from functools import partial

from slurmwrap.placement.allocate import allocate
from slurmwrap.placement.demand import GradedSettings
from slurmwrap.sim.mechanism.lease_rounds import allocate_lease_rounds
from slurmwrap.sim.mechanism.mechanism import Habits, Mechanism
from slurmwrap.sim.mechanism.optimal import allocate_optimal, allocate_optimal_placed
from slurmwrap.sim.mechanism.reference_mechanisms import (
    reference_greedy,
    reference_proportional,
    reference_tetris,
    reference_tune,
)

MECHANISMS = ("proportional", "greedy", "tune", "graded", "opt", "opt-placed", "tetris")
# Policies that know the run times of jobs.
FORESEEING = ("srtf", "srsf")
# Factor from which on a job is critical. Chosen on dynamic loads of seeds 3001 to 3200: at 1 some mean JCTs suffer, at
# 3 few makespans improve.
CRITICAL = 1.75


def make_mechanism(
    name: str, *, leases: bool = False, consolidate: bool = False, largest_first: bool = False
) -> Mechanism:
    """Return a mechanism. ValueError for an unknown name.

    `graded` is production's allocate(), or its variant for rounds; the others are Synergy's and its baselines.
    `leases`: leases end, as in the mode rounds; without leases only `graded` and `proportional` are meaningful.
    `consolidate`: for the first three and `tetris`, a job runs on one server if one has enough free capacity.
    `largest_first`: for `tune`, what Synergy's simulator does with LAS.
    """
    if name == "graded":
        if leases:
            return partial(allocate_lease_rounds, settings=GradedSettings())
        return partial(allocate, policy="graded", settings=GradedSettings())
    if name == "tune":
        return partial(reference_tune, consolidate=consolidate, largest_first=largest_first)
    plain: dict[str, Mechanism] = {
        "proportional": partial(reference_proportional, consolidate=consolidate),
        "greedy": partial(reference_greedy, consolidate=consolidate),
        "opt": allocate_optimal,
        "opt-placed": allocate_optimal_placed,
        "tetris": partial(reference_tetris, consolidate=consolidate),
    }
    if name not in plain:
        raise ValueError(f"there is no mechanism '{name}': {', '.join(MECHANISMS)}")
    return plain[name]


def make_habits(name: str, policy: str, *, strict_order: bool = False) -> Habits:
    """Return how the engine treats a mechanism.

    As in Synergy's simulator (msr-fiddle/synergy 1bb2bed6, simulator/schedulers): with its LAS, greedy does not get the
    whole queue. `graded` is slurmwrap's own: with a policy that knows run times, no job waits that the makespan depends
    on, unless all jobs must run in `strict_order`.
    """
    return Habits(
        whole_queue=name == "tetris" or (name == "greedy" and policy != "las"),
        equal_parts=name == "graded",
        at_best=name in ("opt", "opt-placed"),
        critical=CRITICAL if name == "graded" and policy in FORESEEING and not strict_order else 0.0,
    )
