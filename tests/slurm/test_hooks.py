"""The hooks under a real Slurm: what one job leaves in the spool, from each node and from the controller."""

from __future__ import annotations

import pwd
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from realslurm import USERS, Lab, wait_for

from slurmwrap.diagnosis.evidence import Context, Observation
from slurmwrap.lab.layout import Layout
from slurmwrap.lab.spec import gpu_bus_id
from slurmwrap.store.spool import PlainSpool, SealedSpool

pytestmark = pytest.mark.lab
ALICE = USERS[0]

# Says where it runs, waits until the test has written to the kernel log, then fails.
SCRIPT = """#!/bin/bash
echo "on $SLURMD_NODENAME with $SLURM_JOB_GPUS"
while [ ! -e {flag} ]; do sleep 0.1; done
echo "RuntimeError: boom" >&2
exit 3
"""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What was observed of one job."""

    prolog: list[Observation]
    epilog: list[Observation]
    controller: list[Observation]


def observed(lab: Lab, job: str, nodes: int) -> Seen:
    """Waits until every hook of a job on `nodes` nodes has written; nothing is removed."""

    def look() -> Seen:
        found = [one.item for one in _sealed(lab).collect(limit=100_000)]
        found += [one.item for one in PlainSpool(Layout(lab.dir).state / "controller", _uids(lab)).collect(100_000)]
        ours = [item for item in found if isinstance(item, Observation) and item.job_id == int(job)]
        return Seen(
            prolog=[item for item in ours if item.context is Context.PROLOG],
            epilog=[item for item in ours if item.context is Context.EPILOG],
            controller=[item for item in ours if item.context is Context.EPILOG_SLURMCTLD],
        )

    return wait_for(look, lambda seen: (len(seen.epilog), len(seen.controller)) >= (nodes, 1), 15)


def _uids(lab: Lab) -> set[int]:
    return {0, pwd.getpwnam(lab.slurm_user).pw_uid}


def _sealed(lab: Lab) -> SealedSpool:
    layout = Layout(lab.dir)
    addresses = {f"n{index}": "127.0.0.1" for index in range(8)}
    return SealedSpool(layout.spool, str(layout.munge_socket), lambda: addresses, _uids(lab), "lab")


def run_failing_job(lab: Lab) -> tuple[str, str, str, str]:
    """(job id, its first node, the kernel line of its GPU, path of its output) after it failed."""
    home = Path(pwd.getpwnam(ALICE).pw_dir)
    flag = home / f"flag-{time.monotonic_ns()}"
    options = ("-N2", "-n2", "--gres=gpu:1", "--mem=100", "--job-name=a b", "--output=%x-%j.out")
    job = lab.submit(*options, user=ALICE, script=SCRIPT.format(flag=flag), cwd=home)
    output = home / f"a b-{job}.out"
    words = wait_for(lambda: output.read_text().split() if output.exists() else [], lambda w: len(w) == 4, 30)
    node, gpu = words[1], int(words[3])
    line = f"NVRM: Xid (PCI:{gpu_bus_id(gpu).rpartition('.')[0]}): 79, pid=1, name=python, GPU has fallen off the bus."
    lab.kernel(node, line)
    lab.kernel(node, line.replace(gpu_bus_id(gpu)[5:7], gpu_bus_id(gpu + 1)[5:7]))  # another job's GPU
    flag.touch()
    lab.wait_job(job, ("FAILED",))
    return job, node, line, str(output)


def check_failing_job(lab: Lab) -> None:
    job, node, line, output = run_failing_job(lab)
    seen = observed(lab, job, nodes=2)
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


def test_a_failed_job_is_seen_by_every_hook_with_its_log_and_its_own_kernel_line(lab: Lab) -> None:
    check_failing_job(lab)


def test_the_same_with_slurmctld_as_user_slurm(lab_as_slurm: Lab) -> None:
    check_failing_job(lab_as_slurm)


# 300 MiB, and three seconds of work.
USES = """#!/bin/bash
srun python3 -c "
import time
x = bytearray(b'1') * (300 << 20)
t = time.time()
while time.time() - t < 3:
    pass
"
"""


def test_what_a_job_used_is_sampled_while_it_runs(lab: Lab) -> None:
    job = lab.submit("--mem=600", "--output=/dev/null", user=ALICE, script=USES)
    lab.wait_job(job)
    (epilog,) = observed(lab, job, nodes=1).epilog
    assert 290 <= epilog.facts["mem_peak_mib"] <= 450
    assert epilog.facts["cpu_s"] > 1.5
    assert epilog.facts["mem_source"] == "cgroup"


def test_an_array_task_is_named_by_the_controller(lab: Lab) -> None:
    array = lab.submit("--array=3", "--mem=50", "--output=/dev/null", user=ALICE, script="#!/bin/bash\ntrue\n")
    lab.wait_job(array)
    (controller,) = observed(lab, array, nodes=1).controller
    assert (controller.facts["array_job_id"], controller.facts["array_task_id"]) == (int(array), 3)
