"""Which hooks ran where: what the nodes' Epilogs said of their files, next to the controller's. Pure but for one read.

Every Epilog's observation carries the fact `hooks`: release and checksum of the files that ran
(node_hooks/checksum.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.observation import Context, Observation
from slurmwrap.node_hooks import checksum

SAME, OTHER, UNSAID, SILENT = "same", "other", "unsaid", "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHooks:
    """The hooks of one node, by its newest Epilog.

    `state`: SAME as the controller's, OTHER files, UNSAID (an Epilog of before this fact was sent), or SILENT (nothing
    was heard of the node in the time looked at: no job ended there, or no hook ran).
    """

    node: str
    state: str
    # Unix seconds of that Epilog; 0.0: SILENT.
    at: float = 0.0
    checksum: str = ""
    release: str = ""


def read_checksum(directory: Path) -> str:
    """Of the hooks' files in `directory` on this machine; "" where they are not all there or cannot be read."""
    try:
        return str(checksum.of(str(directory)))  # type: ignore[no-untyped-call]
    except OSError:
        return ""


def list_node_hooks(
    nodes: Iterable[str], seen: Mapping[str, tuple[float, Mapping[str, Any]]], expected: str
) -> tuple[NodeHooks, ...]:
    """One per name in `nodes`, in that order. `seen`: node -> (time, the fact `hooks`) of its newest Epilog.

    `expected`: `read_checksum` the controller's own directory.
    """
    return tuple(_make_node_hooks(name, *seen.get(name, (0.0, {})), expected) for name in nodes)


def _make_node_hooks(name: str, at: float, told: Mapping[str, Any], expected: str) -> NodeHooks:
    word, release = str(told.get("checksum", "")), str(told.get("release", ""))
    state = (SAME if word == expected else OTHER) if word else (UNSAID if at else SILENT)
    return NodeHooks(node=name, state=state, at=at, checksum=word, release=release)


def select_newest(observations: Iterable[Observation]) -> dict[str, tuple[float, Mapping[str, Any]]]:
    """What `list_node_hooks` takes as `seen`, out of Epilogs' observations in any order."""
    found: dict[str, tuple[float, Mapping[str, Any]]] = {}
    for one in observations:
        if one.context is Context.EPILOG and one.at >= found.get(one.node, (0.0, {}))[0]:
            told = one.facts.get("hooks")
            found[one.node] = one.at, told if isinstance(told, Mapping) else {}
    return found
