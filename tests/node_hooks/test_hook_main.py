"""What the node keeps of a failed hook."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from slurmwrap.node_hooks.hook_main import _record_failure


def test_a_failure_is_recorded_with_the_hook_and_without_its_other_arguments(tmp_path: Path) -> None:
    state = tmp_path / "state"
    argv = ["node_hooks.pyz", "prolog", "/etc/slurmwrap/hooks.json", "token"]
    _record_failure(SimpleNamespace(node_state_dir=str(state)), argv, ValueError("no such key"))
    assert (state / "failed").read_text().partition(" ")[2] == "prolog: ValueError: no such key\n"
