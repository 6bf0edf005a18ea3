"""The reconciler on a real Slurm: real endings, hooks and requeues. GPUs are not real; their kernel lines are."""

from __future__ import annotations

import json
import os
import pwd
import sqlite3
import subprocess
import sys
import time
import tomllib
import uuid
from pathlib import Path

import pytest
from realslurm import USERS, Lab
from waiting import wait_for

from slurmwrap.diagnosis.observation import Context, Observation
from slurmwrap.host.lock import held
from slurmwrap.lab.spec import gpu_bus_id
from slurmwrap.prerun.inputs import digest
from slurmwrap.retry.submission import Submission
from slurmwrap.store.plain import to_plain

pytestmark = pytest.mark.lab
ALICE, BOB = USERS
FINAL = ("COMPLETED", "FAILED", "OUT_OF_MEMORY", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
BUG = "python3 -c 'raise AssertionError(\"no\")'"
NCCL = "echo 'torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error' >&2"
XID_79 = f"NVRM: Xid (PCI:{gpu_bus_id(3).rpartition('.')[0]}): 79, pid=4711, name=python, GPU has fallen off the bus."
SEAL = """
import json, sys
from pathlib import Path
from slurmwrap.diagnosis.observation import Observation
from slurmwrap.store.from_plain import from_plain
from slurmwrap.store.leave import write_sealed
write_sealed(Path(sys.argv[1]), from_plain(Observation, json.load(sys.stdin)), socket=sys.argv[2])
"""
QUICK = ("--mem=200", "--gres=gpu:1", "--partition=gpu")


@pytest.fixture(scope="module")
def lab(lab_as_slurm: Lab) -> Lab:
    """As most sites run it: slurmctld, its hooks and the reconciler are user slurm's."""
    return lab_as_slurm


def site_rows(lab: Lab, query: str, *values: object) -> list[dict[str, object]]:
    """Rows of the site's database, read only."""
    state = site(lab)["state_dir"]
    connection = sqlite3.connect(f"file:{state}/site.db?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in connection.execute(query, values)]
    finally:
        connection.close()


def runs(lab: Lab, job_id: int | str) -> list[dict[str, object]]:
    return site_rows(lab, "SELECT * FROM attempts WHERE job_id = ? ORDER BY submit_time", int(job_id))


def judged(lab: Lab, job_id: int | str, how_many: int = 1) -> list[dict[str, object]]:
    """Reconciles until so many runs of the job are judged."""

    def look() -> list[dict[str, object]]:
        lab.reconcile_once()
        return [run for run in runs(lab, job_id) if run["diagnosis_category"]]

    return wait_for(look, lambda found: len(found) >= how_many, timeout=60, pause=0.5)


def site(lab: Lab) -> dict[str, str]:
    """The lab's configuration as the site's own tables have it."""
    return tomllib.loads(Path(lab.env["SLURMWRAP_CONFIG"]).read_text(encoding="utf-8"))["site"]


def cluster_of(lab: Lab) -> str:
    shown = lab.run(["scontrol", "show", "config"]).stdout
    return next(line.split("=")[1].strip() for line in shown.splitlines() if line.startswith("ClusterName"))


def consent(lab: Lab, job_id: int | str, user: str) -> None:
    """What gsub --retry reports, sealed by the user himself."""
    record = Submission(
        cluster=cluster_of(lab),
        job_id=int(job_id),
        uid=pwd.getpwnam(user).pw_uid,
        user=user,
        at=time.time(),
        retry=True,
        output_appends=True,
    )
    note = Observation(
        nonce=uuid.uuid4().hex,
        cluster=record.cluster,
        job_id=record.job_id,
        context=Context.SUBMIT,
        at=record.at,
        facts={"submission": to_plain(record)},
    )
    argv = [sys.executable, "-c", SEAL, site(lab)["spool"], site(lab)["munge_socket"]]
    done = lab.run(argv, user, stdin=json.dumps(to_plain(note)))
    assert done.returncode == 0, done.stderr


def submit(lab: Lab, body: str, *options: str, user: str = ALICE) -> str:
    home = pwd.getpwnam(user).pw_dir
    return lab.submit(*QUICK, f"--output={home}/rec-%j.out", *options, user=user, script=f"#!/bin/bash\n{body}\n")


def test_a_user_bug_is_stopped_and_no_node_is_touched(lab: Lab) -> None:
    job = submit(lab, BUG)
    lab.wait_job(job, FINAL)
    (run,) = judged(lab, job)
    assert (run["diagnosis_category"], run["decision"], run["state"]) == ("traceback_from_crash", "stop", "FAILED")
    assert site_rows(lab, "SELECT * FROM actions WHERE job_id = ?", int(job)) == []


# The first run dies in srun, so that Slurm keeps a derived exit code, and leaves its error in the output that the
# second run, which ends well, adds to.
_FAULT = f"""if [ -z "$SLURM_RESTART_COUNT" ]; then
touch "runs-$SLURM_JOB_ID"
for _ in $(seq 300); do [ -e "go-$SLURM_JOB_ID" ] && break; sleep 0.1; done
srun sh -c "{NCCL.replace('"', "'")}; exit 1"
exit 1
fi
echo fine"""


def test_a_gpu_off_the_bus_runs_the_job_elsewhere_and_drains_the_node(lab: Lab) -> None:
    job = submit(lab, _FAULT, "--requeue", "--gres=gpu:8", "--open-mode=append")
    consent(lab, job, ALICE)
    # RUNNING is said while the Prolog, which sets the mark in the kernel log, is still at work
    assert wait_for(Path("/var/tmp", ALICE, f"runs-{job}").exists, bool, 60)
    node = lab.run(["squeue", "-h", "-o", "%N", "-j", job]).stdout.strip()
    lab.kernel(node, XID_79)
    lab.run(["/usr/bin/touch", f"go-{job}"], ALICE)  # only now may it die
    lab.wait_job(job, ("FAILED",))
    first, *_ = judged(lab, job)
    assert (first["diagnosis_category"], first["decision"]) == ("gpu_hardware", "retry_elsewhere")
    shown = lab.run(["scontrol", "show", "node", node]).stdout
    try:
        assert "DRAIN" in shown and "Reason=slurmwrap: gpu_hardware" in shown
        lab.wait_job(job, ("COMPLETED",))
        assert lab.run(["squeue", "-h", "-t", "all", "-o", "%N", "-j", job]).stdout.strip() != node
        assert [run["diagnosis_category"] for run in judged(lab, job, 2)] == ["gpu_hardware", "success"]
        actions = site_rows(lab, "SELECT verb, key, error FROM actions WHERE job_id = ? ORDER BY action_id", int(job))
        assert [(action["verb"], action["key"]) for action in actions] == [
            ("drain", ""),
            ("requeuehold", ""),
            ("update job", "ExcNodeList"),
            ("update job", "Comment"),
            ("release", ""),
            ("update job", "StartTime"),
        ]
        assert {action["error"] for action in actions} == {""}
    finally:
        lab.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])


def test_without_gsub_a_transient_failure_is_diagnosed_and_the_job_left_alone(lab: Lab) -> None:
    job = submit(lab, f"{NCCL}; exit 1", user=BOB)
    lab.wait_job(job, FINAL)
    (run,) = judged(lab, job)
    assert (run["diagnosis_category"], run["decision"]) == ("nccl_error", "stop")
    assert lab.states(job) == ["FAILED"]


def test_a_task_of_an_array_alone_is_run_again(lab: Lab) -> None:
    body = f'[ -n "$SLURM_RESTART_COUNT" ] && exit 0; [ "$SLURM_ARRAY_TASK_ID" = 1 ] && {{ {NCCL}; exit 1; }}; exit 0'
    job = submit(lab, body, "--array=0-1", "--requeue")
    consent(lab, job, ALICE)
    wait_for(lambda: lab.states(job), lambda now: sorted(now) == ["COMPLETED", "FAILED"], 60)
    raw = lab.run(["squeue", "-h", "-t", "all", "-o", "%A", "-j", f"{job}_1"]).stdout.strip()
    (run,) = judged(lab, raw)
    assert (run["address"], run["decision"]) == (f"{job}_1", "retry")
    targets = site_rows(lab, "SELECT DISTINCT target FROM actions WHERE job_id = ?", int(raw))
    assert targets == [{"target": f"{job}_1"}]
    assert lab.run(["squeue", "-h", "-t", "all", "-o", "%T", "-j", f"{job}_0"]).stdout.strip() == "COMPLETED"
    lab.run(["scancel", job])


def test_a_cancelled_job_stays_cancelled(lab: Lab) -> None:
    job = submit(lab, "sleep 60", "--requeue")
    consent(lab, job, ALICE)
    lab.wait_job(job, ("RUNNING",))
    lab.run(["scancel", job], ALICE)
    lab.wait_job(job, ("CANCELLED",))
    (run,) = judged(lab, job)
    assert (run["diagnosis_category"], run["decision"]) == ("cancelled", "none")
    assert lab.states(job) == ["CANCELLED"]


def test_a_failed_srun_behind_a_true_is_found(lab: Lab) -> None:
    job = submit(lab, f"srun {BUG}; true")
    lab.wait_job(job, FINAL)
    (run,) = judged(lab, job)
    assert (run["state"], run["diagnosis_category"]) == ("COMPLETED", "traceback_from_crash")


def test_a_run_that_its_owner_requeued_is_recorded_and_nothing_is_added(lab: Lab) -> None:
    job = submit(lab, "sleep 60", "--requeue")
    consent(lab, job, ALICE)
    lab.wait_job(job, ("RUNNING",))
    lab.reconcile_once()
    lab.run(["scontrol", "requeue", job], ALICE)
    lab.wait_job(job, ("PENDING",))
    (run,) = judged(lab, job)
    assert (run["state"], run["restarts"]) == ("REQUEUED", 0)
    assert site_rows(lab, "SELECT * FROM actions WHERE job_id = ?", int(job)) == []
    lab.run(["scancel", job])


def test_a_job_out_of_memory_runs_again_with_more(lab: Lab) -> None:
    body = "exec python3 -c 'x = bytearray(300 << 20); import time; time.sleep(1)'"
    job = submit(lab, body, "--requeue", "--mem=150")
    consent(lab, job, ALICE)
    if lab.wait_job(job, FINAL) != "OUT_OF_MEMORY":
        pytest.skip("this machine lets the lab enforce no memory limits")
    (first,) = judged(lab, job)
    assert (first["diagnosis_category"], first["decision"]) == ("cpu_oom", "resize")
    lab.wait_job(
        job, FINAL
    )  # at times Slurm 22.05 calls the second one FAILED 1:0, beside its own line on the OOM kill
    again = judged(lab, job, 2)
    asked = site_rows(lab, "SELECT value FROM actions WHERE job_id = ? AND key = 'MinMemoryNode'", int(job))
    assert [int(str(row["value"])) for row in asked][:2] == [225, 338]
    assert again[1]["restarts"] == 1
    lab.run(["scancel", job])


def test_an_input_that_broke_a_job_is_blocked_for_its_owner_and_read_as_him(lab: Lab) -> None:
    data = Path(pwd.getpwnam(ALICE).pw_dir) / f"broken-{uuid.uuid4().hex}.npz"
    lab.run(["bash", "-c", f"umask 077; echo no > {data}"], ALICE)
    job = submit(lab, f"echo \"FileNotFoundError: [Errno 2] No such file or directory: '{data}'\" >&2; exit 1")
    lab.wait_job(job, FINAL)
    (run,) = judged(lab, job)
    assert (run["diagnosis_category"], run["decision"]) == ("incorrect_inputs", "blacklist_input")
    # His own file: our read finds it broken too, but he could have made it so, and that binds nobody else.
    (blocked,) = site_rows(lab, "SELECT * FROM blocked_inputs WHERE job_id = ? ORDER BY uid", int(job))
    assert (blocked["path"], blocked["uid"]) == (str(data), pwd.getpwnam(ALICE).pw_uid)
    assert blocked["digest"] == digest(str(data))
    published = Path(site(lab)["published"], "published.json").read_text(encoding="utf-8")
    assert str(blocked["digest"]) in published and str(data) not in published


def test_the_watch_is_woken_by_an_ending_job_and_stops_when_told(lab: Lab) -> None:
    argv = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "reconcile", "--watch", "--poll", "600"]
    environ = {**lab.env, "PATH": os.environ["PATH"]}
    published = Path(site(lab)["published"], "published.json")
    before = published.stat().st_mtime_ns if published.exists() else 0
    service = subprocess.Popen(argv, env=environ, stderr=subprocess.PIPE, text=True)
    try:
        # its first pass is over: only the wake can tell it of the next job
        assert wait_for(lambda: published.exists() and published.stat().st_mtime_ns > before, bool, 60)
        job = submit(lab, BUG)
        found = wait_for(lambda: runs(lab, job), lambda now: bool(now and now[0]["diagnosis_category"]), 60)
        assert [run["diagnosis_category"] for run in found] == ["traceback_from_crash"]
    finally:
        service.terminate()
        _, said = service.communicate(timeout=60)
    assert service.returncode == 0
    assert said.rstrip().endswith("stopped")


def test_slurm_user_reconciles_without_being_root(lab_as_slurm: Lab) -> None:
    lab = lab_as_slurm
    job = submit(lab, f'[ -n "$SLURM_RESTART_COUNT" ] && exit 0; {NCCL}; exit 1', "--requeue")
    consent(lab, job, ALICE)
    lab.wait_job(job, ("FAILED",))
    (run,) = judged(lab, job)
    assert (run["diagnosis_category"], run["decision"]) == ("nccl_error", "retry")
    (hold,) = site_rows(lab, "SELECT * FROM actions WHERE job_id = ? AND verb = 'requeuehold'", int(job))
    assert hold["done_at"] and not hold["error"]
    lab.run(["scancel", job])


def test_in_user_mode_the_same_is_found_without_hooks(lab: Lab) -> None:
    job = submit(lab, BUG, user=BOB)
    lab.wait_job(job, FINAL)
    done = lab.slurmwrap("reconcile", "--once", "--user", user=BOB)
    assert done.returncode == 0, done.stderr
    assert f"job {job} of {BOB}: traceback_from_crash, stop" in done.stderr


def test_a_second_reconciler_names_the_first(lab: Lab) -> None:
    with held(Path(site(lab)["state_dir"]) / "site.lock", "this test"):
        done = lab.slurmwrap("reconcile", "--once")
    assert done.returncode == 6
    assert f"another reconciler is at work already (pid {os.getpid()})" in done.stderr
