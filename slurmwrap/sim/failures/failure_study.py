"""The failure study: the same jobs, failing of the same causes, in each arm and with each seed. Pure.

run_failure_study(jobs, servers=make_equal_servers(…), settings=FailureSettings(), seeds=range(10), config=Config())
study_of_dump(jobs, …)   the same with source="dump": the failures that a site's own sacct dump records
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, median

import numpy as np

from slurmwrap.config.load_config import Config
from slurmwrap.errors import TraceError
from slurmwrap.placement.demand import Server
from slurmwrap.sim.failures import published_rates
from slurmwrap.sim.failures.assumptions import FailureSettings, list_assumptions
from slurmwrap.sim.failures.draw_failures import DrawnFailures, draw_dump, draw_failures
from slurmwrap.sim.failures.play_failures import DAY_S, play_arm
from slurmwrap.sim.failures.sim_judge import switch_rules_on
from slurmwrap.sim.failures.sim_nodes import draw_hardware, nodes_of
from slurmwrap.sim.failures.student_t import (
    compute_by_resampling,
    compute_forecast,
    compute_interval,
    compute_paired,
    compute_ratio,
)
from slurmwrap.sim.failures.study_arms import PLAIN, FailureWorld, GpuTimeAccount, RetryArm, arms_of
from slurmwrap.sim.failures.study_result import ArmResult, CategoryMeans, FailureStudy, Interval, PublishedCheck
from slurmwrap.sim.sim_job import SimJob

# Greatest number of simulated jobs unless the caller wants more: about a second per arm and seed.
MOST_JOBS = 20_000
# (arms simulated, all arms), counted over all seeds.
Progress = Callable[[int, int], None]
_HOUR_S = 3600.0
_DRAWS: dict[str, Callable[[Sequence[SimJob], FailureSettings, int], DrawnFailures]] = {
    "drawn": draw_failures,
    "dump": draw_dump,
}


def run_failure_study(
    jobs: Sequence[SimJob],
    *,
    servers: Sequence[Server],
    settings: FailureSettings | None = None,
    seeds: Sequence[int] = tuple(range(10)),
    config: Config | None = None,
    most_jobs: int = MOST_JOBS,
    progress: Progress | None = None,
    source: str = "drawn",
    waited_s: Mapping[int, float] | None = None,
) -> FailureStudy:
    """Simulate all arms with all seeds.

    `source`: "drawn" at published rates, or "dump": which jobs failed, and after how long, are facts of the trace. Of
    more than `most_jobs` jobs a contiguous part from the middle is simulated: there nodes are as busy as in the whole.
    `waited_s`: by SimJob.number, how long jobs really waited, if a dump contains it. TraceError: no job holds a GPU;
    ValueError: no seed, no server, another source.
    """
    with_gpus = [job for job in jobs if job.gpus > 0]
    if not with_gpus:
        raise TraceError("no job of the trace holds a GPU: failures cost no GPU-hours there")
    if not seeds or source not in _DRAWS:
        raise ValueError(f"no seed, or a source other than {' and '.join(_DRAWS)}")
    config, settings = switch_rules_on(config or Config()), settings or FailureSettings()
    settings = replace(
        settings,
        trial_s=min(settings.trial_s, float(config.prerun.time_limit_s)),
        rehearsal_s=min(settings.rehearsal_s, float(config.prerun.rehearse_s)),
    )
    if source == "dump":
        # The dump contains the node failures that happened. It does not show whether a user's next run resumed from a
        # checkpoint. So none is assumed: then no arm looks better because it keeps what the other arms may have kept as
        # well.
        settings = replace(settings, node_failures_per_day=0.0, checkpoint_s=None)
    played = select_middle(with_gpus, most_jobs)
    arms = arms_of(dump=source == "dump")
    accounts: dict[str, list[GpuTimeAccount]] = {arm.name: [] for arm in arms}
    for at, seed in enumerate(seeds):
        world = _make_world(
            played, _DRAWS[source](played, settings, seed), servers, settings, seed, config, waited_s or {}
        )
        for number, arm in enumerate(arms):
            accounts[arm.name].append(play_arm(world, arm))
            if progress is not None:
                progress(at * len(arms) + number + 1, len(arms) * len(seeds))
    plain = accounts[PLAIN]
    days = sorted({int(job.submit_s // DAY_S) for job in played})
    return FailureStudy(
        source=source,
        jobs=len(played),
        of=len(with_gpus),
        servers=len(servers),
        gpus_per_server=max(server.gpus for server in servers),
        seeds=tuple(seeds),
        productive_gpu_hours=_convert_to_hours([one.productive for one in plain]),
        killed_gpu_hours=_convert_to_hours([one.killed for one in plain]),
        arms=tuple(_make_result(arm, accounts[arm.name], plain, days, source) for arm in arms),
        categories=_list_category_means(arms, accounts),
        checks=_list_checks(played, plain) if source == "drawn" else (),
        assumed=list_assumptions(settings, source, waits_known=bool(waited_s), prerun=config.prerun),
        settings=settings,
    )


study_of_dump = partial(run_failure_study, source="dump")


def select_middle(jobs: Sequence[SimJob], most: int) -> Sequence[SimJob]:
    """Return a contiguous part of at most `most` jobs, from the middle."""
    if len(jobs) <= most:
        return jobs
    begin = (len(jobs) - most) // 2
    return jobs[begin : begin + most]


def _make_world(
    jobs: Sequence[SimJob],
    doomed: DrawnFailures,
    servers: Sequence[Server],
    settings: FailureSettings,
    seed: int,
    config: Config,
    waited_s: Mapping[int, float],
) -> FailureWorld:
    hardware = draw_hardware(servers, settings, seed)
    return FailureWorld(
        jobs=jobs,
        doomed=doomed,
        hardware=hardware,
        nodes=nodes_of(servers),
        settings=settings,
        config=config,
        seed=seed,
        waited_s=waited_s,
    )


def _make_result(
    arm: RetryArm, found: Sequence[GpuTimeAccount], plain: Sequence[GpuTimeAccount], days: Sequence[int], source: str
) -> ArmResult:
    many = partial(compute_forecast, least=0.0) if source == "dump" else compute_interval

    def hours(name: str) -> Interval:
        return many([getattr(one, name) / _HOUR_S for one in found])

    def count(name: str) -> Interval:
        return many([float(getattr(one, name)) for one in found])

    saved, share = _compute_saved_by_day(found, plain, days) if source == "dump" else _compute_saved(found, plain)
    return ArmResult(
        name=arm.name,
        title=arm.title,
        wasted_gpu_hours=hours("wasted"),
        again_gpu_hours=hours("again"),
        trial_gpu_hours=hours("trials"),
        false_stop_gpu_hours=hours("false_stopped"),
        cost_gpu_hours=hours("cost"),
        saved_gpu_hours=saved,
        saved_share=share,
        completed_jobs=count("completed"),
        runs=count("runs"),
        failed_runs=count("failed_runs"),
        stopped_by_trial=count("stopped_by_trial"),
        refused=count("refused"),
        spared=count("spared"),
        replaced=count("replaced"),
        cured=count("cured"),
        waited_in_vain_hours=hours("waited_in_vain_s"),
        false_stops=count("false_stops"),
        budget_stops=count("budget_stops"),
        given_up=count("given_up"),
        until_told_hours=many([(median(one.told_after_s) if one.told_after_s else 0.0) / _HOUR_S for one in found]),
        until_cured_hours=many([_compute_share(one.cured_after_s, one.cured) / _HOUR_S for one in found]),
        node_failures=count("node_failures"),
        excluded_node_days=count("excluded_days"),
        excluded_rightly=compute_ratio(
            [one.excluded_lemon_days for one in found], [one.excluded_days for one in found]
        ),
    )


def _compute_saved(found: Sequence[GpuTimeAccount], plain: Sequence[GpuTimeAccount]) -> tuple[Interval, Interval]:
    """Return the saved GPU-hours, and their share of the plain arm's cost."""
    costs, base = [one.cost for one in found], [one.cost for one in plain]
    saved = [b - c for c, b in zip(costs, base, strict=True)]
    return compute_paired([c / _HOUR_S for c in costs], [b / _HOUR_S for b in base]), compute_ratio(saved, base)


def _compute_saved_by_day(
    found: Sequence[GpuTimeAccount], plain: Sequence[GpuTimeAccount], days: Sequence[int]
) -> tuple[Interval, Interval]:
    """Return the same, with the days of submission resampled."""
    costs, base = (
        np.array([[one.cost_by_day.get(day, 0.0) / _HOUR_S for day in days] for one in accounts])
        for accounts in (found, plain)
    )
    return compute_by_resampling(base - costs, base)


def _list_category_means(
    arms: Sequence[RetryArm], accounts: dict[str, list[GpuTimeAccount]]
) -> tuple[CategoryMeans, ...]:
    plain = accounts[PLAIN]
    struck: dict[str, float] = defaultdict(float)
    for one in plain:
        for category, count in one.struck.items():
            struck[category] += count / len(plain)
    rows = [
        CategoryMeans(
            category=category,
            jobs=jobs,
            cost_gpu_hours={
                arm.name: fmean(one.by_category.get(category, 0.0) for one in accounts[arm.name]) / _HOUR_S
                for arm in arms
            },
            cured={arm.name: fmean(one.cured_by.get(category, 0) for one in accounts[arm.name]) for arm in arms},
        )
        for category, jobs in struck.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.cost_gpu_hours[PLAIN]))


def _list_checks(jobs: Sequence[SimJob], plain: Sequence[GpuTimeAccount]) -> tuple[PublishedCheck, ...]:
    """Return the results of the plain arm next to Philly's figures."""
    count = len(jobs)
    whole = [one.productive + one.killed + one.wasted for one in plain]
    killed = [(count - one.completed - one.unsuccessful) / count for one in plain]
    failed = [one.unsuccessful / count for one in plain]
    killed_s = [_compute_share(one.killed, all_s) for one, all_s in zip(plain, whole, strict=True)]
    failed_s = [_compute_share(one.unsuccessful_gpu_s, all_s) for one, all_s in zip(plain, whole, strict=True)]
    return (
        _make_check("jobs killed", published_rates.KILLED_JOBS, killed, built_in=True),
        _make_check("GPU time of killed jobs", published_rates.KILLED_GPU_TIME, killed_s, built_in=True),
        _make_check("jobs unsuccessful", published_rates.UNSUCCESSFUL_JOBS, failed),
        _make_check("GPU time of unsuccessful jobs", published_rates.UNSUCCESSFUL_GPU_TIME, failed_s),
        _make_check("jobs of both kinds", published_rates.UNSUCCESSFUL_OR_KILLED_JOBS, _add_sums(killed, failed)),
        _make_check("GPU time of both", published_rates.UNSUCCESSFUL_OR_KILLED_GPU_TIME, _add_sums(killed_s, failed_s)),
    )


def _make_check(name: str, published: float, here: Sequence[float], *, built_in: bool = False) -> PublishedCheck:
    return PublishedCheck(name=name, published=published, here=compute_interval(here), built_in=built_in)


def _add_sums(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a + b for a, b in zip(one, other, strict=True)]


def _compute_share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _convert_to_hours(seconds: Sequence[float]) -> Interval:
    return compute_interval([one / _HOUR_S for one in seconds])
