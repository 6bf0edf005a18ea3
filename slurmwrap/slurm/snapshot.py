"""Requests to scontrol for a picture of the cluster, and the Snapshot that is built from its answers. Pure."""

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
    get_slurm_release,
    parse_config,
    parse_max_switch_wait_s,
    parse_nodes,
    parse_number,
    parse_partitions,
    parse_reservations,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.cluster import Node
    from slurmwrap.slurm.site_topology import Network


# Since this release topology.yaml may define several topologies, and a partition may name one of them.
SEVERAL_TOPOLOGIES = (25, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryUser:
    """The user whose limits are requested."""

    user: str
    uid: int


def make_assoc_mgr_request(user: str) -> str:
    """Return the request for scontrol's standard input; "" for a name that scontrol would read as several words."""
    return f"show assoc_mgr users={user} flags=assoc,qos" if re.fullmatch(r"[\w.@\\+-]+", user) else ""


def make_scontrol_requests(config: Mapping[str, str] | None, asker: QueryUser) -> bytes:
    """Return the requests for the second command. `config` is requested only if it is None.

    Reservations are requested last, because their comments may contain line breaks.
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
    """Return whether several topologies are possible; True when the configuration is not known yet."""
    if config is None:
        return True
    from slurmwrap.slurm.scontrol_parser import get_slurm_release

    return (get_slurm_release(config) or SEVERAL_TOPOLOGIES) >= SEVERAL_TOPOLOGIES


def _may_keep_limits(config: Mapping[str, str] | None) -> bool:
    """Return whether Slurm may enforce limits; True when the configuration is not known yet."""
    if config is None:
        return True
    from slurmwrap.slurm.assoc_mgr_parser import enforced

    return enforced(config)


# Parsing of `scontrol show topology` into a Topology.
#
# There are two grammars, distinguished by their lines; captures of 22.05.8, 24.11.5 and 26.05.5 are in
# tests/data/slurm:
#
#     topology/tree   SwitchName=ib0 Level=0 LinkSpeed=1 Nodes=n[0-1]
#                     SwitchName=core Level=1 LinkSpeed=1 Nodes=n[0-3] Switches=ib[0-1]
#     topology/block  BlockName=b1 BlockIndex=0 Nodes=n[0-3] BlockSize=4
#                     AggregatedBlock=b[1-2] BlockIndex=3 Nodes=n[0-7] BlockSize=8
#
# TopologyPlugin in the configuration is not used: with a topology.yaml 26.05 prints topology/flat for any topology.
def parse_topology(text: str) -> Topology:
    """Parse switches or blocks; other lines and notices are skipped. `source` is "" when there are none."""
    switches, blocks = list[Switch](), list[dict[str, str]]()
    for line in text.split("\n"):
        if line.startswith("SwitchName="):
            switches.append(_parse_switch(_split_words(line)))
        elif line.startswith(("BlockName=", "AggregatedBlock=")):
            blocks.append(_split_words(line))
    return Topology(
        switches=tuple(switches),
        blocks=tuple(_assign_block_levels(blocks)),
        source="tree" if switches else "block" if blocks else "",
    )


def parse_default_topology(text: str) -> str:
    """Return the cluster's default topology from `scontrol show topoconf` (YAML, since 25.05); "" if none is named."""
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


def _parse_switch(fields: dict[str, str]) -> Switch:
    return Switch(
        name=fields["SwitchName"],
        level=parse_number(fields.get("Level", "")),
        nodes=names_in(fields.get("Nodes", "")),
        children=names_in(fields.get("Switches", "")),
    )


def _assign_block_levels(lines: Iterable[dict[str, str]]) -> Iterable[Block]:
    """Yield the blocks. An aggregate's level follows from its size: BlockSizes are powers of two times the base."""
    all_lines = list(lines)
    sizes = sorted({parse_number(fields.get("BlockSize", "")) for fields in all_lines if "AggregatedBlock" in fields})
    for fields in all_lines:
        size = parse_number(fields.get("BlockSize", ""))
        yield Block(
            name=fields.get("BlockName") or fields["AggregatedBlock"],
            nodes=names_in(fields.get("Nodes", "")),
            size=size,
            level=sizes.index(size) + 1 if "AggregatedBlock" in fields else 0,
        )


_NEVER_PREEMPTS = ("", "(null)", "none", "preempt/none")
_CONFIG_TITLE = "Configuration data as of"


def build_snapshot(
    nodes: str | Sequence[Node],
    rest: str,
    known: Mapping[str, str] | None,
    asker: QueryUser,
    network: Network,
    at: float,
) -> tuple[Snapshot, Mapping[str, str] | None]:
    """Return (snapshot, configuration) from the output of both commands.

    `nodes`: output of the first command, or the nodes themselves. `known`: the configuration if it was not requested.
    """
    output, reservations = _split_off_reservations(_strip_prompts(rest))
    lines, has_config, settings = output.partition(_CONFIG_TITLE)
    config = parse_config(settings) if has_config else known
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
        release=get_slurm_release(config or {}),
        preempts=(config or {}).get("PreemptType", "") not in _NEVER_PREEMPTS,
        max_array_size=parse_number((config or {}).get("MaxArraySize", "")),
        private_jobs="jobs" in (config or {}).get("PrivateData", "").split(","),
    )
    return snapshot, config


def parse_quotas(output: str, asker: QueryUser) -> Quotas:
    """Parse the answer to make_assoc_mgr_request alone."""
    return parse_limits(_strip_prompts(output), asker.user, asker.uid)


def _strip_prompts(output: str) -> str:
    return output.replace("scontrol: ", "")


def _split_off_reservations(output: str) -> tuple[str, str]:
    """Split the output into the part that contains no user text and the reservations."""
    start = 0 if output.startswith("ReservationName=") else output.find("\nReservationName=")
    return (output, "") if start < 0 else (output[: start + 1], output[start:])


def _assign_default_topology(partitions: Iterable[Partition], default: str) -> tuple[Partition, ...]:
    """Remove the topology of partitions that name the cluster's default, so that they have none of their own."""
    return tuple(replace(p, topology="") if p.topology and p.topology == default else p for p in partitions)
