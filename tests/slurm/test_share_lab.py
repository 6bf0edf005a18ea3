"""`gsub --share` on a real Slurm: a waiting job runs on the GPU of another one, and Slurm has its exit code."""

from __future__ import annotations

import json
import pwd
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from realslurm import USERS, Lab
from test_own_retries_lab import GSUB, why
from waiting import wait_until

from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.store.serialize import to_json_dict

ALICE = USERS[0]
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]
HOLDER = "#!/bin/sh\n#SBATCH --gres=gpu:1 -c1 --time=30\n#GSUB --share\nsleep 3000\n"
OTHER = "#!/bin/bash\n#SBATCH --gres=gpu:1 -c1 --time=5 -o %x-%j.out\n#GSUB --share\n"
SECOND = 'echo "$1 $SLURM_JOB_ID"; srun env | grep ^SLURM_JOB_ID=; touch second; until [ -e end ]; do sleep 0.1; done\n'
THIRD = 'echo "${SLURM_RESTART_COUNT:-0}" >> third; until [ -e end.third ]; do sleep 0.1; done\n'


@pytest.fixture
def environ(lab: Lab, lab_scratch: Path) -> dict[str, str]:
    """The environment of a user with the state of this lab alone, who knows what small jobs need."""
    state = f"{pwd.getpwnam(ALICE).pw_dir}/share-{lab.cluster}"
    found = {"SLURMWRAP_CONFIG": "/var/tmp/absent.toml", "XDG_STATE_HOME": state, "SLURMWRAP_SHARE_LOOK_S": "1"}
    known = [
        ResourceProfile(key="small", gpu_util=0.2, gpu_mem_mib=4000, cpus_busy=1, mem_mib_per_gpu=500, source="prerun"),
        ResourceProfile(key="large", gpu_util=0.2, gpu_mem_mib=38_000, cpus_busy=1, source="prerun"),
    ]
    text = json.dumps({"slurmwrap_profiles": 1, "profiles": [to_json_dict(one) for one in known]})
    done = lab.slurmwrap("profile", "import", "--replace", "-", user=ALICE, env=found, stdin=text)
    assert done.returncode == 0, done.stderr
    return found


@pytest.fixture
def folder(lab: Lab, lab_scratch: Path) -> Iterator[Path]:
    """A directory of the user, with one free GPU on the node n0."""
    gpus = int(re.findall(r"gpu:\w+:(\d+)", lab.run(["sinfo", "-h", "-n", "n0", "-o", "%G"]).stdout)[0])
    held = lab.submit(f"--gres=gpu:{gpus - 1}", "-wn0", "-c1", "--mem=10", "--wrap=sleep 3000", user=USERS[1])
    lab.wait_job(held, ("RUNNING",))
    found = lab_scratch / "share"
    found.mkdir(mode=0o777)
    found.chmod(0o777)
    yield found
    lab.clear(*USERS)


def test_jobs_share_a_gpu_and_slurm_has_the_end_of_each(lab: Lab, environ: dict[str, str], folder: Path) -> None:
    def submit(script: str, key: str, *words: str) -> tuple[str, str]:
        (folder / "job.sbatch").write_text(script)
        words = (*GSUB, f"--resource-profile={key}", "-wn0", *words, "job.sbatch", "a b")
        done = lab.run(words, ALICE, env=environ, cwd=folder)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()[-1], done.stderr

    def watch(job: str) -> str:
        return lab.slurmwrap("watch", job, "--once", user=ALICE, env=environ).stdout

    holder, _ = submit(HOLDER, "small")
    lab.wait_job(holder, ("RUNNING",))
    # It does not suit: the GPU has no memory for both.
    large, said = submit(OTHER + "touch large\n", "large")
    assert "later jobs" in said
    second, said = submit(OTHER + SECOND + "exit 3\n", "small", "-J", "second")
    assert f"your job {holder} (predicted 2.0x together)" in said
    words = (f"--dependency=afternotok:{second}", "-c1", "--mem=10", "--wrap=touch after")
    after = lab.submit(*words, user=ALICE, cwd=folder)
    wait_until(lambda: (folder / "second").exists(), "the second job runs", 120.0)
    assert lab.states(second) == ["PENDING"]
    assert f"it runs on the GPU of job {holder}" in watch(second)
    (folder / "end").touch()
    wait_until(lambda: f"it ran on the GPU of job {holder}" in watch(second), "it ends")
    # The third one is interrupted when the first is cancelled: it runs by itself, once.
    third, _ = submit(OTHER + THIRD, "small")
    wait_until(lambda: (folder / "third").exists(), "the third job runs", 120.0)
    assert (lab.states(third), (folder / "large").exists()) == (["PENDING"], False)
    lab.run(["scancel", large, holder])
    lab.wait_job(holder, ("CANCELLED",))
    lab.wait_job(second, ("FAILED",))
    wait_until(lambda: (folder / "third").read_text() == "0\n1\n", "it runs again")
    assert lab.states(third) == ["RUNNING"]
    (folder / "end.third").touch()
    lab.wait_job(third)
    assert (folder / "third").read_text() == "0\n1\n"
    lab.wait_job(after)
    assert (folder / "after").exists()
    # Its own output, with its arguments and its own job id, also in steps; its own start added nothing.
    assert (folder / f"second-{second}.out").read_text() == f"a b {second}\nSLURM_JOB_ID={second}\n"
    page = why(lab, environ, second)
    assert page["shared"].startswith(f"it ran on the GPU of job {holder} (n0)")
    (run,) = page["attempts"]
    assert (run["state"], run["exit_code"]) == ("FAILED", 3)
