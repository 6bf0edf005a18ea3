"""Ranks switches and nodes by what is free now: big jobs get the emptiest, small ones fill fragments. Pure.

Philly's rule (Jeon et al., ATC 2019): fewest servers inside one network domain; domains first, then servers in them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurmwrap.cluster.node import Node, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The nodes that look best at this moment; empty when the job would not fit now. `switch` None: several."""

    nodes: tuple[str, ...] = ()
    switch: str | None = None


def leaf_names(topology: Topology) -> Mapping[str, str]:
    """Node name → leaf switch. A table, since asking the tree per node is quadratic."""
    return {node: leaf.name for leaf in topology.leaves for node in leaf.nodes}


def choose(nodes: Sequence[Node], leaf_of: Mapping[str, str], count: int) -> Choice:
    """`count` of `nodes` (each fits the job's share now), in one leaf switch where one holds them."""
    if len(nodes) < count:
        return Choice()
    domains: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        domains[leaf_of.get(node.name, "")].append(node)
    fitting = [name for name, members in domains.items() if len(members) >= count]
    if not fitting:
        ranked = sorted(nodes, key=lambda node: (-node.gpus_free, node.name))
        return Choice(nodes=tuple(node.name for node in ranked[:count]))
    free = {name: sum(node.gpus_free for node in domains[name]) for name in fitting}
    # a job of several nodes goes where most is free; a part of a node goes where least is left
    best = min(fitting, key=lambda name: (-free[name] if count > 1 else free[name], name))
    ranked = sorted(domains[best], key=lambda node: (node.gpus_free, node.cpus_free, node.name))
    return Choice(nodes=tuple(node.name for node in ranked[:count]), switch=best or None)


def largest_leaf(nodes: Sequence[Node], leaf_of: Mapping[str, str]) -> tuple[int, int]:
    """(nodes under the leaf switch that has most of `nodes`, number of leaf switches they hang on)."""
    counts: dict[str, int] = defaultdict(int)
    for node in nodes:
        if leaf := leaf_of.get(node.name):
            counts[leaf] += 1
    return max(counts.values(), default=0), len(counts)
