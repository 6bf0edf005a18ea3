"""Trials without countable steps: the printed steps decide, and the verdict says so."""

from __future__ import annotations

from collections.abc import Callable

from waiting import allow

from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.model.trial_result import TrialResult
from slurmwrap.model.verdict import Outcome
from slurmwrap.prerun.trial.trial_spec import TrialSpec
from slurmwrap.prerun.verdict.judge_trial import judge

Trial = Callable[..., TrialResult]
FOREVER = '#!/bin/bash\nfor ((i = 1; ; i++)); do echo "step $i loss=0.5"; sleep 0.02; done\n'
SPEC = TrialSpec(trial_dir="/t", script="/t/slurm_script", steps=3)


def test_a_program_that_prints_steps_passes_when_the_time_is_up(trial: Trial) -> None:
    result = trial(FOREVER, time_limit_s=allow(1.0))
    assert (result.layer, result.step_source, result.steps >= 3) == ("step", "text", True)
    verdict = judge(SPEC, result, diagnose_run)
    assert (verdict.outcome, verdict.layer) == (Outcome.PASS, "text")
    assert (result.measurement.steps, result.measurement.steps_per_s) == (None, None)  # printed steps give no rate


def test_printed_steps_of_a_script_that_ended_are_reported(trial: Trial) -> None:
    result = trial("#!/bin/bash\nfor i in 1 2 3 4 5; do echo step $i loss 0.1; done\n")
    assert (result.layer, result.exit_code, result.step_source, result.steps) == ("exit", 0, "text", 5)
    assert judge(SPEC, result, diagnose_run).outcome is Outcome.PASS


def test_printed_steps_do_not_hide_a_failure(trial: Trial) -> None:
    result = trial("#!/bin/bash\nfor i in 1 2 3 4 5; do echo step $i loss 0.1; done\nexit 3\n")
    assert (result.layer, result.exit_code, result.steps) == ("exit", 3, 5)


def test_insufficient_signs_of_training_are_named_when_the_time_is_up() -> None:
    for source, word in (("backward", "5 backward passes"), ("gpu", "GPU busy")):
        verdict = judge(SPEC, TrialResult(layer="timeout", steps=5, step_source=source, seconds=900.0), diagnose_run)
        assert (verdict.outcome, verdict.layer) == (Outcome.INCONCLUSIVE, "timeout")
        assert verdict.reason.startswith("no optimizer step was seen; ") and word in verdict.reason
