"""What keeps a job from being eligible at once, by its own request: dependency, begin time, hold, reservation. Pure.

Until such a job starts, other jobs may make what it reads: what is missing now says nothing about it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.sbatch.job_request import JobRequest

DELAYED_NOW = "the job is held or waits for other jobs"
# singleton asks for the job's own name, which its pre-run has not; expand is for an allocation that runs already.
_NOT_SHARED = re.compile(r"(?:^|[,?])\s*(?:singleton|expand)\b", re.IGNORECASE)
_CORRESPONDING = re.compile(r"(?<![^,?])(aftercorr):([\d:_+]+)", re.IGNORECASE)


def find_delay(request: JobRequest, now: float, reservations: Mapping[str, int]) -> str:
    """Why the job cannot start yet, for its user; "" when nothing that it asked for holds it back.

    `reservations`: name -> begin (Unix seconds), as far as they are known.
    """
    if request.value("dependency"):
        return "the job waits for other jobs (--dependency)"
    if request.setting("hold") is not None or request.value("priority") == "0":
        return "the job is held (--hold)"
    begin = request.value("begin")
    if begin is not None:
        # Few calls of gsub need it.
        from slurmwrap.sbatch.begin import parse_begin_time

        at = parse_begin_time(begin, now)
        if at is None or at > now:
            return "the job begins later (--begin)"
    named = set((request.value("reservation") or "").split(",")) - {""}
    # Made since they were read.
    unknown = not named <= reservations.keys()
    later = unknown or is_reserved_later(request, now, reservations)
    return "its reservation may begin later (--reservation)" if named and later else ""


def is_reserved_later(request: JobRequest, now: float, reservations: Mapping[str, int]) -> bool:
    """Whether each reservation that the job names, as far as it is known, begins later."""
    names = (request.value("reservation") or "").split(",")
    begins = [reservations[name] for name in names if name in reservations]
    return bool(begins) and min(begins) > now


def can_share_dependency(value: str) -> bool:
    """Whether the pre-run can wait for the same jobs as the job itself."""
    return _NOT_SHARED.search(value) is None


def make_prerun_dependency(value: str, task: int | None, arrays: Collection[str]) -> str:
    """The dependency of the pre-run: the job's own.

    `task`: the array task that the pre-run rehearses. `aftercorr` then means the task of that index alone, where the
    other job is among `arrays`: Slurm takes an address of what is no array, or has no such task, for a job that has
    ended well (measured on 22.05.8).
    """

    def address(job: str) -> str:
        return f"{job}_{task}" if job in arrays else job

    def corresponding(found: re.Match[str]) -> str:
        return f"{found[1]}:{':'.join(map(address, found[2].split(':')))}"

    return value if task is None else _CORRESPONDING.sub(corresponding, value)


def list_corresponding_jobs(value: str) -> tuple[str, ...]:
    """The ids of the jobs that `aftercorr` names."""
    return tuple(job for found in _CORRESPONDING.finditer(value) for job in found[2].split(":") if job.isdecimal())
