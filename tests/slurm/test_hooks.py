"""The hooks on a real Slurm: the observations of one job in the spool, from each node and from the controller."""

from __future__ import annotations

import json
import pwd
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from realslurm import USERS, Lab
from waiting import wait_for

from slurmwrap.lab.lab_directories import LabDirectories
from slurmwrap.lab.lab_spec import gpu_bus_id
from slurmwrap.model.observation import Context, Observation
from slurmwrap.node_hooks.node_state import usage_path
from slurmwrap.store.spool_reader import PlainSpool, SealedSpool

pytestmark = pytest.mark.lab
ALICE = USERS[0]


@pytest.fixture(scope="module")
def lab(lab_as_slurm: Lab) -> Lab:
    """As on most sites, slurmctld is not root: the files of EpilogSlurmctld then do not belong to root."""
    return lab_as_slurm


# Prints where it runs, waits until the test has written to the kernel log, then fails.
SCRIPT = """#!/bin/bash
echo "on $SLURMD_NODENAME with $SLURM_JOB_GPUS"
while [ ! -e {flag} ]; do sleep 0.1; done
echo "RuntimeError: boom" >&2
exit 3
"""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The observations of one job."""

    prolog: list[Observation]
    epilog: list[Observation]
    controller: list[Observation]


def wait_for_observations(lab: Lab, job: str, nodes: int) -> Seen:
    """Waits until every hook of a job on `nodes` nodes has written; nothing is removed."""

    def look() -> Seen:
        found = [one.item for one in _sealed(lab).collect(limit=100_000)]
        found += [
            one.item for one in PlainSpool(LabDirectories(lab.dir).state / "controller", _uids(lab)).collect(100_000)
        ]
        ours = [item for item in found if isinstance(item, Observation) and item.job_id == int(job)]
        return Seen(
            prolog=[item for item in ours if item.context is Context.PROLOG],
            epilog=[item for item in ours if item.context is Context.EPILOG],
            controller=[item for item in ours if item.context is Context.EPILOG_SLURMCTLD],
        )

    return wait_for(look, lambda seen: (len(seen.epilog), len(seen.controller)) >= (nodes, 1), 60)


def _uids(lab: Lab) -> set[int]:
    return {0, pwd.getpwnam(lab.slurm_user).pw_uid}


def _sealed(lab: Lab) -> SealedSpool:
    layout = LabDirectories(lab.dir)
    addresses = {f"n{index}": "127.0.0.1" for index in range(8)}
    return SealedSpool(layout.spool, str(layout.munge_socket), lambda: addresses, _uids(lab), lab.cluster)


def run_failing_job(lab: Lab) -> tuple[str, str, str, str]:
    """(job id, its first node, the kernel line of its GPU, path of its output) after it failed."""
    home = Path(pwd.getpwnam(ALICE).pw_dir)
    flag = home / f"flag-{time.monotonic_ns()}"
    options = ("-N2", "-n2", "--gres=gpu:1", "--mem=100", "--job-name=a b", "--output=%x-%j.out")
    job = lab.submit(*options, user=ALICE, script=SCRIPT.format(flag=flag), cwd=home)
    output = home / f"a b-{job}.out"
    words = wait_for(lambda: output.read_text().split() if output.exists() else [], lambda w: len(w) == 4, 60)
    node, gpu = words[1], int(words[3])
    line = f"NVRM: Xid (PCI:{gpu_bus_id(gpu).rpartition('.')[0]}): 79, pid=1, name=python, GPU has fallen off the bus."
    lab.kernel(node, line)
    lab.kernel(node, line.replace(gpu_bus_id(gpu)[5:7], gpu_bus_id(gpu + 1)[5:7]))  # the GPU of another job
    flag.touch()
    lab.wait_job(job, ("FAILED",))
    return job, node, line, str(output)


def test_every_hook_records_a_failed_job_with_its_log_and_its_kernel_line(lab: Lab) -> None:
    job, node, line, output = run_failing_job(lab)
    seen = wait_for_observations(lab, job, nodes=2)
    uid = pwd.getpwnam(ALICE).pw_uid
    assert sorted(one.node for one in seen.prolog) == sorted(one.node for one in seen.epilog)
    assert all(
        (one.facts["exit"], one.facts["wait_status"], one.facts["uid"]) == ("3:0", 768, uid) for one in seen.epilog
    )
    (first,) = [one for one in seen.epilog if one.node == node]
    (second,) = [one for one in seen.epilog if one.node != node]
    assert first.facts["kernel"] == [{"text": line, "at": None}]
    assert [(log["name"], log["text"].splitlines()[-1]) for log in first.facts["logs"]] == [
        (output, "RuntimeError: boom")
    ]
    assert second.facts["kernel"] == [] and "logs" not in second.facts
    (controller,) = seen.controller
    facts = controller.facts
    assert (facts["name"], facts["user"], facts["exit"], facts["nodes"]) == ("a b", ALICE, "3:0", first.facts["nodes"])
    states = lab.run(["sinfo", "-h", "-N", "-o", "%T", "-n", f"{node},{second.node}"]).stdout.split()
    assert not any(state.startswith("drain") for state in states)


# Uses 300 MiB and CPU time until the test has seen enough.
USES = """#!/bin/bash
srun python3 -c "
import os
x = bytearray(b'1') * (300 << 20)
while not os.path.exists('{flag}'):
    sum(range(100_000))
"
"""


def test_cpu_time_and_memory_of_a_job_are_sampled_while_it_runs(lab: Lab) -> None:
    flag = Path(pwd.getpwnam(ALICE).pw_dir) / f"flag-{time.monotonic_ns()}"
    options = ("--nodelist=n5", "--mem=600", "--output=/dev/null")
    job = lab.submit(*options, user=ALICE, script=USES.format(flag=flag))
    sampled = Path(usage_path(str(LabDirectories(lab.dir).node("n5") / "state"), int(job)))

    def look() -> dict[str, float]:
        return json.loads(sampled.read_text()) if sampled.exists() else {}

    seen = wait_for(look, lambda now: now.get("cpu_s", 0) > 0.3 and now["mem_peak_mib"] > 290, 60)
    flag.touch()
    lab.wait_job(job)
    facts = wait_for_observations(lab, job, nodes=1).epilog[0].facts
    assert facts["cpu_s"] >= seen["cpu_s"] > 0.3
    assert 290 <= facts["mem_peak_mib"] <= 450
    assert facts["mem_source"] == "cgroup"


def test_epilog_slurmctld_records_array_job_id_and_array_task_id(lab: Lab) -> None:
    array = lab.submit("--array=3", "--mem=50", "--output=/dev/null", user=ALICE, script="#!/bin/bash\ntrue\n")
    lab.wait_job(array)
    (controller,) = wait_for_observations(lab, array, nodes=1).controller
    assert (controller.facts["array_job_id"], controller.facts["array_task_id"]) == (int(array), 3)


# Two ranks with their own output files. The second fails.
RANKS = """#!/bin/bash
srun -n2 --output=%j_%t.err bash -c '
echo "rank $SLURM_PROCID"
[ $SLURM_PROCID = 0 ] || {
    echo "ValueError: boom"
    exit 3
}'
"""


def test_output_files_of_ranks_are_read_in_addition_to_the_jobs_output(lab: Lab) -> None:
    home = Path(pwd.getpwnam(ALICE).pw_dir)
    job = lab.submit("-n2", "--mem=100", "--output=%j.out", user=ALICE, script=RANKS, cwd=home)
    lab.wait_job(job, ("FAILED",))
    (epilog,) = wait_for_observations(lab, job, nodes=1).epilog
    found = {Path(log["name"]).name: (log["text"], log.get("beside", False)) for log in epilog.facts["logs"]}
    assert set(found) == {f"{job}.out", f"{job}_0.err", f"{job}_1.err"}
    assert found[f"{job}_0.err"] == ("rank 0\n", True)
    assert found[f"{job}_1.err"] == ("rank 1\nValueError: boom\n", True)


LOGS_ELSEWHERE = """#!/bin/bash
bwrap --dev-bind / / --bind $HOME/elsewhere /mnt bash -c '
    echo "KeyError: lost" > /mnt/train.log
    exit 3
'
"""


def test_an_epilog_reads_the_log_that_a_container_of_a_gsub_job_wrote_elsewhere(lab: Lab) -> None:
    home = Path(pwd.getpwnam(ALICE).pw_dir)
    lab.run(["sh", "-c", "mkdir -p elsewhere; cat > contained.sbatch"], user=ALICE, cwd=home, stdin=LOGS_ELSEWHERE)
    sent = lab.run(["gsub", "--prerun=off", "--gpus=1", "contained.sbatch"], user=ALICE, cwd=home)
    assert sent.returncode == 0, sent.stderr
    job = sent.stdout.split()[-1]
    lab.wait_job(job, ("FAILED",))
    (epilog,) = wait_for_observations(lab, job, nodes=1).epilog
    found = {log["name"]: log["text"] for log in epilog.facts["logs"] if log.get("named")}
    assert found == {f"{home}/elsewhere/train.log": "KeyError: lost\n"}


@pytest.fixture
def gate(lab: Lab) -> Iterator[Lab]:
    """The lab with its Prolog gate on. slurmctld and the reconciler, which own these files, run as user slurm."""
    layout = LabDirectories(lab.dir)
    files = (layout.hooks / "prolog", layout.hooks / "hooks.json")
    before = [path.read_text() for path in files]
    files[0].write_text(before[0].replace("gate=off", "gate=on"))
    files[1].write_text(json.dumps({**json.loads(before[1]), "gate": "on", "published": str(layout.published)}))
    yield lab
    for path, text in zip(files, before, strict=True):
        path.write_text(text)
    for name in ("gate-permit.json", "faults.json"):
        (layout.published / name).unlink(missing_ok=True)
    lab.run(["scontrol", "update", "nodename=n7", "state=resume"])


def publish(lab: Lab, name: str, content: dict[str, object]) -> None:
    path = LabDirectories(lab.dir).published / name
    path.write_text(json.dumps(content))
    path.chmod(0o644)
    shutil.chown(path, lab.slurm_user)


def test_the_gate_holds_the_job_and_drains_its_node_until_the_permit_expires(gate: Lab) -> None:
    fault = {"node": "n7", "cause": "gpu_lost", "since": time.time() - 5, "text": "GPU 0 is lost"}
    publish(gate, "faults.json", {"version": 1, "at": time.time(), "faults": [fault]})
    publish(gate, "gate-permit.json", {"version": 1, "until": time.time() + 3500, "allowed": True})
    options = ("--mem=50", "--output=/dev/null")
    job = gate.submit("--nodelist=n7", *options, user=ALICE, script="#!/bin/bash\ntrue\n")
    words = ["squeue", "-h", "-j", job, "-o", "%T %r"]
    held = wait_for(lambda: gate.run(words).stdout, lambda output: "PENDING" in output and "held" in output, 60)
    assert held == "PENDING launch failed requeued held\n"
    drained = gate.run(["sinfo", "-h", "-n", "n7", "-o", "%T %E"]).stdout
    assert drained.startswith("drain") and drained.endswith(" Prolog error\n")
    (prolog,) = wait_for_observations(gate, job, nodes=1).prolog
    assert prolog.facts["gate"] == {
        "refused": True,
        "cause": "gpu_lost",
        "text": "GPU 0 is lost",
        "source": "published",
        "since": fault["since"],
        "gpu": "",
    }
    other = gate.submit("--exclude=n7", *options, user=ALICE, script="#!/bin/bash\ntrue\n")
    gate.wait_job(other)
    publish(gate, "gate-permit.json", {"version": 1, "until": time.time() - 1, "allowed": True})
    gate.run(["scontrol", "update", "nodename=n7", "state=resume"])
    gate.run(["scontrol", "release", job])
    gate.run(["scontrol", "update", f"jobid={job}", "starttime=now"])  # otherwise a requeued job waits two minutes
    gate.wait_job(job)
    assert [
        one.facts["gate"]["why_not"] for one in wait_for_observations(gate, job, nodes=1).prolog if one != prolog
    ] == ["the permit is stale"]
