"""Explain why a job is pending: every reason of squeue from 22.05 to 26.05, and what its user can do. Pure.

The reasons for QOS and association limits are composed of parts (QOSMaxGRESPerUser), so a regular expression parses
them; the other reasons are in a table. tests/data/slurm/reasons.txt lists all reasons.
"""

from __future__ import annotations

import re

from slurmwrap.fast_dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonMeaning:
    """The explanation of a reason, and what the user can do (`way_out`); "" if they can only wait."""

    words: str
    way_out: str = ""


_ASK_ADMIN = "ask your administrators"
_CHANGE_REQUEST = "change it with scontrol update, or submit it again"
_LIMIT_ADVICE = "it starts when jobs that count for the limit end, or with fewer resources"
_NEVER_ADVICE = "it never starts as it is: ask for less, or for another QOS or account"

_TABLE: dict[str, tuple[str, str]] = {
    "None": ("Slurm has not looked at it yet", ""),
    "Priority": ("jobs with a higher priority wait for the same nodes", "a shorter --time lets it fit into gaps"),
    "Resources": ("it is the next in line, and what it asks for is not free yet", "a shorter --time may help"),
    "Dependency": ("it waits for other jobs (--dependency)", ""),
    "DependencyNeverSatisfied": ("a job that it depends on ended otherwise than asked for", "cancel it"),
    "BeginTime": ("its time to begin has not come", ""),
    "JobHeldUser": ("it is held by its user", "release it with scontrol release"),
    "JobHeldAdmin": ("it is held by an administrator", _ASK_ADMIN),
    "JobHoldMaxRequeue": ("it was requeued too often and is held now", "find out why it fails, then scontrol release"),
    "JobArrayTaskLimit": ("as many tasks of its array run as it allows (--array=…%N)", ""),
    "JobLaunchFailure": ("it could not be started on its nodes", "slurmwrap why shows more"),
    "Prolog": ("the Prolog runs on its nodes", ""),
    "Cleaning": ("its last run is still being cleaned up", ""),
    "Licenses": ("a license that it asks for is not free", ""),
    "Reservation": ("its reservation has not begun, or is full", ""),
    "ReservationDeleted": ("its reservation was deleted", "submit it without --reservation"),
    "ReservationInvalid": ("its reservation cannot be used", "submit it without --reservation"),
    "ReqNodeNotAvail": (
        "a node that it needs is down, drained, or reserved",
        "leave --nodelist out; a maintenance reservation may also be too near for its --time",
    ),
    "NodeDown": ("a node that it needs is down", "leave --nodelist out"),
    "FrontEndDown": ("no front end node is up", _ASK_ADMIN),
    "BadConstraints": ("no node has what it asks for", _CHANGE_REQUEST),
    "Constraints": ("no node with the features that it asks for is free", ""),
    "PartitionDown": ("its partition starts no jobs now (DOWN)", _ASK_ADMIN),
    "PartitionInactive": ("its partition takes no jobs (INACTIVE)", "choose another partition"),
    "PartitionNodeLimit": ("it asks for more nodes than its partition gives", "ask for fewer, or another partition"),
    "PartitionTimeLimit": ("it asks for more time than its partition gives", "ask for less, or another partition"),
    "PartitionConfig": ("its partition does not allow what it asks for", _CHANGE_REQUEST),
    "SchedDefer": ("the scheduler looks at it later", ""),
    "MaxPoweredUpNodes": ("no more nodes may be powered up now", ""),
    "PowerNotAvail": ("there is not enough power for it", ""),
    "PowerReserved": ("the power is reserved for other jobs", ""),
    "MpiPortsBusy": ("no communication port is free", ""),
    "NvidiaImexChannels": ("no IMEX channel is free", ""),
    "BurstBufferResources": ("there is not enough space in the burst buffer", ""),
    "BurstBufferStageIn": ("its files are being copied in", ""),
    "BurstBufferOperation": ("the burst buffer failed", _ASK_ADMIN),
    "BlockMaxError": ("a block of nodes failed too often", _ASK_ADMIN),
    "BlockFreeAction": ("a block of nodes is being freed", ""),
    "DeadLine": ("it cannot end before its --deadline", "submit it again with another one"),
    "FedJobLock": ("the clusters of the federation decide which of them runs it", ""),
    "InvalidAccount": ("its account is not known any more", "submit it with another --account"),
    "InvalidQOS": ("its QOS is not known any more", "submit it with another --qos"),
    "AccountNotAllowed": ("its partition does not take its account", "choose another --account or --partition"),
    "QOSNotAllowed": ("its partition does not take its QOS", "choose another --qos or --partition"),
    "QOSUsageThreshold": ("your usage is above the threshold of its QOS", "another --qos, or wait until usage decays"),
    "AccountingPolicy": ("a limit of QOS or association holds it", _LIMIT_ADVICE),
    "AssociationJobLimit": ("your account has as many jobs as it may", _LIMIT_ADVICE),
    "AssociationResourceLimit": ("your account has as many resources as it may", _LIMIT_ADVICE),
    "AssociationTimeLimit": ("it asks for more time than your account may", _NEVER_ADVICE),
    "QOSJobLimit": ("its QOS has as many jobs as it may", _LIMIT_ADVICE),
    "QOSResourceLimit": ("its QOS has as many resources as it may", _LIMIT_ADVICE),
    "QOSTimeLimit": ("it asks for more time than its QOS gives", _NEVER_ADVICE),
    "MaxMemPerLimit": ("it asks for more memory per node or CPU than its partition gives", "ask for less --mem"),
    "SystemFailure": ("Slurm, a file system or the network failed", _ASK_ADMIN),
    "NonZeroExitCode": ("it ended with an exit code other than 0", "slurmwrap why shows more"),
    "RaisedSignal": ("a signal ended it", "slurmwrap why shows more"),
    "OutOfMemory": ("it ran out of memory", "slurmwrap why shows more"),
    "TimeLimit": ("it ran out of time", "ask for more --time, or let it resume from a checkpoint"),
    "InactiveLimit": ("it did nothing for too long", ""),
    "InvalidReason": ("Slurm gives no valid reason", ""),
    "InvaildReason": ("Slurm gives no valid reason", ""),
}
# Reasons that Slurm writes as a text instead of a name: beginning, explanation, way out.
_REASON_TEXTS: tuple[tuple[str, str, str], ...] = (
    (
        "nodes required for job are down",
        "nodes that it needs are down, drained, or reserved for partitions of a higher priority",
        "",
    ),
    ("launch failed requeued held", "it could not be started on its nodes and is held", "scontrol release"),
    ("user env retrieval failed", "your environment could not be read on its node; it is held", "scontrol release"),
    ("job requeued in held state", "it was requeued and is held", "release it with scontrol release"),
)
_LIMITED_RESOURCES = {
    "Cpu": "CPUs", "CPU": "CPUs", "GRES": "GPUs or other GRES", "Mem": "memory", "Memory": "memory", "Node": "nodes",
    "Jobs": "jobs", "Job": "jobs", "SubmitJobs": "submitted jobs", "SubmitJob": "submitted jobs",
    "Submit": "submitted jobs",
    "Wall": "run time", "WallDuration": "run time", "Energy": "energy", "License": "licenses", "BB": "burst buffer",
    "Billing": "billing units", "Unknown": "a resource",
}  # fmt: skip
_LIMIT = re.compile(
    r"(?P<who>QOS|Assoc)?(?P<kind>Grp|Max|Min)(?P<what>SubmitJobs?|WallDuration|Unknown|Memory|Energy|License|Billing|"
    r"Submit|Jobs|Job|Node|GRES|Wall|Cpu|CPU|Mem|BB)(?P<run>RunMin(?:ute)?s)?(?P<time>Minutes)?"
    r"(?P<per>Per(?:Job|Node|User|Account))?(?:Limit|NotSatisfied)?"
)
_PER = {"PerJob": "in one job", "PerNode": "on one node", "PerUser": "for one user", "PerAccount": "for one account"}


def explain_reason(reason: str) -> ReasonMeaning:
    """Explain a reason as squeue's %r prints it.

    Text after the name (", UnavailableNodes:n1") is ignored. An unknown reason is shown as it is.
    """
    name = re.split(r"[,( ]", reason, maxsplit=1)[0]
    if name in _TABLE:
        return ReasonMeaning(words=_TABLE[name][0], way_out=_TABLE[name][1])
    for begin, explanation, way_out in _REASON_TEXTS:
        if reason.lower().replace("_", " ").startswith(begin):
            return ReasonMeaning(words=explanation, way_out=way_out)
    found = _LIMIT.fullmatch(name)
    return _explain_limit(found) if found else ReasonMeaning(words=reason.replace("_", " ") or "Slurm gives no reason")


def is_never(meaning: ReasonMeaning) -> bool:
    """Return whether the job never starts as it is because of a limit for one job."""
    return meaning.way_out == _NEVER_ADVICE


def _explain_limit(found: re.Match[str]) -> ReasonMeaning:
    """Explain a limit: QOSMaxGRESPerUser → "its QOS allows no more GPUs or other GRES for one user now"."""
    whose = "your account" if found["who"] == "Assoc" else "its QOS"
    what = _LIMITED_RESOURCES[found["what"]]
    if found["time"] or found["run"]:
        what = f"minutes of {what}"
    per = f" {_PER[found['per']]}" if found["per"] else ""
    if found["kind"] == "Min":
        return ReasonMeaning(words=f"{whose} requires more {what}{per}", way_out="ask for more, or for another QOS")
    if found["kind"] == "Grp":
        return ReasonMeaning(words=f"the jobs of {whose} together get no more {what} now", way_out=_LIMIT_ADVICE)
    if found["per"] in ("PerJob", "PerNode") or found["what"] == "WallDuration":
        return ReasonMeaning(words=f"it asks for more {what}{per} than {whose} allows", way_out=_NEVER_ADVICE)
    return ReasonMeaning(words=f"{whose} allows no more {what}{per} now", way_out=_LIMIT_ADVICE)
