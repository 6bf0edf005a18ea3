"""The Prolog gate on a real Slurm: a node with a known fault is refused, and its job runs on another node."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from realslurm import USERS, Lab, started
from site_records import site_rows
from waiting import wait_for

from slurmwrap.host import hook_archive
from slurmwrap.lab.lab_directories import LabDirectories
from slurmwrap.lab.machine import program

pytestmark = pytest.mark.lab
ALICE, _ = USERS


@pytest.fixture(scope="module")
def gated(lab_scratch: Path) -> Iterator[Lab]:
    """Two nodes with the gate in the Prolog; the rule of the site is `act`."""
    with started(lab_scratch / "gated", "--nodes", "2") as lab:
        layout = LabDirectories(lab.dir)
        hook_archive.install(
            hook_archive.InstalledHookSettings(
                directory=layout.hooks,
                python=str(Path(sys.executable).resolve()),
                spool=layout.spool,
                controller_dir=layout.state / "controller",
                node_state_dir=layout.node("%n") / "state",
                cluster=lab.cluster,
                munge=program("munge"),
                munge_socket=str(layout.munge_socket),
                kernel_log=f"file:{layout.kernel_log('%n')}",
                nvidia_proc=str(layout.node("%n") / "nvidia"),
                gate="on",
                published=str(layout.published),
            )
        )
        yield lab


def _write_fault(lab: Lab, node: str) -> None:
    now = time.time()
    fault = {"node": node, "cause": "gpu_lost", "since": now, "text": "the GPU is lost"}
    state = LabDirectories(lab.dir).node(node) / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    (state / "faults.json").write_text(json.dumps({"version": 1, "at": now, "faults": [fault]}))


def _submit(lab: Lab) -> str:
    options = ("--mem=100", "--gres=gpu:1", f"--output=/var/tmp/{ALICE}/gate-%j.out")
    return lab.submit(*options, "--nodelist=n0", user=ALICE, script="#!/bin/sh\nhostname\n")


def test_without_a_permit_the_job_starts_on_the_faulty_node(gated: Lab) -> None:
    _write_fault(gated, "n0")
    job = _submit(gated)
    gated.wait_job(job, ("COMPLETED",))
    assert "Prolog error" not in gated.run(["sinfo", "-h", "-R"]).stdout


def test_with_a_permit_the_faulty_node_is_refused_and_the_job_runs_elsewhere(gated: Lab) -> None:
    began = time.time()
    gated.reconcile_once()
    permit_file = LabDirectories(gated.dir).published / "gate-permit.json"
    permit = json.loads(permit_file.read_text())
    assert permit["allowed"]
    permit_file.write_text(json.dumps({**permit, "until": began + 3500}))  # long enough until the Prolog starts
    _write_fault(gated, "n0")
    job = _submit(gated)

    def look() -> list[str]:
        gated.reconcile_once()
        return gated.states(job)

    if wait_for(look, lambda states: states == ["COMPLETED"], 60, pause=0.5) != ["COMPLETED"]:
        pytest.fail(
            gated.run(["scontrol", "show", "job", job]).stdout
            + gated.slurmwrap("why", job).stdout
            + str(site_rows(gated, "SELECT * FROM actions WHERE job_id = ?", int(job)))
        )
    shown = gated.run(["scontrol", "show", "job", job]).stdout
    assert "NodeList=n1" in shown and "Restarts=1" in shown
    assert f"slurmwrap: gate: gpu_lost, before job {job}" in gated.run(["sinfo", "-h", "-R", "-o", "%E %N"]).stdout
    errors = site_rows(gated, "SELECT DISTINCT error FROM actions WHERE job_id = ?", int(job))
    assert errors == [{"error": ""}]
    permit = json.loads(permit_file.read_text())
    assert (permit["allowed"], permit["until"] > began) == (False, True)  # one of two nodes already reaches the cap
