"""Every way in which a job can end on a real Slurm 22.05: the diagnosis, the decision and the actions on Slurm.

All selected jobs run at the same time on a lab of this module. After all have ended, the reconciler judges them, and
each test checks one of them. The rows follow Slurm's table of job states: exit codes, signals, limits, cancellation,
preemption, node failure, memory, launch failures.
"""

from __future__ import annotations

import pwd
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from realslurm import USERS, Lab, cut_power, started
from site_records import consent_to_retries, site_rows
from waiting import allow, wait_for, wait_until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(allow(400))]
ALICE, BOB = USERS
CRASH = "python3 -c 'import os, signal; os.kill(os.getpid(), signal.SIGSEGV)'"
LONG = "sleep 900"
USES_MEMORY = "python3 -c 'x = bytearray(400 << 20); import time; time.sleep(1)'"
SECOND_RUN_SUCCEEDS = '[ -n "$SLURM_RESTART_COUNT" ] && exit 0\n'  # the second run ends well
# Preemption by partition, job ids that are reused soon, and a Prolog that fails for a job if a file says so.
# Jobs without a node of their own run on nodes 0 and 1, of which that Prolog drains one.
NODES = 7
CONF = f"""
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MinJobAge=600
FirstJobId=1
MaxJobId=90
PartitionName=low Nodes=n[0-{NODES - 1}] PriorityTier=1 PreemptMode=REQUEUE State=UP
PartitionName=high Nodes=n[0-{NODES - 1}] PriorityTier=100 PreemptMode=OFF State=UP
"""
PROLOG = """#!/bin/sh
[ "$SLURM_JOB_RESTART_COUNT" = 0 ] && [ -e {flag}.$SLURM_JOB_ID ] && exit 1
exec {real}
"""


@dataclass(frozen=True)
class Ending:
    """A job and the expected state in the record, category and decision."""

    body: str
    state: str
    category: str
    decision: str
    options: tuple[str, ...] = ()
    again: bool = False  # slurmwrap runs it again
    node: str = ""  # the job runs on this node, exclusively
    consent: bool = True
    slow: bool = False  # similar to another row


def _fails_once(command: str, category: str = "no_signature", **more: Any) -> Ending:
    return Ending(SECOND_RUN_SUCCEEDS + command, "FAILED", category, "retry", again=True, **more)


ENDINGS: dict[str, Ending] = {
    "ok": Ending("srun true", "COMPLETED", "success", "none"),
    "exit_3": _fails_once("exit 3"),
    "exit_130": _fails_once("exit 130", slow=True),
    "srun_exit_5": _fails_once("srun sh -c 'exit 5'"),
    "srun_exit_5_hidden": Ending("srun sh -c 'exit 5'; true", "COMPLETED", "no_signature", "stop"),
    "segv_in_srun": Ending(f"srun {CRASH}", "FAILED", "invalid_memory_access", "stop"),
    "segv_of_shell": Ending("kill -SEGV $$", "FAILED", "invalid_memory_access", "stop"),
    "segv_of_child": Ending(CRASH, "FAILED", "invalid_memory_access", "stop", slow=True),
    "one_task_of_two": _fails_once(
        "srun -n2 sh -c '[ \"$SLURM_PROCID\" = 1 ] && exit 9; sleep 1'", options=("--ntasks=2",), slow=True
    ),
    "one_task_kills_the_other": _fails_once(
        "srun -K -n2 sh -c '[ \"$SLURM_PROCID\" = 1 ] && exit 9; sleep 60'", options=("--ntasks=2",)
    ),
    "cancelled": Ending(LONG, "CANCELLED", "cancelled", "none"),
    "cancelled_by_term": Ending(LONG, "FAILED", "cancelled", "none"),
    "requeued_by_owner": Ending(LONG, "REQUEUED", "cancelled", "none", node="n6"),
    "time_limit": Ending(LONG, "TIMEOUT", "time_limit", "stop"),
    "preempted_requeued": Ending(LONG, "REQUEUED", "job_preempted", "retry", ("--partition=low",), node="n3"),
    "preempted_for_good": Ending(
        LONG, "PREEMPTED", "job_preempted", "stop", ("--partition=low", "--no-requeue"), node="n4"
    ),
    "node_fails": Ending(LONG, "NODE_FAIL", "node_failure", "retry_elsewhere", node="n2"),
    "node_fails_for_good": Ending(LONG, "NODE_FAIL", "node_failure", "stop", ("--no-requeue",), node="n5"),
    "oom_in_batch": Ending(
        f"{SECOND_RUN_SUCCEEDS}exec {USES_MEMORY}", "OUT_OF_MEMORY", "cpu_oom", "resize", ("--mem=150",), again=True
    ),
    "oom_in_srun_hidden": Ending(f"srun {USES_MEMORY}; true", "COMPLETED", "cpu_oom", "stop", ("--mem=150",)),
    "no_work_directory": Ending("true", "COMPLETED", "success", "none", ("--chdir=/nonexistent",)),
    "output_cannot_be_made": Ending("true", "FAILED", "permission_error", "stop", ("--output=/nonexistent/x.out",)),
    "bad_interpreter": Ending("#!/no/such/interp\ntrue", "FAILED", "syntax_error", "stop"),
    "no_such_program": Ending("srun nosuchprog", "FAILED", "syntax_error", "stop"),
    # Slurm holds this job for ever, so it is released once. It is kept off n6: a node that it drains would also count
    # as the cause of requeued_by_owner.
    "prolog_fails": Ending(
        "true", "REQUEUED", "node_failure", "retry_elsewhere", ("--hold", "--exclude=n6"), again=True
    ),
    "no_consent": Ending("exit 3", "FAILED", "no_signature", "stop", consent=False),
}


@dataclass(kw_only=True)
class World:
    """The jobs by the names of ENDINGS, and the records of their first runs in the site's database."""

    lab: Lab
    jobs: dict[str, str] = field(default_factory=dict)
    records: dict[str, dict[str, object]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def world(lab_scratch: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    here = [item for item in request.session.items if item.path == request.path]
    names = [item.callspec.params["name"] for item in here if hasattr(item, "callspec")] or ["ok", "exit_3"]
    with started(lab_scratch / "endings", "--nodes", str(NODES)) as lab:
        world = World(lab=lab)
        _configure(lab)
        for name in sorted(names, key=lambda name: not ENDINGS[name].node):  # first those that need a node of their own
            world.jobs[name] = _submit(lab, name, ENDINGS[name])
        consent_to_retries(lab, [job for name, job in world.jobs.items() if ENDINGS[name].consent], ALICE)
        if "prolog_fails" in world.jobs:
            (lab.dir / f"fail.{world.jobs['prolog_fails']}").touch()
            lab.run(["scontrol", "release", world.jobs["prolog_fails"]])
        _disturb_jobs(world)
        _reconcile_until_judged(world)
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
    where = [f"--nodelist={ending.node}", "--exclusive"] if ending.node else []
    return lab.submit(
        "--mem=100", "--time=20", "--requeue", "--open-mode=append", f"--job-name={name}",
        f"--output={home}/end-%j.out",
        *ending.options, *where, user=ALICE, script=script,
    )  # fmt: skip


def _disturb_jobs(world: World) -> None:
    """Cancels, preempts, requeues the running jobs, lets nodes fail and ends time limits."""
    lab, jobs = world.lab, world.jobs
    affected = [name for name in jobs if ENDINGS[name].body == LONG]
    for name in affected:
        lab.wait_job(jobs[name], ("RUNNING",), timeout=60)
    lab.reconcile_once()
    for name in affected:
        if name.startswith("preempted"):
            lab.submit("--partition=high", f"--nodelist={ENDINGS[name].node}", "--exclusive", "--mem=100",
                       "--output=/dev/null", user=BOB, script="#!/bin/sh\n")  # fmt: skip
        elif name.startswith("node_fails"):
            cut_power(lab, ENDINGS[name].node)
        else:
            word, user = {
                "cancelled": ("scancel {}", ALICE),
                "cancelled_by_term": ("scancel -s TERM -b {}", ALICE),
                "requeued_by_owner": ("scontrol requeue {}", ALICE),
                # slurmctld refuses an EndTime in the past
                "time_limit": ("scontrol update JobId={} EndTime=now+5seconds", None),
            }[name]
            ask = partial(lab.run, word.format(jobs[name]).split(), user)
            # if slurmd has not started the batch shell yet, scancel exits with 0 and the signal is lost
            is_over = {
                "time_limit": lambda done: done.returncode == 0,
                "cancelled_by_term": lambda done: lab.states(jobs["cancelled_by_term"]) != ["RUNNING"],
            }.get(name)
            done = wait_for(ask, is_over, timeout=60) if is_over else ask()
            assert is_over or done.returncode == 0, done.stderr


def _reconcile_until_judged(world: World) -> None:
    """Reconciles after the end of all first runs until all are judged, then waits for the end of the second runs.

    If a record is missing after that, the test of this ending fails.
    """
    lab, names = world.lab, {job: name for name, job in world.jobs.items()}
    again = [job for job, name in names.items() if ENDINGS[name].again]
    wait_until(lambda: not _in_first_run(lab) & names.keys(), "first runs end", 120, pause=0.3)

    def missing() -> list[str]:
        lab.reconcile_once()
        rows = site_rows(lab, "SELECT * FROM attempts WHERE restarts = 0 AND diagnosis_category IS NOT NULL")
        world.records = {names[str(row["job_id"])]: row for row in rows if str(row["job_id"]) in names}
        return [name for name in world.jobs if name not in world.records]

    wait_for(missing, lambda left: not left, 120, pause=1.0)
    for job in again:
        lab.run(["scontrol", "update", f"JobId={job}", "StartTime=now"])
    wait_for(lambda: _states(lab, again), lambda seen: seen <= {"COMPLETED"}, 120, pause=0.3)
    wait_for(lambda: lab.reconcile_once() and _runs_that_ended_well(lab, again), lambda ended: ended == set(again), 60)


def _in_first_run(lab: Lab) -> Collection[str]:
    shown = lab.run(["squeue", "-h", "-O", "JobID:12,RestartCnt:6,State:20", "-t", "PD,R,CG,CF,S,SO"]).stdout
    return {job for job, restarts, _ in map(str.split, shown.splitlines()) if restarts == "0"}


def _states(lab: Lab, jobs: list[str]) -> set[str]:
    return {state for job in jobs for state in lab.states(job)}


def _runs_that_ended_well(lab: Lab, jobs: list[str]) -> set[str]:
    rows = site_rows(lab, "SELECT job_id FROM attempts WHERE restarts = 1 AND state = 'COMPLETED'")
    return {str(row["job_id"]) for row in rows} & set(jobs)


def _rows() -> list[object]:
    return [pytest.param(name, marks=[pytest.mark.slow] if one.slow else []) for name, one in ENDINGS.items()]


@pytest.mark.parametrize("name", _rows())
def test_each_way_to_end_gets_its_diagnosis_and_decision(world: World, name: str) -> None:
    ending, job = ENDINGS[name], world.jobs[name]
    assert name in world.records, f"not judged: {world.lab.run(['scontrol', 'show', 'job', job]).stdout}"
    record = world.records[name]
    assert (record["state"], record["diagnosis_category"], record["decision"]) == (
        ending.state, ending.category, ending.decision,
    ), record  # fmt: skip
    done = site_rows(world.lab, "SELECT verb, key, error FROM actions WHERE job_id = ? AND verb != 'drain'", int(job))
    assert bool(done) == ending.again, done
    assert {row["error"] for row in done} <= {""}
    assert not ending.again or _runs_that_ended_well(world.lab, [job]), world.lab.states(job)


@pytest.mark.slow
def test_a_reused_job_id_is_treated_as_another_job(world: World) -> None:
    """Reuses the id of a job that succeeded and the id of a job with consent to retries: the new jobs get neither."""
    lab, old, agreed = world.lab, world.jobs["ok"], world.jobs["exit_3"]
    conf = Path(lab.env["SLURM_CONF"])
    conf.write_text(conf.read_text(encoding="utf-8").replace("MinJobAge=600", "MinJobAge=2"))
    lab.run(["scontrol", "reconfigure"])
    for job in (old, agreed):
        wait_until(lambda job=job: not lab.states(job), f"Slurm forgets {job}", 150, pause=1.0)
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
