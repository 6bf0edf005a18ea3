"""The formulas of everything the report calls saved: an id, words, symbols, and what each leaves out. Data.

docs/report.md shows this table (`python .ci/docs_formulas.py` writes it). A formula that changes its result gets a new
id: reports of two versions are then never compared as if they said the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.report.night_report import NightReport, Saving
from slurmwrap.report.report_page import GlossaryTerm, Section

# cases; below it nothing is estimated
NEEDED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """One estimate in GPU-hours."""

    id: str
    what: str  # of record.Saving
    says: str  # one sentence
    symbols: str
    case: str  # what `n` counts
    leaves_out: str


_ALL = (
    Formula(
        id="prerun-1",
        what="prerun",
        says=(
            "GPUs of each job that a pre-run stopped, times the median runtime to failure of that category here, "
            "minus the GPU time of all pre-runs"
        ),
        symbols="sum over stopped jobs j of g_j R(c_j) - T",
        case="jobs that a failed pre-run stopped before they started",
        leaves_out=(
            "R(c) is the median over the failed runs of 28 days (or of the period, where that is longer); of all "
            "failures where a category has fewer than 20. A median is what the usual failure costs: the few that last"
            " long hold most of the GPU time, and are not in it; the hold-out counts them. Pre-runs catch the early "
            "failures, so those that are left fail later: R may be too long; the hold-out says by how much. Which "
            "jobs were stopped, and their GPUs, are known: the interval is about R alone. T is what Slurm recorded of"
            " the pre-runs' own jobs, or their own word where that is more. The delay that pre-runs cause stands "
            "beside it and is not taken off: a job that waits holds no GPU, and whether its GPUs stood idle for it is"
            " not known. It leaves out what failed jobs cost their users, and what a second failure would have cost."
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
            "It is work done without its user, not GPU time that would have been spent otherwise: without us the job "
            "would have waited until its user came back. That wait is not counted, nor what a cancelled retry did. The "
            "sum is exact; the interval says what as many retries give on the long run."
        ),
    ),
    Formula(
        id="placement-2",
        what="placement",
        says=(
            "GPU-hours of runs that we placed and that lay close together, times how much longer they would have taken "
            "at the speed of a run of the same work that lay farther apart"
        ),
        symbols="sum over pairs of h(close) (v(close) / v(apart) - 1)",
        case=(
            "pairs of runs of one user's script with the same batch size, model and GPUs, both with their steps "
            "counted (gsub --count-steps), the close one placed by gsub; no run is in two pairs"
        ),
        leaves_out=(
            "Closer is one node before one switch before several, by the network as it is now. v is steps per second, "
            "the program's own word. Some placed runs would have lain together without us; against that, placed runs "
            "without a counterpart count nothing, nor do nodes that were avoided. What a script hides from its command "
            "line may differ within a pair. Of long periods the newest week alone: after that it is no longer known "
            "what gsub changed of jobs that ended well. slurmwrap whatif replays a whole trace."
        ),
    ),
    Formula(
        id="tuning-1",
        what="tuning",
        says=(
            "GPU-hours of runs with other CPUs than asked for, times how much longer they would have taken with the "
            "CPUs asked for, by the CPU curve that was measured of the very job"
        ),
        symbols="sum over runs of h (v(got) / v(asked) - 1)",
        case="runs whose CPUs differ from what was asked and whose curve holds both",
        leaves_out=(
            "v is steps per second on one GPU, straight between the points measured; a job that uses several is taken "
            "to scale alike. Runs outside the measured range are no cases. Fewer CPUs than asked count against us "
            "where the curve says so; what others did with the CPUs given back is not counted, nor is memory. Runs "
            "of one script share a curve: an error in it is in all of them, and not in the interval."
        ),
    ),
    Formula(
        id="holdout-1",
        what="prerun",
        says=(
            "GPU-hours of failed runs per job whose pre-run was left out at random, minus the same per job of the "
            "others, their pre-runs' own GPU time included"
        ),
        symbols="W(held out) / n(held out) - (W(others) + T) / n(others)",
        case="draws (submissions of one sweep share one) with a failed run, the fewer of the two groups",
        leaves_out="It has neither a model nor a median in it, and no delay. Jobs that have not ended are left out.",
    ),
)
BY_ID = MappingProxyType({formula.id: formula for formula in _ALL})
FORMULAS = MappingProxyType({formula.id: f"{formula.says}." for formula in _ALL})  # for footnotes


# The words and formulas that a page used, for the end of it.
_WORDS = {
    "run": "One attempt of a job, from start to end; a requeued job has several.",
    "GPU-hours": "GPUs of a run times the hours it held them, used or not.",
    "failed": "Runs with a diagnosis that is neither success nor cancelled by a person.",
    "runtime to failure": "How long a run that failed had run. p90: nine of ten failed sooner.",
}
_OF_SECTION = {
    "failed": {
        "incident": "One cause that made several jobs fail; its runs count once, here, and blame no node.",
    },
    "saved": {
        "interval": "The range that holds the true figure in about 95 of 100 such periods; of fewer than 50 cases in "
        "78 to 95, the more uneven the cases the less. Below 20 cases nothing is said.",
    },
    "nodes": {
        "strike": "A fault of a node by the word of the kernel, NVML or Slurm; never by a log.",
        "suspect, lemon": "Nodes with clearly more faults than the fleet over 28 days (Kokolis et al., 2024).",
    },
    "queueing": {
        "fair share": "Waiting by priority, limits, or because too few GPUs were free.",
        "fragmentation": "Waiting although enough GPUs were free, but scattered (Jeon et al., 2019).",
    },
    "large": {"ETTR": "Effective training time ratio: productive time over the time since the job could run."},
}


def list_glossary_terms(report: NightReport, sections: Sequence[Section]) -> tuple[GlossaryTerm, ...]:
    """Formulas first, as the page names them by id; then the words of the sections that are there."""
    if not report.headline.attempts:
        return ()
    formulas = list_formulas()
    used = dict.fromkeys(one.formula for one in report.savings if one.formula in formulas and _is_shown(report, one))
    named = {section.key for section in sections if section.has_something}
    found = {key: text for name, terms in _OF_SECTION.items() if name in named for key, text in terms.items()}
    return (
        *(GlossaryTerm(name=name, meaning=formulas[name], formula=True) for name in used),
        *(GlossaryTerm(name=name, meaning=meaning) for name, meaning in {**_WORDS, **found}.items()),
    )


def _is_shown(report: NightReport, one: Saving) -> bool:
    return not report.own or one.gpu_hours is not None


def list_formulas() -> Mapping[str, str]:
    """Formula id -> one sentence."""
    try:
        pass
    except ImportError:
        return {}
    return FORMULAS
