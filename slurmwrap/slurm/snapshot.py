"""What two commands of scontrol say becomes one Snapshot; and what the second of them is asked. Pure.

`scontrol show node -d -o`, and `scontrol -o` with the requests below on its standard input: one process saved for each
of them (22.05 to 26.05). A request that this Slurm refuses (old release, no permission) costs only its own part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from slurmwrap.cluster.limits import Quotas
from slurmwrap.cluster.node import Partition, Snapshot
from slurmwrap.slurm.limits import assoc_mgr_request, enforced, parse_limits
from slurmwrap.slurm.network import default_topology, parse_topology
from slurmwrap.slurm.parse import (
    max_switch_wait_s,
    parse_config,
    parse_nodes,
    parse_partitions,
    parse_reservations,
    release_of,
)
from slurmwrap.slurm.racks import Network

SEVERAL_TOPOLOGIES = (25, 5)  # from here on a topology.yaml may hold several, and a partition name its own
_NEVER_PREEMPTS = ("", "(null)", "none", "preempt/none")
_CONFIG = "Configuration data as of"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Whose limits are asked after."""

    user: str
    uid: int


def requests(config: Mapping[str, str] | None, asker: Asker) -> bytes:
    """What the second command is asked. `config`: as far as it is known already, then it is not asked for again.

    Reservations go last: their comments may hold line breaks.
    """
    lines = ["show topology", "show partition"]
    if config is None or (release_of(config) or SEVERAL_TOPOLOGIES) >= SEVERAL_TOPOLOGIES:
        lines.append("show topoconf")
    if config is None or enforced(config):
        lines += filter(None, [assoc_mgr_request(asker.user)])
    if config is None:
        lines.append("show config")
    return "".join(f"{line}\n" for line in (*lines, "show reservation")).encode()


def snapshot_of(
    nodes: str, rest: str, known: Mapping[str, str] | None, asker: Asker, network: Network, at: float
) -> tuple[Snapshot, Mapping[str, str] | None]:
    """(snapshot, configuration) of both commands' outputs. `known`: the configuration, where it was not asked for."""
    said, reservations = _cut(rest.replace("scontrol: ", ""))  # its prompt
    lines, told, settings = said.partition(_CONFIG)
    config = parse_config(settings) if told else known
    all_nodes, partitions = parse_nodes(nodes), _in_default(parse_partitions(lines), default_topology(lines))
    snapshot = Snapshot(
        taken_at=at,
        nodes=all_nodes,
        topology=network(parse_topology(lines), all_nodes),
        default_partition=next((partition.name for partition in partitions if partition.default), ""),
        partitions=partitions,
        reservations=parse_reservations(reservations),
        quotas=parse_limits(lines, asker.user, asker.uid) if enforced(config or {}) else Quotas(),
        max_switch_wait_s=max_switch_wait_s(config or {}),
        release=release_of(config or {}),
        preempts=(config or {}).get("PreemptType", "") not in _NEVER_PREEMPTS,
    )
    return snapshot, config


def _cut(said: str) -> tuple[str, str]:
    """(what no user can write into, the reservations)."""
    start = 0 if said.startswith("ReservationName=") else said.find("\nReservationName=")
    return (said, "") if start < 0 else (said[: start + 1], said[start:])


def _in_default(partitions: Iterable[Partition], default: str) -> tuple[Partition, ...]:
    """A partition that names the cluster's own topology has none of its own."""
    return tuple(replace(p, topology="") if p.topology and p.topology == default else p for p in partitions)
