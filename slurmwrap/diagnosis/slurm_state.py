"""Slurm's own record of the end of a run: state, reason, exit codes. Pure.

What Slurm reports about its own actions (time limit, preemption, node failure, cancel) outweighs the application's
text. Pitfalls, measured on 22.05: a failed srun that a later command hides shows only in the derived exit code. The
exit "signals" 125 and 53 mean out of memory and I/O set-up. `srun -K` and torchrun's teardown print CANCELLED for steps
of jobs that were not cancelled, so a step's line alone proves nothing.
"""

from __future__ import annotations

import re

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.evidence import Evidence

OOM_CODE = 125
IO_SETUP_CODE = 53

_STATES = {
    "TIMEOUT": ("time_limit", "slurm.state_timeout"),
    "DEADLINE": ("time_limit", "slurm.state_deadline"),
    "PREEMPTED": ("job_preempted", "slurm.state_preempted"),
    "NODE_FAIL": ("node_failure", "slurm.state_node_fail"),
    "BOOT_FAIL": ("node_failure", "slurm.state_boot_fail"),
    "OUT_OF_MEMORY": ("cpu_oom", "slurm.state_out_of_memory"),
    "LAUNCH_FAILED": ("node_failure", "slurm.state_launch_failed"),
    "RECONFIG_FAIL": ("node_failure", "slurm.state_reconfig_fail"),
    "CANCELLED": ("cancelled", "slurm.state_cancelled"),
    "REVOKED": ("cancelled", "slurm.state_revoked"),
}
_REASONS = {
    "TimeLimit": ("time_limit", "slurm.reason_time_limit"),
    "NodeDown": ("node_failure", "slurm.reason_node_down"),
    "OutOfMemory": ("cpu_oom", "slurm.reason_out_of_memory"),
    "DeadLine": ("time_limit", "slurm.reason_deadline"),
    "launch_failed_requeued_held": ("node_failure", "slurm.reason_launch_failed"),
    "SystemFailure": ("node_failure", "slurm.reason_system_failure"),
    "Prolog": ("node_failure", "slurm.reason_prolog"),
}
# Shells report a signal as 128 + n; srun and Slurm may give the signal itself.
_SIGNALS = {
    4: ("core_dump", "exit.sigill"),
    6: ("core_dump", "exit.sigabrt"),
    7: ("invalid_memory_access", "exit.sigbus"),
    8: ("core_dump", "exit.sigfpe"),
    11: ("invalid_memory_access", "exit.sigsegv"),
    IO_SETUP_CODE: ("permission_error", "exit.io_setup"),
    OOM_CODE: ("cpu_oom", "exit.oom"),
}
# "RaisedSignal:53(Real-time_signal_19)" in Slurm 23.02 and later, where 22.05 reports JobLaunchFailure.
_RAISED = re.compile(r"RaisedSignal:(\d{1,3})\b")
_CODES = {126: ("permission_error", "exit.126"), 127: ("syntax_error", "exit.127")}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmCause:
    """A category with the id of the signature under which it is reported, and Slurm's text."""

    category: str
    signature: str
    text: str


def parse_base_state(state: str) -> str:
    """Return the state as one word in capitals, e.g. of "CANCELLED by 1000", "OUT_OF_ME+", "NODE_FAIL+REQUEUED"."""
    word = state.strip().upper().split(" ")[0]
    base = word.split("+")[0]
    return next((known for known in (*_STATES, "COMPLETED", "FAILED") if base and known.startswith(base)), base)


def find_decisive_cause(evidence: Evidence) -> SlurmCause | None:
    """Return the cause that the final state, or else the reason, decides alone; None if neither does."""
    state = parse_base_state(evidence.state)
    if state in _STATES:
        return SlurmCause(category=_STATES[state][0], signature=_STATES[state][1], text=f"State {evidence.state}")
    reason = evidence.reason.strip().replace(" ", "_")  # 24.05 and later write "launch failed requeued held".
    if reason in _REASONS and state in ("", "FAILED", "PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"):
        category, signature = _REASONS[reason]
        return SlurmCause(category=category, signature=signature, text=f"Reason {evidence.reason}")
    return None


def has_completed(evidence: Evidence) -> bool:
    """Return True if Slurm reports success; without a state, if the exit code does."""
    state = parse_base_state(evidence.state)
    silent = not state and evidence.exit_code == 0 and not evidence.signal
    return state == "COMPLETED" or (silent and find_decisive_cause(evidence) is None)


def has_hidden_failure(evidence: Evidence) -> bool:
    """Return True if a step failed although the script ended with 0; only the derived exit code shows that."""
    return bool(evidence.derived_exit_code or evidence.derived_signal)


def find_exit_cause(evidence: Evidence) -> SlurmCause | None:
    """Return the cause that the exit code or signal suggests, if nothing else is known.

    None if they suggest nothing, as a bare SIGKILL or SIGTERM.
    """
    for code, signal in (
        (evidence.exit_code, evidence.signal),
        (evidence.derived_exit_code, evidence.derived_signal),
    ):
        number = signal or (code - 128 if code and 128 < code < 160 else code if code in (OOM_CODE,) and signal else 0)
        if number in _SIGNALS:
            return _make_cause(*_SIGNALS[number], code, signal)
        if code in _CODES:
            return _make_cause(*_CODES[code], code, signal)
    if raised := _RAISED.match(evidence.reason):
        number = int(raised[1])
        return _make_cause(*_SIGNALS[number], 0, number) if number in _SIGNALS else None
    if evidence.reason == "JobLaunchFailure" and not (evidence.exit_code or evidence.signal):
        return SlurmCause(category="node_failure", signature="slurm.reason_launch", text="Reason JobLaunchFailure")
    return None


def _make_cause(category: str, signature: str, code: int | None, signal: int | None) -> SlurmCause:
    return SlurmCause(category=category, signature=signature, text=f"ExitCode {code or 0}:{signal or 0}")
