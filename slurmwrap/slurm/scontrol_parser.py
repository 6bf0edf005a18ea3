"""Turns what scontrol says of nodes, partitions, reservations and itself into records. Pure.

Proven on captures of 22.05.8, 24.11.5 and 26.05.5 (tests/data/slurm). A line is cut where free text begins: an
administrator's Reason may hold " State=IDLE". A node's Comment or Extra and a reservation's Comment may even hold line
breaks, which scontrol prints as they are (24.11, 26.05): of two lines with one name the first counts. (Only who may
change the node or the reservation itself can write them.) The network's lines: slurm/snapshot.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from slurmwrap.model.cluster import Node, Partition, Reservation
from slurmwrap.model.hostlist import names_in

_GRES = re.compile(r"([^,()\s]+)(?:\(([^)]*)\))?")
# Always the tail, in this order, in all three releases.
_FREE_TEXT = re.compile(r" (?:Reason|Comment|Extra)=")
# sinfo(1), NODE STATE CODES; older scontrols decorate the base state too
_MARKS = {
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
MAX_SWITCH_WAIT_S = 300  # slurm.conf(5)
# Of one node: beyond any, and what is no number of GPUs must not fill the memory.
MAX_GPUS = 1024
_SAME_FLAG = {"MAINT": "MAINTENANCE", "REBOOT_ISSUED": "REBOOT", "REBOOT_REQUESTED": "REBOOT", "FAILING": "FAIL"}


def parse_nodes(text: str) -> tuple[Node, ...]:
    """`scontrol show node -d -o`, in Slurm's order. Memory in MiB without what Slurm keeps for itself."""
    nodes = [_parse_node(line) for line in text.split("\n") if line.startswith("NodeName=")]
    first = {node.name: node for node in reversed(nodes)}
    return tuple(nodes) if len(first) == len(nodes) else tuple(n for n in nodes if first[n.name] is n)


def _parse_node(line: str) -> Node:
    # str.rfind per key: a quarter of the time of splitting all 50 fields, and 10,000 nodes are on gsub's way
    # Which is on every line, and behind the features.
    tail = _FREE_TEXT.search(line, max(0, line.find(" Weight=")))
    head = line[: tail.start()] if tail else line
    cut = head.rfind(" Partitions=")
    # Names of partitions may hold blanks, and are behind what is read here.
    body = head[:cut] if cut >= 0 else head
    state, flags = parse_state(_read_last_field(body, " State="))
    gpus, gpu_type, gpu_sockets = parse_gres(_read_last_field(body, " Gres="))
    gpus_used, gpus_used_at = parse_gres_used(_read_last_field(body, " GresUsed="))
    return Node(
        name=head[len("NodeName=") : head.find(" ")],
        state=state,
        flags=flags,
        cpus=parse_number(_read_first_field(head, " CPUEfctv=") or _read_first_field(head, " CPUTot=")),
        cpus_alloc=parse_number(_read_first_field(head, " CPUAlloc=")),
        mem_mib=parse_number(_read_last_field(body, " RealMemory="))
        - parse_number(_read_first_field(body[body.rfind(" RealMemory=") :], " MemSpecLimit=")),
        mem_alloc_mib=parse_number(_read_last_field(body, " AllocMem=")),
        gpus=gpus,
        gpus_used=gpus_used,
        gpu_type=gpu_type,
        partitions=_list(_read_first_field(head[cut:], " Partitions=") if cut >= 0 else ""),
        features=_list(_read_last_field(body, " ActiveFeatures=")),
        sockets=parse_number(_read_last_field(body, " Sockets=")) or 1,
        gpu_sockets=gpu_sockets,
        gpus_used_at=gpus_used_at,
        weight=_parse_weight(_read_last_field(body, " Weight=")),
        address=_read_last_field(body, " NodeAddr="),
        reason=line[tail.end() :].rstrip() if tail and tail.group() == " Reason=" else "",
    )


def _read_first_field(line: str, key: str) -> str:
    """Value of the first `key`: for what Slurm prints before any text that someone chose."""
    return _read_value(line, line.find(key), key)


def _read_last_field(line: str, key: str) -> str:
    """Value of the last `key`: for what Slurm prints behind features and lists of accounts, which may hold blanks."""
    return _read_value(line, line.rfind(key), key)


def _read_value(line: str, start: int, key: str) -> str:
    if start < 0:
        return ""
    start += len(key)
    end = line.find(" ", start)
    return line[start:] if end < 0 else line[start:end]


def parse_number(text: str) -> int:
    """A whole number, 0 for anything else ("N/A", "")."""
    return int(text) if text.isdecimal() else 0


@lru_cache(maxsize=4096)
def parse_state(text: str) -> tuple[str, frozenset[str]]:
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
def parse_gres(text: str) -> tuple[int, str, tuple[int, ...]]:
    """ "gpu:a100:8(S:0-1),shard:16" → 8, "a100", sockets of the GPUs by index. Two types: joined with a comma.

    A piece with several sockets is spread evenly over them in order, as GPUs are numbered on the usual boards: Slurm
    says no more. () where a piece names none, or its GPUs do not divide.
    """
    count, types, sockets = 0, list[str](), list[int]()
    for words, note in _split_gpu_pieces(text):
        here, (kind, _, listed) = parse_number(words[-1]), note.partition(":")
        on = _parse_indexes(listed) if kind == "S" and here <= MAX_GPUS else ()
        sockets += [on[i * len(on) // here] for i in range(here)] if on and here % len(on) == 0 else []
        types += [word for word in words[1:-1] if word not in types]
        count += here
    return count, ",".join(types), tuple(sockets) if len(sockets) == count else ()


@lru_cache(maxsize=4096)
def parse_gres_used(text: str) -> tuple[int, tuple[int, ...]]:
    """ "gpu:a100:3(IDX:0-1,5)" → 3, (0, 1, 5); () where Slurm does not say which."""
    count, at = 0, list[int]()
    for words, note in _split_gpu_pieces(text):
        count += parse_number(words[-1])
        at += _parse_indexes(note.partition(":")[2]) if note.startswith("IDX:") else ()
    return count, tuple(sorted(at)) if len(at) == count else ()


def _split_gpu_pieces(text: str) -> Iterator[tuple[list[str], str]]:
    """The GPUs of a GRES list: (["gpu", "a100", "8"], "S:0-1"); other resources are passed over."""
    for piece, note in _GRES.findall(text):
        words = piece.split(":")
        if words[0] == "gpu" and len(words) > 1:
            yield words, note


def _parse_indexes(text: str) -> tuple[int, ...]:
    """ "0-1,5" → 0, 1, 5; () for "N/A" and all else that is no list of small numbers."""
    found = list[int]()
    for piece in text.split(","):
        first, dash, last = piece.partition("-")
        low, high = parse_number(first), parse_number(last if dash else first)
        if not first.isdecimal() or (dash and not last.isdecimal()) or not low <= high < MAX_GPUS:
            return ()
        found += range(low, high + 1)
    return tuple(found)


def _parse_weight(text: str) -> int:
    return int(text) if text.isdecimal() else 1


@lru_cache(maxsize=1024)
def _list(text: str) -> tuple[str, ...]:
    return () if text in {"", "(null)"} else tuple(text.split(","))


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """`scontrol show partition -o`, in Slurm's order."""
    return tuple(_parse_partition(line) for line in text.split("\n") if line.startswith("PartitionName="))


def _parse_partition(line: str) -> Partition:
    # a name may hold blanks: scontrol create takes it (22.05)
    name, known, _ = line[len("PartitionName=") :].partition(" AllowGroups=")
    name = name if known else name.partition(" ")[0]
    # Behind the lists of groups and accounts, which may hold blanks too.
    line = line[max(0, line.rfind(" Default=")) :]
    return Partition(
        name=name,
        default=_read_first_field(line, " Default=") == "YES",
        max_nodes=parse_number(_read_first_field(line, " MaxNodes=")) or None,  # UNLIMITED
        max_cpus_per_node=parse_number(_read_first_field(line, " MaxCPUsPerNode=")) or None,
        max_mem_mib_per_node=parse_number(_read_first_field(line, " MaxMemPerNode=")) or None,
        max_mem_mib_per_cpu=parse_number(_read_first_field(line, " MaxMemPerCPU=")) or None,
        max_time_s=parse_duration(_read_first_field(line, " MaxTime=")),
        min_nodes=max(1, parse_number(_read_first_field(line, " MinNodes="))),
        # 26.05 says Exclusive=NODE where older releases say OverSubscribe=EXCLUSIVE
        exclusive=_read_first_field(line, " OverSubscribe=") == "EXCLUSIVE"
        or "NODE" in _read_first_field(line, " Exclusive=").split(","),
        qos=_read_first_field(line, " QoS=").replace("N/A", ""),
        state=_read_first_field(line, " State=") or "UP",
        total_nodes=parse_number(_read_first_field(line, " TotalNodes=")) or None,
        topology=_read_first_field(line, " Topology=").replace("(null)", ""),
    )


def parse_reservations(text: str) -> tuple[Reservation, ...]:
    """`scontrol show reservation -o` with times in Unix seconds, in Slurm's order. None: ()."""
    found: dict[str, Reservation] = {}
    for line in text.split("\n"):
        name, _, told = line.partition(" ")
        # the next field in all three releases: a comment's second line would have to know it
        if name.startswith("ReservationName=") and told.startswith("StartTime="):
            one = _parse_reservation(line.partition(" Comment=")[0])
            found.setdefault(one.name, one)
    return tuple(found.values())


def _parse_reservation(line: str) -> Reservation:
    return Reservation(
        name=line[len("ReservationName=") : line.find(" ")],
        start=parse_number(_read_first_field(line, " StartTime=")),
        end=parse_number(_read_first_field(line, " EndTime=")),
        nodes=names_in(_read_first_field(line, " Nodes=")),
        flags=frozenset(_read_first_field(line, " Flags=").split(",")) - {"", "(null)"},
        cpus=next(
            (parse_number(t[4:]) for t in _read_first_field(line, " TRES=").split(",") if t.startswith("cpu=")), 0
        ),
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
    """`scontrol show config`: "ClusterName             = lab" and the rest.

    What Slurm counts (SlurmctldHost[0]; since 24.11 the hooks, Prolog[0] and Prolog[1]) is one key without the number,
    its values in order with commas between: no one has to know which release counts what.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        key, several, _ = name.strip().partition("[")
        if equals:
            found[key] = f"{found[key]},{value.strip()}" if several and key in found else value.strip()
    return found


def release_of(config: Mapping[str, str]) -> tuple[int, int] | None:
    """(22, 5) of SLURM_VERSION = 22.05.8; None where Slurm did not say."""
    return parse_release(config.get("SLURM_VERSION", ""))


def parse_release(version: str) -> tuple[int, int] | None:
    """(22, 5) of Slurm's "22.05.8" and of PySlurm's "22.5.3"; None for what is no release."""
    found = re.match(r"(\d+)\.(\d+)", version, re.ASCII)
    return (int(found[1]), int(found[2])) if found else None


def parse_max_switch_wait_s(config: Mapping[str, str]) -> int:
    """How long Slurm lets --switches=N@t wait at most: SchedulerParameters=max_switch_wait, or 300 s."""
    for word in config.get("SchedulerParameters", "").split(","):
        key, _, value = word.partition("=")
        if key == "max_switch_wait" and value.isdecimal():
            return int(value)
    return MAX_SWITCH_WAIT_S
