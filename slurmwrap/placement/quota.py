"""Keep tuned CPUs and memory within what QOS and association leave, so that no job waits because of a raise. Pure.

Slurm does not show which QOS a job gets that names none (22.05.8). Then the QOS count in which the user has or had
jobs; if there are none, all QOS count. A partition's QOS always counts. If no limit is known, nothing is reduced, and a
submission that Slurm refuses is sent again as the user wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.limits import NO_LIMITS, Association, Limits, Qos, Quotas, strictest
from slurmwrap.placement.tuning_bounds import Bounds, compute_asked_cpus_per_gpu, compute_asked_mem_mib_per_gpu
from slurmwrap.sbatch.job_request import JobRequest, MemUnit, ResourceShape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.cluster import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedBounds:
    """`given` within the limits, and reasons for `--explain`.

    `cpu_cap`: CPUs per GPU that rounding must not exceed.
    """

    given: Bounds
    cpu_cap: float | None = None
    # ("cpus" | "mem", why it stays as asked) per resource.
    reasons: tuple[tuple[str, str], ...] = ()


def compute_limits(
    request: JobRequest, partitions: Sequence[Partition], quotas: Quotas, *, qos: str = "", account: str = ""
) -> Limits:
    """Return the strictest of the limits that may apply to `request` in `partitions`, the ones that it names.

    `qos` and `account`: those that Slurm gave the job if it is submitted already; else "".
    """
    held = tuple(_list_associations(account or request.value("account") or "", partitions, quotas.associations))
    applying = tuple(_list_applying_qos(qos or request.value("qos") or "", partitions, quotas.qos))
    accounts = {association.account for association in held}
    per_account = [left for one in applying for name, left in one.accounts.items() if name in accounts]
    return strictest(*(a.limits for a in held), *(one.limits for one in applying), *per_account)


def _list_associations(
    named: str, partitions: Sequence[Partition], known: Sequence[Association]
) -> Iterator[Association]:
    account = named.lower()
    mine = [a for a in known if (a.account.lower() == account if account else a.default)] or list(known)
    default = {a.account for a in mine}
    mine = [a for a in known if a.account in default]
    names = {partition.name for partition in partitions}
    own = {a.partition for a in mine if a.partition} & names
    # A partition with an association of its own does not use the general one.
    return (a for a in mine if a.partition in own or (not a.partition and (not names or names - own)))


def _list_applying_qos(named: str, partitions: Sequence[Partition], known: Sequence[Qos]) -> Iterator[Qos]:
    chosen = [qos for qos in known if qos.name.lower() == named.lower()] if named else []
    chosen = chosen or [qos for qos in known if qos.used] or list(known)
    of_partitions = {partition.qos.lower() for partition in partitions} - {""}
    return (qos for qos in known if qos in chosen or qos.name.lower() in of_partitions)


def keep(given: Bounds, shape: ResourceShape, limits: Limits) -> LimitedBounds:
    """Return `given` cut to `limits`.

    What the user asked for stays, even beyond the limits: Slurm decides on that.
    """
    if limits == NO_LIMITS or not shape.gpus:
        return LimitedBounds(given=given)
    cpus, cpu_cap, cpu_why = _limit_cpus(given.cpus_per_gpu, shape, limits)
    memory, mem_why = _limit_memory(given.mem_mib_per_gpu, shape, limits)
    reasons = tuple((what, why) for what, why in (("cpus", cpu_why), ("mem", mem_why)) if why)
    return LimitedBounds(
        given=replace(given, cpus_per_gpu=cpus, mem_mib_per_gpu=memory), cpu_cap=cpu_cap, reasons=reasons
    )


def _limit_cpus(target: float | None, shape: ResourceShape, limits: Limits) -> tuple[float | None, float | None, str]:
    """Return (CPUs per GPU to ask for, cap for rounding, reason for --explain if the CPUs stay as asked)."""
    asked = compute_asked_cpus_per_gpu(shape)
    if target is None or asked is None:
        return target, None, ""
    if target < asked:
        least = (limits.least_cpus_per_job or 0) / shape.gpus
        return (max(target, least), None, "") if least < asked else (None, None, "its QOS allows no fewer CPUs")
    if shape.mem_mib is None and _is_memory_limited(limits):
        return None, None, "it names no memory, each CPU brings some by default, and QOS or association limit it"
    cap = _find_cap(shape, limits, limits.cpus_per_job, limits.cpus_per_node, limits.cpus_left, limits.cpu_minutes_left)
    if cap is None:
        return target, None, ""
    if cap < min(target, asked + 1 / (shape.gpus_per_node or shape.gpus)):
        return None, None, f"QOS and association leave {_round_down(cap * shape.gpus)} CPUs, no more than it asked for"
    return min(target, cap), cap, ""


def _limit_memory(target: int | None, shape: ResourceShape, limits: Limits) -> tuple[int | None, str]:
    """Return (MiB per GPU to ask for, reason for --explain if the memory stays as asked)."""
    # Without an own number the site's default applies, which may be less than `target`.
    asked = compute_asked_mem_mib_per_gpu(shape) or 0
    if target is None:
        return target, ""
    if target < asked:
        least = -(-(limits.least_mem_mib_per_job or 0) // shape.gpus)
        return (max(target, least), "") if least < asked else (None, "its QOS allows no less memory")
    cap = _find_cap(
        shape, limits, limits.mem_mib_per_job, limits.mem_mib_per_node, limits.mem_mib_left, limits.mem_mib_minutes_left
    )
    if cap is None or cap >= target:
        return target, ""
    # With --mem-per-cpu the value is rounded up once per CPU.
    most = int(cap) - (int(compute_asked_cpus_per_gpu(shape) or 0) + 1 if shape.mem_unit is MemUnit.PER_CPU else 0)
    if most <= asked or not asked:
        return None, f"QOS and association leave {_round_down(cap * shape.gpus)} MiB, no more than it asked for"
    return most, ""


def _is_memory_limited(limits: Limits) -> bool:
    known = (limits.mem_mib_per_job, limits.mem_mib_per_node, limits.mem_mib_left, limits.mem_mib_minutes_left)
    return any(limit is not None for limit in known)


def _find_cap(
    shape: ResourceShape, limits: Limits, job: int | None, node: int | None, left: int | None, minutes: int | None
) -> float | None:
    """Return the limit per GPU; None: no limit. 0.0 if the price, or for how long the job runs, is not known."""
    if limits.billed:
        return 0.0
    caps = [float(value) / shape.gpus for value in (job, left) if value is not None]
    if node is not None:
        caps.append(node / (shape.gpus_per_node or shape.gpus))
    if minutes is not None:
        long = (shape.time_limit_s or 0) / 60
        caps.append(minutes / long / shape.gpus if long else 0.0)
    return min(caps, default=None)


def _round_down(value: float) -> int:
    return int(value + 1e-6)
