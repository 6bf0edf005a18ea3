"""Parse scontrol's output about nodes, partitions, reservations and the configuration into records. Pure.

Tested on captures of 22.05.8, 24.11.5 and 26.05.5 (tests/data/slurm). A line is cut where free text begins, because an
administrator's Reason may contain " State=IDLE". A node's Comment or Extra and a reservation's Comment may even contain
line breaks, which scontrol prints unchanged (24.11, 26.05); of two lines with the same name the first counts. (Only
users who may change the node or the reservation can write these texts.) The network is parsed in slurm/snapshot.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from slurmwrap.model.cluster import Node, Partition, Reservation
from slurmwrap.model.hostlist import names_in

_SHARDS = re.compile(r"(?:^|,)shard(?::[^,:()]+)?:(\d+)")
_GRES = re.compile(r"([^,()\s]+)(?:\(([^)]*)\))?")
# These fields always come last, in this order, in all three releases.
_FREE_TEXT = re.compile(r" (?:Reason|Comment|Extra)=")
# sinfo(1), NODE STATE CODES; older releases of scontrol print the marks after the base state as well.
_STATE_MARKS = {
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
# Maximum number of GPUs per node: more than any node has, so that a wrong number cannot fill the memory.
MAX_GPUS = 1024
# The fields of a partition before Default=, in all three releases. Names of accounts may contain blanks.
_ACCESS = re.compile(r" AllowGroups=(.*?) (Allow|Deny)Accounts=(.*?) (Allow|Deny)Qos=(.*?) AllocNodes=")
_UNRESTRICTED = ("ALL", "", "(null)")
_FLAG_SYNONYMS = {"MAINT": "MAINTENANCE", "REBOOT_ISSUED": "REBOOT", "REBOOT_REQUESTED": "REBOOT", "FAILING": "FAIL"}


def parse_nodes(text: str) -> tuple[Node, ...]:
    """Parse `scontrol show node -d -o`, in Slurm's order. Memory in MiB without the part reserved for the system."""
    nodes = [_parse_node(line) for line in text.split("\n") if line.startswith("NodeName=")]
    first = {node.name: node for node in reversed(nodes)}
    return tuple(nodes) if len(first) == len(nodes) else tuple(n for n in nodes if first[n.name] is n)


def _parse_node(line: str) -> Node:
    # str.rfind per key takes a quarter of the time of splitting all 50 fields; gsub may read 10,000 nodes.
    # Weight is on every line and comes after the features, so free text is searched from there.
    tail = _FREE_TEXT.search(line, max(0, line.find(" Weight=")))
    head = line[: tail.start()] if tail else line
    cut = head.rfind(" Partitions=")
    # Partition names may contain blanks. They come after all fields that are read from `body`.
    body = head[:cut] if cut >= 0 else head
    state, flags = parse_state(_read_last_field(body, " State="))
    gres = _read_last_field(body, " Gres=")
    gpus, gpu_type, gpu_sockets = parse_gres(gres)
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
        shards=sum(map(int, _SHARDS.findall(gres))) if "shard" in gres else 0,
        partitions=_split_list(_read_first_field(head[cut:], " Partitions=") if cut >= 0 else ""),
        features=_split_list(_read_last_field(body, " ActiveFeatures=")),
        sockets=parse_number(_read_last_field(body, " Sockets=")) or 1,
        gpu_sockets=gpu_sockets,
        gpus_used_at=gpus_used_at,
        weight=_parse_weight(_read_last_field(body, " Weight=")),
        address=_read_last_field(body, " NodeAddr="),
        reason=line[tail.end() :].rstrip() if tail and tail.group() == " Reason=" else "",
    )


def parse_boot_times(text: str) -> dict[str, float]:
    """Return BootTime by node from `scontrol show node -o`, which prints it before any text chosen by people."""
    lines = [line for line in text.split("\n") if line.startswith("NodeName=")]
    found = {line[len("NodeName=") : line.find(" ")]: _read_first_field(line, " BootTime=") for line in lines}
    return {node: float(value) for node, value in found.items() if value.isdecimal()}


def _read_first_field(line: str, key: str) -> str:
    """Return the value of the first `key`, for fields that Slurm prints before any text chosen by users."""
    return _read_value(line, line.find(key), key)


def _read_last_field(line: str, key: str) -> str:
    """Return the value of the last `key`, for fields after the features and account lists, which may contain blanks."""
    return _read_value(line, line.rfind(key), key)


def _read_value(line: str, start: int, key: str) -> str:
    if start < 0:
        return ""
    start += len(key)
    end = line.find(" ", start)
    return line[start:] if end < 0 else line[start:end]


def parse_number(text: str) -> int:
    """Return a whole number; 0 for any other text ("N/A", "")."""
    return int(text) if text.isdecimal() else 0


@lru_cache(maxsize=4096)
def parse_state(text: str) -> tuple[str, frozenset[str]]:
    """Split a node state into base state and flags: "MIXED+DRAIN*" → MIXED, {DRAIN, NOT_RESPONDING}."""
    flags: set[str] = set()
    words: list[str] = []
    for part in text.split("+"):
        word = part.rstrip("".join(_STATE_MARKS))
        flags.update(_STATE_MARKS[mark] for mark in part[len(word) :])
        words.append(word)
    flags.update(_FLAG_SYNONYMS.get(word, word) for word in words[1:])
    return words[0], frozenset(flags)


@lru_cache(maxsize=4096)
def parse_gres(text: str) -> tuple[int, str, tuple[int, ...]]:
    """Parse GRES: "gpu:a100:8(S:0-1),shard:16" → 8, "a100", socket of each GPU by index. Types are joined by ",".

    GPUs of an entry with several sockets are assigned evenly in order, as they are numbered on the usual boards: Slurm
    gives no more detail. No sockets, (), if an entry names none or its GPUs cannot be divided evenly.
    """
    count, types, sockets = 0, list[str](), list[int]()
    for words, note in _split_gpu_pieces(text):
        piece_count, (kind, _, listed) = parse_number(words[-1]), note.partition(":")
        sockets_of_piece = _parse_indexes(listed) if kind == "S" and piece_count <= MAX_GPUS else ()
        sockets += (
            [sockets_of_piece[i * len(sockets_of_piece) // piece_count] for i in range(piece_count)]
            if sockets_of_piece and piece_count % len(sockets_of_piece) == 0
            else []
        )
        types += [word for word in words[1:-1] if word not in types]
        count += piece_count
    return count, ",".join(types), tuple(sockets) if len(sockets) == count else ()


@lru_cache(maxsize=4096)
def parse_gres_used(text: str) -> tuple[int, tuple[int, ...]]:
    """Parse GresUsed: "gpu:a100:3(IDX:0-1,5)" → 3, (0, 1, 5); () when Slurm does not print the indexes."""
    count, indexes = 0, list[int]()
    for words, note in _split_gpu_pieces(text):
        count += parse_number(words[-1])
        indexes += _parse_indexes(note.partition(":")[2]) if note.startswith("IDX:") else ()
    return count, tuple(sorted(indexes)) if len(indexes) == count else ()


def _split_gpu_pieces(text: str) -> Iterator[tuple[list[str], str]]:
    """Yield the GPUs of a GRES list as (["gpu", "a100", "8"], "S:0-1"); other resources are skipped."""
    for piece, note in _GRES.findall(text):
        words = piece.split(":")
        if words[0] == "gpu" and len(words) > 1:
            yield words, note


def _parse_indexes(text: str) -> tuple[int, ...]:
    """Parse an index list: "0-1,5" → 0, 1, 5; () for "N/A" and everything else that is no list of small numbers."""
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
def _split_list(text: str) -> tuple[str, ...]:
    return () if text in {"", "(null)"} else tuple(text.split(","))


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """Parse `scontrol show partition -o`, in Slurm's order."""
    return tuple(_parse_partition(line) for line in text.split("\n") if line.startswith("PartitionName="))


def _parse_partition(line: str) -> Partition:
    # The name may contain blanks: scontrol create accepts them (22.05).
    name, found, _ = line[len("PartitionName=") :].partition(" AllowGroups=")
    name = name if found else name.partition(" ")[0]
    # Start after the lists of groups and accounts, which may contain blanks too.
    start = max(0, line.rfind(" Default="))
    access = _ACCESS.search(line[:start])
    line = line[start:]
    return Partition(
        name=name,
        default=_read_first_field(line, " Default=") == "YES",
        max_nodes=parse_number(_read_first_field(line, " MaxNodes=")) or None,  # UNLIMITED
        max_cpus_per_node=parse_number(_read_first_field(line, " MaxCPUsPerNode=")) or None,
        max_mem_mib_per_node=parse_number(_read_first_field(line, " MaxMemPerNode=")) or None,
        max_mem_mib_per_cpu=parse_number(_read_first_field(line, " MaxMemPerCPU=")) or None,
        max_time_s=parse_duration(_read_first_field(line, " MaxTime=")),
        min_nodes=max(1, parse_number(_read_first_field(line, " MinNodes="))),
        # 26.05 prints Exclusive=NODE where older releases print OverSubscribe=EXCLUSIVE.
        exclusive=_read_first_field(line, " OverSubscribe=") == "EXCLUSIVE"
        or "NODE" in _read_first_field(line, " Exclusive=").split(","),
        qos=_read_first_field(line, " QoS=").replace("N/A", ""),
        state=_read_first_field(line, " State=") or "UP",
        total_nodes=parse_number(_read_first_field(line, " TotalNodes=")) or None,
        topology=_read_first_field(line, " Topology=").replace("(null)", ""),
        priority_tier=parse_number(_read_first_field(line, " PriorityTier=") or "1"),
        preempt_mode=_read_first_field(line, " PreemptMode=") or "OFF",
        **_parse_access(access),
        hidden=_read_first_field(line, " Hidden=") == "YES",
        root_only=_read_first_field(line, " RootOnly=") == "YES",
        needs_reservation=_read_first_field(line, " ReqResv=") == "YES",
        default_time_s=parse_duration(_read_first_field(line, " DefaultTime=")),
        billing_weights=_parse_weights(_read_first_field(line, " TRESBillingWeights=")),
    )


def _parse_access(found: re.Match[str] | None) -> dict[str, tuple[str, ...]]:
    """Return the fields of Partition that say who may use it, without those that are not restricted."""
    if found is None:
        return {}
    groups, accounts_kind, accounts, qos_kind, qos = found.groups()
    named = {
        "allow_groups": groups,
        f"{accounts_kind.lower()}_accounts": accounts,
        f"{qos_kind.lower()}_qos": qos,
    }
    return {name: tuple(value.split(",")) for name, value in named.items() if value not in _UNRESTRICTED}


def _parse_weights(text: str) -> tuple[tuple[str, float], ...]:
    """Parse "CPU=1.0,Mem=0.25G,GRES/gpu=2.0"; a unit as G after a weight of memory is part of its name."""
    found = (re.fullmatch(r"([^=]+)=([0-9.]+)([KMGTP]?)", word) for word in text.split(","))
    return tuple((f"{one[1].lower()}{one[3]}", float(one[2])) for one in found if one is not None)


def parse_reservations(text: str) -> tuple[Reservation, ...]:
    """Parse `scontrol show reservation -o` with times in Unix seconds, in Slurm's order; () if there are none."""
    found: dict[str, Reservation] = {}
    for line in text.split("\n"):
        name, _, fields = line.partition(" ")
        # StartTime is the next field in all three releases; the second line of a comment would have to imitate it.
        if name.startswith("ReservationName=") and fields.startswith("StartTime="):
            reservation = _parse_reservation(line.partition(" Comment=")[0])
            found.setdefault(reservation.name, reservation)
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
    """Convert "[days-]hours:minutes:seconds" or "minutes:seconds" to seconds; None for UNLIMITED, NOT_SET etc."""
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdecimal() for part in parts) or (dash and not days.isdecimal()):
        return None
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return seconds + int(days or 0) * 86400


def parse_config(text: str) -> Mapping[str, str]:
    """Parse `scontrol show config`: lines such as "ClusterName             = lab".

    Numbered keys (SlurmctldHost[0]; since 24.11 the hooks, Prolog[0] and Prolog[1]) become one key without the number,
    with their values in order, separated by commas. Callers need not know which release numbers which key.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        key, numbered, _ = name.strip().partition("[")
        if equals:
            found[key] = f"{found[key]},{value.strip()}" if numbered and key in found else value.strip()
    return found


def get_slurm_release(config: Mapping[str, str]) -> tuple[int, int] | None:
    """Return (22, 5) for SLURM_VERSION = 22.05.8; None when Slurm did not print its version."""
    return parse_release(config.get("SLURM_VERSION", ""))


def parse_release(version: str) -> tuple[int, int] | None:
    """Return (22, 5) for Slurm's "22.05.8" and for PySlurm's "22.5.3"; None if the text is no release."""
    found = re.match(r"(\d+)\.(\d+)", version, re.ASCII)
    return (int(found[1]), int(found[2])) if found else None


def parse_max_switch_wait_s(config: Mapping[str, str]) -> int:
    """Return how long --switches=N@t may wait, in seconds: SchedulerParameters=max_switch_wait, or 300."""
    for word in config.get("SchedulerParameters", "").split(","):
        key, _, value = word.partition("=")
        if key == "max_switch_wait" and value.isdecimal():
            return int(value)
    return MAX_SWITCH_WAIT_S
