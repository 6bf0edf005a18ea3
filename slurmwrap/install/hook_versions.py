"""Compare the hooks that ran on the nodes, as their Epilogs reported, with the controller's files and this release.

Every Epilog's observation has the fact `hooks`: release and checksum of the files that ran (node_hooks/checksum.py).
Pure, except for read_checksum and what reads this package's own modules.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from slurmwrap import __version__
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.observation import Context, Observation
from slurmwrap.node_hooks import checksum

OTHER_RELEASE_HINT = (
    "Hooks and reconciler of neighbouring minor releases work together; `slurmwrap hooks install` upgrades the hooks."
)
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


def explain_other_release(zipapp: bytes, settings: bytes) -> str:
    """Return a sentence when a zipapp holds other hooks than this release installs; "" when it holds the same.

    `settings`: the content of its hooks.json, which names its release.
    """
    own = {path.name: path.read_bytes() for path in Path(checksum.__file__).parent.glob("*.py")}
    try:
        with zipfile.ZipFile(io.BytesIO(zipapp)) as archive:
            names = [name for name in archive.namelist() if re.fullmatch(r"node_hooks/\w+\.py", name)]
            found = {name.rpartition("/")[2]: archive.read(name) for name in names}
        plain = json.loads(settings)
        release = str(plain.get("release", "")) if isinstance(plain, dict) else ""
    except (zipfile.BadZipFile, ValueError):
        return "the hooks cannot be read"
    if found == own:
        return ""
    return f"hooks of {describe_release(release)}; this is {__version__}"


def describe_release(release: str) -> str:
    """Return the words for the release of hooks, compared with this one: "an older release, 0.1.0"."""
    if not release:
        return "an unknown release"
    there, here = (tuple(map(int, re.findall(r"\d+", text)[:3])) for text in (release, __version__))
    kind = "an older" if there < here else "a newer" if there > here else "another build of this"
    return f"{kind} release, {release}"


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
