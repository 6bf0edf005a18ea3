"""Build a Topology from the site's own description, where Slurm knows none: a file of racks, or node features. Pure.

The file has topology.conf's grammar, because sites have such a file or know how to write one:

    SwitchName=rack1 Nodes=n[0-3]
    SwitchName=rack2 Nodes=n[4-7]        BlockName=… Nodes=… is accepted too
    SwitchName=row1 Switches=rack[1-2]   levels above, as many as there are

With the feature prefixes "rack,row", a node with the features rack12 and row3 is in rack12, which is in row3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from slurmwrap.errors import ConfigError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.cluster import Node
from slurmwrap.model.hostlist import expand, fold
from slurmwrap.model.topology import Domain, Topology

# Number of node names that a remark lists; the remaining ones are counted.
SHOWN = 5
_KEYS = {"switchname": "name", "blockname": "name", "nodes": "nodes", "switches": "switches", "blocks": "switches"}
# Keys of topology.conf that have no meaning here.
_IGNORED_KEYS = ("blocksizes", "linkspeed", "aggregatedblock")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One switch or block of the file. Exactly one of `nodes` and `below` is set."""

    number: int
    name: str
    nodes: tuple[str, ...] = ()
    below: tuple[str, ...] = ()


def topology_from_file(text: str, origin: str, nodes: Sequence[Node]) -> Topology:
    """Return the topology that the site's file `origin` describes.

    Nodes that the cluster does not have are left out, with a remark. Raises ConfigError that names file, line and
    culprit: a line that cannot be parsed, a name given twice, a node in two racks, a switch that is below two others,
    below itself, or that does not exist.
    """
    try:
        lines = _read_lines(text)
        parents = _find_parents(lines)
        levels = _find_levels(lines, parents)
        _refuse_overlap(lines)
    except _FaultError as fault:
        hint = 'see docs/placement.md, "The site\'s own topology"'
        raise ConfigError(f"{origin}: line {fault.line}: {fault}", hint=hint) from fault
    known = {node.name for node in nodes}
    members = _list_members(lines, levels, known)
    racks = tuple(
        Domain(name=name, nodes=members[name], level=level, parent=parents.get(name, ""))
        for name, level in sorted(levels.items(), key=lambda item: item[1])
        if members[name]
    )
    missing = [name for line in lines.values() for name in line.nodes if name not in known]
    remarkable = {"no such node here": missing, "in no rack": _list_nodes_without_rack(nodes, racks)}
    return _make_topology(racks, "file", _format_remarks(origin, remarkable))


def topology_from_features(prefixes: str, nodes: Sequence[Node]) -> Topology:
    """Return the topology of node features that begin with one of `prefixes`.

    `prefixes` is a comma-separated list, closest level first. A node with two features of one level belongs to the
    domain of the first one, and is remarked.
    """
    levels = [prefix.strip() for prefix in prefixes.split(",") if prefix.strip()]
    kinds = {
        own: [_list_features_with_prefix(own, prefix) for prefix in levels] for own in {node.features for node in nodes}
    }
    named = {node.name: kinds[node.features] for node in nodes}
    racks = [
        rack
        for level in range(len(levels))
        for rack in _make_domains_of_level(
            level, {name: own[level][0] for name, own in named.items() if own[level]}, named
        )
    ]
    twice = [name for name, own in named.items() if any(len(found) > 1 for found in own)]
    remarkable = {
        "several features of one level, the first counts": twice,
        "in no rack": _list_nodes_without_rack(nodes, racks),
    }
    return _make_topology(
        tuple(racks), "features", _format_remarks(f"placement.topology_features={prefixes}", remarkable)
    )


def _make_topology(racks: tuple[Domain, ...], source: str, remarks: tuple[str, ...]) -> Topology:
    return Topology(racks=racks, source=source if racks else "", remarks=remarks)


# --- the file --------------------------------------------------------------------------------------------------------


class _FaultError(ValueError):
    """A fault in one line of the file, with its line number."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


def _read_lines(text: str) -> Mapping[str, _Line]:
    """Return the switches and blocks by name, in the order of the file."""
    found: dict[str, _Line] = {}
    for number, words in _join_continued_lines(text):
        line = _parse_line(number, words)
        if line is None:
            continue
        if line.name in found:
            raise _FaultError(number, f"'{line.name}' is described in line {found[line.name].number} already")
        found[line.name] = line
    return found


def _join_continued_lines(text: str) -> Iterable[tuple[int, list[str]]]:
    """Yield the number of the first line and the words of each logical line, without comments.

    A backslash at the end continues a line.
    """
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


def _parse_line(number: int, words: Sequence[str]) -> _Line | None:
    """Parse one logical line; None if it has only keys that have no meaning here."""
    fields = _parse_fields(number, words)
    if not fields:
        return None
    if not fields.get("name"):
        raise _FaultError(number, "no SwitchName=")
    if bool(fields.get("nodes")) == bool(fields.get("switches")):
        raise _FaultError(number, f"'{fields['name']}' needs either Nodes= or Switches=")
    try:
        nodes, below = expand(fields.get("nodes", "")), expand(fields.get("switches", ""))
    except ValueError as error:
        raise _FaultError(number, str(error)) from error
    return _Line(number=number, name=fields["name"], nodes=nodes, below=below)


def _parse_fields(number: int, words: Sequence[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or (key.lower() not in _KEYS and key.lower() not in _IGNORED_KEYS):
            raise _FaultError(number, f"'{word[:80]}' is not one of SwitchName=, Nodes=, Switches=, BlockName=")
        if key.lower() in _KEYS:
            fields[_KEYS[key.lower()]] = value.strip('"')
    return fields


def _find_parents(lines: Mapping[str, _Line]) -> dict[str, str]:
    """Return the one switch above each switch."""
    parents: dict[str, str] = {}
    for line in lines.values():
        for child in line.below:
            if child not in lines:
                raise _FaultError(line.number, f"'{line.name}' lies over '{child}', which the file does not describe")
            if child in parents:
                raise _FaultError(line.number, f"'{child}' is under '{parents[child]}' and under '{line.name}'")
            parents[child] = line.name
    return parents


def _find_levels(lines: Mapping[str, _Line], parents: Mapping[str, str]) -> dict[str, int]:
    """Return the level of each name: 0 for racks, one above the highest child for a switch."""
    levels: dict[str, int] = {}
    # Start from every rack and raise the levels along its parents. A chain longer than the number of lines is a cycle,
    # and names that no rack reaches form a cycle of their own.
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


def _list_members(lines: Mapping[str, _Line], levels: Mapping[str, int], known: set[str]) -> dict[str, tuple[str, ...]]:
    """Return the known nodes below each name, working from the lowest level up."""
    members: dict[str, tuple[str, ...]] = {}
    for name in sorted(levels, key=lambda name: levels[name]):
        own = dict.fromkeys(node for node in lines[name].nodes if node in known)
        members[name] = (*own, *(node for child in lines[name].below for node in members[child]))
    return members


# --- features --------------------------------------------------------------------------------------------------------


def _list_features_with_prefix(features: Iterable[str], prefix: str) -> list[str]:
    return [feature for feature in features if feature.startswith(prefix) and feature != prefix]


def _make_domains_of_level(
    level: int, rack_of: Mapping[str, str], named: Mapping[str, Sequence[Sequence[str]]]
) -> Iterable[Domain]:
    """Yield the domains of one level. A parent is set only if all nodes of the domain agree on it."""
    members: dict[str, list[str]] = defaultdict(list)
    for node, rack in rack_of.items():
        members[rack].append(node)
    for rack, inside in sorted(members.items()):
        above = {next((own[0] for own in named[node][level + 1 :] if own), "") for node in inside}
        yield Domain(name=rack, nodes=tuple(inside), level=level, parent=above.pop() if len(above) == 1 else "")


# --- remarks ---------------------------------------------------------------------------------------------------------


def _format_remarks(origin: str, remarkable: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return one remark for each kind of remarkable node."""
    return tuple(f"{origin}: {what}: {_format_names(names)}" for what, names in remarkable.items() if names)


def _format_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return fold(names[:SHOWN]) + more


def _list_nodes_without_rack(nodes: Iterable[Node], racks: Iterable[Domain]) -> list[str]:
    inside = {name for rack in racks if rack.level == 0 for name in rack.nodes}
    return [node.name for node in nodes if node.name not in inside]
