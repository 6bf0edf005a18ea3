"""The endings measured on Slurm 22.05: Slurm's record and the job's stderr give category and decision."""

from __future__ import annotations

from dataclasses import replace
from pprint import pformat

import pytest

from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.diagnosis.slurm_state import has_completed, has_hidden_failure, parse_base_state
from slurmwrap.diagnosis.taxonomy import CATEGORIES
from slurmwrap.model.evidence import Citation, Evidence, LogTail

NODE = "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"
OOM = "Some of your processes may have been killed by the cgroup out-of-memory handler."
AT = "AT 2026-11-20T23:47:02"


def ending(state_and_code: str, reason: str = "", *log: str, derived: str = "0:0") -> Evidence:
    """State and exit code as sacct prints them (`FAILED 1:0`); the stderr lines `log` follow one line of training."""
    state, _, codes = state_and_code.rpartition(" ")
    (code, signal), (worst, worst_signal) = (map(int, text.split(":")) for text in (codes, derived))
    text = "".join(f"{line}\n" for line in ("step 1 loss=1", *log))
    return Evidence(
        state=state,
        reason=reason,
        exit_code=code,
        signal=signal or None,
        derived_exit_code=worst,
        derived_signal=worst_signal or None,
        logs=(LogTail(name="err", text=text),),
    )


def without_output(state_and_code: str, reason: str = "", derived: str = "0:0") -> Evidence:
    """The same for a job whose output was not read."""
    return replace(ending(state_and_code, reason, derived=derived), logs=())


TABLE = {
    "success": {
        "ok": ending("COMPLETED 0:0", ""),
        "working directory missing": ending(
            "COMPLETED 0:0",
            "",
            "slurmstepd-n2: error: couldn't chdir to `/nonexistent': No such file or directory: going to /tmp instead",
        ),
        "no state, exit 0": Evidence(exit_code=0),
        "no output: ok": without_output("COMPLETED 0:0", "None"),
    },
    "no_signature": {
        "exit 3": ending("FAILED 3:0", "NonZeroExitCode"),
        "exit 130": ending("FAILED 130:0", "NonZeroExitCode"),
        "srun exit 5, last command": ending(
            "FAILED 5:0", "NonZeroExitCode", "srun: error: n2: task 0: Exited with exit code 5", derived="5:0"
        ),
        "srun exit 5, then true": ending(
            "COMPLETED 0:0", "", "srun: error: n2: task 0: Exited with exit code 5", derived="5:0"
        ),
        "one of two tasks exits 9": ending(
            "FAILED 9:0", "NonZeroExitCode", "srun: error: n3: task 1: Exited with exit code 9", derived="9:0"
        ),
        "the same with srun -K": ending(
            "FAILED 143:0",
            "NonZeroExitCode",
            "srun: error: n3: task 1: Exited with exit code 9",
            "srun: launch/slurm: _step_signal: Terminating StepId=68.0",
            f"slurmstepd-n2: error: *** STEP 68.0 ON n2 CANCELLED {AT} ***",
            "srun: error: n2: task 0: Terminated",
            derived="9:0",
        ),
        "held by a limit of its partition": Evidence(state="PENDING", reason="PartitionTimeLimit"),
        "no output: exit 3": without_output("FAILED 3:0", "NonZeroExitCode"),
        "no output: exit 137": without_output("FAILED 137:0"),
        "no output: SIGTERM": without_output("FAILED 0:15", "JobLaunchFailure"),
    },
    "invalid_memory_access": {
        "segfault in an srun task": ending(
            "FAILED 139:0",
            "NonZeroExitCode",
            "srun: error: n2: task 0: Segmentation fault (core dumped)",
            derived="0:11",
        ),
        "segfault of the batch shell": ending("FAILED 0:11", "JobLaunchFailure"),
        "segfault of the batch shell, 23.02": ending("FAILED 0:0", "RaisedSignal:11(Segmentation_fault)"),
        "segfault in a child of the shell": ending(
            "FAILED 139:0", "NonZeroExitCode", "Segmentation fault (core dumped)"
        ),
        "no output: SIGSEGV": without_output("FAILED 0:11", "JobLaunchFailure"),
        "no output: exit 139": without_output("FAILED 139:0", "NonZeroExitCode"),
    },
    "cancelled": {
        "scancel": ending("CANCELLED 0:15", "", f"slurmstepd-n1: error: *** JOB 35 ON n1 CANCELLED {AT} ***"),
        "scancel while pending": Evidence(state="CANCELLED", exit_code=0),
        "scancel -s TERM -b": ending(
            "FAILED 0:15", "JobLaunchFailure", f"slurmstepd-n1: error: *** JOB 35 ON n1 CANCELLED {AT} ***"
        ),
        "scontrol requeue": ending(
            "PENDING 0:0", "BeginTime", f"slurmstepd: error: *** JOB 71 ON n2 CANCELLED {AT} DUE TO JOB REQUEUE ***"
        ),
        "scontrol requeuehold": ending(
            "PENDING 0:0",
            "job_requeued_in_held_state",
            f"slurmstepd: error: *** JOB 71 ON n2 CANCELLED {AT} DUE TO JOB REQUEUE ***",
        ),
        "cancelled by a user": Evidence(state="CANCELLED by 1000", exit_code=0, signal=0),
        "no output: scancel": without_output("CANCELLED 0:15"),
    },
    "job_preempted": {
        "preempted and requeued": ending(
            "PENDING 0:0", "BeginTime", f"slurmstepd: error: *** JOB 45 ON n3 CANCELLED {AT} DUE TO PREEMPTION ***"
        ),
        "preempted, --no-requeue": ending(
            "PREEMPTED 0:15", "", f"slurmstepd: error: *** JOB 45 ON n3 CANCELLED {AT} DUE TO PREEMPTION ***"
        ),
        "no output: preempted": without_output("PREEMPTED 0:15"),
    },
    "node_failure": {
        "node failed, --no-requeue": ending(
            "NODE_FAIL 0:15", "NodeDown", f"slurmstepd: error: *** JOB 85 ON n4 CANCELLED {AT} {NODE} ***"
        ),
        "node failed, requeued": ending(
            "PENDING 0:0",
            "BeginTime",
            f"slurmstepd: error: *** STEP 87.0 ON n4 CANCELLED {AT} {NODE} ***",
            "srun: error: Node failure on n6",
            "srun: Job step aborted: Waiting up to 7 seconds for job step to finish.",
        ),
        "node failed, --no-kill": ending(
            "COMPLETED 0:0",
            "",
            "srun: error: Node failure on n6",
            "srun: error: n6: task 0: Killed",
            "srun: Force Terminated StepId=88.0",
            derived="0:9",
        ),
        "node set down": ending("NODE_FAIL 0:15", "NodeDown"),
        "launch failed in the Prolog": ending("PENDING 0:0", "launch_failed_requeued_held"),
        "the same in words": ending("PENDING 0:0", "launch failed requeued held"),
        "launch failed, no code at all": ending("FAILED 0:0", "JobLaunchFailure"),
        "TaskProlog failed": ending(
            "FAILED 1:0", "NonZeroExitCode", "slurmstepd-n0: error: TaskProlog failed status=1"
        ),
        "no output: boot failed": Evidence(state="BOOT_FAIL"),
    },
    "cpu_oom": {
        "out of memory in the batch step": ending(
            "OUT_OF_MEMORY 0:125",
            "OutOfMemory",
            "Killed",
            f"slurmstepd-n2: error: Detected 1 oom-kill event(s) in StepId=41.batch. {OOM}",
        ),
        "out of memory in srun, the script goes on": ending(
            "COMPLETED 0:0",
            "",
            f"slurmstepd-n2: error: Detected 1 oom-kill event(s) in StepId=40.0. {OOM}",
            "srun: error: n2: task 0: Out Of Memory",
            derived="0:125",
        ),
        "the same without any output": ending("COMPLETED 0:0", "", derived="0:125"),
        "over memory, batch": ending(
            "FAILED 0:9",
            "JobLaunchFailure",
            "slurmstepd-n7: error: StepId=3.batch exceeded memory limit (387481600 > 209715200), being killed",
            "slurmstepd-n7: error: Exceeded job memory limit",
            f"slurmstepd-n7: error: *** JOB 3 ON n7 CANCELLED {AT} ***",
        ),
        "over memory, srun": ending(
            "FAILED 137:0",
            "NonZeroExitCode",
            "slurmstepd-n7: error: StepId=4.0 exceeded memory limit (387481600 > 209715200), being killed",
            "slurmstepd-n7: error: Exceeded job memory limit",
            derived="0:9",
        ),
        "no output: out of memory": without_output("OUT_OF_MEMORY 0:125", "OutOfMemory"),
        "no output: out of memory in a step": without_output("COMPLETED 0:0", derived="0:125"),
    },
    "permission_error": {
        "stdout cannot be created": ending("FAILED 0:53", "JobLaunchFailure"),
        "stdout cannot be created, 23.02": ending("FAILED 0:0", "RaisedSignal:53(Real-time_signal_19)"),
        "no output: stdout cannot be created": without_output("FAILED 0:53", "JobLaunchFailure"),
        "no output: exit 126": without_output("FAILED 126:0"),
    },
    "syntax_error": {
        "bad interpreter": ending(
            "FAILED 2:0",
            "NonZeroExitCode",
            "slurmstepd-n2: error: execve(): bad interpreter(/no/such/interp): No such file or directory",
        ),
        "srun of a missing program": ending(
            "FAILED 2:0",
            "NonZeroExitCode",
            "slurmstepd-n2: error: execve(): nosuchprog: No such file or directory",
            "srun: error: n2: task 0: Exited with exit code 2",
            derived="2:0",
        ),
        "no output: exit 127": without_output("FAILED 127:0"),
    },
    "time_limit": {
        "time limit": ending(
            "TIMEOUT 0:15", "TimeLimit", f"slurmstepd-n7: error: *** JOB 1 ON n7 CANCELLED {AT} DUE TO TIME LIMIT ***"
        ),
        "time limit, TERM trapped": ending("TIMEOUT 143:0", "TimeLimit"),
        "time limit, state unknown": ending(" 0:0", "TimeLimit"),
        "no output: deadline": Evidence(state="DEADLINE"),
    },
    "core_dump": {"no output: exit 134": without_output("FAILED 134:0")},
}


def test_each_measured_ending_has_its_category_and_decision() -> None:
    wrong = {}
    for category, endings in TABLE.items():
        for name, evidence in endings.items():
            found = diagnose_run(evidence)
            if (found.category, found.decision) != (category, CATEGORIES[category].decision):
                wrong[category, name] = (found.category, found.decision)
    assert not wrong, pformat(wrong)


REFUSED = "prolog on n3: refused: GPU 0 has a standing fault (Xid 79)"


def test_a_prolog_refusal_explains_a_job_without_output() -> None:
    found = diagnose_run(Evidence(state="PENDING", reason="BeginTime", hooks=(REFUSED,)))
    assert (found.category, found.decision, found.signature, found.node) == (
        "node_failure",
        "retry_elsewhere",
        "hook.refused",
        "",
    )


def test_a_hook_that_confirms_slurms_record_is_cited_as_support() -> None:
    found = diagnose_run(replace(ending("PENDING 0:0", "launch_failed_requeued_held"), hooks=(REFUSED,)))
    assert found.evidence == (
        Citation(source="slurm", line=0, text="Reason launch_failed_requeued_held"),
        Citation(source="hook", line=0, text=REFUSED, role="support"),
    )


def test_a_prolog_refusal_does_not_outrank_an_error_of_the_program() -> None:
    typo = ending("FAILED 127:0", "NonZeroExitCode", "run.sh: line 3: pyhton: command not found")
    found = diagnose_run(replace(typo, hooks=(REFUSED,)))
    assert (found.category, len(found.evidence)) == ("syntax_error", 1)


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
def test_states_are_parsed_as_sacct_and_scontrol_print_them(state: str, base: str) -> None:
    assert parse_base_state(state) == base


def test_without_a_state_only_exit_code_0_means_completed() -> None:
    assert [has_completed(Evidence(exit_code=code)) for code in (0, 1, None)] == [True, False, False]


def test_a_derived_exit_code_reveals_a_hidden_failure() -> None:
    assert has_hidden_failure(Evidence(state="COMPLETED", exit_code=0, derived_exit_code=5))
    assert not has_hidden_failure(Evidence(state="COMPLETED", exit_code=0, derived_exit_code=0, derived_signal=0))
