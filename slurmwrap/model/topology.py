"""Records of the network: Switch, Block, Domain, Topology, with properties that follow from them directly. Pure.

Slurm treats the two topology plugins differently (measured on 22.05.8, 24.11.5 and 26.05.5, November 2026):

topology/tree is a soft constraint. A job takes the fewest leaf switches that it can get now, and waits for fewer only
with --switches=N@t. Its owner may change that while the job is pending (N@0 releases it; 0 does not in 24.11.5 and
26.05.5). Slurm accepts a node below two leaves, and switches without a common root, with only a warning in its log.

topology/block is a hard constraint. A job must fit into the smallest level that can hold its number of nodes, and waits
for that without end. `--segment=G` relaxes it to chunks of G nodes, each inside one base block (docs/placement.md). It
cannot be changed on a pending job, and --switches has no effect there.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurmwrap.fast_dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One line of `scontrol show topology` (topology/tree). Leaves have level 0; a name may contain brackets."""

    name: str
    level: int
    nodes: tuple[str, ...]  # all nodes below it, over all levels
    children: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One base block of topology/block (24.05 and newer), or one of its aggregates."""

    name: str
    nodes: tuple[str, ...]
    # BlockSize: the most nodes that one job may use as one block; the block may have more. 0: not reported.
    size: int = 0
    level: int = 0  # 0 for a base block, more for aggregates (BlockSizes=4,8,16).


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Nodes that reach each other without leaving one network domain: a leaf switch, a block, a rack."""

    name: str
    nodes: tuple[str, ...]
    level: int = 0  # 0 is the closest level. Domains of one level do not overlap.
    # Name of the enclosing domain one level above; "" if there is none.
    parent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What is known of the network. `source` says where it comes from, and so what may be requested from Slurm.

    "tree": Slurm knows switches (--switches). "block": Slurm knows blocks (--segment). "file" (the site's own file) and
    "features" (node features that name racks): only slurmwrap knows the racks. "": nothing is known.
    """

    switches: tuple[Switch, ...] = ()
    blocks: tuple[Block, ...] = ()
    # From a site file or from node features.
    racks: tuple[Domain, ...] = ()
    source: str = ""
    # Problems in the site's own description, for display.
    remarks: tuple[str, ...] = ()

    @property
    def leaves(self) -> tuple[Switch, ...]:
        """Return the leaf switches, in Slurm's order."""
        return tuple(s for s in self.switches if s.level == 0)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """Return all domains of all levels, closest first, from any source. Linear time in nodes and levels."""
        if self.racks:
            found = self.racks
        elif self.blocks:
            found = _set_parents(Domain(name=b.name, nodes=b.nodes, level=b.level) for b in self.blocks)
        else:
            above = {child: switch.name for switch in self.switches for child in switch.children}
            found = tuple(
                Domain(name=s.name, nodes=s.nodes, level=s.level, parent=above.get(s.name, "")) for s in self.switches
            )
        return _remove_overlaps(sorted(found, key=lambda domain: domain.level))


def _set_parents(domains: Iterable[Domain]) -> tuple[Domain, ...]:
    """Return `domains` with their parents set: the closest domain above that holds the same nodes."""
    order = sorted(domains, key=lambda domain: domain.level)
    # Node -> the closest domain above it that was seen so far.
    over: dict[str, Domain] = {}
    found = list[Domain]()
    for domain in reversed(order):
        parent = over.get(domain.nodes[0]) if domain.nodes else None
        found.append(replace(domain, parent=parent.name if parent is not None and parent.level > domain.level else ""))
        over.update(dict.fromkeys(domain.nodes, domain))
    return tuple(reversed(found))


def _remove_overlaps(domains: Iterable[Domain]) -> tuple[Domain, ...]:
    """Return `domains` without overlaps inside a level.

    A node stays in the first domain that lists it; domains without nodes are dropped.
    """
    taken: dict[int, set[str]] = {}
    found = list[Domain]()
    for domain in domains:
        seen = taken.setdefault(domain.level, set())
        if not seen.isdisjoint(domain.nodes):
            domain = replace(domain, nodes=tuple(node for node in domain.nodes if node not in seen))
        seen.update(domain.nodes)
        found += [domain] if domain.nodes else []
    return tuple(found)
