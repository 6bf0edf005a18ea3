"""Find out whether a job's own request delays it: dependency, begin time, hold or reservation. Pure.

Until such a job starts, other jobs may create the files that it reads, so a file that is missing now proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.sbatch.job_request import JobRequest

DELAYED_NOW = "the job is held or waits for other jobs"
# singleton refers to the job's own name, which differs from the pre-run's; expand is for an allocation that already
# runs.
_NOT_SHARED = re.compile(r"(?:^|[,?])\s*(?:singleton|expand)\b", re.IGNORECASE)
_CORRESPONDING = re.compile(r"(?<![^,?])(aftercorr):([\d:_+]+)", re.IGNORECASE)


def find_delay(request: JobRequest, now: float, reservations: Mapping[str, int]) -> str:
    """Return the reason, for the user, why the job cannot start yet; "" if nothing in its request delays it.

    `reservations`: name -> begin (Unix seconds), as far as they are known.
    """
    if request.value("dependency"):
        return "the job waits for other jobs (--dependency)"
    if request.setting("hold") is not None or request.value("priority") == "0":
        return "the job is held (--hold)"
    begin = request.value("begin")
    if begin is not None:
        # Imported here because few calls of gsub need it.
        from slurmwrap.sbatch.begin import parse_begin_time

        at = parse_begin_time(begin, now)
        if at is None or at > now:
            return "the job begins later (--begin)"
    named = set((request.value("reservation") or "").split(",")) - {""}
    # A reservation that is not in `reservations` may have been created after they were read.
    unknown = not named <= reservations.keys()
    later = unknown or is_reserved_later(request, now, reservations)
    return "its reservation may begin later (--reservation)" if named and later else ""


def is_reserved_later(request: JobRequest, now: float, reservations: Mapping[str, int]) -> bool:
    """Return whether all reservations of the request that are known begin after `now`."""
    names = (request.value("reservation") or "").split(",")
    begins = [reservations[name] for name in names if name in reservations]
    return bool(begins) and min(begins) > now


def can_share_dependency(value: str) -> bool:
    """Return whether the pre-run can have the same dependency as the job."""
    return _NOT_SHARED.search(value) is None


def make_prerun_dependency(value: str, task: int | None, arrays: Collection[str]) -> str:
    """Return the dependency of the pre-run, which is the job's own, with `aftercorr` adapted.

    `task`: the array task that the pre-run runs. `aftercorr` then means only the task with that index, if the other
    job is among `arrays`: Slurm takes an address in a job that is not an array, or that has no such task, for a job
    that has completed successfully (measured on 22.05.8).
    """

    def address(job: str) -> str:
        return f"{job}_{task}" if job in arrays else job

    def address_found_jobs(found: re.Match[str]) -> str:
        return f"{found[1]}:{':'.join(map(address, found[2].split(':')))}"

    return value if task is None else _CORRESPONDING.sub(address_found_jobs, value)


def list_corresponding_jobs(value: str) -> tuple[str, ...]:
    """Return the ids of the jobs that `aftercorr` names."""
    return tuple(job for found in _CORRESPONDING.finditer(value) for job in found[2].split(":") if job.isdecimal())
