"""A job and its pre-run on a real Slurm: the script and the first task of its srun have the same Slurm variables."""

from __future__ import annotations

import re
import sys
from base64 import b64decode
from pathlib import Path

import pytest
from realslurm import USERS, Lab, run_as
from waiting import wait_for

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]
ALICE = USERS[0]
SCRIPT = """\
#!/bin/bash
echo "SCRIPT:$(env -0 | base64 -w0)"
srun sh -c 'test "$SLURM_PROCID" != 0 || echo "TASK:$(env -0 | base64 -w0)"'
"""
# Open MPI aborts if it finds this variable without srun's PMI, so a pre-run does not set it.
NOT_IN_A_TRIAL = {"SLURM_STEP_ID"}
# Values that any two jobs have of their own, or that describe the size of the trial.
OWN_VALUES = re.compile(
    r"SLURMD_NODENAME|SLURM_(?:JOB_?ID|TASK_PID|ARRAY_JOB_ID|\w*NODELIST|TOPOLOGY_ADDR|JOB_PARTITION|SRUN_COMM_\w+|STEP_\w+"
    r"|JOB_GPUS|GPUS\w*|GTIDS|NTASKS|NPROCS|NNODES|NTASKS_PER_NODE|TASKS_PER_NODE|JOB_NUM_NODES|\w*CPUS_PER_NODE\w*"
    r"|CPUS_ON_NODE|CPUS_PER_TASK|MEM_PER_NODE|CPU_BIND\w*|JOB_START_TIME|JOB_END_TIME|TRES_PER_TASK|JOB_SLUID"
    r"|DISTRIBUTION)|SLURM_\w+_(?:HET|PACK)_GROUP_\d+"
)


def read_variables(text: str) -> dict[str, dict[str, str]]:
    """The variables of Slurm in the output of SCRIPT, by place: SCRIPT and TASK."""
    found = {}
    for place, encoded in re.findall(r"^(SCRIPT|TASK):(\S+)$", text, re.MULTILINE):
        pairs = (entry.partition("=") for entry in b64decode(encoded).decode(errors="replace").split("\0"))
        found[place] = {
            name: value for name, _, value in pairs if re.match(r"S(?:LURMD?|RUN|BATCH_ARRAY)_", name)
        }  # fmt: skip
    return found


@pytest.mark.parametrize(
    "options",
    [
        "--gres=gpu:2 --mem=600 -c2 --array=7,3%1 --open-mode=append --profile=task --comment=x",
        "-N2 --gpus-per-node=2 --ntasks-per-node=2 --mem-per-cpu=200 -m *:block --hint=nomultithread",
        pytest.param("--gpus=2 --mem-per-gpu=300 --cpus-per-gpu=2 --cpu-freq=low", marks=pytest.mark.slow),
        pytest.param("-n4 --gpus-per-task=1 --mem=600 -m plane=2 --export=ALL,NEW=1", marks=pytest.mark.slow),
        pytest.param("--gres=gpu:2 --mem=0 --dependency=singleton --hint=multithread", marks=pytest.mark.slow),
        pytest.param("--gres=gpu:1 --mem=600 : --gres=gpu:1 --mem=600", marks=pytest.mark.slow, id="het"),
    ],
)  # fmt: skip
def test_a_pre_run_has_the_variables_of_its_job(lab: Lab, options: str) -> None:
    work = Path(
        run_as(ALICE, ["mktemp", "-d", "-p", run_as(ALICE, ["sh", "-c", "echo $HOME"]).stdout.strip()]).stdout.strip()
    )
    run_as(ALICE, ["tee", work / "job.sh"], stdin=SCRIPT)
    words = options.split()
    lab.submit(*words, f"--output={work}/real-%a.out", "job.sh", user=ALICE, cwd=work)
    gsub = [sys.executable, "-m", "slurmwrap.gsub.gsub_main", "--prerun=only", *words, "job.sh"]
    done = lab.run(gsub, ALICE, work, env={"XDG_STATE_HOME": str(work / "state")})
    trial = {}
    for output in work.glob("state/**/output"):
        trial |= read_variables(output.read_text())
    assert set(trial) == {"SCRIPT", "TASK"}, done.stderr
    first = "real-3.out" if "--array" in options else "real-*.out"

    def read_real() -> dict[str, dict[str, str]]:
        return read_variables("".join(output.read_text() for output in work.glob(first)))

    real = wait_for(read_real, lambda found: len(found) == 2, 60)
    for place, expected in real.items():
        found = trial[place]
        assert sorted(expected.keys() - found.keys() - NOT_IN_A_TRIAL) == [], place
        assert sorted(name for name in found.keys() - expected.keys() if not name.startswith("SLURMWRAP")) == [], place
        other = {name: (expected[name], found[name]) for name in expected.keys() & found.keys()}
        assert {n: v for n, v in other.items() if v[0] != v[1] and not OWN_VALUES.fullmatch(n)} == {}, place
