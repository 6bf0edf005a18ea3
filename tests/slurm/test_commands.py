"""The adapter SlurmCommands on a real Slurm, in addition to the tests of all adapters (test_contract.py)."""

from __future__ import annotations

import os

import pytest
from realslurm import USERS, Lab
from waiting import wait_for

from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.model.job_record import JobRecord
from slurmwrap.protocols import Slurm
from slurmwrap.slurm.commands import SlurmCommands, make_action_argv

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]
ALICE, BOB = USERS
SLEEP = "#!/bin/sh\nsleep 86400\n"


@pytest.fixture
def slurm(lab: Lab) -> Slurm:
    return SlurmCommands({**os.environ, **lab.env})


def job(slurm: Slurm, address: str) -> JobRecord:
    record = slurm.job(address)
    assert record is not None
    return record


def test_a_user_cannot_cancel_another_users_job(lab: Lab) -> None:
    held = lab.submit("--hold", "--mem=100", user=ALICE, script=SLEEP)
    done = lab.run(make_action_argv(SlurmAction(verb=Verb.CANCEL, target=held)), user=BOB)
    lab.run(["scancel", held])
    assert done.returncode != 0
    assert "denied" in done.stderr


def test_cluster_name_and_node_addresses_are_read(slurm: SlurmCommands) -> None:
    assert slurm.cluster_name()
    assert set(slurm.node_addresses().values()) == {"127.0.0.1"}


def test_switches_0_lets_a_job_start_that_waits_for_a_switch(lab: Lab, slurm: Slurm) -> None:
    # sent as Switches=1@0: with Switches=0 Slurm 24.11.5 and 26.05.5 do not start the job
    lab.reset()
    busy = lab.submit("--nodelist=n[0-2,4-6]", "-N6", "--exclusive", "--mem=100", user=ALICE, script=SLEEP)
    lab.wait_job(busy, ("RUNNING",), timeout=60)
    waiting = lab.submit("-N2", "--switches=1@50:00", "--mem=100", user=ALICE, script=SLEEP)
    try:
        wait_for(lambda: job(slurm, waiting).reason, lambda reason: reason == "Resources", timeout=60)
        assert job(slurm, waiting).state == "PENDING"  # each of the two switches has one free node
        slurm.apply(SlurmAction(verb=Verb.UPDATE_JOB, target=waiting, key="Switches", value="0"))
        lab.wait_job(waiting, ("RUNNING",), timeout=60)
        assert job(slurm, waiting).nodes == ("n3", "n7")
    finally:
        lab.run(["scancel", busy, waiting])
