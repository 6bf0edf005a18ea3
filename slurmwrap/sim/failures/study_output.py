"""Format a FailureStudy: as a table for a terminal, as Markdown for docs/evaluation.md, as figures for a plot. Pure.

All figures come from the study: text and tables change with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from slurmwrap.config.load_config import Config
from slurmwrap.placement.demand import Server
from slurmwrap.sim.failures import published_rates
from slurmwrap.sim.failures.assumptions import FailureSettings
from slurmwrap.sim.failures.failure_study import MOST_JOBS, run_failure_study
from slurmwrap.sim.failures.study_arms import PLAIN
from slurmwrap.sim.failures.study_result import ArmResult, FailureStudy, Interval
from slurmwrap.sim.sim_job import SimJob

# Sensitivity of the savings to the assumptions: the study again, with one assumption changed at a time.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What the study finds with one thing changed; GPU-hours saved compared with that study's own plain arm."""

    name: str
    cost_gpu_hours: Interval  # cost of the plain arm
    pre_run: Interval
    retry: Interval
    exclusion: Interval
    all: Interval


def list_variants(settings: FailureSettings, config: Config) -> dict[str, tuple[FailureSettings, Config]]:
    """Return the variants by name; the first is unchanged."""
    selections: dict[str, dict[str, object]] = {
        "all multi-GPU jobs are pre-run": {"select": "all"},
        "one-GPU jobs are pre-run where it is worth it": {"min_gpus": 1},
        "all jobs are pre-run": {"select": "all", "min_gpus": 1},
    }
    low, high = published_rates.compute_rehearsed_interval()
    own = {
        "as assumed": {},
        "trials of 2 min": {"trial_s": 120.0},
        "trials of 10 min": {"trial_s": 600.0},
        "no job finds free GPUs": {"one_gpu_waits": 1.0},
        "a pre-run ends after its steps": {"rehearsal_s": 0.0},
        "a shortened epoch executes no late failure": {"rehearsed": 0.0},
        f"a shortened epoch executes {low:.0%} of them, the low end of the interval": {"rehearsed": low},
        f"a shortened epoch executes {high:.0%} of them, the high end": {"rehearsed": high},
        "half of the late failures that it executes are stopped": {"sees_late": 0.5},
        "no input is read before the start": {"inputs_checked": 0.0},
        "half of the broken inputs are read before the start": {"inputs_checked": 0.5},
        "inputs of every job are read, also while it runs": {"checks_every_job": True},
        "no log is misread": {"misread": 0.0},
        "each misread log leads to a wrong decision": {"misread_harmless": 0.0},
        "our own read finds no wrong input": {"own_read": 0.0},
        "our own read finds four of five wrong inputs": {"own_read": 0.8},
        "our own read finds each wrong input": {"own_read": 1.0},
        "no wrong input twice": {"same_fault": 0.0},
        "whoever is stopped falsely comes back": {"comes_back": True},
        "no checkpoints": {"checkpoint_s": None},
        "one blind retry": {"blind_retries": 1},
        "three blind retries": {"blind_retries": 3},
        "memory: up to twice as much needed": {"oom_most": 2.0},
    }
    changed = {name: (replace(settings, **change), config) for name, change in own.items()}  # type: ignore[arg-type]
    one_gpu = replace(config, prerun=replace(config.prerun, min_gpus=1))
    return (
        changed
        | {
            name: (settings, replace(config, prerun=replace(config.prerun, **change)))  # type: ignore[arg-type]
            for name, change in selections.items()
        }
        | {"one-GPU jobs too, and inputs of every job are read": (replace(settings, checks_every_job=True), one_gpu)}
    )


def list_extensions(settings: FailureSettings, config: Config) -> dict[str, tuple[FailureSettings, Config]]:
    """Return what would save more than the defaults, each with all before it."""
    one_gpu = replace(config, prerun=replace(config.prerun, min_gpus=1))
    return {
        "one-GPU jobs have a pre-run where it is worth it (`prerun.min_gpus = 1`)": (settings, one_gpu),
        "and inputs of every job are read, also while it runs": (replace(settings, checks_every_job=True), one_gpu),
    }


def format_extension_row(name: str, study: FailureStudy) -> str:
    """Return a row of format_extensions_markdown."""
    shown = (study.arm(arm) for arm in ("pre-run", "all"))
    cells = (f"{_format_with_span(arm.saved_gpu_hours)}, {_format_percent(arm.saved_share.mean)}" for arm in shown)
    return f"| {' | '.join((name, *cells))} |"


def format_extensions_markdown(rows: Sequence[str]) -> str:
    """Return the table of what would save more."""
    return "\n".join(("| what is changed | pre-run saves | all three save |", "|---|---:|---:|", *rows)) + "\n"


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
    """Run one study per variant; the arguments and errors are those of `run_failure_study`."""
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


_HEAD = ("world", "wasted", "trials", "false stops", "saved", "95 %", "of plain", "completed", "failed runs", "told h")
_MOST_CATEGORIES = 12


def format_study_table(study: FailureStudy) -> str:
    """Return the text for a terminal: GPU-hours by arm, then the most expensive categories in the plain and the last
    arm.
    """
    last = study.arms[-1].name
    most_expensive = [
        (
            row.category,
            _format_count(row.jobs),
            _format_count(row.cost_gpu_hours[PLAIN]),
            _format_count(row.cost_gpu_hours[last]),
        )
        for row in study.categories[:_MOST_CATEGORIES]
    ]
    return "\n".join(
        (
            _describe_study(study),
            "",
            *_format_columns([_HEAD, *(_make_row(arm) for arm in study.arms)]),
            "",
            *_format_columns([("cause", "jobs", "plain GPU-h", f"{last} GPU-h"), *most_expensive]),
            "",
            *(_describe_cured_jobs(study) if study.source == "dump" else ()),
            *(f"- {sentence}" for sentence in study.assumed),
        )
    )


def _describe_cured_jobs(study: FailureStudy) -> list[str]:
    """Return a sentence on the jobs that retries cured, which GPU-hours do not show."""
    arm = study.arms[-1]
    sentence = (
        f"{_format_count(arm.cured.mean)} jobs that failed end well without their users' doing "
        f"({_format_span(arm.cured)}); users "
        f"got {_format_count(arm.replaced.mean)} of them done by hand. Runs again that failed too held "
        f"{_format_count(arm.again_gpu_hours.mean)} GPU-hours, and are counted."
    )
    return [sentence, ""]


def format_study_markdown(study: FailureStudy) -> str:
    """Return the section's paragraphs and tables, without a heading."""
    parts = [
        _describe_study(study),
        "",
        *_format_grid([_HEAD, *(_make_row(arm) for arm in study.arms)]),
        "",
        *_list_findings(study),
        "",
    ]
    if study.checks:
        parts += ["Compared with Philly's own figures (plain world):", "", *_format_checks(study), ""]
    parts += ["What each cause costs, GPU-hours (means over the seeds):", "", *_format_causes(study), ""]
    parts += [_describe_rest(study), ""]
    parts += ["Assumptions:", "", *(f"- {sentence}" for sentence in study.assumed)]
    return "\n".join(parts) + "\n"


def _describe_study(study: FailureStudy) -> str:
    part = f"{study.jobs:,} of {study.of:,} jobs" if study.jobs < study.of else f"{study.jobs:,} jobs"
    seeds = f"{len(study.seeds)} seed{'s' * (len(study.seeds) != 1)}"
    how = "with the dump's own failures" if study.source == "dump" else "with failures at Philly's rates"
    where = f"on {study.servers} servers with {study.gpus_per_server} GPUs"
    spread = (
        "95 % intervals over what may have been wrong and over days" if study.source == "dump"
        else "95 % intervals over the seeds, savings paired by seed"
    )  # fmt: skip
    return f"{part} {how} {where}, {seeds}; GPU-hours, {spread}."


def _list_findings(study: FailureStudy) -> list[str]:
    """Return one sentence per arm that is not a plain one."""
    return [f"- **{arm.title}**: {_describe_finding(arm)}" for arm in study.arms if arm.name not in (PLAIN, "by-hand")]


def _describe_finding(arm: ArmResult) -> str:
    verb = "saves" if arm.saved_gpu_hours.mean >= 0 else "costs"
    sure = "" if _is_clear(arm.saved_gpu_hours) else "; the interval spans zero"
    clauses = [
        f"{verb} {_format_count(abs(arm.saved_gpu_hours.mean))} GPU-hours ({_format_span(arm.saved_gpu_hours)}), "
        f"{abs(arm.saved_share.mean):.1%} of what failures cost{sure}"
    ]
    if arm.stopped_by_trial.mean:
        trials = f"{_format_count(arm.trial_gpu_hours.mean)} GPU-hours of trials"
        clauses.append(f"{_format_count(arm.stopped_by_trial.mean)} jobs stopped by their pre-run, at {trials}")
    if arm.refused.mean:
        clauses.append(f"{_format_count(arm.refused.mean)} jobs refused because their input was blocked")
    if arm.spared.mean:
        clauses.append(f"{_format_count(arm.spared.mean)} jobs that failed again by hand need not have been submitted")
    if arm.false_stops.mean:
        clauses.append(
            f"{_format_count(arm.false_stops.mean)} jobs stopped that another run would have cured "
            f"({_format_count(arm.false_stop_gpu_hours.mean)} GPU-hours; "
            f"{_format_count(arm.budget_stops.mean)} of them for a budget "
            "that was spent)"
        )
    if arm.excluded_node_days.mean:
        clauses.append(
            f"{_format_count(arm.excluded_node_days.mean)} node-days excluded, "
            f"{arm.excluded_rightly.mean:.0%} of them on "
            f"lemons; {_format_count(arm.node_failures.mean)} runs lost to nodes"
        )
    return "; ".join(clauses) + "."


def _describe_rest(study: FailureStudy) -> str:
    """Return where the GPU time goes that the last arm still costs: what limits the savings."""
    arm = study.arms[-1]
    cost, again = arm.cost_gpu_hours.mean, arm.again_gpu_hours.mean
    stops, trials = arm.false_stop_gpu_hours.mean, arm.trial_gpu_hours.mean
    most = sorted(study.categories, key=lambda row: -row.cost_gpu_hours[arm.name])[:3]
    causes = ", ".join(f"`{row.category}` {_format_count(row.cost_gpu_hours[arm.name])}" for row in most)
    first = _format_count(cost - again - trials)
    return (
        f"What limits the savings: with {arm.title}, failures still cost {_format_count(cost)} GPU-hours. "
        f"First runs that nothing stopped, with the checkpoints of jobs that were given up, are {first} of these, and "
        f"no retry policy can save them. Further runs that failed cost {_format_count(again)}, pre-runs "
        f"{_format_count(trials)}. False stops are {_format_count(stops)} of the whole. Most is due to {causes}."
    )


def _make_row(arm: ArmResult) -> tuple[str, ...]:
    saved = "–" if arm.name == PLAIN else _format_count(arm.saved_gpu_hours.mean)
    return (
        arm.title,
        _format_count(arm.wasted_gpu_hours.mean),
        _format_count(arm.trial_gpu_hours.mean),
        _format_count(arm.false_stop_gpu_hours.mean),
        saved,
        "–" if arm.name == PLAIN else _format_span(arm.saved_gpu_hours),
        "–" if arm.name == PLAIN else _format_percent(arm.saved_share.mean),
        _format_count(arm.completed_jobs.mean),
        _format_count(arm.failed_runs.mean),
        f"{arm.until_told_hours.mean:.2f}",
    )


def _format_checks(study: FailureStudy) -> list[str]:
    rows = [
        (one.name, f"{one.published:.1%}", f"{one.here.mean:.1%}", "by construction" if one.built_in else "comes out")
        for one in study.checks
    ]
    return _format_grid([("share of", "published", "here", ""), *rows])


def _format_causes(study: FailureStudy) -> list[str]:
    head = ("cause", "jobs", *(arm.title for arm in study.arms))
    rows = [
        (
            f"`{row.category}`",
            _format_count(row.jobs),
            *(_format_count(row.cost_gpu_hours[arm.name]) for arm in study.arms),
        )
        for row in study.categories[:_MOST_CATEGORIES]
    ]
    return _format_grid([head, *rows])


def _format_grid(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *rest = rows
    rule = "|---|" + "---:|" * (len(head) - 1)
    return [f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(row)} |" for row in rest)]


def _format_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) if not at else cell.rjust(width) for at, (cell, width) in enumerate(pairs)).rstrip()
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]


def _is_clear(value: Interval) -> bool:
    return value.low is None or value.high is None or value.low > 0 or value.high < 0


def _get_end(value: Interval, end: float | None) -> float:
    return value.mean if end is None else end


def _format_span(value: Interval) -> str:
    if value.low is None or value.high is None:
        return "one seed"
    return f"{_format_count(value.low)} to {_format_count(value.high)}"


def _format_percent(share: float) -> str:
    shown = f"{share:.1%}"
    return "0.0%" if shown == "-0.0%" else shown.replace("-", "−")


def _format_count(value: float) -> str:
    """Return the number without meaningless digits, with a true minus sign."""
    shown = f"{value:,.0f}" if abs(value) >= 10 else f"{value:.1f}"
    return ("0" if not float(shown.replace(",", "")) else shown).replace("-", "−")


def format_sensitivity_markdown(found: Sequence[Variant]) -> str:
    """Return one row per variant: GPU-hours saved, with their intervals."""
    rows = [
        (
            one.name,
            _format_count(one.cost_gpu_hours.mean),
            *map(_format_with_span, (one.pre_run, one.retry, one.exclusion, one.all)),
        )
        for one in found
    ]
    head = ("what is changed", "plain costs", "pre-run saves", "retry saves", "exclusion saves", "all three save")
    return "\n".join(_format_grid([head, *rows])) + "\n"


def _format_with_span(value: Interval) -> str:
    return f"{_format_count(value.mean)} ({_format_span(value)})"
