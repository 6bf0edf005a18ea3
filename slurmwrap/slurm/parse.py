"""Turns what scontrol says of nodes, switches, partitions and itself into records. Pure.

Proven on captures of 22.05.8, 24.11.5 and 26.05.5 (tests/data/slurm). A node's line is cut where free text begins:
an administrator's Reason may hold " State=IDLE".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from slurmwrap.cluster.hostlist import expand
from slurmwrap.cluster.node import Node, Partition, Switch, Topology

_FREE_TEXT = re.compile(r" (?:Reason|Comment|Extra)=")  # always the tail, in this order, in all three releases
_MARKS = {  # sinfo(1), NODE STATE CODES; older scontrols decorate the base state too
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT",
    "^": "REBOOT",
    "-": "PLANNED",
}
_SAME_FLAG = {"MAINT": "MAINTENANCE", "REBOOT_ISSUED": "REBOOT", "REBOOT_REQUESTED": "REBOOT", "FAILING": "FAIL"}


def parse_nodes(text: str) -> tuple[Node, ...]:
    """`scontrol show node -d -o`, in Slurm's order. Memory in MiB without what Slurm keeps for itself."""
    return tuple(_node(line) for line in text.splitlines() if line.startswith("NodeName="))


def _node(line: str) -> Node:
    # str.find per key: a quarter of the time of splitting all 50 fields, and 10,000 nodes are on gsub's way
    tail = _FREE_TEXT.search(line)
    head = line[: tail.start()] if tail else line
    state, flags = _state(_field(head, " State="))
    gpus, gpu_type = _gpus(_field(head, " Gres="))
    return Node(
        name=head[len("NodeName=") : head.find(" ")],
        state=state,
        flags=flags,
        cpus=number(_field(head, " CPUEfctv=") or _field(head, " CPUTot=")),
        cpus_alloc=number(_field(head, " CPUAlloc=")),
        mem_mib=number(_field(head, " RealMemory=")) - number(_field(head, " MemSpecLimit=")),
        mem_alloc_mib=number(_field(head, " AllocMem=")),
        gpus=gpus,
        gpus_used=_gpus(_field(head, " GresUsed="))[0],
        gpu_type=gpu_type,
        partitions=_list(_field(head, " Partitions=")),
        features=_list(_field(head, " ActiveFeatures=")),
        address=_field(head, " NodeAddr="),
        reason=line[tail.end() :].rstrip() if tail and tail.group() == " Reason=" else "",
    )


def _field(line: str, key: str) -> str:
    start = line.find(key)
    if start < 0:
        return ""
    start += len(key)
    end = line.find(" ", start)
    return line[start:] if end < 0 else line[start:end]


def number(text: str) -> int:
    """A whole number, 0 for anything else ("N/A", "")."""
    return int(text) if text.isdecimal() else 0


@lru_cache(maxsize=4096)
def _state(text: str) -> tuple[str, frozenset[str]]:
    """ "MIXED+DRAIN*" → MIXED, {DRAIN, NOT_RESPONDING}."""
    flags: set[str] = set()
    words: list[str] = []
    for part in text.split("+"):
        word = part.rstrip("".join(_MARKS))
        flags.update(_MARKS[mark] for mark in part[len(word) :])
        words.append(word)
    flags.update(_SAME_FLAG.get(word, word) for word in words[1:])
    return words[0], frozenset(flags)


@lru_cache(maxsize=4096)
def _gpus(text: str) -> tuple[int, str]:
    """ "gpu:a100:8(S:0-1),shard:16" → 8, "a100". Two types: joined with a comma."""
    count, types = 0, list[str]()
    for piece in re.sub(r"\([^)]*\)", "", text).split(","):
        words = piece.split(":")
        if words[0] == "gpu" and len(words) > 1:
            count += number(words[-1])
            types += [kind for kind in words[1:-1] if kind not in types]
    return count, ",".join(types)


@lru_cache(maxsize=1024)
def _list(text: str) -> tuple[str, ...]:
    return () if text in {"", "(null)"} else tuple(text.split(","))


def parse_topology(text: str) -> Topology:
    """`scontrol show topology`; lines of another grammar (topology/block) and notices are passed over."""
    switches = []
    for line in text.splitlines():
        if not line.startswith("SwitchName="):
            continue
        words = dict(word.partition("=")[::2] for word in line.split())
        switches.append(
            Switch(
                name=words["SwitchName"],
                level=number(words.get("Level", "")),
                nodes=expand(words.get("Nodes", "").replace("(null)", "")),
                children=expand(words.get("Switches", "").replace("(null)", "")),
            )
        )
    return Topology(switches=tuple(switches))


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """`scontrol show partition -o`, in Slurm's order."""
    return tuple(_partition(line) for line in text.splitlines() if line.startswith("PartitionName="))


def _partition(line: str) -> Partition:
    return Partition(
        name=line[len("PartitionName=") : line.find(" ")],
        default=_field(line, " Default=") == "YES",
        max_nodes=number(_field(line, " MaxNodes=")) or None,  # UNLIMITED
        max_cpus_per_node=number(_field(line, " MaxCPUsPerNode=")) or None,
        max_mem_mib_per_node=number(_field(line, " MaxMemPerNode=")) or None,
        max_mem_mib_per_cpu=number(_field(line, " MaxMemPerCPU=")) or None,
        max_time_s=parse_duration(_field(line, " MaxTime=")),
    )


def parse_duration(text: str) -> int | None:
    """ "[days-]hours:minutes:seconds" or "minutes:seconds" in seconds; None for UNLIMITED, NOT_SET, Partition_Limit."""
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdecimal() for part in parts) or (dash and not days.isdecimal()):
        return None
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return seconds + int(days or 0) * 86400


def parse_config(text: str) -> Mapping[str, str]:
    """`scontrol show config`: "ClusterName             = lab" and the rest."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}
