"""Parse `scontrol -o show assoc_mgr users=NAME flags=assoc,qos` into Quotas. Pure.

By default an ordinary user sees all of it; with PrivateData=usage the lines of the accounts are missing (22.05.8), and
so are their limits. "cpu=32(8)" is a limit and the used part of it, "N" means no limit; memory in MiB, times in
minutes. Slurm copies an account's limits per job to its children, but not its group limits: these are on the line of
each parent account. A QOS's limit per user or account is printed only on the lines of users or accounts that have used
the QOS; it is the same for all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from slurmwrap.model.limits import Association, Limits, Qos, Quotas, strictest

_USED = r"(?a)(\d+|N)(?:\((\d+)\))?"
_BRACES = r"(\S+)=\{([^}]*)\}"

Tres = Mapping[str, tuple[int | None, int]]  # name -> (limit, used)


def enforced(config: Mapping[str, str]) -> bool:
    """Return whether slurmctld enforces limits (AccountingStorageEnforce=limits, safe, all) in the parsed `config`."""
    settings = {word.strip() for word in config.get("AccountingStorageEnforce", "").lower().split(",")}
    return not settings.isdisjoint({"limits", "safe", "all"})


def parse_limits(text: str, user: str, uid: int) -> Quotas:
    """Return the quotas of `user` from scontrol's output, which may also contain answers to other requests."""
    lines = text.splitlines()
    # Newer releases end an association with an administrator's Comment, which may contain any text.
    rows = [line.partition(" Comment=")[0] for line in lines if line.startswith("ClusterName=") and " Account=" in line]
    accounts = {_read_value(row, " Account="): row for row in rows if " UserName= " in row}
    user_rows = (row for row in rows if f" UserName={user}(" in row)
    return Quotas(
        associations=tuple(_parse_association(row, accounts) for row in user_rows),
        qos=tuple(_parse_qos(line, uid) for line in lines if line.startswith("QOS=")),
    )


def _parse_association(row: str, accounts: Mapping[str, str]) -> Association:
    account = _read_value(row, " Account=")
    above = [_parse_group_limits(line) for line in _walk_up_accounts(account, accounts)]
    return Association(
        account=account,
        partition=_read_value(row, " Partition="),
        default=" DefAssoc=Yes" in row,
        limits=strictest(_parse_job_limits(row), _parse_group_limits(row), *above),
    )


def _walk_up_accounts(account: str, accounts: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of the account and of all its parents, each once."""
    visited = set[str]()
    while account in accounts and account not in visited:
        visited.add(account)
        yield accounts[account]
        account = _read_value(accounts[account], " ParentAccount=").partition("(")[0]


def _parse_qos(line: str, uid: int) -> Qos:
    head, _, users = line.partition(" User Limits=")
    head, _, groups = head.partition(" Account Limits=")
    # " 1003={…}", in newer releases " alice(1003)={…}"; there may be thousands of other users on the line.
    own_entry = re.search(rf"[ (]{uid}\)?=\{{([^}}]*)\}}", users)
    # Another user's entry shows the same limit; this user has then used nothing of it.
    entry = own_entry or re.search(_BRACES, users)
    limits_text = entry.group(entry.lastindex or 0) if entry else ""
    return Qos(
        name=head[len("QOS=") : head.find("(")],
        limits=strictest(
            _parse_job_limits(head),
            _parse_group_limits(head),
            _parse_limits_per_holder(limits_text, "PU", fresh=own_entry is None),
        ),
        accounts={name: _parse_limits_per_holder(words, "PA") for name, words in re.findall(_BRACES, groups)},
        used=own_entry is not None,
    )


def _parse_limits_per_holder(text: str, whose: str, *, fresh: bool = False) -> Limits:
    """Return a QOS's limits of one user ("PU") or account ("PA"). `fresh`: ignore the use, which is another user's."""
    limits_in_use, running = (
        _subtract_used(_parse_tres(text, f"{key}{whose}="), fresh=fresh) for key in ("MaxTRES", "MaxTRESRunMins")
    )
    return strictest(limits_in_use, _convert_to_minutes(running))


def _parse_job_limits(row: str) -> Limits:
    """Return the limits of one job, in total and per node."""
    job, node, least = _parse_tres(row, " MaxTRESPJ="), _parse_tres(row, " MaxTRESPN="), _parse_tres(row, " MinTRESPJ=")
    minutes = _parse_tres(row, " MaxTRESMinsPJ=")
    return Limits(
        cpus_per_job=_get_limit(job, "cpu"),
        mem_mib_per_job=_get_limit(job, "mem"),
        cpus_per_node=_get_limit(node, "cpu"),
        mem_mib_per_node=_get_limit(node, "mem"),
        cpu_minutes_left=_get_limit(minutes, "cpu"),
        mem_mib_minutes_left=_get_limit(minutes, "mem"),
        least_cpus_per_job=_get_limit(least, "cpu"),
        least_mem_mib_per_job=_get_limit(least, "mem"),
        billed=any(_get_limit(tres, "billing") is not None for tres in (job, node, minutes)),
    )


def _parse_group_limits(row: str) -> Limits:
    """Return the limits of all jobs together that the row applies to."""
    limits_in_use, spent, running = (
        _subtract_used(_parse_tres(row, f" {key}=")) for key in ("GrpTRES", "GrpTRESMins", "GrpTRESRunMins")
    )
    return strictest(limits_in_use, _convert_to_minutes(spent), _convert_to_minutes(running))


def _convert_to_minutes(limits: Limits) -> Limits:
    return Limits(cpu_minutes_left=limits.cpus_left, mem_mib_minutes_left=limits.mem_mib_left, billed=limits.billed)


def _subtract_used(tres: Tres, *, fresh: bool = False) -> Limits:
    def left(name: str) -> int | None:
        limit, used = tres.get(name, (None, 0))
        return None if limit is None else max(0, limit - (0 if fresh else used))

    return Limits(cpus_left=left("cpu"), mem_mib_left=left("mem"), billed=left("billing") is not None)


def _get_limit(tres: Tres, name: str) -> int | None:
    return tres.get(name, (None, 0))[0]


def _parse_tres(row: str, key: str) -> Tres:
    """ "cpu=120(14),mem=N(7)" → {"cpu": (120, 14), "mem": (None, 7)}."""
    pairs = (piece.rpartition("=") for piece in _read_value(row, key).split(","))
    return dict(_parse_numbers((name, value) for name, equals, value in pairs if equals))


def _parse_numbers(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, tuple[int | None, int]]]:
    for name, value in pairs:
        if match := re.fullmatch(_USED, value):
            yield name, (None if match[1] == "N" else int(match[1]), int(match[2] or 0))


def _read_value(row: str, key: str) -> str:
    start = row.find(key)
    if start < 0:
        return ""
    start += len(key)
    end = row.find(" ", start)
    return row[start:] if end < 0 else row[start:end]
