"""The network as the site describes it, where Slurm knows none: a file of racks, or node features that name them. Pure.

The file is in topology.conf's grammar, since sites have one or know how to write it:

    SwitchName=rack1 Nodes=n[0-3]
    SwitchName=rack2 Nodes=n[4-7]        BlockName=… Nodes=… is taken too
    SwitchName=row1 Switches=rack[1-2]   levels above, as many as there are

Features: with the prefixes "rack,row" a node with the features rack12 and row3 is in rack12, and that in row3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from slurmwrap.errors import ConfigError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.cluster import Node
from slurmwrap.model.hostlist import expand, fold
from slurmwrap.model.topology import Domain, Topology

# Names in a remark; the rest is counted.
SHOWN = 5
_KEYS = {"switchname": "name", "blockname": "name", "nodes": "nodes", "switches": "switches", "blocks": "switches"}
# Of topology.conf; means nothing here.
_PASSED_OVER = ("blocksizes", "linkspeed", "aggregatedblock")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One switch or block of the file. Exactly one of `nodes` and `below` is filled."""

    number: int
    name: str
    nodes: tuple[str, ...] = ()
    below: tuple[str, ...] = ()


def of_file(text: str, origin: str, nodes: Sequence[Node]) -> Topology:
    """The topology of the site's file `origin`. Nodes that the cluster does not have are left out and remarked.

    Raises ConfigError naming file, line and culprit: a line that is none, a name twice, a node in two racks, a switch
    under two others, under itself, or that does not exist.
    """
    try:
        lines = _read(text)
        parents = _parents(lines)
        levels = _levels(lines, parents)
        _refuse_overlap(lines)
    except _FaultError as fault:
        hint = 'see docs/placement.md, "The site\'s own topology"'
        raise ConfigError(f"{origin}: line {fault.line}: {fault}", hint=hint) from fault
    known = {node.name for node in nodes}
    members = _members(lines, levels, known)
    racks = tuple(
        Domain(name=name, nodes=members[name], level=level, parent=parents.get(name, ""))
        for name, level in sorted(levels.items(), key=lambda item: item[1])
        if members[name]
    )
    missing = [name for line in lines.values() for name in line.nodes if name not in known]
    said = {"no such node here": missing, "in no rack": _outside(nodes, racks)}
    return _topology(racks, "file", _remarks(origin, said))


def of_features(prefixes: str, nodes: Sequence[Node]) -> Topology:
    """The topology of node features that begin with one of `prefixes`: a comma list, the closest level first.

    A node with two features of one level is in the first one's domain, and remarked.
    """
    levels = [prefix.strip() for prefix in prefixes.split(",") if prefix.strip()]
    kinds = {own: [_beginning(own, prefix) for prefix in levels] for own in {node.features for node in nodes}}
    named = {node.name: kinds[node.features] for node in nodes}
    racks = [
        rack
        for level in range(len(levels))
        for rack in _of_level(level, {name: own[level][0] for name, own in named.items() if own[level]}, named)
    ]
    twice = [name for name, own in named.items() if any(len(found) > 1 for found in own)]
    said = {"several features of one level, the first counts": twice, "in no rack": _outside(nodes, racks)}
    return _topology(tuple(racks), "features", _remarks(f"placement.topology_features={prefixes}", said))


def _topology(racks: tuple[Domain, ...], source: str, remarks: tuple[str, ...]) -> Topology:
    return Topology(racks=racks, source=source if racks else "", remarks=remarks)


# --- the file --------------------------------------------------------------------------------------------------------


class _FaultError(ValueError):
    """What is wrong in one line of the file."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


def _read(text: str) -> Mapping[str, _Line]:
    """Switches and blocks by name, in the file's order."""
    found: dict[str, _Line] = {}
    for number, words in _sentences(text):
        line = _line(number, words)
        if line is None:
            continue
        if line.name in found:
            raise _FaultError(number, f"'{line.name}' is described in line {found[line.name].number} already")
        found[line.name] = line
    return found


def _sentences(text: str) -> Iterable[tuple[int, list[str]]]:
    """(number of its first line, words) without comments; a backslash at the end goes on in the next line."""
    words, start = list[str](), 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].rstrip()
        words += line.removesuffix("\\").split()
        start = start or number
        if not line.endswith("\\"):
            if words:
                yield start, words
            words, start = [], 0
    if words:
        yield start, words


def _line(number: int, words: Sequence[str]) -> _Line | None:
    """None for a line that means nothing here."""
    told = _told(number, words)
    if not told:
        return None
    if not told.get("name"):
        raise _FaultError(number, "no SwitchName=")
    if bool(told.get("nodes")) == bool(told.get("switches")):
        raise _FaultError(number, f"'{told['name']}' needs either Nodes= or Switches=")
    try:
        nodes, below = expand(told.get("nodes", "")), expand(told.get("switches", ""))
    except ValueError as error:
        raise _FaultError(number, str(error)) from error
    return _Line(number=number, name=told["name"], nodes=nodes, below=below)


def _told(number: int, words: Sequence[str]) -> dict[str, str]:
    told: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or (key.lower() not in _KEYS and key.lower() not in _PASSED_OVER):
            raise _FaultError(number, f"'{word[:80]}' is not one of SwitchName=, Nodes=, Switches=, BlockName=")
        if key.lower() in _KEYS:
            told[_KEYS[key.lower()]] = value.strip('"')
    return told


def _parents(lines: Mapping[str, _Line]) -> dict[str, str]:
    """Child → the one switch above it."""
    parents: dict[str, str] = {}
    for line in lines.values():
        for child in line.below:
            if child not in lines:
                raise _FaultError(line.number, f"'{line.name}' lies over '{child}', which the file does not describe")
            if child in parents:
                raise _FaultError(line.number, f"'{child}' is under '{parents[child]}' and under '{line.name}'")
            parents[child] = line.name
    return parents


def _levels(lines: Mapping[str, _Line], parents: Mapping[str, str]) -> dict[str, int]:
    """Racks have level 0; a switch is one above its highest child."""
    levels: dict[str, int] = {}
    for line in lines.values():
        level, name = 0, "" if line.below else line.name
        while name and levels.get(name, -1) < level <= len(lines):
            levels[name] = level
            level, name = level + 1, parents.get(name, "")
        if level > len(lines):
            raise _FaultError(line.number, f"above '{line.name}' a switch is under itself")
    if lost := next((line for line in lines.values() if line.name not in levels), None):
        raise _FaultError(lost.number, f"'{lost.name}' is under itself")
    return levels


def _refuse_overlap(lines: Mapping[str, _Line]) -> None:
    rack_of: dict[str, _Line] = {}
    for line in lines.values():
        for node in line.nodes:
            other = rack_of.setdefault(node, line)
            if other is not line:
                raise _FaultError(line.number, f"node '{node}' is in '{other.name}' and in '{line.name}'")


def _members(lines: Mapping[str, _Line], levels: Mapping[str, int], known: set[str]) -> dict[str, tuple[str, ...]]:
    """Known nodes below each name; levels are worked from below."""
    members: dict[str, tuple[str, ...]] = {}
    for name in sorted(levels, key=lambda name: levels[name]):
        own = dict.fromkeys(node for node in lines[name].nodes if node in known)
        members[name] = (*own, *(node for child in lines[name].below for node in members[child]))
    return members


# --- features --------------------------------------------------------------------------------------------------------


def _beginning(features: Iterable[str], prefix: str) -> list[str]:
    return [feature for feature in features if feature.startswith(prefix) and feature != prefix]


def _of_level(level: int, rack_of: Mapping[str, str], named: Mapping[str, Sequence[Sequence[str]]]) -> Iterable[Domain]:
    """The domains of one level; the parent is named where all nodes agree on it."""
    members: dict[str, list[str]] = defaultdict(list)
    for node, rack in rack_of.items():
        members[rack].append(node)
    for rack, inside in sorted(members.items()):
        above = {next((own[0] for own in named[node][level + 1 :] if own), "") for node in inside}
        yield Domain(name=rack, nodes=tuple(inside), level=level, parent=above.pop() if len(above) == 1 else "")


# --- remarks ---------------------------------------------------------------------------------------------------------


def _remarks(origin: str, said: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """One remark for each kind of node that is remarkable."""
    return tuple(f"{origin}: {what}: {_some(names)}" for what, names in said.items() if names)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return fold(names[:SHOWN]) + more


def _outside(nodes: Iterable[Node], racks: Iterable[Domain]) -> list[str]:
    inside = {name for rack in racks if rack.level == 0 for name in rack.nodes}
    return [node.name for node in nodes if node.name not in inside]
