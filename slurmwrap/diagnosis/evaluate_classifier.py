"""Measure predictions against labels: precision and recall per category, macro-F1, decisions, confusions. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slurmwrap.diagnosis.taxonomy import CATEGORIES, list_decisions
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.evidence import Diagnosis, Evidence, KernelLine, LogTail


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryScore:
    """The counts of one category: how many rows are labelled, how many predicted, and how many both."""

    category: str
    labelled: int
    predicted: int
    right: int

    @property
    def precision(self) -> float:
        """Return the share of the predictions that are right; 1 if there are none."""
        return self.right / self.predicted if self.predicted else 1.0

    @property
    def recall(self) -> float:
        """Return the share of the labels that were found; 1 if there are none."""
        return self.right / self.labelled if self.labelled else 1.0

    @property
    def f1(self) -> float:
        """Return the harmonic mean of precision and recall."""
        return 2 * self.right / (self.labelled + self.predicted) if self.labelled + self.predicted else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion:
    """A label that was mistaken for another category: how often, and in which rows."""

    labelled: str
    predicted: str
    count: int
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierScore:
    """The whole measurement. `macro_f1` is the mean over the categories that occur as labels."""

    total: int
    right: int
    # Number of decisions that are the labelled category's default.
    decisions_default: int
    # Number of decisions that are the default, or an override that the taxonomy allows a signature.
    decisions_allowed: int
    categories: tuple[CategoryScore, ...]
    confusions: tuple[Confusion, ...]

    @property
    def accuracy(self) -> float:
        """Return the share of categories that are right."""
        return self.right / self.total if self.total else 1.0

    @property
    def decision_accuracy(self) -> float:
        """Return the share of decisions that are right, including the taxonomy's overrides."""
        return self.decisions_allowed / self.total if self.total else 1.0

    @property
    def macro_f1(self) -> float:
        """Return the mean F1 of the labelled categories."""
        scores = [category.f1 for category in self.categories if category.labelled]
        return sum(scores) / len(scores) if scores else 1.0


def make_evidence(row: Mapping[str, Any]) -> Evidence:
    """Return Evidence from an object with the corpus's fields, without those that would reveal the answer.

    Raises ValueError with the name of a field that has no valid value.
    """
    kernel = row.get("kernel") or ""
    lines = kernel.splitlines() if isinstance(kernel, str) else [str(line) for line in kernel]
    return Evidence(
        state=str(row.get("slurm_state") or ""),
        reason=str(row.get("reason") or ""),
        exit_code=_parse_number(row, "exit_code"),
        signal=_parse_number(row, "signal"),
        derived_exit_code=_parse_number(row, "derived_exit_code"),
        logs=(LogTail(name="log", text=str(row.get("log") or "")),),
        kernel=tuple(KernelLine(text=line) for line in lines if line.strip()),
    )


def _parse_number(row: Mapping[str, Any], key: str) -> int | None:
    value = row.get(key)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).lstrip("-").isdecimal():
        raise ValueError(f"{key} is {value!r}, not a whole number")
    return int(value)


def label_of(row: Mapping[str, Any]) -> str:
    """Return the category with which a row is labelled. Raises ValueError if it is missing or unknown."""
    label = row.get("category")
    if label not in CATEGORIES:
        raise ValueError(f"category is {label!r}, not one of the taxonomy's")
    return str(label)


def score(rows: Sequence[Mapping[str, Any]], predictions: Sequence[Diagnosis]) -> ClassifierScore:
    """Return how well `predictions` fit the `category` of `rows`, pairwise."""
    pairs = [(label_of(row), found, str(row.get("id", ""))) for row, found in zip(rows, predictions, strict=True)]
    return ClassifierScore(
        total=len(pairs),
        right=sum(label == found.category for label, found, _ in pairs),
        decisions_default=sum(found.decision == CATEGORIES[label].decision for label, found, _ in pairs),
        decisions_allowed=sum(found.decision in list_decisions(label) for label, found, _ in pairs),
        categories=_score_categories([(label, found.category) for label, found, _ in pairs]),
        confusions=_count_confusions((label, found.category, id) for label, found, id in pairs),
    )


def _score_categories(pairs: list[tuple[str, str]]) -> tuple[CategoryScore, ...]:
    labelled, predicted = Counter(label for label, _ in pairs), Counter(found for _, found in pairs)
    right = Counter(label for label, found in pairs if label == found)
    return tuple(
        CategoryScore(category=name, labelled=labelled[name], predicted=predicted[name], right=right[name])
        for name in CATEGORIES
        if labelled[name] or predicted[name]
    )


def _count_confusions(triples: Iterable[tuple[str, str, str]]) -> tuple[Confusion, ...]:
    table: dict[tuple[str, str], list[str]] = {}
    for label, found, id in triples:
        if label != found:
            table.setdefault((label, found), []).append(id)
    rows = (
        Confusion(labelled=label, predicted=found, count=len(ids), ids=tuple(ids))
        for (label, found), ids in table.items()
    )
    return tuple(sorted(rows, key=lambda row: (-row.count, row.labelled, row.predicted)))
