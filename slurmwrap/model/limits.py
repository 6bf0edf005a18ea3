"""What QOS and associations leave to one user: Limits, Association, Qos, Quotas. Records and their least. Pure.

Slurm knows an order in which a partition's QOS, the job's QOS and the association override each other (sacctmgr(1),
"hierarchical limits"). Here the least of all that may apply counts: a tuned request stays within it, whichever wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from slurmwrap.fast_dataclasses import dataclass, field, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """CPUs and MiB of one job, and what may still be held at once. None: no limit that Slurm showed us."""

    cpus_per_job: int | None = None
    mem_mib_per_job: int | None = None
    cpus_per_node: int | None = None
    mem_mib_per_node: int | None = None
    # Of GrpTRES, MaxTRESPerUser and MaxTRESPerAccount less what is held now.
    cpus_left: int | None = None
    mem_mib_left: int | None = None
    # Of MaxTRESMinsPerJob, GrpTRESMins and GrpTRESRunMins.
    cpu_minutes_left: int | None = None
    mem_mib_minutes_left: int | None = None
    # MinTRESPerJob: a job that asks less waits for ever.
    least_cpus_per_job: int | None = None
    least_mem_mib_per_job: int | None = None
    # "billing" is limited: what CPUs and memory cost there is the partition's secret
    billed: bool = False


NO_LIMITS = Limits()
_GREATEST = ("least_cpus_per_job", "least_mem_mib_per_job")
_LEAST = tuple(f.name for f in fields(Limits) if f.name != "billed" and f.name not in _GREATEST)


def strictest(*limits: Limits) -> Limits:
    """What keeps all of them."""
    if not limits:
        return NO_LIMITS
    least = {name: _of((getattr(one, name) for one in limits), min) for name in _LEAST}
    greatest = {name: _of((getattr(one, name) for one in limits), max) for name in _GREATEST}
    return Limits(**least, **greatest, billed=any(one.billed for one in limits))


def _of(values: Iterable[int | None], choose: Callable[[list[int]], int]) -> int | None:
    known = [value for value in values if value is not None]
    return choose(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """What the user may use of one account, in one partition or ("") in all that have no association of their own."""

    account: str
    partition: str = ""
    default: bool = False
    # Its own and its account's, up to the root, as far as Slurm shows them.
    limits: Limits = NO_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """One QOS as it limits the user."""

    name: str
    limits: Limits = NO_LIMITS
    # MaxTRESPerAccount, less what the account holds.
    accounts: Mapping[str, Limits] = field(default_factory=dict)
    # The user has jobs in it, or had.
    used: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """All that `scontrol show assoc_mgr` shows one user of their limits; empty where none are enforced or shown."""

    associations: tuple[Association, ...] = ()
    qos: tuple[Qos, ...] = ()
