"""The endings measured on Slurm 22.05, row by row: Slurm's word and the job's stderr in, category and decision out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmwrap.diagnosis.classify import classify
from slurmwrap.diagnosis.evidence import Citation, Evidence, LogTail

NODE = "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"
OOM = "Some of your processes may have been killed by the cgroup out-of-memory handler."
AT = "AT 2026-11-20T23:47:02"


def ending(
    state: str,
    reason: str = "None",
    code: int = 0,
    signal: int = 0,
    *log: str,
    derived: tuple[int, int] = (0, 0),
) -> Evidence:
    return Evidence(
        state=state,
        reason="" if reason == "None" else reason,
        exit_code=code,
        signal=signal or None,
        derived_exit_code=derived[0],
        derived_signal=derived[1] or None,
        logs=(LogTail(name="err", text="step 1 loss=1\n" + "".join(f"{line}\n" for line in log)),),
    )


TABLE = {
    "ok": (ending("COMPLETED"), "success", "none"),
    "exit 3": (ending("FAILED", "NonZeroExitCode", 3), "no_signature", "retry"),
    "exit 130": (ending("FAILED", "NonZeroExitCode", 130), "no_signature", "retry"),
    "srun exit 5, last command": (
        ending(
            "FAILED",
            "NonZeroExitCode",
            5,
            0,
            "srun: error: n2: task 0: Exited with exit code 5",
            derived=(5, 0),
        ),
        "no_signature",
        "retry",
    ),
    "srun exit 5, then true": (
        ending("COMPLETED", "None", 0, 0, "srun: error: n2: task 0: Exited with exit code 5", derived=(5, 0)),
        "no_signature",
        "retry",
    ),
    "segfault in an srun task": (
        ending(
            "FAILED",
            "NonZeroExitCode",
            139,
            0,
            "srun: error: n2: task 0: Segmentation fault (core dumped)",
            derived=(0, 11),
        ),
        "invalid_memory_access",
        "stop",
    ),
    "segfault of the batch shell": (ending("FAILED", "JobLaunchFailure", 0, 11), "invalid_memory_access", "stop"),
    "segfault of the batch shell, 23.02": (
        ending("FAILED", "RaisedSignal:11(Segmentation_fault)"),
        "invalid_memory_access",
        "stop",
    ),
    "segfault in a child of the shell": (
        ending("FAILED", "NonZeroExitCode", 139, 0, "Segmentation fault (core dumped)"),
        "invalid_memory_access",
        "stop",
    ),
    "one of two tasks exits 9": (
        ending("FAILED", "NonZeroExitCode", 9, 0, "srun: error: n3: task 1: Exited with exit code 9", derived=(9, 0)),
        "no_signature",
        "retry",
    ),
    "the same with srun -K": (
        ending(
            "FAILED",
            "NonZeroExitCode",
            143,
            0,
            "srun: error: n3: task 1: Exited with exit code 9",
            "srun: launch/slurm: _step_signal: Terminating StepId=68.0",
            f"slurmstepd-n2: error: *** STEP 68.0 ON n2 CANCELLED {AT} ***",
            "srun: error: n2: task 0: Terminated",
            derived=(9, 0),
        ),
        "no_signature",
        "retry",
    ),
    "scancel": (
        ending("CANCELLED", "None", 0, 15, f"slurmstepd-n1: error: *** JOB 35 ON n1 CANCELLED {AT} ***"),
        "cancelled",
        "none",
    ),
    "scancel while pending": (Evidence(state="CANCELLED", exit_code=0), "cancelled", "none"),
    "scancel -s TERM -b": (
        ending("FAILED", "JobLaunchFailure", 0, 15, f"slurmstepd-n1: error: *** JOB 35 ON n1 CANCELLED {AT} ***"),
        "cancelled",
        "none",
    ),
    "preempted and requeued": (
        ending(
            "PENDING", "BeginTime", 0, 0, f"slurmstepd: error: *** JOB 45 ON n3 CANCELLED {AT} DUE TO PREEMPTION ***"
        ),
        "job_preempted",
        "retry",
    ),
    "preempted, --no-requeue": (
        ending("PREEMPTED", "None", 0, 15, f"slurmstepd: error: *** JOB 45 ON n3 CANCELLED {AT} DUE TO PREEMPTION ***"),
        "job_preempted",
        "retry",
    ),
    "node failed, --no-requeue": (
        ending(
            "NODE_FAIL",
            "NodeDown",
            0,
            15,
            f"slurmstepd: error: *** JOB 85 ON n4 CANCELLED {AT} {NODE} ***",
        ),
        "node_failure",
        "retry_elsewhere",
    ),
    "node failed, requeued": (
        ending(
            "PENDING",
            "BeginTime",
            0,
            0,
            f"slurmstepd: error: *** STEP 87.0 ON n4 CANCELLED {AT} {NODE} ***",
            "srun: error: Node failure on n6",
            "srun: Job step aborted: Waiting up to 7 seconds for job step to finish.",
        ),
        "node_failure",
        "retry_elsewhere",
    ),
    "node failed, --no-kill": (
        ending(
            "COMPLETED",
            "None",
            0,
            0,
            "srun: error: Node failure on n6",
            "srun: error: n6: task 0: Killed",
            "srun: Force Terminated StepId=88.0",
            derived=(0, 9),
        ),
        "node_failure",
        "retry_elsewhere",
    ),
    "node set down": (ending("NODE_FAIL", "NodeDown", 0, 15), "node_failure", "retry_elsewhere"),
    "out of memory in the batch step": (
        ending(
            "OUT_OF_MEMORY",
            "OutOfMemory",
            0,
            125,
            "Killed",
            f"slurmstepd-n2: error: Detected 1 oom-kill event(s) in StepId=41.batch. {OOM}",
        ),
        "cpu_oom",
        "resize",
    ),
    "out of memory in srun, the script goes on": (
        ending(
            "COMPLETED",
            "None",
            0,
            0,
            f"slurmstepd-n2: error: Detected 1 oom-kill event(s) in StepId=40.0. {OOM}",
            "srun: error: n2: task 0: Out Of Memory",
            derived=(0, 125),
        ),
        "cpu_oom",
        "resize",
    ),
    "the same without any output": (ending("COMPLETED", derived=(0, 125)), "cpu_oom", "resize"),
    "scontrol requeue": (
        ending(
            "PENDING", "BeginTime", 0, 0, f"slurmstepd: error: *** JOB 71 ON n2 CANCELLED {AT} DUE TO JOB REQUEUE ***"
        ),
        "cancelled",
        "none",
    ),
    "scontrol requeuehold": (
        ending(
            "PENDING",
            "job_requeued_in_held_state",
            0,
            0,
            f"slurmstepd: error: *** JOB 71 ON n2 CANCELLED {AT} DUE TO JOB REQUEUE ***",
        ),
        "cancelled",
        "none",
    ),
    "working directory missing": (
        ending(
            "COMPLETED",
            "None",
            0,
            0,
            "slurmstepd-n2: error: couldn't chdir to `/nonexistent': No such file or directory: going to /tmp instead",
        ),
        "success",
        "none",
    ),
    "stdout cannot be created": (ending("FAILED", "JobLaunchFailure", 0, 53), "permission_error", "stop"),
    "stdout cannot be created, 23.02": (
        ending("FAILED", "RaisedSignal:53(Real-time_signal_19)"),
        "permission_error",
        "stop",
    ),
    "bad interpreter": (
        ending(
            "FAILED",
            "NonZeroExitCode",
            2,
            0,
            "slurmstepd-n2: error: execve(): bad interpreter(/no/such/interp): No such file or directory",
        ),
        "syntax_error",
        "stop",
    ),
    "srun of a missing program": (
        ending(
            "FAILED",
            "NonZeroExitCode",
            2,
            0,
            "slurmstepd-n2: error: execve(): nosuchprog: No such file or directory",
            "srun: error: n2: task 0: Exited with exit code 2",
            derived=(2, 0),
        ),
        "syntax_error",
        "stop",
    ),
    "time limit": (
        ending(
            "TIMEOUT",
            "TimeLimit",
            0,
            15,
            f"slurmstepd-n7: error: *** JOB 1 ON n7 CANCELLED {AT} DUE TO TIME LIMIT ***",
        ),
        "time_limit",
        "resize",
    ),
    "time limit, TERM trapped": (ending("TIMEOUT", "TimeLimit", 143), "time_limit", "resize"),
    "time limit, state unknown": (ending("", "TimeLimit"), "time_limit", "resize"),
    "over memory, batch": (
        ending(
            "FAILED",
            "JobLaunchFailure",
            0,
            9,
            "slurmstepd-n7: error: StepId=3.batch exceeded memory limit (387481600 > 209715200), being killed",
            "slurmstepd-n7: error: Exceeded job memory limit",
            f"slurmstepd-n7: error: *** JOB 3 ON n7 CANCELLED {AT} ***",
        ),
        "cpu_oom",
        "resize",
    ),
    "over memory, srun": (
        ending(
            "FAILED",
            "NonZeroExitCode",
            137,
            0,
            "slurmstepd-n7: error: StepId=4.0 exceeded memory limit (387481600 > 209715200), being killed",
            "slurmstepd-n7: error: Exceeded job memory limit",
            derived=(0, 9),
        ),
        "cpu_oom",
        "resize",
    ),
    "launch failed in the Prolog": (
        ending("PENDING", "launch_failed_requeued_held"),
        "node_failure",
        "retry_elsewhere",
    ),
    "the same in words": (ending("PENDING", "launch failed requeued held"), "node_failure", "retry_elsewhere"),
    "launch failed, no code at all": (ending("FAILED", "JobLaunchFailure"), "node_failure", "retry_elsewhere"),
    "TaskProlog failed": (
        ending("FAILED", "NonZeroExitCode", 1, 0, "slurmstepd-n0: error: TaskProlog failed status=1"),
        "node_failure",
        "retry_elsewhere",
    ),
    "held by a limit of its partition": (
        Evidence(state="PENDING", reason="PartitionTimeLimit"),
        "no_signature",
        "retry",
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_an_ending_is_told_as_measured(name: str) -> None:
    evidence, category, decision = TABLE[name]
    found = classify(evidence)
    assert (found.category, found.decision) == (category, decision)


REFUSED = "prolog on n3: refused: GPU 0 has a standing fault (Xid 79)"


def test_a_prolog_that_refused_the_node_explains_a_job_without_any_output() -> None:
    found = classify(Evidence(state="PENDING", reason="BeginTime", hooks=(REFUSED,)))
    assert (found.category, found.decision, found.signature, found.node) == (
        "node_failure",
        "retry_elsewhere",
        "hook.refused",
        "",
    )


def test_a_hooks_word_agrees_with_slurms_and_is_cited_beside_it() -> None:
    found = classify(replace(ending("PENDING", "launch_failed_requeued_held"), hooks=(REFUSED,)))
    assert found.evidence == (
        Citation(source="slurm", line=0, text="Reason launch_failed_requeued_held"),
        Citation(source="hook", line=0, text=REFUSED, role="support"),
    )


def test_a_hooks_word_does_not_excuse_the_program() -> None:
    typo = ending("FAILED", "NonZeroExitCode", 127, 0, "run.sh: line 3: pyhton: command not found")
    found = classify(replace(typo, hooks=(REFUSED,)))
    assert (found.category, len(found.evidence)) == ("syntax_error", 1)
