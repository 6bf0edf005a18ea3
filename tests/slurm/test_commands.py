"""The Slurm edge on a real Slurm: what any other adapter of edges.Slurm must give too."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from realslurm import USERS, Lab, wait_for

from slurmwrap.cluster.action import SlurmAction, Verb
from slurmwrap.cluster.job import JobRecord
from slurmwrap.edges import SbatchCall, Slurm
from slurmwrap.errors import SlurmError, SlurmUnreachable
from slurmwrap.slurm.commands import SlurmCommands, argv_of

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]
ALICE, BOB = USERS


@pytest.fixture
def slurm(lab: Lab) -> Slurm:
    return SlurmCommands({**os.environ, **lab.env})


@pytest.fixture
def held(lab: Lab) -> Iterator[str]:
    """A job of alice's that only waits, with a name that forges fields and lines."""
    name = "x JobState=RUNNING\n7|RUNNING\x1f"
    job_id = lab.submit("--hold", "--mem=100", f"--job-name={name}", "--comment=c Reason=x", user=ALICE, script=SLEEP)
    yield job_id
    lab.run(["scancel", job_id])


SLEEP = "#!/bin/sh\nsleep 300\n"


def job(slurm: Slurm, address: str) -> JobRecord:
    record = slurm.job(address)
    assert record is not None
    return record


def ended(slurm: Slurm, address: str) -> JobRecord:
    return wait_for(lambda: job(slurm, address), lambda record: record.ended, timeout=30)


def test_snapshot_shows_the_lab(slurm: Slurm) -> None:
    snapshot = slurm.snapshot()
    assert {(n.gpus, n.gpu_type, n.usable, n.address) for n in snapshot.nodes} == {(8, "a100", True, "127.0.0.1")}
    assert snapshot.default_partition == "gpu"
    assert [len(leaf.nodes) for leaf in snapshot.topology.leaves] == [4, 4]
    assert abs(snapshot.taken_at - time.time()) < 10


def test_gpus_in_use_are_counted(lab: Lab, slurm: Slurm) -> None:
    job_id = lab.submit("--gres=gpu:3", "--mem=100", user=ALICE, script=SLEEP)
    lab.wait_job(job_id, ("RUNNING",))
    (name,) = job(slurm, job_id).nodes
    (node,) = [n for n in slurm.snapshot().nodes if n.name == name]
    lab.run(["scancel", job_id])
    assert (node.gpus_used, node.gpus_free, node.mem_alloc_mib) == (3, 5, 100)


def test_forged_name_stays_text_and_makes_no_second_job(slurm: Slurm, held: str) -> None:
    record = job(slurm, held)
    assert (record.state, record.name, record.comment) == ("PENDING", "x JobState=RUNNING\n7|RUNNING\x1f", "c Reason=x")
    assert [r.job_id for r in slurm.jobs(ALICE) if r.name == record.name] == [int(held)]


def test_job_of_nobody_is_none_and_jobs_are_by_user(slurm: Slurm, held: str) -> None:
    assert slurm.job("999999") is None
    assert int(held) in {record.job_id for record in slurm.jobs()}
    assert int(held) not in {record.job_id for record in slurm.jobs(BOB)}


def test_ended_job_tells_codes_times_and_its_file(lab: Lab, slurm: Slurm) -> None:
    job_id = lab.submit(
        "--mem=100", "--time=2", "--output=o-%j-%x", user=ALICE, script="#!/bin/sh\nsrun false\nexit 3\n"
    )
    record = ended(slurm, job_id)
    assert (record.state, record.reason, record.exit_code, record.derived_exit_code) == (
        "FAILED",
        "NonZeroExitCode",
        3,
        1,
    )
    assert (record.user, record.time_limit_s, record.mem_mib_per_node, record.num_nodes) == (ALICE, 120, 100, 1)
    assert record.std_out == record.std_err == f"{record.work_dir}/o-{job_id}-sbatch"
    assert record.start_time is not None and record.end_time is not None
    assert record.submit_time <= record.start_time <= record.end_time <= time.time() + 1


def test_array_tasks_have_addresses_and_their_own_files(lab: Lab, slurm: Slurm) -> None:
    array = lab.submit("--mem=100", "--array=0-1", user=ALICE, script="#!/bin/sh\nexit $SLURM_ARRAY_TASK_ID\n")
    lab.wait_job(array, ("COMPLETED", "FAILED"))
    tasks = [ended(slurm, f"{array}_{i}") for i in (0, 1)]
    assert [(t.address, t.state, t.exit_code) for t in tasks] == [
        (f"{array}_0", "COMPLETED", 0),
        (f"{array}_1", "FAILED", 1),
    ]
    assert [t.std_out for t in tasks] == [f"{t.work_dir}/slurm-{t.address}.out" for t in tasks]
    assert job(slurm, str(tasks[0].job_id)).address == f"{array}_0"


def test_submission_and_refusal_come_back_in_sbatchs_words(lab: Lab, slurm: Slurm) -> None:
    environ = {**os.environ, **lab.env}
    good = SbatchCall(
        options=("--hold", "--mem=10"), script_path=None, stdin=SLEEP.encode(), environ=environ, cwd="/tmp"
    )
    result = slurm.sbatch(good)
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"Submitted batch job {result.job_id}\n", "")
    slurm.apply(SlurmAction(verb=Verb.CANCEL, target=str(result.job_id)))
    bad = SbatchCall(options=("--partition=nopart",), script_path=None, stdin=SLEEP.encode(), environ=environ)
    refused = slurm.sbatch(bad)
    assert (refused.exit_code, refused.job_id, refused.timed_out) == (1, None, False)
    assert "invalid partition specified: nopart" in refused.stderr


def test_actions_change_the_job_and_refusals_are_slurms_own(lab: Lab, slurm: Slurm, held: str) -> None:
    def act(verb: Verb, key: str = "", value: str = "") -> None:
        slurm.apply(SlurmAction(verb=verb, target=held, key=key, value=value))

    act(Verb.UPDATE_JOB, "Comment", "two\nlines; $(id)")
    act(Verb.UPDATE_JOB, "ExcNodeList", "n1,n2")
    assert (job(slurm, held).comment, job(slurm, held).exc_nodes) == ("two lines; $(id)", "n[1-2]")
    with pytest.raises(SlurmError, match="pending"):
        act(Verb.REQUEUE)
    act(Verb.RELEASE)
    lab.wait_job(held, ("RUNNING",))
    act(Verb.REQUEUEHOLD)
    again = wait_for(lambda: job(slurm, held), lambda record: record.pending, timeout=30)
    assert (again.restarts, again.requeue) == (1, True)
    act(Verb.CANCEL)
    assert ended(slurm, held).state == "CANCELLED"


def test_drain_of_ours_is_set_and_lifted_and_of_others_kept(lab: Lab, slurm: Slurm) -> None:
    def act(verb: Verb, reason: str = "") -> None:
        slurm.apply(SlurmAction(verb=verb, target="n7", value=reason))

    def reason() -> str:
        (node,) = [n for n in slurm.snapshot().nodes if n.name == "n7"]
        return node.reason.partition(" [")[0] if "DRAIN" in node.flags else ""

    act(Verb.DRAIN, "slurmwrap: Xid 79")
    assert reason() == "slurmwrap: Xid 79"
    act(Verb.RESUME)
    assert reason() == ""
    lab.run(["scontrol", "update", "NodeName=n7", "State=DRAIN", "Reason=bad cable"])
    try:
        for verb in (Verb.DRAIN, Verb.RESUME):
            with pytest.raises(SlurmError, match="bad cable"):
                act(verb, "slurmwrap: Xid 48")
        assert reason() == "bad cable"
    finally:
        lab.run(["scontrol", "update", "NodeName=n7", "State=RESUME"])


def test_user_is_refused_what_slurm_refuses_him(lab: Lab, held: str) -> None:
    done = lab.run(argv_of(SlurmAction(verb=Verb.CANCEL, target=held)), user=BOB)
    assert done.returncode != 0
    assert "denied" in done.stderr


def test_controller_that_is_not_there_is_unreachable_in_time(lab: Lab, tmp_path: Path) -> None:
    text = Path(lab.env["SLURM_CONF"]).read_text()
    conf = tmp_path / "slurm.conf"
    conf.write_text(
        "\n".join("SlurmctldPort=1" if line.startswith("SlurmctldPort") else line for line in text.splitlines())
    )
    started = time.monotonic()
    with pytest.raises(SlurmUnreachable):
        SlurmCommands({**os.environ, "SLURM_CONF": str(conf)}, timeout_s=1.0).snapshot()
    assert time.monotonic() - started < 20


def test_cluster_and_addresses_are_known(slurm: SlurmCommands) -> None:
    assert slurm.cluster_name()
    assert set(slurm.node_addresses().values()) == {"127.0.0.1"}


def test_job_that_waits_for_a_switch_is_let_go_by_switches_0(lab: Lab, slurm: Slurm) -> None:
    # sent as Switches=1@0: by 0 itself 24.11.5 and 26.05.5 let nothing go
    busy = lab.submit("--nodelist=n[0-2,4-6]", "-N6", "--exclusive", "--mem=100", user=ALICE, script=SLEEP)
    lab.wait_job(busy, ("RUNNING",), timeout=60)
    waiting = lab.submit("-N2", "--switches=1@50:00", "--mem=100", user=ALICE, script=SLEEP)
    try:
        wait_for(lambda: job(slurm, waiting).reason, lambda reason: reason == "Resources", timeout=60)
        assert job(slurm, waiting).state == "PENDING"  # with a node free under each of the two
        slurm.apply(SlurmAction(verb=Verb.UPDATE_JOB, target=waiting, key="Switches", value="0"))
        lab.wait_job(waiting, ("RUNNING",), timeout=60)
        assert job(slurm, waiting).nodes == ("n3", "n7")
    finally:
        lab.run(["scancel", busy, waiting])
