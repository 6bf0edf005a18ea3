"""The actions of a decision on a real Slurm: the time limit of a held job, the limits of a partition, and refusals."""

from __future__ import annotations

import os

import pytest
from realslurm import USERS, Lab

from slurmwrap.errors import SlurmError
from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.slurm.commands import SlurmCommands

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]
ALICE, _ = USERS
FAILS = "#!/bin/bash\nexit 1\n"


def slurm_of(lab: Lab) -> SlurmCommands:
    return SlurmCommands({**os.environ, **lab.env})


def failed_job(lab: Lab, slurm: SlurmCommands) -> str:
    """A job of alice that failed, was requeued and is held."""
    job = lab.submit("--mem=100", "--requeue", "--time=1", "--output=/dev/null", user=ALICE, script=FAILS)
    lab.wait_job(job, ("FAILED",))
    slurm.apply(SlurmAction(verb=Verb.REQUEUEHOLD, target=job))
    return job


def test_root_and_the_owner_can_raise_the_time_limit_of_a_held_job(lab: Lab) -> None:
    slurm = slurm_of(lab)
    job = failed_job(lab, slurm)
    slurm.apply(SlurmAction(verb=Verb.UPDATE_JOB, target=job, key="TimeLimit", value="90"))
    raised = slurm.job(job)
    by_owner = lab.run(["scontrol", "update", f"JobId={job}", "TimeLimit=100"], ALICE)
    again = slurm.job(job)
    assert raised is not None and again is not None
    assert (raised.time_limit_s, by_owner.returncode, again.time_limit_s) == (5400, 0, 6000)
    lab.run(["scancel", job])


def test_slurm_keeps_values_above_a_partitions_limits_with_or_without_an_error(lab: Lab) -> None:
    """Therefore a resize checks the limits itself, and a refused resize is undone: else the job could wait for ever."""
    slurm = slurm_of(lab)
    job = failed_job(lab, slurm)
    limit = ["scontrol", "update", "PartitionName=gpu"]
    lab.run([*limit, "MaxMemPerNode=200", "MaxTime=10"])
    try:
        with pytest.raises(SlurmError, match="partition configuration not available"):
            slurm.apply(SlurmAction(verb=Verb.UPDATE_JOB, target=job, key="MinMemoryNode", value="300"))
        kept = slurm.job(job)
        slurm.apply(SlurmAction(verb=Verb.UPDATE_JOB, target=job, key="TimeLimit", value="20"))
        slurm.apply(SlurmAction(verb=Verb.UPDATE_JOB, target=job, key="MinMemoryNode", value="100"))
        back = slurm.job(job)
    finally:
        lab.run([*limit, "MaxMemPerNode=0", "MaxTime=UNLIMITED"])
        lab.run(["scancel", job])
    assert next(p for p in slurm.snapshot().partitions if p.name == "gpu").max_mem_mib_per_node is None  # as before
    assert kept is not None and back is not None
    assert (kept.mem_mib_per_node, back.mem_mib_per_node, back.time_limit_s) == (300, 100, 1200)


def test_max_time_of_a_partition_is_read(lab: Lab) -> None:
    slurm = slurm_of(lab)
    name = slurm.snapshot().partitions[0].name
    lab.run(["scontrol", "update", f"PartitionName={name}", "MaxTime=1-02:00:00"])
    limited = next(p.max_time_s for p in slurm.snapshot().partitions if p.name == name)
    lab.run(["scontrol", "update", f"PartitionName={name}", "MaxTime=UNLIMITED"])
    free = next(p.max_time_s for p in slurm.snapshot().partitions if p.name == name)
    assert (limited, free) == (26 * 3600, None)


def test_the_action_block_input_is_never_sent_to_slurm(lab: Lab) -> None:
    with pytest.raises(SlurmError, match="is not a job id"):
        slurm_of(lab).apply(SlurmAction(verb=Verb.BLOCK_INPUT, target="/data/x", key="user", value="d"))
