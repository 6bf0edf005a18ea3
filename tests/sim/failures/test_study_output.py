"""The failure study as text and tables."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from slurmwrap.config.load_config import Config
from slurmwrap.sim.failures import FailureSettings, FailureStudy, Interval, run_failure_study, study_of_dump
from slurmwrap.sim.failures.assumptions import list_assumptions
from slurmwrap.sim.failures.study_output import (
    format_extension_row,
    format_sensitivity_markdown,
    format_study_markdown,
    format_study_table,
    list_extensions,
    list_variants,
    study_sensitivity,
)
from slurmwrap.sim.sim_job import SimJob, make_equal_servers

SERVERS = make_equal_servers(20, gpus=8, cpus=24, mem_gb=500)
JOBS = [SimJob(number=at, job="", submit_s=600.0 * at, work_s=3600.0, gpus=(1, 8)[at % 2]) for at in range(300)]


@pytest.fixture(scope="module")
def study() -> FailureStudy:
    return run_failure_study(JOBS, servers=SERVERS, seeds=(1, 2))


def test_each_arm_has_a_row_with_its_savings(study: FailureStudy) -> None:
    saved = replace(study.arms[3], saved_gpu_hours=Interval(mean=1234.4, low=-5.0, high=2473.8))
    lines = format_study_table(replace(study, arms=(*study.arms[:3], saved, *study.arms[4:]))).splitlines()
    assert [line.split("  ")[0] for line in lines[3:9]] == [arm.title for arm in study.arms]
    assert " 1,234 −5.0 to 2,474 " in " ".join(lines[6].split())


def test_the_text_marks_figures_that_hold_by_construction(study: FailureStudy) -> None:
    text = format_study_markdown(study)
    assert "300 jobs with failures at Philly's rates on 20 servers with 8 GPUs, 2 seeds" in text
    assert (text.count("by construction"), text.count("comes out")) == (2, 4)


def test_an_interval_that_spans_zero_is_reported(study: FailureStudy) -> None:
    arm = study.arms[3]
    unsure = replace(arm, saved_gpu_hours=Interval(mean=10.0, low=-3.0, high=23.0))
    assert "saves 10 GPU-hours (−3.0 to 23)" in format_study_markdown(replace(study, arms=(study.arms[0], unsure)))
    assert "the interval spans zero" in format_study_markdown(replace(study, arms=(study.arms[0], unsure)))
    sure = replace(arm, saved_gpu_hours=Interval(mean=-10.0, low=-23.0, high=-3.0))
    assert "costs 10 GPU-hours (−23 to −3.0)" in format_study_markdown(replace(study, arms=(study.arms[0], sure)))
    assert "spans zero" not in format_study_markdown(replace(study, arms=(study.arms[0], sure)))


def test_the_text_says_that_failures_come_from_a_dump(study: FailureStudy) -> None:
    failed = [replace(job, status="FAILED") for job in JOBS[:20]]
    text = format_study_markdown(study_of_dump(failed, servers=SERVERS, seeds=(1,)))
    assert "with the dump's own failures" in text
    assert "as it was" in text
    assert "Philly's own figures" not in text


def test_assumptions_are_listed_with_the_values_used() -> None:
    assumptions = " ".join(
        list_assumptions(FailureSettings(trial_s=300.0, blind_retries=4, checkpoint_s=None), "drawn")
    )
    assert "one GPU for 7 min" in assumptions and "5 min for its steps and 2 min for a shortened epoch" in assumptions
    assert "whatever the reason, 4 times" in assumptions
    assert "nothing is kept" in assumptions


def test_each_variant_changes_one_setting() -> None:
    usual, config = FailureSettings(), Config()
    changed = {
        name: [one.name for one in fields(usual) if getattr(settings, one.name) != getattr(usual, one.name)]
        for name, (settings, configured) in list_variants(usual, config).items()
        if configured == config
    }
    assert changed.pop("as assumed") == []
    assert all(len(names) == 1 for names in changed.values())
    assert len(list_variants(usual, config)) == len(changed) + 5


def test_the_unchanged_variant_equals_the_study(study: FailureStudy) -> None:
    rows = study_sensitivity(JOBS[:20], servers=SERVERS, seeds=(1, 2))
    itself = run_failure_study(JOBS[:20], servers=SERVERS, seeds=(1, 2))
    assert rows[0].all == itself.arm("all").saved_gpu_hours
    assert len(format_sensitivity_markdown(rows).splitlines()) == len(rows) + 2


def test_the_text_says_what_limits_the_savings(study: FailureStudy) -> None:
    arm = study.arms[-1]
    text = format_study_markdown(study)
    assert f"with {arm.title}, failures still cost {arm.cost_gpu_hours.mean:,.0f} GPU-hours" in text
    assert f"pre-runs {arm.trial_gpu_hours.mean:,.1f}" in text or f"pre-runs {arm.trial_gpu_hours.mean:,.0f}" in text


def test_each_extension_contains_the_one_before() -> None:
    (_, (_, first)), (_, (settings, second)) = list_extensions(FailureSettings(), Config()).items()
    assert first == second and first.prerun.min_gpus == 1 and settings.checks_every_job


def test_the_row_of_an_extension_has_the_savings_of_both_arms(study: FailureStudy) -> None:
    row = format_extension_row("more", study)
    assert row.startswith("| more | ")
    for name in ("pre-run", "all"):
        assert f"{abs(study.arm(name).saved_share.mean):.1%}" in row
