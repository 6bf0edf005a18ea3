"""The check of a drained node on a real Slurm: it stays drained when a part fails, and returns when all pass."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import replace

import pytest
from realslurm import USERS, Lab
from site_records import site_rows
from waiting import wait_for

from slurmwrap.lab.lab_directories import LabDirectories

pytestmark = pytest.mark.lab
ALICE, _ = USERS
MOUNTS = "SLURMWRAP_NODES_CHECK_MOUNTS"


def _with(lab: Lab, **variables: str) -> Lab:
    return replace(lab, env={**lab.env, **variables})


def _drain(lab: Lab, node: str, reason: str) -> None:
    lab.run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"])


def _describe(lab: Lab, node: str) -> str:
    return lab.run(["scontrol", "show", "node", node, "-o"]).stdout


def test_a_drained_node_returns_only_when_its_check_passes(lab: Lab) -> None:
    _drain(lab, "n2", "slurmwrap: xid_79, seen by job 7")
    job = lab.submit("--mem=100", "--nodelist=n2", "--output=/dev/null", user=ALICE, script="#!/bin/sh\ntrue\n")

    failed = _with(lab, **{MOUNTS: "/nonexistent"}).slurmwrap("nodes", "repaired", "n2", "--resume")
    assert failed.returncode == 3, failed.stdout + failed.stderr
    assert "fail    mounts      /nonexistent: No such file" in failed.stdout
    found = _describe(lab, "n2")
    assert "+DRAIN" in found and "Reason=slurmwrap: xid_79, seen by job 7; check failed: mounts" in found
    assert lab.states(job) == ["PENDING"]
    assert "No reservations" in lab.run(["scontrol", "show", "reservation"]).stdout
    (shown,) = json.loads(lab.slurmwrap("nodes", "show", "n2", "--json").stdout)["rows"]
    assert (shown["check"]["kind"], shown["repairs"]) == ("check_failed", [])
    assert "the check FAILED" in lab.slurmwrap("nodes", "show", "n2").stdout

    passed = _with(lab, **{MOUNTS: "/proc"}).slurmwrap("nodes", "repaired", "n2", "--resume")
    assert passed.returncode == 0, passed.stdout + passed.stderr
    assert "DRAIN" not in _describe(lab, "n2")
    assert "No reservations" in lab.run(["scontrol", "show", "reservation"]).stdout
    lab.wait_job(job)
    lab.reconcile_once()
    # The drain was lifted by slurmwrap's own command, and not by some other person.
    marks = site_rows(lab, "SELECT kind FROM repairs WHERE node = 'n2' ORDER BY at")
    assert [row["kind"] for row in marks] == ["check_failed", "check_passed", "repaired"]


def test_a_drain_of_others_and_a_busy_node_are_left_alone(lab: Lab) -> None:
    _drain(lab, "n3", "fan replaced by the night shift")
    refused = lab.slurmwrap("nodes", "check", "n3")
    assert (refused.returncode, "was not drained by slurmwrap" in refused.stderr) == (1, True)
    assert "Reason=fan replaced by the night shift" in _describe(lab, "n3")
    job = lab.submit("--mem=100", "--nodelist=n4", "--output=/dev/null", user=ALICE, script="#!/bin/sh\nsleep 600\n")
    lab.wait_job(job, ("RUNNING",))
    refused = lab.slurmwrap("nodes", "check", "n4")
    assert (refused.returncode, "jobs still run on node n4" in refused.stderr) == (1, True)
    lab.run(["scancel", job])


def test_the_rule_resume_checks_a_node_that_was_rebooted_since_its_drain(lab: Lab) -> None:
    _drain(lab, "n5", "slurmwrap: xid_79, seen by job 7")
    lab.reconcile_once()
    assert "rebooted since" not in lab.slurmwrap("nodes", "list").stdout
    # All nodes of the lab have this machine's boot time, so the drain is moved to before it.
    with contextlib.closing(sqlite3.connect(LabDirectories(lab.dir).state / "site.db")) as database, database:
        database.execute("UPDATE removals SET began = 1000 WHERE node = 'n5' AND ended IS NULL")
    _with(lab, SLURMWRAP_RULES_RESUME="advise").reconcile_once()
    assert "+DRAIN" in _describe(lab, "n5")
    assert "n5: rebooted since slurmwrap's drain" in lab.slurmwrap("nodes", "list").stdout
    _with(lab, SLURMWRAP_RULES_RESUME="act").reconcile_once()
    kinds = "SELECT kind FROM repairs WHERE node = 'n5' ORDER BY at"
    found = wait_for(lambda: [row["kind"] for row in site_rows(lab, kinds)], lambda kinds: len(kinds) == 2, 60)
    assert found == ["check_passed", "repaired"]
    assert "DRAIN" not in _describe(lab, "n5") and "MAINT" not in _describe(lab, "n5")
