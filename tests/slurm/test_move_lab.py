"""Running jobs that are moved on a real Slurm: no step beyond a checkpoint is lost, no job is lost or runs twice."""

from __future__ import annotations

import json
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from interrupting import interrupting
from realslurm import USERS, Lab, command_environment, cut_power, restart_controller, started
from site_records import report_submissions, site, site_rows
from waiting import allow, wait_for, wait_until

from slurmwrap.model.evidence import RunKey
from slurmwrap.model.run_time import RunTimeQuery, RunTimeSample
from slurmwrap.model.submission import Submission
from slurmwrap.profiling.run_time import RunTimeRecord
from slurmwrap.store.database import Database

pytestmark = [pytest.mark.lab, pytest.mark.timeout(allow(400))]
ALICE = USERS[0]
QUIET = {f"RULES_{rule}": "observe" for rule in ("LIMIT", "RELAX", "TUNE", "ORDER", "EARLY", "RETRY")}
SETTINGS = {**QUIET, "RULES_MOVE": "act", "MOVE_LOOK_S": "1", "MOVE_HEADSTART_S": "15", "MOVE_GPU_SHARE": "1"}
# Counts five steps a second. It writes a checkpoint at each hundredth of them, or when it gets SIGUSR1, and resumes.
TRAINING = """\
import json, os, pathlib, signal, sys, time
saved, restart = pathlib.Path("state.json"), os.environ.get("SLURM_RESTART_COUNT", "0")
step = json.loads(saved.read_text())["step"] if saved.exists() else 0
with open("starts", "a") as file:
    file.write(f"{restart} {step}\\n")
if step:
    print(f"Resuming from checkpoint at step {step}", flush=True)
asked = []
signal.signal(signal.SIGUSR1, lambda number, frame: asked.append(number))
while True:
    step += 1
    print(f"step {step}/1000000 loss 2.0", flush=True)
    if asked or step % 20 == 0:
        pathlib.Path("state.new").write_text(json.dumps({"step": step}))
        os.replace("state.new", saved)
        print(f"Saved checkpoint at step {step}", flush=True)
        asked.clear()
    time.sleep(0.2)
"""
SHORT = "#!/bin/sh\nsleep 3\n"


@pytest.fixture(scope="module")
def lab(lab_scratch: Path, lab_users: tuple[str, str]) -> Iterator[Lab]:
    """Four nodes with eight GPUs. Of this module alone, because slurmctld is restarted while jobs run."""
    with started(lab_scratch / "moves", "--nodes", "4", "--switches", "1") as running, running.without_hooks():
        yield running


class Jobs:
    """Jobs of alice, each with a directory of its own."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.home = lab, Path(pwd.getpwnam(ALICE).pw_dir) / f"moves{time.monotonic_ns()}"
        lab.run(["mkdir", "-p", self.home], ALICE)
        lab.run(["tee", self.home / "train.py"], ALICE, stdin=TRAINING)
        self.names: dict[str, str] = {}

    def submit(self, name: str, gpus: int, *options: str, script: str = "", **asked: object) -> str:
        place = self.home / name
        self.lab.run(["mkdir", "-p", place], ALICE)
        job = self.lab.submit(
            *("--mem=100", "--time=600" if not script else "--time=1", "--requeue", "--cpus-per-task=1"),
            *(f"--gpus-per-node={gpus}", f"--job-name={name}", f"--output={place}/out", "--open-mode=append", *options),
            user=ALICE, cwd=place,
            script=script or f"#!/bin/bash\nexec {sys.executable} -u {self.home}/train.py\n",
        )  # fmt: skip
        one = Submission(
            cluster=self.lab.cluster, job_id=int(job), uid=pwd.getpwnam(ALICE).pw_uid, user=ALICE, at=time.time(),
            output_appends=True, **asked,  # type: ignore[arg-type]
        )  # fmt: skip
        report_submissions(self.lab, [one], ALICE)
        self.names[name] = job
        return job

    def steps(self, name: str) -> int:
        """The furthest step that the output of this job shows."""
        path = self.home / name / "out"
        rows = path.read_text().splitlines() if path.exists() else []
        return max((int(row.split()[1].split("/")[0]) for row in rows if row.startswith("step ")), default=0)

    def starts(self, name: str) -> list[tuple[int, int]]:
        """(restart, step) of each start of the training."""
        path = self.home / name / "starts"
        return [tuple(map(int, row.split())) for row in path.read_text().splitlines()] if path.exists() else []  # type: ignore[misc]

    def restarts(self, name: str) -> int:
        return int(self.lab.run(["squeue", "-h", "-O", "RestartCnt:9", "-j", self.names[name]]).stdout.strip() or -1)

    def assert_resumed_once(self, name: str) -> None:
        """It started twice, the second time at the last checkpoint that the first run wrote."""
        rows = (self.home / name / "out").read_text().splitlines()
        resumed = next(number for number, row in enumerate(rows) if row.startswith("Resuming"))
        saves = [int(row.split()[-1]) for row in rows[:resumed] if row.startswith("Saved checkpoint")]
        assert self.starts(name) == [(0, 0), (1, saves[-1])]
        assert self.lab.states(self.names[name]) == ["RUNNING"] and self.restarts(name) == 1


def add_run_times(lab: Lab) -> None:
    """Runs of others of 1 to 900 GPU-seconds, so that a job on eight GPUs is in a late class after some seconds."""
    lab.reconcile_once()
    with Database.open(Path(site(lab)["state_dir"]) / "site.db") as store:
        for number in range(40):
            now = int(time.time()) - 1000
            query = RunTimeQuery(user="4711", gpus=1, account="other", partition="other")
            store.save_run_time(
                RunTimeRecord(
                    attempt=RunKey(cluster=lab.cluster, job_id=900_000 + number, submit_time=now), uid=4711,
                    end_time=now + number, job=query, sample=RunTimeSample(run_s=1.19**number),
                )
            )  # fmt: skip


def make_pass(lab: Lab, tools: str = "") -> int:
    """One pass of the site's reconciler. `tools`: a directory that comes first in PATH."""
    argv = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "reconcile", "--once"]
    environ = {
        **command_environment(None),
        **lab.env,
        **{f"SLURMWRAP_{name}": value for name, value in SETTINGS.items()},
    }
    environ["PATH"] = f"{tools}:{environ['PATH']}" if tools else environ["PATH"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=allow(60), check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stdout + done.stderr
    return done.returncode


def reconcile_until(lab: Lab, condition: object, what: str) -> None:
    def look() -> object:
        make_pass(lab)
        return condition()  # type: ignore[operator]

    if not wait_for(look, bool, timeout=60, pause=0.5):
        rows = site_rows(lab, "SELECT job_id, verb, key, value, done_at, error FROM actions WHERE rule = 'move'")
        pytest.fail("\n".join((what, lab.run(["squeue", "-o", "%i %j %T %r %N %S %Q"]).stdout, *map(str, rows))))


def moves(lab: Lab, job: str) -> list[dict[str, object]]:
    query = (
        "SELECT verb, key, error, done_at FROM actions WHERE job_id = ? AND rule = 'move' AND mode = 'act' ORDER BY 4"
    )
    return site_rows(lab, query, int(job))


def test_jobs_are_moved_for_others_and_continue_at_their_checkpoints(lab: Lab, open_dir: Path) -> None:
    """Also by a reconciler that is killed at each of its changes."""
    jobs = Jobs(lab)
    add_run_times(lab)
    jobs.submit("old", 6, "-wn0", preemptible="B:USR1@60")
    jobs.submit("fixed", 7, "-wn2")
    # While the last GPU of n2 is taken, the one-GPU job starts on n1.
    jobs.submit("eighth", 1, "-wn2", script=SHORT.replace("3", "600"))
    wait_until(lambda: lab.states(jobs.names["eighth"]) == ["RUNNING"], "the node is full")
    jobs.submit("single", 1, "-xn0,n3", preemptible="yes")
    leases = ("lease", "other")
    for name in leases:
        jobs.submit(name, 4, "-wn3", lease_s=1)
    running = ("old", "single", "fixed", *leases)
    wait_until(lambda: all(jobs.steps(name) > 25 for name in running), "all jobs have saved")
    lab.run(["scancel", jobs.names["eighth"]])
    for name, gpus, options in (("new", 6, "-wn0"), ("large", 8, "-xn0,n3"), ("short", 4, "-wn3")):
        jobs.submit(name, gpus, options, script=SHORT)
    kills = 0
    # The signal is sent as the job's user, who cannot kill the reconciler.
    moments = [(nth, when) for nth in (1, 2, 4, 6) for when in ("before", "after")]
    for number, (nth, when) in enumerate(moments):
        folder = open_dir / str(number)
        folder.mkdir()
        verbs = ("requeuehold", "update", "release")
        kills += make_pass(lab, interrupting(folder, "scontrol", nth, when, signal.SIGKILL, verbs)) != 0
    assert kills >= 3
    ended = lambda: {lab.states(jobs.names[name])[0] for name in ("new", "large", "short")} == {"COMPLETED"}  # noqa: E731
    reconcile_until(lab, ended, "the waiting jobs ran")
    moved = [*("old", "single"), *(name for name in leases if jobs.restarts(name))]
    assert len(moved) == 3, "one of the two leases is extended, because no other job waits"
    reconcile_until(lab, lambda: all(len(jobs.starts(name)) > 1 for name in moved), "the moved jobs run again")
    make_pass(lab)
    for name in moved:
        jobs.assert_resumed_once(name)
        rows = moves(lab, jobs.names[name])
        keys = [(row["verb"], row["key"]) for row in rows]
        assert len(keys) == len(set(keys)) and {row["error"] for row in rows} == {""}, (name, rows)
        assert all(row["done_at"] for row in rows)
    for name in {"fixed", *leases} - set(moved):
        assert (jobs.starts(name), jobs.restarts(name)) == ([(0, 0)], 0)
        assert not moves(lab, jobs.names[name])
    page = " ".join(lab.slurmwrap("why", jobs.names["old"]).stdout.split())
    assert f"Moved: job {jobs.names['new']}, which needs less, waits " in page, page
    found = json.loads(lab.slurmwrap("why", jobs.names["old"], "--json").stdout)["attempts"][0]
    assert (found["diagnosis"]["category"], found["decision"]) == ("cancelled", "none")
    lab.clear()


@pytest.mark.slow
def test_a_lost_node_and_a_lost_controller_during_a_move(lab: Lab) -> None:
    jobs = Jobs(lab)
    add_run_times(lab)
    # Five GPUs: of such jobs no run is known yet, as of those with six above.
    for name, options in (("controller", "-wn0"), ("node", "-xn0,n3")):
        jobs.submit(name, 5, options, preemptible="B:USR1@60")
    wait_until(lambda: all(jobs.steps(name) > 25 for name in ("controller", "node")), "both have saved")
    jobs.submit("after", 5, "-wn0", script=SHORT)
    send_signal(jobs, "controller")
    restart_controller(lab, signal.SIGKILL)
    reconcile_until(lab, lambda: lab.states(jobs.names["after"]) == ["COMPLETED"], "the waiting job ran")
    node = lab.run(["squeue", "-h", "-o", "%N", "-j", jobs.names["node"]]).stdout.strip()
    jobs.submit("never", 5, f"-w{node}", script=SHORT)
    send_signal(jobs, "node")
    cut_power(lab, node)
    lab.run(["scancel", jobs.names["never"]])
    for name in ("node", "controller"):
        lab.run(["scontrol", "update", f"JobId={jobs.names[name]}", "StartTime=now"])
        reconcile_until(lab, lambda one=name: len(jobs.starts(one)) > 1, f"{name} runs again")  # type: ignore[misc]
    make_pass(lab)
    for name in ("controller", "node"):
        jobs.assert_resumed_once(name)
    verbs = {row["verb"] for row in moves(lab, jobs.names["node"])}
    assert "requeuehold" not in verbs, "Slurm has requeued it"
    lab.clear()


def send_signal(jobs: Jobs, name: str) -> None:
    """Reconciles until this job gets its signal, and no longer."""
    sent = lambda: any(row["verb"] == "signal" for row in moves(jobs.lab, jobs.names[name]))  # noqa: E731
    reconcile_until(jobs.lab, sent, f"{name} gets its signal")
