"""Predicted run times, the queue's order and time limits on Philly's trace: tables and plots of one section."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path

import queue_order
import run_time
from queue_order import VariantSummary, WaitGroup, WindowResult

from evaluation import plots
from evaluation.tables import number, table

# The page's name of each variant.
_NAMES = {"": "order of submission", "shortest": "`shortest`", "gittins": "`gittins`", "exact": "exact run times",
          "fewest-gpus": "fewest GPUs first"}  # fmt: skip
_LIMITS = {"": "24 h", "user": "of the users", "predicted": "predicted"}
COMMANDS = (
    "python bench/run_time.py",
    "python bench/run_time.py --keys",
    "python bench/queue_order.py",
    "python bench/queue_order.py --all",
)
_QUICK_WINDOWS, _QUICK_JOBS = 2, 3000
_DRAWN_SPREAD = 0.6  # of the invented jobs in the plot


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The parts, running in separate processes."""

    windows: Future[list[WindowResult]]
    every: Future[list[WindowResult]]
    predictions: Future[list[run_time.Figures]]
    invented: Future[list[tuple[float, list[run_time.Figures]]]]  # by the spread within a key


def start(pool: Executor, *, quick: bool) -> Started:
    return Started(
        windows=pool.submit(_play_windows, quick),
        every=pool.submit(_play_every_window, quick),
        predictions=pool.submit(_replay, quick),
        invented=pool.submit(_replay_invented, quick),
    )


def _play_windows(quick: bool) -> list[WindowResult]:
    jobs = queue_order.read_jobs()
    starts = queue_order.choose_windows(jobs, queue_order.SEED)
    return queue_order.play_windows(jobs, starts[: _QUICK_WINDOWS if quick else None], queue_order.VARIANTS)


def _play_every_window(quick: bool) -> list[WindowResult]:
    jobs = queue_order.read_jobs()
    starts = queue_order.list_all_windows(jobs)
    return queue_order.play_windows(jobs, starts[: _QUICK_WINDOWS if quick else None], queue_order.FEWER_VARIANTS)


def _replay(quick: bool) -> list[run_time.Figures]:
    jobs = list(run_time.read_trace(run_time.TRACE))
    return run_time.replay(jobs[: _QUICK_JOBS if quick else None])[0]


def _replay_invented(quick: bool) -> list[tuple[float, list[run_time.Figures]]]:
    jobs = {sigma: list(run_time.invent_jobs(sigma)) for sigma in run_time.SPREADS}
    return [(sigma, run_time.replay(some[: _QUICK_JOBS if quick else None])[0]) for sigma, some in jobs.items()]


def page(started: Started, plots_at: Path) -> str:
    """Return the section, and draw its plots."""
    results, every, figures = started.windows.result(), started.every.result(), started.predictions.result()
    invented = started.invented.result()
    run_time.draw(figures, dict(invented)[_DRAWN_SPREAD][0], plots_at.parent / "run-time.svg")
    plots.orders(every, plots_at / "order.svg")
    plots.limits(results, plots_at / "limits.svg")
    summaries = queue_order.summarize(results)
    return "\n".join(
        [
            "Predicted run times, by virtual cluster and GPUs alone, each from what had ended before:",
            "",
            _format_predictions(figures),
            "",
            *_list_invented(invented),
            "",
            "Mean JCT of the order of submission with limits of 24 h over that of each variant. *contended*: windows "
            "whose jobs wait at least as long as they run. *mean*: of the windows' ratios; *together*: all their jobs; "
            "*p99 wait*: over that of the order of submission, mean and most of the windows; *least*: of all windows.",
            "",
            _format_summaries(summaries),
            "",
            *_list_verdicts(summaries),
            "",
            f"All {len({one.start for one in every})} windows that the trace can be cut into, the same measures:",
            "",
            _format_summaries(queue_order.summarize(every)),
            "",
            "The same windows by how long their jobs wait in the order of submission (mean wait over mean run time), "
            "with limits of 24 h:",
            "",
            _format_wait_groups(queue_order.group_by_wait(every)),
            "",
            "<!-- test: not run: by bench/evaluation -->",
            "```sh",
            *COMMANDS,
            "```",
        ]
    )


def _format_predictions(figures: Sequence[run_time.Figures]) -> str:
    head = ["predictor", ">jobs", ">within a factor of 2", ">sigma of the log error", ">within p90", ">Spearman"]
    rows = []
    for one in figures:
        covered = f"{100 * sum(one.within_p90) / len(one.within_p90):.1f} %" if one.within_p90 else "-"
        share = f"{100 * one.share:.1f} %"
        rows.append([one.name, f"{len(one.pairs):,}", share, number(one.sigma, 3), covered, number(one.spearman, 3)])
    return table(head, rows)


def _list_invented(invented: Sequence[tuple[float, Sequence[run_time.Figures]]]) -> list[str]:
    """Return the lines about jobs whose run times have a known spread within a key."""
    head = ["spread within a job", ">within a factor of 2", ">at best", ">sigma of the log error", ">within p90"]
    rows = []
    for sigma, figures in invented:
        ours = figures[0]
        best = next(one for one in figures if one.name == run_time.BEST)
        covered = f"{100 * sum(ours.within_p90) / len(ours.within_p90):.1f} %"
        shares = (f"{100 * one.share:.1f} %" for one in (ours, best))
        rows.append([str(sigma), *shares, number(ours.sigma, 3), covered, number(ours.spearman, 3)])
    return [
        f"Invented jobs ({run_time.JOBS:,}) whose run times have a known standard deviation of the logarithm within a "
        "job; *at best*: a predictor that knows each job's median beforehand:",
        "",
        table([*head, ">Spearman"], rows),
    ]


def _format_summaries(summaries: Sequence[VariantSummary]) -> str:
    head = ["order", "limits", ">load", ">contended", ">mean", ">together", ">p99 wait", ">all windows", ">least"]
    return table(
        head,
        [
            [
                _NAMES[one.order],
                _LIMITS[one.limits],
                str(one.load),
                str(one.contended),
                number(one.mean, 3),
                number(one.together, 3),
                f"{one.p99:.2f} (most {one.most_p99:.2f})",
                number(one.all_windows, 3),
                number(one.least, 3),
            ]
            for one in summaries
            if one.order or one.limits
        ],
    )


def _format_wait_groups(groups: Sequence[WaitGroup]) -> str:
    head = ["wait / run", ">load", ">windows", ">`shortest`", ">exact run times", ">p99 wait", ">least"]
    head.append(f">below {queue_order.LEAST}")
    rows = [
        [
            one.name,
            str(one.load),
            str(one.windows),
            number(one.shortest, 3),
            number(one.exact, 3),
            number(one.p99),
            number(one.least, 3),
            str(one.below),
        ]
        for one in groups
    ]
    return table(head, rows)


def _list_verdicts(summaries: Sequence[VariantSummary]) -> list[str]:
    missed = queue_order.find_missed(summaries)
    if not missed:
        return ["Every target is reached."]
    return ["Targets that are not reached:", "", *(f"- {one}" for one in missed)]
