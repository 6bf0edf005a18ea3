"""The predicted loss in words: digits by the width of the band, what the rest of the run improves, the sweep."""

from __future__ import annotations

import pytest

from slurmwrap.cli.watch.loss_outlook import LossOutlook, find_loss_outlook, format_loss_rows, outlook_to_json_dict
from slurmwrap.diagnosis.log_progress import ShownProgress
from slurmwrap.model.running_job import CountedLosses, LossPoint
from slurmwrap.profiling.loss_fit import Dominated, LossFit
from slurmwrap.profiling.progress_estimate import EndForecast
from slurmwrap.report.loss_text import (
    describe_bad_losses,
    describe_dominated,
    describe_stops,
    format_percent,
    format_prediction,
)

FIT = LossFit(
    final=1.8312, low=1.8021, high=1.8688, now=1.8367, step=6000.0, total=10_000.0, family="inverse",
    curve=((6000.0, 1.9), (7200.0, 1.84), (10_000.0, 1.83)),
)  # fmt: skip
LOSSES = CountedLosses(
    points=tuple(LossPoint(at_s=float(i), step=10.0 * i, loss=2.0 + 10.0 / i) for i in range(1, 101)), taken=1000
)
END = EndForecast(at=1200.0, by=1300.0, source="progress", progress=ShownProgress(done=1010, total=2000))


def test_a_prediction_has_the_digits_of_its_band() -> None:
    assert format_prediction(FIT) == (
        "predicted final loss 1.831 (1.802 to 1.869); the rest of the run will improve it by 0.30 %"
    )
    wide = LossFit(
        final=1.8312, low=1.2, high=2.4, now=1.8312, step=6000.0, total=10_000.0, family="inverse", curve=FIT.curve
    )
    assert (
        format_prediction(wide) == "predicted final loss 1.8 (1.2 to 2.4); the rest of the run will hardly improve it"
    )


@pytest.mark.parametrize(("share", "text"), [(0.003, "0.30 %"), (0.12, "12 %"), (0.0151, "1.5 %"), (0.0, "0 %")])
def test_a_share_has_two_digits(share: float, text: str) -> None:
    assert format_percent(share) == text


def test_the_outlook_counts_steps_if_their_number_is_known_and_seconds_else() -> None:
    by_step = find_loss_outlook(LOSSES, END, start=1000.0)
    assert by_step.unit == "step" and by_step.fit is not None and by_step.fit.total == 2000
    other = EndForecast(at=1200.0, by=1300.0, source="progress", progress=ShownProgress(done=3, total=20, unit="epoch"))
    by_time = find_loss_outlook(LOSSES, other, start=1000.0)
    assert by_time.unit == "at_s" and by_time.fit is not None and by_time.fit.total == 200
    assert find_loss_outlook(LOSSES, None, start=1000.0).fit is None
    rows = list(format_loss_rows(by_step))
    assert rows[0][0] == "loss" and "predicted final loss" in rows[0][1] and rows[1][1].startswith("within 1 %")


def test_losses_that_are_no_numbers_are_a_warning() -> None:
    bad = LossOutlook(losses=CountedLosses(points=LOSSES.points, taken=1012, bad=14, bad_at_end=12))
    text = "the loss is NaN or infinite: 12 steps in a row until now"
    assert list(format_loss_rows(bad)) == [("warning", text, "red")]
    assert describe_bad_losses(2, 0, 1012) == "the loss was NaN or infinite in 2 of 1,012 recorded steps"
    assert describe_bad_losses(0, 0, 5) == ""
    assert outlook_to_json_dict(bad)["not_finite_at_end"] == 12
    young = LossOutlook(losses=CountedLosses(points=LOSSES.points[:3], taken=3))
    assert list(format_loss_rows(young)) == [("loss", "5.333", "")]


def test_what_stops_a_job_is_one_sentence() -> None:
    assert describe_stops("", "") == ""
    assert describe_stops("plateau\x1b", "diverged") == (
        "at plateau\\x1b after its next checkpoint, or when its loss stays NaN or infinite, by the reconciler"
    )
    assert describe_stops("", "diverged") == "when its loss stays NaN or infinite, by the reconciler"


def test_dominated_members_are_named() -> None:
    found = [
        Dominated(name=f"77_{number}", best="77_9", probability=0.97, final=2.5 - number / 10, best_final=1.8)
        for number in range(5)
    ]
    assert describe_dominated(found) == (
        "77_0, 77_1, 77_2 and 2 more will end above 77_9 with 97 % (predicted final loss 2.5 against 1.8); scancel "
        "them if only the best counts"
    )
    assert describe_dominated([]) == ""
