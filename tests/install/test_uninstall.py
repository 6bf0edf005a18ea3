"""Which nodes' files are removed when some nodes are not ready."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from slurmwrap.install import uninstall
from slurmwrap.install.copy_to_nodes import STILL_NAMED, NodeResult
from slurmwrap.install.install_workflow import ALL
from slurmwrap.install.manifest import Manifest, Written

MANIFEST = Manifest(
    settings={"python": "/usr/bin/python3"},
    files=(Written(path="/usr/lib/slurmwrap/hooks/prolog", kind="hook", digests=("d",)),),
    nodes={"n1": "d", "n2": "d"},
)


@pytest.mark.parametrize(
    ("reason", "taken", "results"),
    [
        ("", [("n1", "n2")], [("n1", ""), ("n2", "")]),
        ("it is down", [("n1",)], [("n1", ""), ("n2", "it is down")]),
        (STILL_NAMED, [], [("n1", ""), ("n2", STILL_NAMED)]),
    ],
)
def test_no_node_loses_files_while_one_node_still_names_the_hooks(
    reason: str, taken: list[tuple[str, ...]], results: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, ...]] = []

    def send(nodes: Sequence[str], *_: object, action: str, **__: object) -> tuple[NodeResult, ...]:
        if action == "take":
            sent.append(tuple(nodes))
            return tuple(NodeResult(node=node) for node in nodes)
        return tuple(NodeResult(node=node, reason=reason if node == "n2" else "") for node in nodes)

    monkeypatch.setattr(uninstall, "send", send)
    monkeypatch.setattr(uninstall, "wait_for_nodes", lambda context, names: (object(),))
    context = SimpleNamespace(manifest=MANIFEST, system=SimpleNamespace(alive=True), slurm=None)
    found = uninstall.remove_from_nodes(context, ALL, 1.0)  # type: ignore[arg-type]
    assert (sent, [(one.node, one.reason) for one in found]) == (taken, results)
