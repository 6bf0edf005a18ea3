"""`gsub --again` repeats the call for the failed tasks alone, and `--retry-on` runs a job again after its own code."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest
from realslurm import USERS, Lab
from test_own_retries_lab import GSUB, find_retry_jobs, submit, wait_until_settled, why
from webhook_server import WebServer

ALICE = USERS[0]
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]


@pytest.fixture
def nothing(lab: Lab) -> dict[str, str]:
    """The environment of a user without any configuration of slurmwrap, with the state of this lab alone."""
    state = f"{pwd.getpwnam(ALICE).pw_dir}/again-{lab.cluster}"
    return {"SLURMWRAP_CONFIG": "/var/tmp/absent.toml", "XDG_STATE_HOME": state}


def test_the_failed_tasks_of_an_array_are_submitted_again_by_the_same_call(
    lab: Lab, nothing: dict[str, str], lab_scratch: Path
) -> None:
    folder = lab_scratch / "again"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    script = folder / "sweep.sbatch"
    script.write_text(
        '#!/bin/bash\n#SBATCH --array=0-4%3\necho "$1|$SLURM_ARRAY_TASK_ID|$SLURM_JOB_NAME" >> seen\n'
        "case $SLURM_ARRAY_TASK_ID in 1|3|4) [ -e fixed ] || exit 3;; esac\n"
    )
    words = [*GSUB, "--job-name=two words", "sweep.sbatch", "a b;$HOME"]
    done = lab.run(words, ALICE, env=nothing, cwd=folder)
    assert done.returncode == 0, done.stderr
    job = done.stdout.split()[-1]
    assert lab.wait_job(f"{job}_0") == "COMPLETED"
    for task in (1, 3, 4):
        lab.wait_job(f"{job}_{task}", ("FAILED",))
    assert why(lab, nothing, job)["next"]["also"] == [f"gsub --again {job} --prerun=only", f"gsub --again {job}"]
    (folder / "fixed").touch()
    seen = sorted((folder / "seen").read_text().splitlines())
    assert seen == [f"a b;$HOME|{task}|two words" for task in range(5)]
    (folder / "seen").unlink()
    again = lab.run([*GSUB[:3], "--again", job], ALICE, env=nothing, cwd="/")
    assert again.returncode == 0, again.stderr
    assert f"array {job}: 3 tasks again, 1,3,4 (2 completed: left out)" in again.stderr
    new = again.stdout.split()[-1]
    for task in (1, 3, 4):
        assert lab.wait_job(f"{new}_{task}") == "COMPLETED"
    assert sorted((folder / "seen").read_text().splitlines()) == [f"a b;$HOME|{task}|two words" for task in (1, 3, 4)]
    shown = lab.run(["squeue", "-h", "-t", "all", "-r", "-j", new, "-o", "%K"]).stdout.split()
    assert sorted(shown) == ["1", "3", "4"]


def test_a_job_that_ends_with_a_code_of_its_own_is_run_again_without_retry(lab: Lab, nothing: dict[str, str]) -> None:
    job = submit(lab, nothing, '[ -n "$SLURM_RESTART_COUNT" ] && exit 0; exit 93', "--retry-on=93,SIGUSR1")
    assert wait_until_settled(lab, job) == ["COMPLETED"]
    first, second = why(lab, nothing, job)["attempts"]
    assert (first["exit_code"], first["decision"], second["state"]) == (93, "retry", "COMPLETED")
    assert first["decision_reason"].startswith("exit code 93, which --retry-on names, retry 1 of 3")
    assert len(find_retry_jobs(lab, job)) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        "kill -USR1 $$; sleep 60",
        "python3 -c 'import os, signal; os.kill(os.getpid(), signal.SIGUSR1)'",
        "srun python3 -c 'import os, signal; os.kill(os.getpid(), signal.SIGUSR1)'",
    ],
    ids=["script", "program", "step"],
)
def test_a_signal_that_the_user_named_is_found_in_the_script_a_program_and_a_step(
    lab: Lab, nothing: dict[str, str], body: str
) -> None:
    job = submit(lab, nothing, f'[ -n "$SLURM_RESTART_COUNT" ] && exit 0; {body}', "--retry-on=USR1")
    assert wait_until_settled(lab, job) == ["COMPLETED"]
    first, _ = why(lab, nothing, job)["attempts"]
    assert first["decision_reason"].startswith("SIGUSR1, which --retry-on names")


def test_a_failure_is_posted_to_the_users_own_address(lab: Lab, nothing: dict[str, str], lab_scratch: Path) -> None:
    server = WebServer()
    try:
        environ = {**nothing, "SLURMWRAP_NOTIFY_URL": server.url()}
        job = submit(lab, environ, "echo 'RuntimeError: CUDA out of memory. Tried to allocate 2 GiB'; exit 1")
        lab.wait_job(job, ("FAILED",))
        for _ in range(2):
            done = lab.slurmwrap("reconcile", user=ALICE, env=environ)
            assert done.returncode == 0, done.stderr
        ((_, body),) = server.posted
        assert (body["event"], body["jobs"]) == ("failed", [job]) and "Tried to allocate" in body["text"]
    finally:
        server.close()
