"""Run one simulation: a Simulation in, its SimOutcome and TimeSummary out. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slurmwrap.model.resource_profile import IMPORTED, ResourceProfile
from slurmwrap.placement.demand import Server
from slurmwrap.sim import engines
from slurmwrap.sim.engines import rounds_engine
from slurmwrap.sim.engines.gpu_sharing import PackSettings
from slurmwrap.sim.engines.queue_rules import EXACT, FEWEST_GPUS, make_queue_rules
from slurmwrap.sim.engines.sim_moves import SimMoveSettings
from slurmwrap.sim.mechanism.mechanism import Mechanism
from slurmwrap.sim.mechanism.mechanism_registry import make_habits, make_mechanism
from slurmwrap.sim.model_skew import SKEW
from slurmwrap.sim.queue_policies import SAME, Policy, make_policy
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.sim_outcome import Progress, SimOutcome, TimeSummary, summarize_outcome

MODES = ("rounds", "slurm")
# Mechanisms that work without leases that end.
IN_SLURM = ("proportional", "graded")
# Orders that are policies.
_SAME_ORDER = {EXACT: "srsf", FEWEST_GPUS: "sjf"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What is to be simulated.

    `window`: numbers of the jobs that are measured; the mode rounds ends with the last of them.
    """

    jobs: tuple[SimJob, ...]
    servers: tuple[Server, ...]
    policy: str = "fifo"
    mechanism: str = "proportional"
    placement: str = "any"
    mode: str = "rounds"
    round_s: float = 0.0  # 0: leases end at every event
    profiles: Mapping[str, ResourceProfile] = field(default_factory=dict)  # keys are SimJob.model
    window: range | None = None
    las_thresholds: tuple[float, ...] | None = None  # GPU-seconds, for las; None: Tiresias's, (): none
    # Run jobs in the policy's order only, also with `graded` (no critical jobs first: mechanism.Habits.critical).
    strict_order: bool = False
    order: str = ""  # of pending jobs in the mode slurm, by predicted run times: queue_rules.ORDERS; "": the policy's
    limits: str = ""  # time limits in the mode slurm: queue_rules.LIMITS; "": those of the trace, else a day
    history: tuple[SimJob, ...] = ()  # jobs that ended before the first one was submitted, in that order
    keyed: bool = False  # SimJob.model identifies jobs that do the same
    promote: float | None = None  # for las and gittins, see sim/queue_policies.py
    pack: PackSettings = field(default_factory=PackSettings)  # in the mode slurm: which jobs share a GPU
    move: SimMoveSettings = field(default_factory=SimMoveSettings)  # in the mode slurm: which running jobs are moved
    scattered_gpus: int = 0  # see engines.SchedulerParams


def run_simulation(simulation: Simulation, progress: Progress | None = None) -> tuple[SimOutcome, TimeSummary]:
    """Simulate to the end. ValueError for an unknown name, TraceError for a job that can never run."""
    outcome = _play_simulation(simulation, progress)
    return outcome, summarize_outcome(simulation.jobs, outcome, simulation.servers, simulation.window)


def _play_simulation(simulation: Simulation, progress: Progress | None) -> SimOutcome:
    policy_name = SAME.get(simulation.policy, simulation.policy)
    policy = make_policy(
        _SAME_ORDER.get(simulation.order, policy_name),
        simulation.jobs,
        thresholds=simulation.las_thresholds,
        promote=simulation.promote,
        servers=simulation.servers,
    )
    mechanism = _make_mechanism(simulation, policy_name)
    if simulation.mode == "slurm":
        return _play_slurm(simulation, policy, mechanism, progress)
    if simulation.mode != "rounds":
        raise ValueError(f"there is no mode '{simulation.mode}': {', '.join(MODES)}")
    if simulation.order or simulation.limits or simulation.pack.consent or simulation.move.occasions:
        raise ValueError("order, limits, pack and move are of the mode slurm")
    return rounds_engine.play_rounds(
        simulation.jobs,
        simulation.servers,
        policy,
        mechanism,
        profiles=simulation.profiles,
        round_s=simulation.round_s,
        placement=simulation.placement,
        habits=make_habits(simulation.mechanism, policy_name, strict_order=simulation.strict_order),
        window=simulation.window,
        progress=progress,
    )


def _make_mechanism(simulation: Simulation, policy: str) -> Mechanism:
    return make_mechanism(
        simulation.mechanism,
        leases=simulation.mode == "rounds",
        consolidate=simulation.placement == "consolidate",
        largest_first=policy == "las",
    )


def _play_slurm(simulation: Simulation, policy: Policy, mechanism: Mechanism, progress: Progress | None) -> SimOutcome:
    """Simulate the mode slurm. The mechanism `proportional` is plain Slurm: each job keeps what it asks for."""
    if simulation.mechanism not in IN_SLURM:
        raise ValueError(f"'{simulation.mechanism}' needs leases that end: {' or '.join(IN_SLURM)} in the mode slurm")
    # Without another order, a job is in the class of the service that it has had.
    order = simulation.order or ("las" if simulation.move.occasions else "")
    return engines.play_backfill(
        simulation.jobs,
        simulation.servers,
        world=engines.SchedulerParams(
            pack=simulation.pack, move=simulation.move, scattered_gpus=simulation.scattered_gpus
        ),
        policy=policy,
        rules=make_queue_rules(order, simulation.limits, history=simulation.history, keyed=simulation.keyed),
        mechanism=None if simulation.mechanism == "proportional" else mechanism,
        profiles=_add_published_skews(simulation.profiles) if simulation.placement == "skew" else simulation.profiles,
        placement=simulation.placement,
        progress=progress,
    )


def _add_published_skews(profiles: Mapping[str, ResourceProfile]) -> Mapping[str, ResourceProfile]:
    """Return the profiles with published skews added, for production's plan(). A measured skew stays."""
    bare = {model: ResourceProfile(key=model, source=IMPORTED, measured_at=0.0) for model in SKEW}
    known = {**bare, **profiles}
    return {
        model: replace(profile, skew=SKEW.get(model)) if profile.skew is None else profile
        for model, profile in known.items()
    }
