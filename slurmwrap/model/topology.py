"""The network: Switch, Block, Domain, Topology. Records and what follows from them at once. Pure.

What Slurm itself does with the two kinds differs (measured on 22.05.8, 24.11.5 and 26.05.5, November 2026):

topology/tree is soft: a job takes the fewest leaves it can get now, and waits for fewer only with --switches=N@t, which
its owner may change while the job waits (N@0 releases it; 0 does not in 24.11.5 and 26.05.5). Slurm takes a node under
two leaves and switches without a common root with no more than a warning in its log.

topology/block is hard: a job must lie inside the smallest level that can hold its number of nodes, and waits for that
without end; `--segment=G` loosens it to chunks of G nodes, each inside one base block (docs/placement.md). It cannot be
changed on a pending job, and --switches means nothing there.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurmwrap.fast_dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One line of `scontrol show topology` (topology/tree). Leaves have level 0 and nodes; a name may hold brackets."""

    name: str
    level: int
    nodes: tuple[str, ...]  # everything below it
    children: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One base block of topology/block (24.05 and newer), or one of its aggregates."""

    name: str
    nodes: tuple[str, ...]
    # BlockSize: what one job may use of it as one block, though it may have more nodes; 0: not said.
    size: int = 0
    # 0: base block; above: aggregates (BlockSizes=4,8,16)
    level: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Nodes that reach each other without leaving one network domain: a leaf switch, a block, a rack."""

    name: str
    nodes: tuple[str, ...]
    # 0: the closest; domains of one level do not overlap
    level: int = 0
    # Name of the domain of the next level; "": none.
    parent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What is known of the network, and by whom: `source` says what may be asked of Slurm.

    "tree": Slurm knows switches (--switches); "block": it knows blocks (--segment); "file" (the site's own file) and
    "features" (node features that name racks): only we know. "" where nothing is known.
    """

    switches: tuple[Switch, ...] = ()
    blocks: tuple[Block, ...] = ()
    # Of a site file or of node features.
    racks: tuple[Domain, ...] = ()
    source: str = ""
    # What is odd about the site's own description, for people.
    remarks: tuple[str, ...] = ()

    @property
    def leaves(self) -> tuple[Switch, ...]:
        """The leaf switches, in Slurm's order."""
        return tuple(s for s in self.switches if s.level == 0)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """Every domain of every level, the closest first, whatever the source. Time linear in nodes and levels."""
        if self.racks:
            found = self.racks
        elif self.blocks:
            found = _nested(Domain(name=b.name, nodes=b.nodes, level=b.level) for b in self.blocks)
        else:
            above = {child: switch.name for switch in self.switches for child in switch.children}
            found = tuple(
                Domain(name=s.name, nodes=s.nodes, level=s.level, parent=above.get(s.name, "")) for s in self.switches
            )
        return _apart(sorted(found, key=lambda domain: domain.level))


def _nested(domains: Iterable[Domain]) -> tuple[Domain, ...]:
    """With each one's parent: the closest domain above that holds its nodes."""
    order = sorted(domains, key=lambda domain: domain.level)
    # Node → the closest domain above that was seen.
    over: dict[str, Domain] = {}
    found = list[Domain]()
    for domain in reversed(order):
        parent = over.get(domain.nodes[0]) if domain.nodes else None
        found.append(replace(domain, parent=parent.name if parent is not None and parent.level > domain.level else ""))
        over.update(dict.fromkeys(domain.nodes, domain))
    return tuple(reversed(found))


def _apart(domains: Iterable[Domain]) -> tuple[Domain, ...]:
    """A node that several domains of one level claim stays in the first; what has no node is left out."""
    taken: dict[int, set[str]] = {}
    found = list[Domain]()
    for domain in domains:
        seen = taken.setdefault(domain.level, set())
        if not seen.isdisjoint(domain.nodes):
            domain = replace(domain, nodes=tuple(node for node in domain.nodes if node not in seen))
        seen.update(domain.nodes)
        found += [domain] if domain.nodes else []
    return tuple(found)
