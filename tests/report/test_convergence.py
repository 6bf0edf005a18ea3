"""Trainings after their lowest loss: sentences, the rows and the figure of the report, and the drawing."""

from __future__ import annotations

import math
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from night_figures import night_of

from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.running_job import LossCurve, LossPoint
from slurmwrap.report import svg_charts
from slurmwrap.report.convergence_plot import draw_convergence
from slurmwrap.report.convergence_text import draw_loss, format_convergence, format_last_loss
from slurmwrap.report.convergence_totals import sum_convergence
from slurmwrap.report.headline import build_page
from slurmwrap.report.night_report import ConvergenceRow, ConvergenceTotals
from slurmwrap.report.report_inputs import TrainedRuns

HOUR, UNTIL = 3600, 1_700_200_000


def make_run(job_id: int, **changes: object) -> JobRun:
    ok = Diagnosis(category="success", domain="", decision="none", confidence=1, signature="")
    run = JobRun(
        attempt=RunKey(cluster="lab", job_id=job_id, submit_time=UNTIL - 90_000), user="ada", name="train", uid=1,
        state="COMPLETED", nodes=("n0",), gpus=8, start_time=UNTIL - 9 * HOUR, end_time=UNTIL - HOUR, diagnosis=ok,
        address=str(job_id),
    )  # fmt: skip
    return replace(run, **changes)  # type: ignore[arg-type]


def make_curve(run: JobRun, time_share: float | None = 0.375, **changes: object) -> LossCurve:
    points = tuple(LossPoint(at_s=i * 100.0, step=float(i), loss=1 + 4 * math.exp(-i / 9)) for i in range(289))
    curve = LossCurve(
        attempt=run.attempt, source="keras", points=points, uid=run.uid, end_time=run.end_time, lowest=1.0,
        time_share=time_share, epoch_share=0.5,
    )  # fmt: skip
    return replace(curve, **changes)  # type: ignore[arg-type]


def test_the_sentence_has_the_share_and_the_gpu_hours_of_the_rest() -> None:
    run = make_run(1)
    assert format_convergence(run, make_curve(run)) == (
        "within 0.1 % of its lowest loss after 38 % of its time; the rest cost 40.0 GPU-hours"
    )
    assert format_convergence(replace(run, gpus=0), make_curve(run)) == (
        "within 0.1 % of its lowest loss after 38 % of its time"
    )
    assert format_convergence(run, make_curve(run, None)) == ""


def test_the_loss_is_drawn_as_falling_bars() -> None:
    run = make_run(1)
    bars = draw_loss(make_curve(run), bars=8)
    assert (len(bars), bars[0], bars[-1]) == (8, "█", "▁")
    assert draw_loss(make_curve(run), unicode=False, bars=8)[0] == "@"
    assert draw_loss(make_curve(run, points=())) == ""
    assert format_last_loss([3.0, 2.0, 1.234567]).split()[0] == "1.2346"
    assert format_last_loss([2.5]) == "2.5"
    assert format_last_loss([3.0, 2.2, math.nan, math.nan]).startswith("nan (before: 2.2)  ")
    assert format_last_loss([math.inf]) == "inf (no finite one)"


def test_totals_and_rows_by_user_and_job_name() -> None:
    runs = [(8 * HOUR, 0.25, 0.5), (8 * HOUR, 0.75, None)]
    found = sum_convergence([TrainedRuns("ada", "a", runs), TrainedRuns("bob", "b", [(8 * HOUR, 1.0, None)])])
    rows = (
        ConvergenceRow(user="ada", name="a", runs=2, time_share=0.5, epoch_share=0.5, gpu_hours=16, gpu_hours_after=8),
        ConvergenceRow(user="bob", name="b", runs=1, time_share=1.0, epoch_share=None, gpu_hours=8, gpu_hours_after=0),
    )
    assert found == ConvergenceTotals(
        runs=3, gpu_hours=24, after_share=pytest.approx(1 / 3), gpu_hours_after=8, jobs=rows
    )
    assert sum_convergence([]) == ConvergenceTotals()


def test_passed_and_cancelled_trainings_of_the_period_are_read_from_the_database() -> None:
    ok = make_run(1)
    cancelled = replace(ok.diagnosis, category="cancelled")
    failed = replace(ok.diagnosis, category="gpu_oom")
    runs = (
        ok,
        make_run(2, diagnosis=cancelled, state="CANCELLED"),
        make_run(3, diagnosis=failed, state="FAILED"),
        make_run(4, gpus=0),
        make_run(5, end_time=UNTIL - 40 * HOUR, start_time=UNTIL - 50 * HOUR),
        make_run(6),
        make_run(7, name="other", user="bob"),
    )
    curves = tuple(make_curve(run, None if run.attempt.job_id == 6 else 0.375) for run in runs)
    report = night_of(attempts=runs, curves=curves, since=UNTIL - 24 * HOUR, until=UNTIL)
    assert [(row.user, row.name, row.runs, row.gpu_hours_after) for row in report.convergence.jobs] == [
        ("ada", "train", 2, 80.0),
        ("bob", "other", 1, 40.0),
    ]
    page = build_page(report)
    (section,) = [one for one in page.sections if one.key == "convergence"]
    assert len(section.tables[0].rows) == 2
    (figure,) = [one for one in page.figures if one.key == "convergence"]
    assert (figure.value, figure.detail) == (
        "62.5 %",
        "120.0 GPU-hours of 3 runs after the loss came within 0.1 % of its lowest",
    )


def test_one_run_and_a_sweep_are_drawn_as_svg_files() -> None:
    runs = [make_run(number) for number in range(1, 5)]
    sweep = [(run, make_curve(run, lowest=float(run.attempt.job_id))) for run in runs]
    for found, word in ((sweep[:1], "Loss of job 1"), (sweep, "Losses of 4 runs")):
        drawn = draw_convergence(found)
        assert drawn is not None
        root = ElementTree.fromstring(drawn)
        assert root.tag.endswith("svg")
        assert word in drawn
        assert "--slurmwrap" in drawn
        assert draw_convergence(found) == drawn


def test_odd_curves_are_drawn_too(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(1)
    only = (LossPoint(at_s=5.0, validation_loss=2.0),)
    for curve in (
        make_curve(run, None, points=()),
        make_curve(run, None, points=only, lowest=None),
        make_curve(run, lowest=-1.0),
    ):
        assert draw_convergence([(run, curve)]) is not None
    monkeypatch.setattr(svg_charts, "import_module", lambda name: (_ for _ in ()).throw(ImportError))
    assert draw_convergence([(run, make_curve(run))]) is None
