"""The mechanisms by name. The one list of what `--mechanism` takes."""

from __future__ import annotations

from functools import partial

from slurmwrap.placement.allocate import allocate
from slurmwrap.placement.demand import GradedSettings
from slurmwrap.sim.mechanism.lease_rounds import allocate_lease_rounds
from slurmwrap.sim.mechanism.mechanism import Habits, Mechanism
from slurmwrap.sim.mechanism.optimal import allocate_optimal
from slurmwrap.sim.mechanism.reference_mechanisms import reference_greedy, reference_proportional, reference_tune

MECHANISMS = ("proportional", "greedy", "tune", "graded", "opt")
# Policies that know how long jobs run.
FORESEEING = ("srtf", "srsf")
# Chosen on dynamic loads of seeds 3001 to 3200: at 1 some mean JCTs suffer, at 3 few makespans gain.
CRITICAL = 1.75


def mechanism_of(
    name: str, *, leases: bool = False, consolidate: bool = False, largest_first: bool = False
) -> Mechanism:
    """`graded` is production's allocate(), or its form for rounds; the others are Synergy's. ValueError else.

    `leases`: they end, as in the mode rounds; only `graded` and `proportional` mean something where they do not.
    `consolidate`: of the first three, a job on one server where one has room. `largest_first`: of `tune`, what
    Synergy's simulator does with LAS.
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
    }
    if name not in plain:
        raise ValueError(f"there is no mechanism '{name}': {', '.join(MECHANISMS)}")
    return plain[name]


def habits_of(name: str, policy: str, *, strict_order: bool = False) -> Habits:
    """As Synergy's simulator does (msr-fiddle/synergy 1bb2bed6, simulator/schedulers): its LAS shows greedy no more.

    `graded` is ours: where the policy knows how long jobs run, it lets none wait on which the makespan hangs, unless
    all are to run `strict_order`.
    """
    return Habits(
        whole_queue=name == "greedy" and policy != "las",
        equal_parts=name == "graded",
        at_best=name == "opt",
        critical=CRITICAL if name == "graded" and policy in FORESEEING and not strict_order else 0.0,
    )
