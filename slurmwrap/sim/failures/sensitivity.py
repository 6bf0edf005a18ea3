"""How much the savings hang on what is taken for granted: the study again, one assumption changed at a time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from slurmwrap.config import Config
from slurmwrap.placement.demand import Server
from slurmwrap.sim.failures.failure_settings import FailureSettings
from slurmwrap.sim.failures.failure_study import MOST_JOBS, run_failure_study
from slurmwrap.sim.failures.study_result import Interval
from slurmwrap.sim.sim_job import SimJob

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What the study finds with one thing changed; GPU-hours saved against that study's own plain world."""

    name: str
    cost_gpu_hours: Interval  # plain
    pre_run: Interval
    retry: Interval
    exclusion: Interval
    all: Interval


def list_variants(settings: FailureSettings, config: Config) -> dict[str, tuple[FailureSettings, Config]]:
    """By name; the first is unchanged."""
    many = replace(config, prerun=replace(config.prerun, min_gpus=2))
    own = {
        "as assumed": {},
        "trials of 2 min": {"trial_s": 120.0},
        "trials of 10 min": {"trial_s": 600.0},
        "every one-GPU job is pre-run": {"one_gpu_waits": 1.0},
        "no log is misread": {"misread": 0.0},
        "our own read finds no wrong input": {"own_read": 0.0},
        "our own read finds each wrong input": {"own_read": 1.0},
        "no wrong input twice": {"same_fault": 0.0},
        "whoever is stopped falsely comes back": {"comes_back": True},
        "no checkpoints": {"checkpoint_s": None},
        "one blind retry": {"blind_retries": 1},
        "three blind retries": {"blind_retries": 3},
        "memory: up to twice as much needed": {"oom_most": 2.0},
    }
    changed = {name: (replace(settings, **change), config) for name, change in own.items()}  # type: ignore[arg-type]
    return changed | {"only multi-GPU jobs are pre-run": (settings, many)}


def study_sensitivity(
    jobs: Sequence[SimJob],
    *,
    servers: Sequence[Server],
    settings: FailureSettings | None = None,
    seeds: Sequence[int] = tuple(range(10)),
    config: Config | None = None,
    most_jobs: int = MOST_JOBS,
    progress: Progress | None = None,
) -> tuple[Variant, ...]:
    """One study per variant; the arguments and errors are those of `study`."""
    known = list_variants(settings or FailureSettings(), config or Config())
    found = []
    for at, (name, (changed, configured)) in enumerate(known.items()):
        done = run_failure_study(
            jobs, servers=servers, settings=changed, seeds=seeds, config=configured, most_jobs=most_jobs,
        )  # fmt: skip
        saved = {arm.name: arm.saved_gpu_hours for arm in done.arms}
        found.append(
            Variant(
                name=name,
                cost_gpu_hours=done.arm("plain").cost_gpu_hours,
                pre_run=saved["pre-run"],
                retry=saved["retry"],
                exclusion=saved["exclusion"],
                all=saved["all"],
            )
        )
        if progress is not None:
            progress(at + 1, len(known))
    return tuple(found)
