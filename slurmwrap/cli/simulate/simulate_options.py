"""Turn the options of `slurmwrap simulate` into simulations: loads, clusters and combinations of policies.

Reads traces and profiles (adapter).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import isfinite
from pathlib import Path

from slurmwrap.config.config_defaults import Move
from slurmwrap.errors import TraceError, UsageError
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.policy.queue_order import INDEXES
from slurmwrap.sim.engines.gpu_sharing import PackSettings
from slurmwrap.sim.engines.queue_rules import EXACT, FEWEST_GPUS, LIMITS, ORDERS, PREDICTED_LIMITS
from slurmwrap.sim.engines.sim_moves import MOVES, SimMoveSettings
from slurmwrap.sim.mechanism.mechanism_registry import FORESEEING, MECHANISMS
from slurmwrap.sim.model_skew import PLACEMENTS
from slurmwrap.sim.queue_policies import POLICIES, SAME
from slurmwrap.sim.run_simulation import IN_SLURM, MODES, Simulation
from slurmwrap.sim.sim_job import SimJob, make_equal_servers
from slurmwrap.sim.trace.read_trace import check_fits, read_load
from slurmwrap.sim.trace.synergy_loads import GPU_DEMANDS, JOBS_PER_HOUR, RUN_TIMES, SINGLE, SMALL, generate_load
from slurmwrap.sim.trace.synergy_loads import KINDS as GENERATED
from slurmwrap.sim.trace.trace_load import JOB_CAP, Load

SYNERGY_ROUND_S = 300.0
# Jobs of a generated load, as many as the shipped traces have.
_DEFAULT_JOBS = 100
_MOST_SEEDS = 1000
# Values of --order and --limits; the first of each changes nothing.
_ORDERS, _LIMITS = ("fifo", *ORDERS), ("trace", *LIMITS)
NO_PREEMPTION = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """The options of the command line."""

    trace: str
    servers: int
    gpus: int
    cpus: int
    mem_gb: float
    policy: Sequence[str]
    mechanism: Sequence[str]
    placement: Sequence[str]
    mode: Sequence[str]
    profiles: Path | None
    round_s: float | None
    las_thresholds: str | None
    promote: float | None
    measure: str
    seed: str | None
    jobs: int | None
    jobs_per_hour: float | None
    split: str | None
    gpu_demand: str | None
    run_times: str | None
    order: Sequence[str] = ()
    limits: Sequence[str] = ()
    pack: Sequence[str] = ()
    gpu_util: float = 52.0
    preempt: Sequence[str] = ()
    checkpoint_s: float = 1800.0
    moving: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One requested run."""

    seed: int | None  # None unless the load is generated
    simulation: Simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationPlan:
    """All runs of one call, in the order of the options, and remarks that the user must know."""

    runs: tuple[PlannedRun, ...]
    remarks: tuple[str, ...]


def make_simulation_plan(asked: SimulateOptions) -> SimulationPlan:
    """Return one run per seed and combination of mode, placement, policy and mechanism.

    Raise UsageError for an invalid option, TraceError for a file that cannot be read.
    """
    kinds = list(
        product(
            _parse_names("--mode", asked.mode, MODES),
            _parse_names("--placement", asked.placement, PLACEMENTS),
            _parse_names("--policy", asked.policy, POLICIES),
            _parse_names("--mechanism", asked.mechanism, MECHANISMS),
        )
    )
    profiles = _read_profiles(asked.profiles)
    for mode, _, _, mechanism in kinds:
        if mode == "slurm" and mechanism not in IN_SLURM:
            hint = f"--mode slurm takes --mechanism {' or '.join(IN_SLURM)}"
            raise UsageError(f"--mechanism {mechanism} needs leases that end: --mode rounds", hint=hint)
    needy = [mechanism for *_, mechanism in kinds if mechanism != "proportional"]
    if needy and not profiles:
        hint = "a CSV with model, cpus, mem_gb and throughput, or what 'slurmwrap profile export' writes"
        raise UsageError(f"--mechanism {needy[0]} needs --profiles: it must know how fast jobs run", hint=hint)
    loads = tuple(_read_loads(asked))
    rules = list(
        product(
            _parse_names("--order", asked.order or ["fifo"], _ORDERS),
            _parse_names("--limits", asked.limits or ["trace"], _LIMITS),
        )
    )
    _check_rules(asked, kinds)
    sharing = _parse_sharing(asked)
    runs = [
        PlannedRun(
            seed=seed,
            simulation=replace(
                _make_simulation(asked, load.jobs, kind, profiles),
                order="" if order == "fifo" else order,
                limits="" if limits == "trace" else limits,
                keyed=bool(load.actual),
                pack=pack,
                move=move,
            ),
        )
        for seed, load in loads
        for kind in kinds
        for order, limits in rules
        for pack, move in sharing
    ]
    first = loads[0][1]
    remarks = (
        *first.remarks,
        *_remark_on_unprofiled(first.jobs, profiles),
        *_remark_on_unused_options(asked),
        *_remark_on_service_policies(kinds),
        *_remark_on_graded(kinds),
        *_remark_on_fair_policies(kinds, first),
        *_remark_on_rules(rules, first),
        *_remark_on_sharing(sharing, first.jobs),
        *(_remark_on_placement(kinds) if any(job.model in profiles for job in first.jobs) else ()),
    )
    return SimulationPlan(runs=tuple(runs), remarks=remarks)


def _check_rules(asked: SimulateOptions, kinds: Sequence[tuple[str, str, str, str]]) -> None:
    """Raise UsageError if an option of the world slurm does not apply to all runs."""
    values = {"--order": asked.order, "--limits": asked.limits, "--pack": asked.pack, "--preempt": asked.preempt}
    given = [name for name, value in values.items() if value]
    if given and any(mode != "slurm" for mode, *_ in kinds):
        raise UsageError(f"{given[0]} is of the world slurm", hint="add --mode slurm")
    if asked.order and any(policy != "fifo" for _, _, policy, _ in kinds):
        raise UsageError("--order and --policy both order the queue", hint="leave one of them out")
    if asked.preempt and any(policy != "fifo" for _, _, policy, _ in kinds):
        raise UsageError("--preempt orders the queue by classes, as --policy does", hint="leave --policy out")
    exact = [name for text in asked.order for name in text.split(",") if name.strip() in (EXACT, FEWEST_GPUS)]
    if asked.preempt and exact:
        raise UsageError(f"--preempt needs classes, and --order {exact[0]} has none", hint=f"take {', '.join(INDEXES)}")


def _parse_sharing(asked: SimulateOptions) -> list[tuple[PackSettings, SimMoveSettings]]:
    """Return the combinations of --pack and --preempt."""
    if not 0 < asked.gpu_util < 100:
        raise UsageError(f"--gpu-util {asked.gpu_util:g}: per cent, more than 0 and less than 100")
    if not (isfinite(asked.checkpoint_s) and asked.checkpoint_s > 0):
        raise UsageError(f"--checkpoint {asked.checkpoint_s:g}: seconds, more than 0")
    if not 0 <= asked.moving <= 1:
        raise UsageError(f"--moving {asked.moving:g}: a share of the GPUs, 0 to 1")
    names = _parse_names("--preempt", asked.preempt or [NO_PREEMPTION], (NO_PREEMPTION, *MOVES))
    rule = replace(Move(), gpu_share=asked.moving)
    moves = [
        SimMoveSettings(occasions=MOVES.get(name, ()), rule=rule, checkpoint_s=asked.checkpoint_s) for name in names
    ]
    packs = [
        PackSettings(consent=share, mean_util=asked.gpu_util / 100) for share in _parse_shares(asked.pack or ["0"])
    ]
    return list(product(packs, moves))


def _parse_shares(given: Sequence[str]) -> tuple[float, ...]:
    found = []
    for text in (one for many in given for one in many.split(",")):
        try:
            share = float(text)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise UsageError(f"--pack '{text}': the share of jobs that may share their GPU, 0 to 1")
        found.append(share)
    return tuple(dict.fromkeys(found))


def _remark_on_sharing(
    sharing: Sequence[tuple[PackSettings, SimMoveSettings]], jobs: Sequence[SimJob]
) -> Iterator[str]:
    """Remark on what is assumed about jobs that share GPUs or are moved."""
    if any(pack.consent for pack, _ in sharing):
        unknown = sum(job.gpu_util is None for job in jobs if job.gpus == 1)
        if unknown:
            mean = 100 * sharing[0][0].mean_util
            yield f"the GPU utilization of {unknown} jobs is not in the trace: it is drawn with a mean of {mean:g} %"
        if not any(job.user for job in jobs):
            yield "no job has a user: any two may share a GPU"
    if any(move.occasions for _, move in sharing):
        yield "which jobs are moved depends on run times that are expected from the runs that ended before"


def _remark_on_rules(rules: Sequence[tuple[str, str]], load: Load) -> Iterator[str]:
    """Remark on what is predicted from, and on orders for jobs that ran before."""
    predicted = [order for order, _ in rules if order in INDEXES]
    if not predicted and all(limits != PREDICTED_LIMITS for _, limits in rules):
        return
    known = "user, job name, GPUs and partition" if load.actual else "user and GPUs"
    yield f"run times are predicted by {known}, from the runs that ended before; the first jobs have none"
    if "las" in predicted:
        yield "--order las is fifo here: jobs that wait have not run yet"


def _make_simulation(
    asked: SimulateOptions,
    jobs: tuple[SimJob, ...],
    kind: tuple[str, str, str, str],
    profiles: Mapping[str, ResourceProfile],
) -> Simulation:
    mode, placement, policy, mechanism = kind
    try:
        servers = make_equal_servers(asked.servers, gpus=asked.gpus, cpus=asked.cpus, mem_gb=asked.mem_gb)
    except ValueError as error:
        raise UsageError(f"--{str(error).replace('_', '-')}") from error
    check_fits(jobs, servers, name=asked.trace)
    return Simulation(
        jobs=jobs,
        servers=servers,
        policy=policy,
        mechanism=mechanism,
        placement=placement,
        mode=mode,
        round_s=_choose_round_s(asked.round_s, bool(profiles)),
        profiles=profiles,
        window=_parse_window(asked.measure, len(jobs)),
        las_thresholds=_parse_thresholds(asked.las_thresholds),
        promote=_parse_promote(asked.promote),
    )


# ------------------------------------------------------------------------------------------- what is replayed


def _read_loads(asked: SimulateOptions) -> Iterator[tuple[int | None, Load]]:
    if asked.trace not in GENERATED:
        yield None, _read_load(Path(asked.trace))
        return
    (gpu_demand,) = _parse_names("--gpu-demand", [asked.gpu_demand or SINGLE], GPU_DEMANDS)
    (run_times,) = _parse_names("--run-times", [asked.run_times or SMALL], RUN_TIMES)
    count = _DEFAULT_JOBS if asked.jobs is None else asked.jobs
    per_hour = JOBS_PER_HOUR if asked.jobs_per_hour is None else asked.jobs_per_hour
    if not 1 <= count <= JOB_CAP or not 0 < per_hour < float("inf"):
        raise UsageError(f"--jobs and --jobs-per-hour must be above 0, --jobs at most {JOB_CAP:,}")
    for seed in parse_seeds(asked.seed or "1"):
        drawn = generate_load(
            asked.trace,
            seed=seed,
            jobs=count,
            jobs_per_hour=per_hour,
            split=_parse_split(asked.split),
            gpu_demand=gpu_demand,
            run_times=run_times,
        )
        yield seed, Load(jobs=drawn)


def _read_load(path: Path) -> Load:
    """Read the load of a file. Raise TraceError; the hint lists the generated loads if `path` looks like a name."""
    try:
        return read_load(path)
    except TraceError as error:
        if isinstance(error.__cause__, FileNotFoundError) and not path.suffix:
            hint = f"a CSV, what sacct -P printed, {' or '.join(GENERATED)}"
            raise TraceError(str(error), hint=hint) from error
        raise


def _remark_on_unprofiled(jobs: Sequence[SimJob], profiles: Mapping[str, ResourceProfile]) -> tuple[str, ...]:
    unprofiled = [job for job in jobs if job.model not in profiles]
    if not profiles or not unprofiled:
        return ()
    named = sorted({job.model for job in unprofiled if job.model})
    which = f" (models: {', '.join(named[:5])}{', …' if len(named) > 5 else ''})" if named else " (no model is named)"
    return (f"{len(unprofiled)} of {len(jobs)} jobs have no profile{which}: they run at the speed of their share",)


def _remark_on_unused_options(asked: SimulateOptions) -> tuple[str, ...]:
    """Remark on options for generated loads if a file is replayed."""
    options = {
        "--jobs": asked.jobs,
        "--jobs-per-hour": asked.jobs_per_hour,
        "--split": asked.split,
        "--run-times": asked.run_times,
        "--gpu-demand": asked.gpu_demand,
    }
    given = [option for option, value in options.items() if value is not None]
    if asked.trace in GENERATED or not given:
        return ()
    return (f"{', '.join(given)}: for generated loads only; all jobs of the file are replayed unchanged",)


def _remark_on_service_policies(kinds: Sequence[tuple[str, str, str, str]]) -> tuple[str, ...]:
    """Remark on policies that order jobs by attained service: in the world slurm no waiting job has run yet."""
    alike = sorted({policy for mode, _, policy, _ in kinds if mode == "slurm" and policy in ("las", "gittins")})
    if not alike:
        return ()
    return (f"{' and '.join(alike)} in the world slurm is fifo: jobs that wait have not run yet",)


def _remark_on_fair_policies(kinds: Sequence[tuple[str, str, str, str]], load: Load) -> Iterator[str]:
    """Remark on DRF where it knows too little."""
    modes = {mode for mode, _, policy, _ in kinds if policy == "drf"}
    if "slurm" in modes:
        yield "drf in the world slurm counts the waiting jobs of a user, not the running ones"
    if modes and not any(job.user for job in load.jobs):
        yield "drf: no job has a user, so each is a user of its own"


def _remark_on_placement(kinds: Sequence[tuple[str, str, str, str]]) -> Iterator[str]:
    """Remark on --placement in rounds, where the mechanism that divides CPUs and memory also places the jobs."""
    rounds = [(placement, mechanism) for mode, placement, _, mechanism in kinds if mode == "rounds"]
    if any(placement == "skew" for placement, _ in rounds):
        yield "--placement skew changes nothing in rounds where jobs have profiles: the mechanism places them"
    ignoring = sorted({mechanism for placement, mechanism in rounds if placement == "consolidate"} & {"graded", "opt"})
    if ignoring:
        why = {"graded": "graded always takes the fewest servers", "opt": "opt divides all servers as one"}
        yield f"--placement consolidate changes nothing in rounds here: {', '.join(why[name] for name in ignoring)}"


def _remark_on_graded(kinds: Sequence[tuple[str, str, str, str]]) -> tuple[str, ...]:
    """Remark on policies with which `graded` changes the order of jobs: its figures show more than the division."""
    policies = {policy for mode, _, policy, mechanism in kinds if (mode, mechanism) == ("rounds", "graded")}
    ahead = [policy for policy in FORESEEING if policy in policies]
    if not ahead:
        return ()
    return (f"graded with {' and '.join(ahead)}: a job that determines the makespan goes before its turn",)


def _read_profiles(path: Path | None) -> Mapping[str, ResourceProfile]:
    if path is None:
        return {}
    from slurmwrap.cli.profile.profile_files import read_profiles

    try:
        return {one.key: one for one in read_profiles(path, time.time())}
    except UsageError as error:
        raise TraceError(str(error), hint=error.hint) from error


# ------------------------------------------------------------------------------------------- options


def _parse_names(option: str, given: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the names in a comma-separated option that may be repeated; all known names for "all".

    Raise UsageError for an unknown name.
    """
    names = [name.strip().lower() for text in given for name in text.split(",")]
    if "all" in names:
        return tuple(known)
    found = list(dict.fromkeys(SAME.get(name, name) for name in names))
    unknown = [name for name in found if name not in known]
    if unknown:
        raise UsageError(f"{option} '{unknown[0]}' is none of {', '.join(known)}")
    return tuple(found)


def _choose_round_s(given: float | None, profiles: bool) -> float:
    """Return the length of a round: by default Synergy's if there are profiles, else 0 as in Tiresias."""
    if given is None:
        return SYNERGY_ROUND_S if profiles else 0.0
    if not isfinite(given) or given < 0:
        raise UsageError(f"--round {given:g}: seconds, 0 or more")
    return given


def _parse_window(text: str, count: int) -> range | None:
    if not text:
        return None
    found = re.fullmatch(r"(\d{1,9})-(\d{1,9})", text)
    if not found or int(found[1]) > int(found[2]):
        raise UsageError(f"--measure '{text}': give the first and the last number, as 4000-4999")
    if int(found[1]) >= count:
        raise UsageError(f"--measure {text}: there are only the jobs 0-{count - 1}")
    return range(int(found[1]), int(found[2]) + 1)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse "7", "1-10" or "1,4,9". Raise UsageError for any other text, or for too many seeds."""
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
        if not found or (found[2] and int(found[1]) > int(found[2])):
            raise UsageError(f"--seed '{text}': a number, a range as 1-10, or several with commas")
        seeds += range(int(found[1]), int(found[2] or found[1]) + 1)[: _MOST_SEEDS + 1]
    if len(seeds) > _MOST_SEEDS:
        raise UsageError(f"--seed '{text}': more than {_MOST_SEEDS} seeds")
    return tuple(dict.fromkeys(seeds))


def _parse_split(text: str | None) -> tuple[float, float, float] | None:
    """Parse the shares of image, language and speech models, in any unit; None: the load's own shares."""
    if text is None:
        return None
    try:
        image, language, speech = (float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--split '{text}': give three shares (image, language, speech), as 60,30,10") from None
    total = image + language + speech
    if not isfinite(total) or min(image, language, speech) < 0 or total <= 0:
        raise UsageError(f"--split '{text}': shares are 0 or more, and not all of them 0")
    return image, language, speech


def _parse_thresholds(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        found = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        found = (-1.0,)
    if any(not isfinite(one) or one <= 0 for one in found) or list(found) != sorted(set(found)):
        raise UsageError(f"--las-thresholds '{text}': rising GPU-seconds, as 3250,7200; '' for none")
    return found


def _parse_promote(given: float | None) -> float | None:
    if given is not None and not (isfinite(given) and given > 0):
        raise UsageError(f"--promote {given:g}: a number above 0")
    return given
