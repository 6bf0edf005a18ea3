"""Shortening an observation until it fits into a MUNGE credential, and keeping unsent observations on the node."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from slurmwrap.node_hooks import munge_spool, node_state


def fit_facts(facts: dict[str, Any], limit: int = 10_000) -> dict[str, Any]:
    payload = munge_spool.fit({"version": 1, "facts": facts}, limit)
    assert len(payload) <= limit
    found: dict[str, Any] = json.loads(payload)["facts"]
    return found


def test_facts_that_fit_are_not_changed() -> None:
    facts = {"exit": "0:0", "logs": [{"name": "a", "text": "é\0", "truncated": False}]}
    assert fit_facts(facts) == facts


def test_the_longest_log_loses_its_beginning_first() -> None:
    logs = [{"name": "a", "text": "a" * 2000, "truncated": False}, {"name": "b", "text": "\0" * 9000 + "end"}]
    found = fit_facts({"exit": "1:0", "logs": logs})
    assert found["exit"] == "1:0" and found["trimmed"] is True
    assert found["logs"][0] == {"name": "a", "text": "a" * 2000, "truncated": False}
    assert found["logs"][1]["text"].endswith("\0end") and found["logs"][1]["truncated"] is True


def test_kernel_lines_are_dropped_before_other_facts() -> None:
    found = fit_facts({"uid": 1, "kernel": [{"text": "x" * 900}] * 100, "logs": [{"name": "a", "text": "y" * 9000}]})
    assert 1 <= len(found["kernel"]) < 100 and found["logs"][0]["text"] and found["uid"] == 1


def test_with_an_oversized_fact_only_the_numbers_are_kept() -> None:
    assert fit_facts({"uid": 1, "nodes": "n" * 100_000, "wait_status": 9}) == {
        "uid": 1,
        "wait_status": 9,
        "trimmed": True,
    }


def test_the_number_of_kept_unsent_observations_is_limited(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(node_state, "UNSENT_FILES", 2)
    settings = SimpleNamespace(node_state_dir=str(tmp_path))
    assert [node_state.keep_unsent(settings, f"{name}.obs", b"x") for name in "cab"] == [True, True, False]
    assert [path.rpartition("/")[2] for path in node_state.unsent(settings, 9)] == ["a.obs", "c.obs"]
