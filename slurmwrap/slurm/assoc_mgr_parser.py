"""Turns `scontrol -o show assoc_mgr users=NAME flags=assoc,qos` into Quotas. Pure.

An ordinary user sees all of it by default; with PrivateData=usage the accounts' own lines are missing (22.05.8), and so
their limits. "cpu=32(8)" is a limit and what is used of it, "N" no limit; memory in MiB, times in minutes. Limits per
job come down from the accounts by themselves, those of a group do not: each account above has its own. Slurm shows a
QOS's limit per user or account only on the lines of those who have used it; it is the same for all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from slurmwrap.model.limits import Association, Limits, Qos, Quotas, strictest

_USED = r"(?a)(\d+|N)(?:\((\d+)\))?"
_BRACES = r"(\S+)=\{([^}]*)\}"

Tres = Mapping[str, tuple[int | None, int]]  # name -> (limit, used)


def enforced(config: Mapping[str, str]) -> bool:
    """Whether slurmctld keeps limits (AccountingStorageEnforce=limits, safe, all); `config` as parse_config reads."""
    words = {word.strip() for word in config.get("AccountingStorageEnforce", "").lower().split(",")}
    return not words.isdisjoint({"limits", "safe", "all"})


def parse_limits(text: str, user: str, uid: int) -> Quotas:
    """The quotas of `user` out of scontrol's words, which may hold answers to other requests too."""
    lines = text.splitlines()
    # newer releases end an association with an administrator's Comment, which may hold anything
    rows = [line.partition(" Comment=")[0] for line in lines if line.startswith("ClusterName=") and " Account=" in line]
    accounts = {_word(row, " Account="): row for row in rows if " UserName= " in row}
    mine = (row for row in rows if f" UserName={user}(" in row)
    return Quotas(
        associations=tuple(_association(row, accounts) for row in mine),
        qos=tuple(_qos(line, uid) for line in lines if line.startswith("QOS=")),
    )


def _association(row: str, accounts: Mapping[str, str]) -> Association:
    account = _word(row, " Account=")
    above = [_group(line) for line in _upwards(account, accounts)]
    return Association(
        account=account,
        partition=_word(row, " Partition="),
        default=" DefAssoc=Yes" in row,
        limits=strictest(_job(row), _group(row), *above),
    )


def _upwards(account: str, accounts: Mapping[str, str]) -> Iterator[str]:
    """The lines of the account and of those above it, each once."""
    seen = set[str]()
    while account in accounts and account not in seen:
        seen.add(account)
        yield accounts[account]
        account = _word(accounts[account], " ParentAccount=").partition("(")[0]


def _qos(line: str, uid: int) -> Qos:
    head, _, people = line.partition(" User Limits=")
    head, _, groups = head.partition(" Account Limits=")
    # " 1003={…}", newer " alice(1003)={…}"; thousands of others may be next to it
    ours = re.search(rf"[ (]{uid}\)?=\{{([^}}]*)\}}", people)
    # Gives the limit too, with nothing of it used.
    anybodys = ours or re.search(_BRACES, people)
    told = anybodys.group(anybodys.lastindex or 0) if anybodys else ""
    return Qos(
        name=head[len("QOS=") : head.find("(")],
        limits=strictest(_job(head), _group(head), _each(told, "PU", fresh=ours is None)),
        accounts={name: _each(words, "PA") for name, words in re.findall(_BRACES, groups)},
        used=ours is not None,
    )


def _each(words: str, whose: str, *, fresh: bool = False) -> Limits:
    """Of one user ("PU") or account ("PA") in a QOS; `fresh`: the words are about another, who may hold as much."""
    held, running = (_left(_tres(words, f"{key}{whose}="), fresh=fresh) for key in ("MaxTRES", "MaxTRESRunMins"))
    return strictest(held, _minutes(running))


def _job(row: str) -> Limits:
    """Of one job, in all and on one node."""
    job, node, least = _tres(row, " MaxTRESPJ="), _tres(row, " MaxTRESPN="), _tres(row, " MinTRESPJ=")
    minutes = _tres(row, " MaxTRESMinsPJ=")
    return Limits(
        cpus_per_job=_limit(job, "cpu"),
        mem_mib_per_job=_limit(job, "mem"),
        cpus_per_node=_limit(node, "cpu"),
        mem_mib_per_node=_limit(node, "mem"),
        cpu_minutes_left=_limit(minutes, "cpu"),
        mem_mib_minutes_left=_limit(minutes, "mem"),
        least_cpus_per_job=_limit(least, "cpu"),
        least_mem_mib_per_job=_limit(least, "mem"),
        billed=any(_limit(tres, "billing") is not None for tres in (job, node, minutes)),
    )


def _group(row: str) -> Limits:
    """Of all jobs together that the row is about."""
    held, spent, running = (_left(_tres(row, f" {key}=")) for key in ("GrpTRES", "GrpTRESMins", "GrpTRESRunMins"))
    return strictest(held, _minutes(spent), _minutes(running))


def _minutes(limits: Limits) -> Limits:
    return Limits(cpu_minutes_left=limits.cpus_left, mem_mib_minutes_left=limits.mem_mib_left, billed=limits.billed)


def _left(tres: Tres, *, fresh: bool = False) -> Limits:
    def left(name: str) -> int | None:
        limit, used = tres.get(name, (None, 0))
        return None if limit is None else max(0, limit - (0 if fresh else used))

    return Limits(cpus_left=left("cpu"), mem_mib_left=left("mem"), billed=left("billing") is not None)


def _limit(tres: Tres, name: str) -> int | None:
    return tres.get(name, (None, 0))[0]


def _tres(row: str, key: str) -> Tres:
    """ "cpu=120(14),mem=N(7)" → {"cpu": (120, 14), "mem": (None, 7)}."""
    pairs = (piece.rpartition("=") for piece in _word(row, key).split(","))
    return dict(_numbers((name, value) for name, equals, value in pairs if equals))


def _numbers(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, tuple[int | None, int]]]:
    for name, value in pairs:
        if match := re.fullmatch(_USED, value):
            yield name, (None if match[1] == "N" else int(match[1]), int(match[2] or 0))


def _word(row: str, key: str) -> str:
    start = row.find(key)
    if start < 0:
        return ""
    start += len(key)
    end = row.find(" ", start)
    return row[start:] if end < 0 else row[start:end]
