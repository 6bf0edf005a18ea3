"""Every way a job can end on a real Slurm 22.05: diagnosed right, and Slurm asked for no more than was right.

All jobs run at once on a lab of their own, and are judged in passes while they end; each test then looks at one. The
rows are those of Slurm's own table of states: exit codes, signals, limits, cancellation, preemption, node failure,
memory, launch failures.
"""

from __future__ import annotations

import os
import pwd
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from realslurm import USERS, Lab, started
from test_reconcile_lab import consent, site_rows
from waiting import wait_for

from slurmwrap.lab.layout import Layout

pytestmark = [pytest.mark.lab, pytest.mark.timeout(400)]
ALICE, BOB = USERS
CRASH = "python3 -c 'import os, signal; os.kill(os.getpid(), signal.SIGSEGV)'"
EATS = "python3 -c 'x = bytearray(400 << 20); import time; time.sleep(1)'"
ONCE = '[ -n "$SLURM_RESTART_COUNT" ] && exit 0\n'  # the second run ends well
# Preemption by partition, a short wait for dead nodes, ids that come back soon, and a Prolog that fails for a
# job where a file says so.
CONF = """
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdTimeout=12
MinJobAge=20
FirstJobId=1
MaxJobId=90
PartitionName=low Nodes=n[0-7] PriorityTier=1 PreemptMode=REQUEUE State=UP
PartitionName=high Nodes=n[0-7] PriorityTier=100 PreemptMode=OFF State=UP
"""
PROLOG = """#!/bin/sh
[ "$SLURM_JOB_RESTART_COUNT" = 0 ] && [ -e {flag}.$SLURM_JOB_ID ] && exit 1
exec {real}
"""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """A job and what must become of it. `again`: it is run again by us; `state`: Slurm's word in our record."""

    body: str
    options: tuple[str, ...] = ()
    state: str
    category: str
    decision: str
    again: bool = False
    node: str = ""  # the job is sent there
    restarts: int = 0  # of the record that is looked at
    consent: bool = True


ENDINGS: dict[str, Ending] = {
    "ok": Ending(body="srun true", state="COMPLETED", category="success", decision="none"),
    "exit_3": Ending(body=f"{ONCE}exit 3", state="FAILED", category="no_signature", decision="retry", again=True),
    "exit_130": Ending(body=f"{ONCE}exit 130", state="FAILED", category="no_signature", decision="retry", again=True),
    "srun_exit_5": Ending(
        body=f"{ONCE}srun sh -c 'exit 5'", state="FAILED", category="no_signature", decision="retry", again=True
    ),
    "srun_exit_5_hidden": Ending(
        body="srun sh -c 'exit 5'; true", state="COMPLETED", category="no_signature", decision="stop"
    ),
    "segv_in_srun": Ending(body=f"srun {CRASH}", state="FAILED", category="invalid_memory_access", decision="stop"),
    "segv_of_shell": Ending(body="kill -SEGV $$", state="FAILED", category="invalid_memory_access", decision="stop"),
    "segv_of_child": Ending(body=CRASH, state="FAILED", category="invalid_memory_access", decision="stop"),
    "one_task_of_two": Ending(
        body=f"{ONCE}srun -n2 sh -c '[ \"$SLURM_PROCID\" = 1 ] && exit 9; sleep 1'",
        options=("--ntasks=2",),
        state="FAILED",
        category="no_signature",
        decision="retry",
        again=True,
    ),
    "one_task_kills_the_other": Ending(
        body=f"{ONCE}srun -K -n2 sh -c '[ \"$SLURM_PROCID\" = 1 ] && exit 9; sleep 60'",
        options=("--ntasks=2",),
        state="FAILED",
        category="no_signature",
        decision="retry",
        again=True,
    ),
    "cancelled": Ending(body="sleep 100", state="CANCELLED", category="cancelled", decision="none"),
    "cancelled_by_term": Ending(body="sleep 100", state="FAILED", category="cancelled", decision="none"),
    "preempted_requeued": Ending(
        body="sleep 100",
        options=("--partition=low", "--exclusive"),
        node="n5",
        state="REQUEUED",
        category="job_preempted",
        decision="retry",
    ),
    "preempted_for_good": Ending(
        body="sleep 100",
        options=("--partition=low", "--exclusive", "--no-requeue"),
        node="n6",
        state="PREEMPTED",
        category="job_preempted",
        decision="stop",
    ),
    "node_fails_for_good": Ending(
        body="sleep 100",
        options=("--no-requeue", "--exclusive"),
        node="n7",
        state="NODE_FAIL",
        category="node_failure",
        decision="stop",
    ),
    "node_fails": Ending(
        body="sleep 100",
        options=("--exclusive",),
        node="n4",
        state="NODE_FAIL",
        category="node_failure",
        decision="retry_elsewhere",
    ),
    "oom_in_batch": Ending(
        body=f"{ONCE}exec {EATS}",
        options=("--mem=150",),
        state="OUT_OF_MEMORY",
        category="cpu_oom",
        decision="resize",
        again=True,
    ),
    "oom_in_srun_hidden": Ending(
        body=f"srun {EATS}; true", options=("--mem=150",), state="COMPLETED", category="cpu_oom", decision="stop"
    ),
    "requeued_by_owner": Ending(body="sleep 100", state="REQUEUED", category="cancelled", decision="none"),
    "no_work_directory": Ending(
        body="true", options=("--chdir=/nonexistent",), state="COMPLETED", category="success", decision="none"
    ),
    "output_cannot_be_made": Ending(
        body="true",
        options=("--output=/nonexistent/x.out",),
        state="FAILED",
        category="permission_error",
        decision="stop",
    ),
    "bad_interpreter": Ending(body="#!/no/such/interp\ntrue", state="FAILED", category="syntax_error", decision="stop"),
    "no_such_program": Ending(body="srun nosuchprog", state="FAILED", category="syntax_error", decision="stop"),
    "time_limit": Ending(
        body="sleep 200", options=("--time=0:10",), state="TIMEOUT", category="time_limit", decision="stop"
    ),
    "prolog_fails": Ending(
        body="true",
        options=("--hold",),
        state="REQUEUED",
        category="node_failure",
        decision="retry_elsewhere",
        again=True,  # Slurm holds it for ever; it is let go once
    ),
    "no_consent": Ending(body="exit 3", state="FAILED", category="no_signature", decision="stop", consent=False),
}


@dataclass(kw_only=True)
class World:
    lab: Lab
    jobs: dict[str, str] = field(default_factory=dict)


@pytest.fixture(scope="module")
def world(lab_scratch: Path) -> Iterator[World]:
    with started(lab_scratch / "endings") as lab:
        world = World(lab=lab)
        _configure(lab)
        for name, ending in ENDINGS.items():
            world.jobs[name] = _submit(lab, name, ending)
        _strike(world)
        yield world


def _configure(lab: Lab) -> None:
    conf = Path(lab.env["SLURM_CONF"])
    text = conf.read_text(encoding="utf-8")
    real = next(line.split("=", 1)[1] for line in text.splitlines() if line.startswith("Prolog="))
    shim, flag = lab.dir / "prolog.sh", lab.dir / "fail"
    shim.write_text(PROLOG.format(flag=flag, real=real))
    shim.chmod(0o755)
    conf.write_text(text.replace(f"Prolog={real}", f"Prolog={shim}") + CONF)
    done = lab.run(["scontrol", "reconfigure"])
    assert done.returncode == 0, done.stderr


def _submit(lab: Lab, name: str, ending: Ending) -> str:
    home = pwd.getpwnam(ALICE).pw_dir
    script = ending.body if ending.body.startswith("#!") else f"#!/bin/bash\n{ending.body}\n"
    job = lab.submit(
        "--mem=100", "--time=5", "--requeue", "--open-mode=append", f"--job-name={name}", f"--output={home}/end-%j.out",
        *ending.options, *([f"--nodelist={ending.node}"] if ending.node else []), user=ALICE, script=script,
    )  # fmt: skip
    if ending.consent:
        consent(lab, job, ALICE)
    if "--hold" in ending.options:
        (lab.dir / f"fail.{job}").touch()
        lab.run(["scontrol", "release", job])
    return job


def _strike(world: World) -> None:
    """What others do to the jobs while they run."""
    lab, jobs = world.lab, world.jobs
    for name in ("cancelled", "cancelled_by_term", "requeued_by_owner", "preempted_requeued", "preempted_for_good"):
        lab.wait_job(jobs[name], ("RUNNING",), timeout=60)
    for name in ("node_fails", "node_fails_for_good"):
        lab.wait_job(jobs[name], ("RUNNING",), timeout=60)
    lab.reconcile_once()
    lab.run(["scancel", jobs["cancelled"]], ALICE)
    lab.run(["scancel", "-s", "TERM", "-b", jobs["cancelled_by_term"]], ALICE)
    lab.run(["scontrol", "requeue", jobs["requeued_by_owner"]], ALICE)
    for node in ("n5", "n6"):
        lab.submit("--partition=high", f"--nodelist={node}", "--exclusive", "--mem=100", "--output=/dev/null", user=BOB,
                   script="#!/bin/sh\nsleep 5\n")  # fmt: skip
    for node in ("n4", "n7"):
        _pull_the_plug(lab, node)


def _pull_the_plug(lab: Lab, node: str) -> None:
    """slurmd and the steps it watches die at once, as with the node's power."""
    daemon = int(Path(Layout(lab.dir).node(node), "slurmd.pid").read_text())
    spool = str(Layout(lab.dir).node(node))
    processes = [psutil.Process(daemon)]
    processes += [p for p in psutil.process_iter() if _is_stepd_of(p, spool)]
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)


def _is_stepd_of(process: psutil.Process, spool: str) -> bool:
    try:
        if "slurmstepd" not in process.name():
            return False
        return any(file.path.startswith(spool) for file in process.open_files()) or spool in " ".join(process.cmdline())
    except psutil.Error:
        return False


def _record(world: World, name: str) -> dict[str, object]:
    """The judged run of a job, after passes of the reconciler."""
    job, wanted = world.jobs[name], ENDINGS[name].restarts

    def look() -> list[dict[str, object]]:
        world.lab.reconcile_once()
        query = "SELECT * FROM attempts WHERE job_id = ? AND restarts = ? AND diagnosis_category IS NOT NULL"
        return site_rows(world.lab, query, int(job), wanted)

    found = wait_for(look, bool, 120, pause=1.0)
    if not found:
        pytest.fail(f"not judged: {world.lab.run(['scontrol', 'show', 'job', job]).stdout}")
    return found[0]


def _second_run(world: World, job: str) -> list[dict[str, object]]:
    """Passes go on meanwhile: what Slurm forgets before one has seen it stays unknown."""
    world.lab.reconcile_once()
    return site_rows(world.lab, "SELECT * FROM attempts WHERE job_id = ? AND restarts = 1", int(job))


@pytest.mark.parametrize("name", sorted(ENDINGS, key=lambda name: (ENDINGS[name].again, name == "time_limit")))
def test_an_ending_is_diagnosed_and_answered(world: World, name: str) -> None:
    ending, job = ENDINGS[name], world.jobs[name]
    record = _record(world, name)
    assert (record["state"], record["diagnosis_category"], record["decision"]) == (
        ending.state, ending.category, ending.decision,
    ), record  # fmt: skip
    done = site_rows(world.lab, "SELECT verb, key, error FROM actions WHERE job_id = ? AND verb != 'drain'", int(job))
    assert bool(done) == ending.again, done
    assert {row["error"] for row in done} <= {""}
    if ending.again:
        assert wait_for(lambda: _second_run(world, job), bool, 100, pause=1.0)


def test_an_id_that_comes_back_is_another_job(world: World) -> None:
    """Of a job that succeeded, and of one whose owner agreed to retries: neither speaks for the next of that id."""
    lab, old, agreed = world.lab, world.jobs["ok"], world.jobs["exit_3"]
    for job in (old, agreed):
        assert wait_for(lambda job=job: lab.states(job), lambda states: not states, 150, pause=1.0) == []
    bug = "#!/bin/bash\npython3 -c 'import nosuchmodule'\n"
    seen: list[str] = []
    while not {old, agreed} <= set(seen) and len(seen) < 200:
        seen.append(lab.submit("--mem=100", "--output=/var/tmp/" + BOB + "/again-%j.out", user=BOB, script=bug))
        if seen[-1] not in (old, agreed):
            lab.run(["scancel", seen[-1]], BOB)
    assert {old, agreed} <= set(seen)
    for job in (old, agreed):
        query = "SELECT * FROM attempts WHERE job_id = ? AND user = ? AND diagnosis_category IS NOT NULL"

        def look(job: str = job, query: str = query) -> list[dict[str, object]]:
            lab.reconcile_once()
            return site_rows(lab, query, int(job), BOB)

        (found,) = wait_for(look, bool, 60, pause=1.0)
        assert (found["diagnosis_category"], found["decision"], found["restarts"]) == ("import_error", "stop", 0)
    (first,) = site_rows(lab, "SELECT * FROM attempts WHERE job_id = ? AND user = ?", int(old), ALICE)
    assert first["diagnosis_category"] == "success"
