"""Compare the hooks that ran on the nodes, as their Epilogs reported them, with the controller's files.

Every Epilog's observation has the fact `hooks`: release and checksum of the files that ran (node_hooks/checksum.py).
Pure, except for read_checksum.
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
    """The hooks of one node, according to its newest Epilog.

    `state`: SAME as the controller's, OTHER files, UNSAID (the Epilog is of an older release that does not send the
    fact), or SILENT (no observation of the node in the period considered: no job ended there, or no hook ran).
    """

    node: str
    state: str
    # Unix seconds of that Epilog; 0.0 if SILENT.
    at: float = 0.0
    checksum: str = ""
    release: str = ""


def read_checksum(directory: Path) -> str:
    """Return the checksum of the hooks' files in `directory`; "" when one of them is missing or cannot be read."""
    try:
        return str(checksum.of(str(directory)))  # type: ignore[no-untyped-call]
    except OSError:
        return ""


def list_node_hooks(
    nodes: Iterable[str], seen: Mapping[str, tuple[float, Mapping[str, Any]]], expected: str
) -> tuple[NodeHooks, ...]:
    """Return one NodeHooks per name in `nodes`, in that order.

    `seen`: node -> (time, the fact `hooks`) of its newest Epilog. `expected`: `read_checksum` of the controller's
    directory.
    """
    return tuple(_make_node_hooks(name, *seen.get(name, (0.0, {})), expected) for name in nodes)


def _make_node_hooks(name: str, at: float, fact: Mapping[str, Any], expected: str) -> NodeHooks:
    found, release = str(fact.get("checksum", "")), str(fact.get("release", ""))
    state = (SAME if found == expected else OTHER) if found else (UNSAID if at else SILENT)
    return NodeHooks(node=name, state=state, at=at, checksum=found, release=release)


def select_newest(observations: Iterable[Observation]) -> dict[str, tuple[float, Mapping[str, Any]]]:
    """Return the argument `seen` of `list_node_hooks` from observations in any order."""
    found: dict[str, tuple[float, Mapping[str, Any]]] = {}
    for one in observations:
        if one.context is Context.EPILOG and one.at >= found.get(one.node, (0.0, {}))[0]:
            fact = one.facts.get("hooks")
            found[one.node] = one.at, fact if isinstance(fact, Mapping) else {}
    return found
