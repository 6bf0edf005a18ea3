"""Faults of slurmwrap while the gate is on: none refuses a node, and no report claims a refusal that did not happen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gate_site import Gate


def spool_gone(gate: Gate) -> None:
    (gate.site.root / "spool").rename(gate.site.root / "elsewhere")


def munge_down(gate: Gate) -> None:
    gate.site.setting("munge_socket", "/nonexistent/socket")


def python_gone(gate: Gate) -> None:
    gate.site.edit(gate.site.files.prolog, "python=", "python=/nonexistent")


def python_exits_1(gate: Gate) -> None:
    fake = gate.site.root / "python"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    lines = gate.site.files.prolog.read_text().splitlines()
    text = [f"python={fake}" if line.startswith("python=") else line for line in lines]
    gate.site.files.prolog.write_text("\n".join(text) + "\n")


def torn_zipapp(gate: Gate) -> None:
    gate.site.files.zipapp.write_bytes(gate.site.files.zipapp.read_bytes()[:1000])


def state_open_to_all(gate: Gate) -> None:
    gate.site.state.chmod(0o777)
    (gate.site.state / ".refused").touch()


def refusal_left_from_before(gate: Gate) -> None:
    (gate.site.state / "4a6f2d0e-0000-4000-8000-000000000000.refused").touch()
    torn_zipapp(gate)


@pytest.mark.parametrize(
    "fault",
    [spool_gone, munge_down, python_gone, python_exits_1, torn_zipapp, state_open_to_all, refusal_left_from_before],
)
def test_a_fault_of_slurmwrap_never_refuses_a_node(gate: Gate, fault: Callable[[Gate], None]) -> None:
    gate.fault()
    gate.permit()
    fault(gate)
    gate.site.prolog()


def test_without_a_spool_no_node_is_refused_and_no_refusal_is_sent_later(gate: Gate) -> None:
    gate.fault()
    gate.permit()
    (gate.site.root / "spool").rename(gate.site.root / "elsewhere")
    gate.site.prolog()  # without the spool its owner is unknown: no fault file is trusted, no refusal recorded
    (gate.site.root / "elsewhere").rename(gate.site.root / "spool")
    gate.site.epilog(SLURM_JOB_ID="42")
    gate_facts = {item.job_id: item.facts.get("gate", {}) for item in gate.site.arrived()}
    assert gate_facts == {41: {}, 42: {}}


def test_a_refusal_that_munge_could_not_seal_is_reported_as_not_done(gate: Gate) -> None:
    gate.fault()
    gate.permit()
    settings = gate.site.files.zipapp.with_name("hooks.json").read_text()
    munge_down(gate)
    gate.site.prolog()
    gate.site.files.zipapp.with_name("hooks.json").write_text(settings)
    gate.site.epilog(SLURM_JOB_ID="42")
    gate_facts = {item.job_id: item.facts.get("gate", {}) for item in gate.site.arrived()}
    assert (gate_facts[41]["refused"], gate_facts[41]["why_not"]) == (False, "the refusal could not be recorded")
