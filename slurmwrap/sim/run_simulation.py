"""Plays one run: a Simulation in, its Outcome and its Summary out. Where the simulator's rooms meet. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slurmwrap.model.resource_profile import IMPORTED, ResourceProfile
from slurmwrap.placement.demand import Server
from slurmwrap.sim import engines
from slurmwrap.sim.engines import rounds_engine
from slurmwrap.sim.mechanism.mechanism import Mechanism
from slurmwrap.sim.mechanism.mechanism_registry import habits_of, mechanism_of
from slurmwrap.sim.model_skew import SKEW
from slurmwrap.sim.queue_policies import SAME, Policy, policy_of
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.sim_outcome import Progress, SimOutcome, TimeSummary, summarize_outcome

MODES = ("rounds", "slurm")
# Mechanisms that do not need leases to end.
IN_SLURM = ("proportional", "graded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What is to be played. `window`: the numbers of the jobs that are measured; rounds end with the last of them."""

    jobs: tuple[SimJob, ...]
    servers: tuple[Server, ...]
    policy: str = "fifo"
    mechanism: str = "proportional"
    placement: str = "any"
    mode: str = "rounds"
    round_s: float = 0.0  # 0: at every event
    profiles: Mapping[str, ResourceProfile] = field(default_factory=dict)  # by SimJob.model
    window: range | None = None
    las_thresholds: tuple[float, ...] | None = None  # GPU-seconds, for las; None: Tiresias's, (): none
    strict_order: bool = False  # `graded` too lets jobs run in the policy's order alone (mechanism.Habits.critical)
    promote: float | None = None  # for las and gittins: see sim.queue.registry


def run_simulation(simulation: Simulation, progress: Progress | None = None) -> tuple[SimOutcome, TimeSummary]:
    """Plays it to the end. ValueError for a word that no one knows, TraceError for a job that can never run."""
    outcome = _play_simulation(simulation, progress)
    return outcome, summarize_outcome(simulation.jobs, outcome, simulation.servers, simulation.window)


def _play_simulation(asked: Simulation, progress: Progress | None) -> SimOutcome:
    word = SAME.get(asked.policy, asked.policy)
    policy = policy_of(word, asked.jobs, thresholds=asked.las_thresholds, promote=asked.promote)
    mechanism = _make_mechanism(asked, word)
    if asked.mode == "slurm":
        return _in_slurm(asked, policy, mechanism, progress)
    if asked.mode != "rounds":
        raise ValueError(f"there is no mode '{asked.mode}': {', '.join(MODES)}")
    return rounds_engine.play_rounds(
        asked.jobs,
        asked.servers,
        policy,
        mechanism,
        profiles=asked.profiles,
        round_s=asked.round_s,
        placement=asked.placement,
        habits=habits_of(asked.mechanism, word, strict_order=asked.strict_order),
        window=asked.window,
        progress=progress,
    )


def _make_mechanism(asked: Simulation, policy: str) -> Mechanism:
    return mechanism_of(
        asked.mechanism,
        leases=asked.mode == "rounds",
        consolidate=asked.placement == "consolidate",
        largest_first=policy == "las",
    )


def _in_slurm(asked: Simulation, policy: Policy, mechanism: Mechanism, progress: Progress | None) -> SimOutcome:
    """`proportional` is plain Slurm: each job keeps what it asks for."""
    if asked.mechanism not in IN_SLURM:
        raise ValueError(f"'{asked.mechanism}' needs leases that end: {' or '.join(IN_SLURM)} in the mode slurm")
    return engines.play_backfill(
        asked.jobs,
        asked.servers,
        world=engines.SchedulerParams(),
        policy=policy,
        mechanism=None if asked.mechanism == "proportional" else mechanism,
        profiles=_with_skew(asked.profiles) if asked.placement == "skew" else asked.profiles,
        placement=asked.placement,
        progress=progress,
    )


def _with_skew(profiles: Mapping[str, ResourceProfile]) -> Mapping[str, ResourceProfile]:
    """Also of the models whose tensors are published, for production's place(): a measured skew stays."""
    bare = {model: ResourceProfile(key=model, source=IMPORTED, measured_at=0.0) for model in SKEW}
    known = {**bare, **profiles}
    return {
        model: replace(profile, skew=SKEW.get(model)) if profile.skew is None else profile
        for model, profile in known.items()
    }
