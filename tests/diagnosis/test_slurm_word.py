"""Slurm's word: states, reasons, exit codes (the endings measured on 22.05)."""

from __future__ import annotations

import pytest

from slurmwrap.diagnosis.classify import classify
from slurmwrap.diagnosis.evidence import Evidence
from slurmwrap.diagnosis.slurm_word import base_state, completed, hidden_failure


@pytest.mark.parametrize(
    ("state", "base"),
    [
        ("CANCELLED by 1000", "CANCELLED"),
        ("OUT_OF_ME+", "OUT_OF_MEMORY"),
        ("NODE_FAIL", "NODE_FAIL"),
        ("", ""),
        ("COMPLETED", "COMPLETED"),
        ("SOMETHING_NEW", "SOMETHING_NEW"),
    ],
)
def test_states_are_read_as_sacct_and_scontrol_write_them(state: str, base: str) -> None:
    assert base_state(state) == base


@pytest.mark.parametrize(
    ("evidence", "category"),
    [
        (Evidence(state="COMPLETED", reason="None", exit_code=0, signal=0), "success"),
        (Evidence(state="COMPLETED", exit_code=0, derived_exit_code=0, derived_signal=0), "success"),
        (Evidence(exit_code=0), "success"),
        (Evidence(state="CANCELLED", exit_code=0, signal=15), "cancelled"),
        (Evidence(state="CANCELLED by 1000", exit_code=0, signal=0), "cancelled"),
        (Evidence(state="PREEMPTED", exit_code=0, signal=15), "job_preempted"),
        (Evidence(state="NODE_FAIL", reason="NodeDown", exit_code=0, signal=15), "node_failure"),
        (Evidence(state="BOOT_FAIL"), "node_failure"),
        (Evidence(state="OUT_OF_MEMORY", reason="OutOfMemory", exit_code=0, signal=125), "cpu_oom"),
        (Evidence(state="TIMEOUT", reason="TimeLimit", exit_code=0, signal=15), "time_limit"),
        (Evidence(state="TIMEOUT", reason="TimeLimit", exit_code=143, signal=0), "time_limit"),
        (Evidence(state="DEADLINE"), "time_limit"),
        (Evidence(state="PENDING", reason="launch_failed_requeued_held", exit_code=0), "node_failure"),
        (Evidence(state="COMPLETED", exit_code=0, derived_exit_code=0, derived_signal=125), "cpu_oom"),
        (Evidence(state="FAILED", reason="JobLaunchFailure", exit_code=0, signal=11), "invalid_memory_access"),
        (Evidence(state="FAILED", reason="NonZeroExitCode", exit_code=139, signal=0), "invalid_memory_access"),
        (Evidence(state="FAILED", reason="JobLaunchFailure", exit_code=0, signal=53), "permission_error"),
        (Evidence(state="FAILED", exit_code=134, signal=0), "core_dump"),
        (Evidence(state="FAILED", exit_code=126), "permission_error"),
        (Evidence(state="FAILED", exit_code=127), "syntax_error"),
        (Evidence(state="FAILED", reason="NonZeroExitCode", exit_code=3, signal=0), "no_signature"),
        (Evidence(state="FAILED", exit_code=137, signal=0), "no_signature"),
        (Evidence(state="FAILED", reason="JobLaunchFailure", exit_code=0, signal=15), "no_signature"),
    ],
)
def test_an_ending_without_any_output_is_told_by_slurm_alone(evidence: Evidence, category: str) -> None:
    assert classify(evidence).category == category


def test_a_job_without_a_state_completed_when_its_exit_code_is_zero() -> None:
    assert [completed(Evidence(exit_code=code)) for code in (0, 1, None)] == [True, False, False]


def test_a_failure_is_hidden_in_the_derived_exit_code() -> None:
    assert hidden_failure(Evidence(state="COMPLETED", exit_code=0, derived_exit_code=5))
    assert not hidden_failure(Evidence(state="COMPLETED", exit_code=0, derived_exit_code=0, derived_signal=0))
