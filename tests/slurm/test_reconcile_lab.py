"""The reconciler on a real Slurm: real endings, hooks, requeues. The GPUs are invented, their kernel lines are real."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from port_tree import write_ib
from realslurm import USERS, Lab
from site_records import consent_to_retries, find_output, reconcile_until_judged, runs, site, site_rows, submit_script
from waiting import allow, wait_for

from slurmwrap.host.lock import hold_exclusive_lock
from slurmwrap.lab.lab_directories import LabDirectories
from slurmwrap.lab.lab_spec import gpu_bus_id
from slurmwrap.prerun.static.job_inputs import digest

pytestmark = pytest.mark.lab
ALICE, BOB = USERS
FINAL = ("COMPLETED", "FAILED", "OUT_OF_MEMORY", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
BUG = "python3 -c 'raise AssertionError(\"no\")'"
NCCL = "echo 'torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error' >&2"
XID_79 = f"NVRM: Xid (PCI:{gpu_bus_id(3).rpartition('.')[0]}): 79, pid=4711, name=python, GPU has fallen off the bus."


@pytest.fixture(scope="module")
def lab(lab_as_slurm: Lab) -> Lab:
    """As on most sites: slurmctld, its hooks and the reconciler run as user slurm."""
    return lab_as_slurm


def submit(lab: Lab, body: str, *options: str, user: str = ALICE) -> str:
    return submit_script(lab, body, *options, user=user)


@pytest.fixture(scope="module")
def data(lab: Lab) -> Path:
    """An input file that only alice can read."""
    path = Path(pwd.getpwnam(ALICE).pw_dir) / f"broken-{uuid.uuid4().hex}.npz"
    assert lab.run(["bash", "-c", f"umask 077; echo no > {path}"], ALICE).returncode == 0
    return path


@pytest.fixture(scope="module")
def jobs(lab: Lab, data: Path) -> dict[str, str]:
    """Jobs that end in different ways. The first passes see ended and running jobs, the last ones the rest of them."""
    no_input = f"echo \"FileNotFoundError: [Errno 2] No such file or directory: '{data}'\" >&2; exit 1"
    one_task = f'[ -n "$SLURM_RESTART_COUNT" ] && exit 0; [ "$SLURM_ARRAY_TASK_ID" = 1 ] && {{ {NCCL}; exit 1; }}'
    found = {
        "a bug": submit(lab, BUG),
        "without gsub": submit(lab, f"{NCCL}; exit 1", user=BOB),
        "a hidden exit code": submit(lab, f"srun {BUG}; true"),
        "a broken input": submit(lab, no_input),
        "an array": submit(lab, f"{one_task}; exit 0", "--array=0-1", "--requeue"),
        "memory": submit(
            lab, "exec python3 -c 'x = bytearray(300 << 20); import time; time.sleep(1)'", "--requeue", "--mem=150"
        ),
        "cancelled": submit(lab, "sleep 3600", "--requeue"),
        "requeued": submit(lab, "sleep 3600", "--requeue"),
    }
    consent_to_retries(lab, [found[name] for name in ("an array", "memory", "cancelled", "requeued")], ALICE)
    running = ("cancelled", "requeued")
    for name in running:
        lab.wait_job(found[name], ("RUNNING",))
    for name in found.keys() - {*running}:
        lab.wait_job(found[name], FINAL)
    found["the task"] = lab.run(
        ["squeue", "-h", "-t", "all", "-o", "%A", "-j", f"{found['an array']}_1"]
    ).stdout.strip()
    reconcile_until_judged(lab, *(found[name] for name in found.keys() - {*running, "an array"}))
    lab.run(["scancel", found["cancelled"]], ALICE)
    lab.run(["scontrol", "requeue", found["requeued"]], ALICE)
    lab.wait_job(found["cancelled"], ("CANCELLED",))
    lab.wait_job(found["requeued"], ("PENDING",))
    reconcile_until_judged(lab, *(found[name] for name in running))
    lab.run(["scancel", found["requeued"]])
    return found


JUDGED = {
    "a bug": ("FAILED", "traceback_from_crash", "stop"),
    "without gsub": ("FAILED", "nccl_error", "stop"),
    "a hidden exit code": ("COMPLETED", "traceback_from_crash", "stop"),
    "a broken input": ("FAILED", "incorrect_inputs", "blacklist_input"),
    "the task": ("FAILED", "nccl_error", "retry"),
    "cancelled": ("CANCELLED", "cancelled", "none"),
}


def test_ended_jobs_get_a_diagnosis_and_a_decision_and_some_get_no_action(lab: Lab, jobs: dict[str, str]) -> None:
    first = {name: runs(lab, jobs[name])[0] for name in JUDGED}
    assert {name: (run["state"], run["diagnosis_category"], run["decision"]) for name, run in first.items()} == JUDGED
    for name in ("a bug", "without gsub", "a hidden exit code", "cancelled", "requeued"):
        assert site_rows(lab, "SELECT * FROM actions WHERE job_id = ?", int(jobs[name])) == [], name
    assert lab.states(jobs["without gsub"]) == ["FAILED"]
    assert lab.states(jobs["cancelled"]) == ["CANCELLED"]


def test_a_run_that_its_owner_requeued_is_recorded(lab: Lab, jobs: dict[str, str]) -> None:
    run = runs(lab, jobs["requeued"])[0]
    assert (run["state"], run["restarts"]) == ("REQUEUED", 0)


def test_a_reconciler_that_is_not_root_reruns_a_single_task_of_an_array(lab: Lab, jobs: dict[str, str]) -> None:
    array = jobs["an array"]
    assert runs(lab, jobs["the task"])[0]["address"] == f"{array}_1"
    actions = site_rows(lab, "SELECT * FROM actions WHERE job_id = ?", int(jobs["the task"]))
    assert {action["target"] for action in actions} == {f"{array}_1"}
    (hold,) = [action for action in actions if action["verb"] == "requeuehold"]
    assert hold["done_at"] and not hold["error"]
    assert lab.run(["squeue", "-h", "-t", "all", "-o", "%T", "-j", f"{array}_0"]).stdout.strip() == "COMPLETED"
    lab.run(["scancel", array])


def test_a_job_out_of_memory_runs_again_with_more_memory(lab: Lab, jobs: dict[str, str]) -> None:
    job = jobs["memory"]
    first = runs(lab, job)[0]
    if first["state"] != "OUT_OF_MEMORY":
        pytest.skip("this machine lets the lab enforce no memory limits")
    assert (first["diagnosis_category"], first["decision"]) == ("cpu_oom", "resize")
    # Slurm 22.05 sometimes shows the second run as FAILED 1:0, although it logs the OOM kill
    lab.wait_job(job, FINAL)
    again = reconcile_until_judged(lab, job, how_many=2)
    asked = site_rows(lab, "SELECT value FROM actions WHERE job_id = ? AND key = 'MinMemoryNode'", int(job))
    assert [int(str(row["value"])) for row in asked][:2] == [225, 338]
    assert again[1]["restarts"] == 1
    lab.run(["scancel", job])


def test_an_input_that_broke_a_job_is_blocked_for_its_owner_only(lab: Lab, jobs: dict[str, str], data: Path) -> None:
    # The file belongs to the owner of the job, who could have broken it. So it is blocked for no other user.
    job = int(jobs["a broken input"])
    (blocked,) = site_rows(lab, "SELECT * FROM blocked_inputs WHERE job_id = ? ORDER BY uid", job)
    assert (blocked["path"], blocked["uid"]) == (str(data), pwd.getpwnam(ALICE).pw_uid)
    assert blocked["digest"] == digest(str(data))
    published = Path(site(lab)["published"], "published.json").read_text(encoding="utf-8")
    assert str(blocked["digest"]) in published and str(data) not in published


def test_user_mode_finds_the_same_diagnosis_without_hooks(lab: Lab, jobs: dict[str, str]) -> None:
    done = lab.slurmwrap("reconcile", "--once", "--user", user=BOB)
    assert done.returncode == 0, done.stderr
    assert f"job {jobs['without gsub']} of {BOB}: nccl_error, stop" in done.stderr


# The first run fails in srun, so that Slurm keeps a derived exit code. Its error stays in the output, to which the
# second run appends. The second run succeeds.
_FAULT = f"""if [ -z "$SLURM_RESTART_COUNT" ]; then
touch "runs-$SLURM_JOB_ID"
for _ in $(seq 300); do [ -e "go-$SLURM_JOB_ID" ] && break; sleep 0.1; done
srun sh -c "{NCCL.replace('"', "'")}; exit 1"
exit 1
fi
echo fine"""


def test_a_gpu_off_the_bus_reruns_the_job_on_another_node_and_drains_the_node(lab: Lab) -> None:
    job = submit(lab, _FAULT, "--requeue", "--gres=gpu:8", "--open-mode=append")
    consent_to_retries(lab, [job], ALICE)
    # Slurm shows RUNNING while the Prolog, which marks the position in the kernel log, still runs
    assert wait_for(Path("/var/tmp", ALICE, f"runs-{job}").exists, bool, 60)
    node = lab.run(["squeue", "-h", "-o", "%N", "-j", job]).stdout.strip()
    lab.kernel(node, XID_79)
    lab.run(["/usr/bin/touch", f"go-{job}"], ALICE)  # the job fails only now
    lab.wait_job(job, ("FAILED",))
    first, *_ = reconcile_until_judged(lab, job)
    assert (first["diagnosis_category"], first["decision"]) == ("gpu_hardware", "retry_elsewhere")
    shown = lab.run(["scontrol", "show", "node", node]).stdout
    try:
        assert "DRAIN" in shown and "Reason=slurmwrap: gpu_hardware" in shown
        lab.wait_job(job, ("COMPLETED",))
        assert lab.run(["squeue", "-h", "-t", "all", "-o", "%N", "-j", job]).stdout.strip() != node
        assert [run["diagnosis_category"] for run in reconcile_until_judged(lab, job, how_many=2)] == [
            "gpu_hardware",
            "success",
        ]
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


def test_reconcile_watch_wakes_up_when_a_job_ends_and_stops_on_sigterm(lab: Lab) -> None:
    argv = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "reconcile", "--watch", "--poll", "600"]
    environ = {**lab.env, "PATH": os.environ["PATH"]}
    published = Path(site(lab)["published"], "published.json")
    before = published.stat().st_mtime_ns if published.exists() else 0
    service = subprocess.Popen(argv, env=environ, stderr=subprocess.PIPE, text=True)
    try:
        # the first pass is over, so only the wake-up can tell the service about the next job
        assert wait_for(lambda: published.exists() and published.stat().st_mtime_ns > before, bool, 60)
        job = submit(lab, BUG)
        found = wait_for(lambda: runs(lab, job), lambda now: bool(now and now[0]["diagnosis_category"]), 60)
        assert [run["diagnosis_category"] for run in found] == ["traceback_from_crash"]
    finally:
        service.terminate()
        _, stderr = service.communicate(timeout=allow(60))
    assert service.returncode == 0
    assert stderr.rstrip().endswith("stopped")


def test_a_second_reconciler_is_refused_and_names_the_first(lab: Lab) -> None:
    with hold_exclusive_lock(Path(site(lab)["state_dir"]) / "site.lock", "this test"):
        done = lab.slurmwrap("reconcile", "--once")
    assert done.returncode == 6
    assert f"another reconciler is already running (pid {os.getpid()})" in done.stderr


def test_a_link_that_goes_down_while_a_job_runs_explains_its_lost_peer(lab: Lab) -> None:
    nodes = LabDirectories(lab.dir)
    for number in range(8):
        write_ib(nodes.node(f"n{number}") / "sysfs", "mlx5_0/1", link_downed=5)
    flag = Path(pwd.getpwnam(ALICE).pw_dir) / f"link-{uuid.uuid4().hex}"
    job = submit(lab, f"while [ ! -e {flag} ]; do sleep 0.1; done; {NCCL}; exit 1", "-N2", "--exclusive")
    lab.wait_job(job, ("RUNNING",))
    # Slurm shows RUNNING while the Prolog still runs; the batch script writes its output file after it.
    output = find_output(job, ALICE)
    wait_for(output.exists, bool, timeout=60)
    hosts = lab.run(["squeue", "-h", "-o", "%N", "-j", job]).stdout.strip()
    node = lab.run(["scontrol", "show", "hostnames", hosts]).stdout.split()[-1]
    write_ib(nodes.node(node) / "sysfs", "mlx5_0/1", link_downed=7)
    flag.touch()
    lab.wait_job(job, ("FAILED",))
    (run,) = reconcile_until_judged(lab, job)
    assert (run["diagnosis_category"], run["diagnosis_node"]) == ("node_failure", node)
    why = " ".join(lab.slurmwrap("why", job).stdout.split())
    assert f"on {node}, InfiniBand port mlx5_0/1 went down 2 times while the job ran (link_downed 7)" in why
    shown = " ".join(lab.slurmwrap("nodes", "show", node).stdout.split())
    assert "mlx5_0/1 went down 2 times" in shown
