"""The words and formulas that a page used, for the end of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurmwrap.report.night_report import NightReport, Saving
from slurmwrap.report.report_page import GlossaryTerm, Section

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
        from slurmwrap.report.formulas import FORMULAS
    except ImportError:
        return {}
    return FORMULAS
