"""`gsub --retry` of a user on a cluster without a site installation: no configuration, hooks or reconciler."""

from __future__ import annotations

import json
import re
import sys
import time
from datetime import datetime
from typing import Any

import pytest
from realslurm import USERS, Lab
from waiting import wait_for

ALICE = USERS[0]
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]
GSUB = (sys.executable, "-m", "slurmwrap.gsub.gsub_main", "--prerun=off", "--mem=100", "--gres=gpu:1")
FINAL = ("COMPLETED", "FAILED", "CANCELLED")
# What nvidia-smi, the kernel log and PyTorch print when a GPU is lost, as jobs print it themselves.
LOST = "NVRM: Xid (PCI:0000:07:00): 79, pid=4711, name=python, GPU has fallen off the bus."
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
NCCL = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
ONCE = 'echo "run ${SLURM_RESTART_COUNT:-0} on $SLURMD_NODENAME"; [ -n "$SLURM_RESTART_COUNT" ] && exit 0'


@pytest.fixture
def nothing() -> dict[str, str]:
    """The environment of a user without any configuration of slurmwrap."""
    return {"SLURMWRAP_CONFIG": "/var/tmp/absent.toml"}


def submit(lab: Lab, env: dict[str, str], body: str, *options: str) -> str:
    done = lab.run([*GSUB, *options], ALICE, env=env, stdin=f"#!/bin/bash\n{body}\n")
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr and "no job retries" not in done.stderr
    return done.stdout.split()[-1]


def find_retry_jobs(lab: Lab, job_id: str) -> dict[str, str]:
    """Id -> state of the retry jobs of `job_id` that Slurm shows."""
    rows = lab.run(["squeue", "-h", "-t", "all", "-u", ALICE, "-o", "%i|%T|%o"]).stdout.splitlines()
    found = [row.split("|") for row in rows]
    return {number: state for number, state, command in found if "retry_job.sh" in command and f" {job_id} " in command}


def read_submit_time(lab: Lab, job_id: str) -> float:
    shown = lab.run(["squeue", "-h", "-t", "all", "-j", job_id, "-o", "%V"]).stdout.strip()
    return datetime.fromisoformat(shown).timestamp() if shown else time.time()


def wait_until_settled(lab: Lab, job_id: str, timeout: float = 120) -> list[str]:
    """Waits until the job and its retry jobs have ended. Returns the states of the job."""

    def look() -> list[str]:
        retry_jobs = find_retry_jobs(lab, job_id)
        states = [*lab.states(job_id), *retry_jobs.values()]
        # No test waits for the delay of a retry. It is ended when the retry job of the next run waits, because then the
        # job is no longer being requeued, and in a later second: Slurm revokes credentials by seconds.
        waiting = [number for number, state in retry_jobs.items() if state == "PENDING"]
        if any(time.time() - read_submit_time(lab, number) >= 2 for number in waiting):
            lab.run(["scontrol", "update", f"JobId={job_id}", "StartTime=now"])
        return states

    left = wait_for(look, lambda states: bool(states) and set(states) <= set(FINAL), timeout, pause=0.5)
    assert set(left) <= set(FINAL), left
    return lab.states(job_id)


def why(lab: Lab, env: dict[str, str], job_id: str) -> dict[str, Any]:
    done = lab.slurmwrap("why", job_id, "--json", user=ALICE, env=env)
    assert done.returncode == 0, done.stderr
    plain: dict[str, Any] = json.loads(done.stdout)
    return plain


@pytest.mark.parametrize("text", [LOST, ECC], ids=["xid", "ecc"])
def test_a_job_on_a_broken_gpu_runs_again_on_another_node_without_any_command(
    lab: Lab, nothing: dict[str, str], text: str
) -> None:
    job = submit(lab, nothing, f"{ONCE}; echo '{text}' >&2; exit 1", "--retry")
    assert wait_until_settled(lab, job) == ["COMPLETED"]
    found = why(lab, nothing, job)
    first, second = found["attempts"]
    assert (first["decision"], first["state"], second["state"]) == ("retry_elsewhere", "FAILED", "COMPLETED")
    assert set(first["nodes"]).isdisjoint(second["nodes"])
    done = {(action["verb"], action["key"]) for action in found["actions"] if action["done_at"] and not action["error"]}
    assert {("requeuehold", ""), ("update job", "ExcNodeList"), ("release", "")} <= done
    # Text of a job's output never counts against a node.
    assert lab.run(["scontrol", "show", "node", first["nodes"][0]]).stdout.count("DRAIN") == 0
    page = " ".join(lab.slurmwrap("why", job, user=ALICE, env=nothing).stdout.split())
    assert f"away from {first['nodes'][0]}" in page and "RUN 2 COMPLETED" in page


def test_history_does_not_list_the_retry_jobs(lab: Lab, nothing: dict[str, str]) -> None:
    job = submit(lab, nothing, "exit 0", "--retry")
    assert wait_until_settled(lab, job) == ["COMPLETED"]
    retry_jobs = find_retry_jobs(lab, job)
    assert list(retry_jobs.values()) == ["CANCELLED"]
    shown = lab.slurmwrap("history", "--json", user=ALICE, env=nothing).stdout
    ids = {run["attempt"]["job_id"] for run in json.loads(shown)["runs"]}
    assert int(job) in ids and not ids & set(map(int, retry_jobs))


def test_a_bug_is_not_run_again(lab: Lab, nothing: dict[str, str]) -> None:
    job = submit(lab, nothing, "python3 -c 'raise AssertionError(\"no\")'", "--retry")
    assert wait_until_settled(lab, job) == ["FAILED"]
    (run,) = why(lab, nothing, job)["attempts"]
    assert run["decision"] == "stop"


def test_a_job_without_consent_has_no_retry_job_and_is_not_run_again(lab: Lab, nothing: dict[str, str]) -> None:
    job = submit(lab, nothing, f"echo '{ECC}' >&2; exit 1")
    lab.wait_job(job, ("FAILED",))
    assert find_retry_jobs(lab, job) == {}
    found = why(lab, nothing, job)
    assert found["attempts"][0]["decision_reason"].endswith("it was submitted without --retry")
    assert lab.states(job) == ["FAILED"]


def test_three_retries_of_one_cause_are_the_most(lab: Lab, nothing: dict[str, str]) -> None:
    job = submit(lab, nothing, f"echo '{NCCL}' >&2; exit 1", "--retry")
    assert wait_until_settled(lab, job, 240) == ["FAILED"]
    runs = why(lab, nothing, job)["attempts"]
    assert [run["decision"] for run in runs] == ["retry", "retry", "retry", "stop"]
    assert runs[-1]["decision_reason"] == "failed 4 times of nccl_error; the limit is 3 retries"


def test_a_job_that_its_user_cancels_is_not_run_again(lab: Lab, nothing: dict[str, str]) -> None:
    job = submit(lab, nothing, f"echo '{ECC}' >&2; sleep 600", "--retry")
    lab.wait_job(job, ("RUNNING",))
    lab.run(["scancel", job], ALICE)
    assert wait_until_settled(lab, job) == ["CANCELLED"]
    (run,) = why(lab, nothing, job)["attempts"]
    assert run["decision"] == "none"


def test_the_failed_task_of_an_array_runs_again(lab: Lab, nothing: dict[str, str]) -> None:
    body = f'{ONCE}; [ "$SLURM_ARRAY_TASK_ID" = 1 ] || exit 0; echo "{ECC}" >&2; exit 1'
    job = submit(lab, nothing, body, "--retry", "--array=0-1")
    assert wait_until_settled(lab, job) == ["COMPLETED", "COMPLETED"]
    runs = [run for run in why(lab, nothing, job)["attempts"] if run["address"] == f"{job}_1"]
    assert [run["state"] for run in runs] == ["FAILED", "COMPLETED"]


def test_watch_reports_the_failure_and_follows_the_next_run(lab: Lab, nothing: dict[str, str]) -> None:
    body = f"{ONCE}; echo '{ECC}' >&2; exit 1"
    # Without a retry job, `watch` itself judges the job.
    job = submit(lab, {**nothing, "SLURMWRAP_RETRY_OWN_JOB": "false"}, body, "--retry", "--hold")
    lab.run(["scontrol", "release", job], ALICE)
    done = lab.slurmwrap("watch", job, "--every", "1", user=ALICE, env=nothing)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"gpu_ecc_error: .*uncorrectable ECC error", done.stdout), done.stdout
    assert "it runs again by itself" in done.stdout
    assert re.search(r"completed (?:after .+ )?on ", done.stdout.rstrip().splitlines()[-1]), done.stdout
