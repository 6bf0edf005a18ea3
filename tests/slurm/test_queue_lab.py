"""`slurmwrap queue` on a real Slurm: reasons, requests that the partition no longer gives, chains of dependencies."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from jsonschema import Draft202012Validator
from list_schemas import schemas
from realslurm import USERS, Lab
from waiting import wait_for

ALICE, BOB = USERS[:2]
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]
SCRIPT = "#!/bin/bash\nsleep 600\n"
SMALL = ("-c1", "--mem=100", "--output=/dev/null")


@pytest.fixture
def small_partition(lab: Lab) -> Iterator[None]:
    """After the jobs were submitted, an administrator lowered MaxNodes."""
    yield
    lab.run(["scontrol", "update", "partition=gpu", "maxnodes=unlimited"])
    lab.clear()


def test_the_jobs_that_need_a_person_come_first_with_words_and_a_way_out(lab: Lab, small_partition: None) -> None:
    held = lab.submit("--hold", "--gres=gpu:1", *SMALL, user=ALICE, script=SCRIPT)
    behind = lab.submit(f"--dependency=afterany:{held}", *SMALL, user=ALICE, script=SCRIPT)
    last = lab.submit(f"--dependency=afterok:{behind}", *SMALL, user=ALICE, script=SCRIPT)
    later = lab.submit("--begin=now+1hour", "--array=0-3", *SMALL, user=BOB, script=SCRIPT)
    blocked = lab.submit("--nodes=7", "--gres=gpu:1", "--begin=now+2", *SMALL, user=BOB, script=SCRIPT)
    lab.run(["scontrol", "update", "partition=gpu", "maxnodes=6"])

    def read() -> dict[str, dict[str, object]]:
        done = lab.slurmwrap("queue", "--json")
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert list(Draft202012Validator(schemas()["queue"]).iter_errors(document)) == []
        return {str(row["job"]).partition("_")[0]: row for row in document["rows"]}

    rows = wait_for(read, lambda rows: rows[blocked]["reason"] == "PartitionNodeLimit", 90.0)
    assert rows[blocked]["words"] == "it asks for 7 nodes; gpu gives at most 6"
    assert rows[held]["problem"] == "held"
    assert rows[last]["words"] == f"it waits for {behind}, which waits for {held}: it is held by its user"
    assert (rows[later]["problem"], rows[later]["needs_a_person"]) == ("later", False)
    shown = lab.slurmwrap("queue", "--stuck", "--user", BOB).stdout
    assert "Cannot start as requested: 1 job, 7 GPUs" in shown
    assert "its time to begin" not in shown
