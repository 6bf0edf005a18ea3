"""What a submission says about its time limit, for rule `limit`: TimeRequest from the options and the script. Pure."""

from __future__ import annotations

import re

from slurmwrap.model.lowered_limit import TimeRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.sbatch.job_request import JobRequest

# Options with which the user decides about the time limit, or about when the job may run.
_OWN_OPTIONS = ("time-min", "deadline", "reservation")
# A script that reads its time limit would plan its work by the lower one, which is in force at its start.
# Newer releases of Slurm set SLURM_JOB_END_TIME.
_READS_LIMIT = re.compile(rb"SLURM_JOB_END_TIME|\b(?:squeue|sacct)\b|\bscontrol\s+(?:-\S+\s+)*show\b")
_SIGNAL = re.compile(r"(?:[RB]{1,2}:)?[A-Za-z0-9]+(?:@(\d+))?")
# sbatch(1): a signal without a time comes a minute before the end.
_DEFAULT_WARN_S = 60


def make_time_request(request: JobRequest) -> TimeRequest:
    """Return what must be known before the job's time limit may be lowered while it waits."""
    if not request.own.tune:
        return TimeRequest(fixed="--no-tune")
    option = next((name for name in _OWN_OPTIONS if request.setting(name) is not None), "")
    if option:
        return TimeRequest(fixed=f"--{option}")
    if found := _READS_LIMIT.search(request.script.content):
        return TimeRequest(fixed=f"its script reads its time limit ({found[0].decode()})")
    if (signal := request.value("signal")) is None:
        return TimeRequest()
    match = _SIGNAL.fullmatch(signal)
    return TimeRequest(warn_s=int(match[1] or _DEFAULT_WARN_S)) if match else TimeRequest(fixed="--signal")
