"""The scores of the classifier: accuracy, precision, recall and confusions."""

from __future__ import annotations

from slurmwrap.diagnosis.evaluate_classifier import CategoryScore, ClassifierScore, Confusion, make_evidence, score
from slurmwrap.diagnosis.taxonomy import CATEGORIES
from slurmwrap.model.evidence import Diagnosis, Evidence, KernelLine, LogTail


def prediction(category: str, decision: str = "") -> Diagnosis:
    known = CATEGORIES[category]
    return Diagnosis(
        category=category, domain=known.domain, decision=decision or known.decision, confidence=1.0, signature=""
    )


def test_right_and_wrong_predictions_are_counted_per_category() -> None:
    rows = [{"id": id, "category": label} for id, label in (("a", "gpu_oom"), ("b", "gpu_oom"), ("c", "storage_full"))]
    found = score(
        rows, [prediction("gpu_oom"), prediction("cuda_failure"), prediction("storage_full", "retry_elsewhere")]
    )
    assert found == ClassifierScore(
        total=3,
        right=2,
        decisions_default=2,
        decisions_allowed=3,
        categories=(
            CategoryScore(category="gpu_oom", labelled=2, predicted=1, right=1),
            CategoryScore(category="storage_full", labelled=1, predicted=1, right=1),
            CategoryScore(category="cuda_failure", labelled=0, predicted=1, right=0),
        ),
        confusions=(Confusion(labelled="gpu_oom", predicted="cuda_failure", count=1, ids=("b",)),),
    )
    assert (round(found.accuracy, 3), round(found.macro_f1, 3), found.decision_accuracy) == (0.667, 0.833, 1.0)
    assert [(row.precision, row.recall) for row in found.categories] == [(1.0, 0.5), (1.0, 1.0), (0.0, 1.0)]


def test_an_empty_set_has_full_scores() -> None:
    found = score([], [])
    assert (found.accuracy, found.macro_f1, found.decision_accuracy) == (1.0, 1.0, 1.0)


def test_a_labelled_row_becomes_evidence_without_its_label() -> None:
    row = {
        "id": "x",
        "category": "gpu_oom",
        "source": "s",
        "exit_code": 1,
        "signal": None,
        "slurm_state": "FAILED",
        "log": "a\n",
        "kernel": "k1\n\nk2",
    }
    assert make_evidence(row) == Evidence(
        state="FAILED",
        exit_code=1,
        logs=(LogTail(name="log", text="a\n"),),
        kernel=(KernelLine(text="k1"), KernelLine(text="k2")),
    )


def test_precision_is_the_share_of_right_predictions_and_recall_of_found_labels() -> None:
    found = CategoryScore(category="gpu_oom", labelled=8, predicted=4, right=2)
    assert (found.precision, found.recall) == (0.5, 0.25)
