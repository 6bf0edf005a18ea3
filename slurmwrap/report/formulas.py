"""The formulas of all savings in the report: id, description, symbols, and what each leaves out. Data.

docs/report.md shows this table (`python .ci/docs_formulas.py` writes it). A formula whose result changes gets a new
id, so that reports of two versions are not compared as if they meant the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.report.night_report import NightReport, Saving
from slurmwrap.report.report_page import GlossaryTerm, Section

# Number of cases below which nothing is estimated.
NEEDED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """One estimate in GPU-hours."""

    id: str
    # As Saving.what in night_report.py.
    what: str
    # One sentence.
    says: str
    symbols: str
    # What `n` counts.
    case: str
    leaves_out: str


_ALL = (
    Formula(
        id="prerun-1",
        what="prerun",
        says=(
            "GPUs of each job that a pre-run stopped, times the median runtime to failure of its category on this "
            "site, minus the GPU time of all pre-runs"
        ),
        symbols="sum over stopped jobs j of g_j R(c_j) - T",
        case="jobs that a failed pre-run stopped before they started",
        leaves_out=(
            "R(c) is the median over the failed runs of 28 days (or of the period, if that is longer). If a category "
            "has fewer than 20 failures, it is the median of all failures. A median is the cost of the usual failure: "
            "the few failures that last long hold most of the GPU time and do not change it; the hold-out counts them. "
            "Pre-runs catch the early failures, so the remaining jobs fail later and R may be too long; the hold-out "
            "shows by how much. The stopped jobs and their GPUs are known, so the interval is about R alone. T is "
            "Slurm's record of the pre-runs' own jobs, or the pre-runs' own record if that is more. The delay that "
            "pre-runs cause is shown separately and not subtracted: a job that waits holds no GPU, and it is not known "
            "whether its GPUs were idle meanwhile. The cost of failed jobs for their users is not included, nor the "
            "cost of a second failure."
        ),
    ),
    Formula(
        id="retry-1",
        what="retry",
        says=(
            "GPU-hours of the runs that completed after slurmwrap requeued them, minus those of the retries "
            "that failed again"
        ),
        symbols="sum of h over retries that completed - sum of h over retries that failed",
        case="retries that ended and were judged",
        leaves_out=(
            "It is work that was done without the user, not GPU time that would otherwise have been used: without "
            "slurmwrap the job would have waited for its user. That wait is not counted, nor the work of a cancelled "
            "retry. The sum is exact; the interval is for the long-run result of as many retries."
        ),
    ),
    Formula(
        id="placement-2",
        what="placement",
        says=(
            "GPU-hours of runs that slurmwrap placed on close nodes, times how much longer they would have taken at "
            "the speed of a run of the same work on more distant nodes"
        ),
        symbols="sum over pairs of h(close) (v(close) / v(apart) - 1)",
        case=(
            "pairs of runs of one user's script with the same batch size, model and GPUs, both with their steps "
            "counted (gsub --count-steps), the close one placed by gsub; no run is in two pairs"
        ),
        leaves_out=(
            "The order of closeness is one node, one switch, several switches, by the present network. v is steps "
            "per second as the program reports them. Some placed runs would have been close without slurmwrap. On "
            "the other hand, placed runs without a counterpart do not count, nor do avoided nodes. Settings that are "
            "not on the command line of a script may differ within a pair. Of long periods only the newest week "
            "counts, because older changes by gsub to jobs that succeeded are not stored. slurmwrap whatif replays a "
            "whole trace."
        ),
    ),
    Formula(
        id="tuning-1",
        what="tuning",
        says=(
            "GPU-hours of runs with other CPUs than requested, times how much longer they would have taken with the "
            "requested CPUs, by the measured CPU curve of that job"
        ),
        symbols="sum over runs of h (v(got) / v(asked) - 1)",
        case="runs whose CPUs differ from the request and whose curve covers both values",
        leaves_out=(
            "v is steps per second on one GPU, linear between measured points; a job on several GPUs is assumed to "
            "scale in the same way. Runs outside the measured range are no cases. Fewer CPUs than requested count as "
            "a loss if the curve shows one. The use of freed CPUs by other jobs is not counted, nor is memory. Runs "
            "of one script share a curve, so an error in it is in all of them and not in the interval."
        ),
    ),
    Formula(
        id="holdout-1",
        what="prerun",
        says=(
            "GPU-hours of failed runs per job whose pre-run was omitted at random, minus the same per job of the "
            "others, including the GPU time of their pre-runs"
        ),
        symbols="W(held out) / n(held out) - (W(others) + T) / n(others)",
        case="draws (submissions of one sweep share one) with a failed run, the fewer of the two groups",
        leaves_out="It uses neither a model nor a median, and has no delay. Jobs that have not ended are not included.",
    ),
)
BY_ID = MappingProxyType({formula.id: formula for formula in _ALL})
# Descriptions for footnotes.
FORMULAS = MappingProxyType({formula.id: f"{formula.says}." for formula in _ALL})


# The glossary: words and formulas that a page uses, for the end of the page.
_WORDS = {
    "run": "One attempt of a job, from start to end; a requeued job has several.",
    "GPU-hours": "GPUs of a run times the hours it held them, used or not.",
    "failed": "Runs with a diagnosis that is neither success nor cancelled by a person.",
    "runtime to failure": "How long a run that failed had run. p90: nine of ten failed sooner.",
}
_TERMS_OF_SECTION = {
    "failed": {
        "incident": "One cause that made several jobs fail; its runs count once, here, and blame no node.",
    },
    "saved": {
        "interval": "The range that holds the true figure in about 95 of 100 such periods; none below 20 cases.",
    },
    "limits": {
        "limit used": "Run time over the time limit, of runs that completed; the median of several runs.",
        "GPU-h beyond": "GPUs of completed runs times the part of their time limit that they did not use. No job holds "
        "them, but backfill plans as if each run took all of its limit.",
    },
    "nodes": {
        "strike": "A fault of a node that the kernel, NVML or Slurm reported; never a log.",
        "suspect, lemon": "Nodes with clearly more faults than the fleet over 28 days (Kokolis et al., 2024).",
    },
    "queueing": {
        "fair share": "Waiting by priority, limits, or because too few GPUs were free.",
        "fragmentation": "Waiting although enough GPUs were free, but scattered (Jeon et al., 2019).",
    },
    "fairness": {
        "rho": "Finish-time fairness (Themis, Mahajan et al., 2020): time from submission to end over the time needed "
        "on 1/n of the GPUs, n being the mean number of users with jobs there meanwhile.",
        "held of part": "GPU time of the user's jobs over that of 1/n of the GPUs while the user had jobs. Near 100 % "
        "or above, a high rho is the user's own load.",
    },
    "large": {"ETTR": "Effective training time ratio: productive time over the time since the job could run."},
}


def list_glossary_terms(report: NightReport, sections: Sequence[Section]) -> tuple[GlossaryTerm, ...]:
    """Return the formulas first, which the page names by id, then the words of the sections that are present."""
    if not report.headline.attempts:
        return ()
    used = dict.fromkeys(one.formula for one in report.savings if one.formula in FORMULAS and _is_shown(report, one))
    named = {section.key for section in sections if section.has_something}
    found = {key: text for name, terms in _TERMS_OF_SECTION.items() if name in named for key, text in terms.items()}
    return (
        *(GlossaryTerm(name=name, meaning=FORMULAS[name], formula=True) for name in used),
        *(GlossaryTerm(name=name, meaning=meaning) for name, meaning in {**_WORDS, **found}.items()),
    )


def _is_shown(report: NightReport, one: Saving) -> bool:
    return not report.own or one.gpu_hours is not None
