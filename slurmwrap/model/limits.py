"""Limits that QOS and associations leave to one user: Limits, Association, Qos, Quotas. Pure.

In Slurm, a partition's QOS, the job's QOS and the association override each other in a fixed order (sacctmgr(1),
"hierarchical limits"). This module uses the strictest of all limits that may apply, so that a tuned request stays
within them whichever one Slurm enforces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from slurmwrap.fast_dataclasses import dataclass, field, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on CPUs and memory (MiB) of one job, and what may still be allocated. None: Slurm showed no limit."""

    cpus_per_job: int | None = None
    mem_mib_per_job: int | None = None
    cpus_per_node: int | None = None
    mem_mib_per_node: int | None = None
    # From GrpTRES, MaxTRESPerUser and MaxTRESPerAccount, minus what is allocated now.
    cpus_left: int | None = None
    mem_mib_left: int | None = None
    # From MaxTRESMinsPerJob, GrpTRESMins and GrpTRESRunMins.
    cpu_minutes_left: int | None = None
    mem_mib_minutes_left: int | None = None
    # MinTRESPerJob. A job that requests less waits forever.
    least_cpus_per_job: int | None = None
    least_mem_mib_per_job: int | None = None
    # "billing" is limited. How CPUs and memory are billed depends on the partition and is not known here.
    billed: bool = False


NO_LIMITS = Limits()
_GREATEST = ("least_cpus_per_job", "least_mem_mib_per_job")
_LEAST = tuple(f.name for f in fields(Limits) if f.name != "billed" and f.name not in _GREATEST)


def strictest(*limits: Limits) -> Limits:
    """Return the limits that satisfy all of `limits`."""
    if not limits:
        return NO_LIMITS
    least = {name: _choose_known((getattr(one, name) for one in limits), min) for name in _LEAST}
    greatest = {name: _choose_known((getattr(one, name) for one in limits), max) for name in _GREATEST}
    return Limits(**least, **greatest, billed=any(one.billed for one in limits))


def _choose_known(values: Iterable[int | None], choose: Callable[[list[int]], int]) -> int | None:
    known = [value for value in values if value is not None]
    return choose(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """Limits of the user in one account.

    `partition` "": they apply in all partitions that have no association of their own.
    """

    account: str
    partition: str = ""
    default: bool = False
    # Limits of the association and of its accounts up to the root, as far as Slurm shows them.
    limits: Limits = NO_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """One QOS with the limits that it sets for the user."""

    name: str
    limits: Limits = NO_LIMITS
    # MaxTRESPerAccount by account, minus what the account holds.
    accounts: Mapping[str, Limits] = field(default_factory=dict)
    # The user has, or had, jobs in it.
    used: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """All limits that `scontrol show assoc_mgr` shows to one user; empty if none are enforced or shown."""

    associations: tuple[Association, ...] = ()
    qos: tuple[Qos, ...] = ()
