"""The cluster at one moment: what scontrol is asked for, and the Snapshot made from its answers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.cluster import Partition, Snapshot
from slurmwrap.model.hostlist import names_in
from slurmwrap.model.limits import Quotas
from slurmwrap.model.topology import Block, Switch, Topology
from slurmwrap.slurm.assoc_mgr_parser import enforced, parse_limits
from slurmwrap.slurm.scontrol_parser import (
    parse_config,
    parse_max_switch_wait_s,
    parse_nodes,
    parse_number,
    parse_partitions,
    parse_reservations,
    release_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.cluster import Node
    from slurmwrap.slurm.site_topology import Network


# From here on a topology.yaml may hold several, and a partition name its own.
SEVERAL_TOPOLOGIES = (25, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryUser:
    """Whose limits are asked after."""

    user: str
    uid: int


def make_assoc_mgr_request(user: str) -> str:
    """What scontrol gets on its standard input; "" for a name that it would read as more than one word."""
    return f"show assoc_mgr users={user} flags=assoc,qos" if re.fullmatch(r"[\w.@\\+-]+", user) else ""


def make_scontrol_requests(config: Mapping[str, str] | None, asker: QueryUser) -> bytes:
    """What the second command is asked. `config`: as far as it is known already, then it is not asked for again.

    Reservations go last: their comments may hold line breaks.
    """
    lines = ["show topology", "show partition"]
    if _has_several_topologies(config):
        lines.append("show topoconf")
    if _may_keep_limits(config):
        lines += filter(None, [make_assoc_mgr_request(asker.user)])
    if config is None:
        lines.append("show config")
    return "".join(f"{line}\n" for line in (*lines, "show reservation")).encode()


def _has_several_topologies(config: Mapping[str, str] | None) -> bool:
    """They may be; so too where nothing is known yet."""
    if config is None:
        return True
    from slurmwrap.slurm.scontrol_parser import release_of

    return (release_of(config) or SEVERAL_TOPOLOGIES) >= SEVERAL_TOPOLOGIES


def _may_keep_limits(config: Mapping[str, str] | None) -> bool:
    """It may; so too where nothing is known yet."""
    if config is None:
        return True
    from slurmwrap.slurm.assoc_mgr_parser import enforced

    return enforced(config)


# Turns `scontrol show topology` into a Topology.
#
# Two grammars, distinguished by their lines; captures of 22.05.8, 24.11.5 and 26.05.5 are in tests/data/slurm:
#
#     topology/tree   SwitchName=ib0 Level=0 LinkSpeed=1 Nodes=n[0-1]
#                     SwitchName=core Level=1 LinkSpeed=1 Nodes=n[0-3] Switches=ib[0-1]
#     topology/block  BlockName=b1 BlockIndex=0 Nodes=n[0-3] BlockSize=4
#                     AggregatedBlock=b[1-2] BlockIndex=3 Nodes=n[0-7] BlockSize=8
#
# The plugin's name in the configuration is not asked: with a topology.yaml 26.05 says topology/flat whatever is in
# force.
def parse_topology(text: str) -> Topology:
    """Switches or blocks; lines of another grammar and notices are passed over. `source` is "" where none are named."""
    switches, blocks = list[Switch](), list[dict[str, str]]()
    for line in text.split("\n"):
        if line.startswith("SwitchName="):
            switches.append(_switch(_split_words(line)))
        elif line.startswith(("BlockName=", "AggregatedBlock=")):
            blocks.append(_split_words(line))
    return Topology(
        switches=tuple(switches),
        blocks=tuple(_assign_block_levels(blocks)),
        source="tree" if switches else "block" if blocks else "",
    )


def parse_default_topology(text: str) -> str:
    """Name of the cluster's default in `scontrol show topoconf` (YAML, 25.05 and newer); "" where it is not named."""
    name = ""
    for line in text.splitlines():
        key, _, value = line.strip().partition(": ")
        if key == "- topology":
            name = value.strip("'\"")
        elif key == "cluster_default" and value == "true":
            return name
    return ""


def _split_words(line: str) -> dict[str, str]:
    return dict(word.partition("=")[::2] for word in line.split())


def _switch(words: dict[str, str]) -> Switch:
    return Switch(
        name=words["SwitchName"],
        level=parse_number(words.get("Level", "")),
        nodes=names_in(words.get("Nodes", "")),
        children=names_in(words.get("Switches", "")),
    )


def _assign_block_levels(lines: Iterable[dict[str, str]]) -> Iterable[Block]:
    """Aggregates get their level by their size: BlockSizes are powers of two times the base."""
    told = list(lines)
    sizes = sorted({parse_number(words.get("BlockSize", "")) for words in told if "AggregatedBlock" in words})
    for words in told:
        size = parse_number(words.get("BlockSize", ""))
        yield Block(
            name=words.get("BlockName") or words["AggregatedBlock"],
            nodes=names_in(words.get("Nodes", "")),
            size=size,
            level=sizes.index(size) + 1 if "AggregatedBlock" in words else 0,
        )


_NEVER_PREEMPTS = ("", "(null)", "none", "preempt/none")
_CONFIG = "Configuration data as of"


def build_snapshot(
    nodes: str | Sequence[Node],
    rest: str,
    known: Mapping[str, str] | None,
    asker: QueryUser,
    network: Network,
    at: float,
) -> tuple[Snapshot, Mapping[str, str] | None]:
    """(snapshot, configuration) of both commands' outputs. `known`: the configuration, where it was not asked for.

    `nodes`: what the first command said, or the nodes themselves.
    """
    said, reservations = _cut(_strip_prompts(rest))
    lines, told, settings = said.partition(_CONFIG)
    config = parse_config(settings) if told else known
    all_nodes = parse_nodes(nodes) if isinstance(nodes, str) else tuple(nodes)
    partitions = _assign_default_topology(parse_partitions(lines), parse_default_topology(lines))
    snapshot = Snapshot(
        taken_at=at,
        nodes=all_nodes,
        topology=network(parse_topology(lines), all_nodes),
        default_partition=next((partition.name for partition in partitions if partition.default), ""),
        partitions=partitions,
        reservations=parse_reservations(reservations),
        quotas=parse_limits(lines, asker.user, asker.uid) if enforced(config or {}) else Quotas(),
        max_switch_wait_s=parse_max_switch_wait_s(config or {}),
        release=release_of(config or {}),
        preempts=(config or {}).get("PreemptType", "") not in _NEVER_PREEMPTS,
    )
    return snapshot, config


def parse_quotas(said: str, asker: QueryUser) -> Quotas:
    """The answer to make_assoc_mgr_request alone."""
    return parse_limits(_strip_prompts(said), asker.user, asker.uid)


def _strip_prompts(said: str) -> str:
    return said.replace("scontrol: ", "")


def _cut(said: str) -> tuple[str, str]:
    """(what no user can write into, the reservations)."""
    start = 0 if said.startswith("ReservationName=") else said.find("\nReservationName=")
    return (said, "") if start < 0 else (said[: start + 1], said[start:])


def _assign_default_topology(partitions: Iterable[Partition], default: str) -> tuple[Partition, ...]:
    """A partition that names the cluster's own topology has none of its own."""
    return tuple(replace(p, topology="") if p.topology and p.topology == default else p for p in partitions)
