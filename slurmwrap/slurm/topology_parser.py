"""Turns `scontrol show topology` into a Topology. Pure.

Two grammars, distinguished by their lines; captures of 22.05.8, 24.11.5 and 26.05.5 are in tests/data/slurm:

    topology/tree   SwitchName=ib0 Level=0 LinkSpeed=1 Nodes=n[0-1]
                    SwitchName=core Level=1 LinkSpeed=1 Nodes=n[0-3] Switches=ib[0-1]
    topology/block  BlockName=b1 BlockIndex=0 Nodes=n[0-3] BlockSize=4
                    AggregatedBlock=b[1-2] BlockIndex=3 Nodes=n[0-7] BlockSize=8

The plugin's name in the configuration is not asked: with a topology.yaml 26.05 says topology/flat whatever is in force.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurmwrap.model.hostlist import names_in
from slurmwrap.model.topology import Block, Switch, Topology
from slurmwrap.slurm.scontrol_parser import parse_number


def parse_topology(text: str) -> Topology:
    """Switches or blocks; lines of another grammar and notices are passed over. `source` is "" where none are told."""
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
    """Name of the cluster's default in `scontrol show topoconf` (YAML, 25.05 and newer); "" where it is not told."""
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
