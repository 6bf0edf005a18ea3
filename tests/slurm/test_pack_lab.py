"""`gsub --pack`: a sweep with four members on each GPU, on a real Slurm: a failure, a requeue, why, --again."""

from __future__ import annotations

import pwd
import re
from pathlib import Path

import pytest
from realslurm import USERS, Lab
from test_own_retries_lab import GSUB, why
from waiting import wait_until

ALICE = USERS[0]
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]
SCRIPT = """#!/bin/bash
#SBATCH --array=0-6 --gres=gpu:1 --output=%x-%a.out -c1
echo "$SLURM_ARRAY_TASK_ID|$SLURM_ARRAY_TASK_COUNT|$1" >> seen
srun true || exit 9
case $SLURM_ARRAY_TASK_ID in
1) [ -e fixed ] || python3 -c 'import absent_module' || exit 1;;
5) [ -n "$SLURM_RESTART_COUNT" ] || { touch waits; exec sleep 600; };;
esac
touch done.$SLURM_ARRAY_TASK_ID
"""


@pytest.fixture
def nothing(lab: Lab) -> dict[str, str]:
    """The environment of a user without any configuration of slurmwrap, with the state of this lab alone."""
    state = f"{pwd.getpwnam(ALICE).pw_dir}/pack-{lab.cluster}"
    return {"SLURMWRAP_CONFIG": "/var/tmp/absent.toml", "XDG_STATE_HOME": state}


def test_a_packed_sweep_runs_each_member_once_also_when_a_task_is_requeued(
    lab: Lab, nothing: dict[str, str], lab_scratch: Path
) -> None:
    folder = lab_scratch / "pack"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    (folder / "sweep.sbatch").write_text(SCRIPT)
    done = lab.run([*GSUB, "--pack=4", "--requeue", "sweep.sbatch", "a b;$HOME"], ALICE, env=nothing, cwd=folder)
    assert done.returncode == 0, done.stderr
    job = done.stdout.split()[-1]
    assert f"job {job} runs 7 members in 2 array tasks" in done.stderr
    lab.wait_job(f"{job}_0", ("FAILED",))
    wait_until(lambda: all((folder / name).exists() for name in ("waits", "done.4", "done.6")), "three members run")
    watched = lab.slurmwrap("watch", job, "--once", user=ALICE, env=nothing).stdout
    assert f"members 5 completed, 1 running, 1 failed ({job}_1): slurmwrap why {job}_1" in watched
    refused = lab.slurmwrap("cancel", f"{job}_4", user=ALICE, env=nothing)
    assert (refused.returncode, f"member {job}_4 has ended" in refused.stderr) == (1, True)
    assert lab.run(["scontrol", "requeue", f"{job}_4"]).returncode == 0
    # Slurm lets a requeued job wait for two minutes.
    lab.wait_job(f"{job}_4", ("PENDING",))
    lab.run(["scontrol", "update", f"JobId={job}_4", "StartTime=now"])
    assert lab.wait_job(f"{job}_4") == "COMPLETED"
    # Member 5 was stopped by the requeue; no other ran twice.
    seen = sorted((folder / "seen").read_text().splitlines())
    assert seen == sorted(f"{member}|7|a b;$HOME" for member in (0, 1, 2, 3, 4, 5, 5, 6))
    (run,) = why(lab, nothing, f"{job}_1")["attempts"]
    assert (run["address"], run["state"], run["exit_code"]) == (f"{job}_1", "FAILED", 1)
    assert run["diagnosis"]["category"] == "import_error"
    runs = why(lab, nothing, job)["attempts"]
    assert sorted(run["address"] for run in runs if run["state"] == "COMPLETED") == [
        f"{job}_{member}" for member in (0, 2, 3, 4, 5, 6)
    ]
    listed = lab.slurmwrap("history", user=ALICE, env=nothing).stdout
    assert re.search(rf"^{job}_\[0,2-6\] \(6\) .* completed$", listed, re.MULTILINE), listed
    assert re.search(rf"^{job}_1 (?!.*completed$)", listed, re.MULTILINE), listed
    (folder / "fixed").touch()
    again = lab.run([*GSUB[:3], "--again", job], ALICE, env=nothing, cwd="/")
    assert again.returncode == 0, again.stderr
    assert f"array {job}: 1 task again, 1 (6 completed: left out)" in again.stderr
    assert lab.wait_job(f"{again.stdout.split()[-1]}_1") == "COMPLETED"


def test_one_member_is_cancelled_and_the_others_go_on(lab: Lab, nothing: dict[str, str], lab_scratch: Path) -> None:
    folder = lab_scratch / "pack-cancel"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    script = "#!/bin/sh\ntouch up.$SLURM_ARRAY_TASK_ID\nwhile ! [ -e go ]; do sleep 0.1; done\n"
    (folder / "sweep.sbatch").write_text(script)
    words = [*GSUB, "--pack=2", "--array=4-5", "--output=%a.out", "sweep.sbatch"]
    done = lab.run(words, ALICE, env=nothing, cwd=folder)
    assert done.returncode == 0, done.stderr
    job = done.stdout.split()[-1]
    wait_until(lambda: all((folder / f"up.{member}").exists() for member in (4, 5)), "both run")

    def submit(*options: str) -> tuple[str, str]:
        """Return the id of a job that depends on the packed one, and what gsub says."""
        end = lab.run([*GSUB, *options, "--output=/dev/null", "sweep.sbatch"], ALICE, env=nothing, cwd=folder)
        assert end.returncode == 0, end.stderr
        return end.stdout.split()[-1], end.stderr

    later, said = submit(f"--dependency=afterok:{job}_5")
    assert f"{job}_5 is in the packed task {job}_4; the job waits for all its members, 4,5" in said
    paired, _ = submit("--pack=2", "--array=4-5", f"--dependency=aftercorr:{job}")
    single, said = submit("--array=4-5", f"--dependency=aftercorr:{job}")
    assert f"each task waits for all of it (afterok:{job})" in said
    rows = lab.run(["squeue", "-h", "-o", "%A %E", "-j", f"{later},{paired},{single}"]).stdout.splitlines()
    # Slurm takes a task that an array does not have, as member 5 is none, for one that has completed.
    assert sorted(row.partition("(")[0] for row in rows) == sorted(
        (f"{later} afterok:{job}_4", f"{paired} aftercorr:{job}_*", f"{single} afterok:{job}_*")
    )
    cancelled = lab.slurmwrap("cancel", f"{job}_5", user=ALICE, env=nothing)
    assert cancelled.stdout == f"member {job}_5 is cancelled; the others of task {job}_4 go on\n", cancelled.stderr
    wait_until(
        lambda: "1 cancelled" in lab.slurmwrap("watch", job, "--once", user=ALICE, env=nothing).stdout, "it ends"
    )
    (folder / "go").touch()
    assert lab.wait_job(f"{job}_4") == "COMPLETED"
    assert lab.slurmwrap("cancel", job, user=ALICE, env=nothing).returncode == 2
    for address in (later, f"{paired}_4", f"{single}_4", f"{single}_5"):
        assert lab.wait_job(address) == "COMPLETED"
