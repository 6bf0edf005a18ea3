"""`slurmwrap profile measure` on a real Slurm with real PyTorch: a training limited by the CPUs of its loader."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from realslurm import USERS, Lab, run_as

from slurmwrap.lab.lab_directories import LabDirectories
from slurmwrap.store.database import Database

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.slow]
ALICE = USERS[0]
TRAIN = """\
import torch
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self):
        return 1_000_000
    def __getitem__(self, index):
        sum(range(20_000))
        return torch.randn(32)
if __name__ == "__main__":
    model = torch.nn.Linear(32, 32)
    optimizer = torch.optim.Adam(model.parameters())
    for batch in DataLoader(Slow(), batch_size=8, num_workers=2):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
"""


def test_profile_measure_stores_the_cpu_curve_and_does_not_submit_the_job(lab: Lab) -> None:
    home = Path(run_as(ALICE, ["sh", "-c", "echo $HOME"]).stdout.strip())
    work = home / "measured"
    run_as(ALICE, ["mkdir", "-p", work])
    run_as(ALICE, ["tee", work / "train.py"], stdin=TRAIN)
    script = "#!/bin/bash\n#SBATCH --gres=gpu:1 --cpus-per-task=2 --mem=2000\n#GSUB --resource-profile measured\n"
    run_as(ALICE, ["tee", work / "measured.sh"], stdin=f"{script}export OMP_NUM_THREADS=1\n{sys.executable} train.py\n")
    command = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "profile", "measure", "--minutes", "0.5", "measured.sh"]
    done = lab.run(command, ALICE, work, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("measured\n") and "CPU curve, measured" in done.stdout
    with Database.open(home / ".local/state/slurmwrap/user.db", readonly=True) as database:
        profile = database.profile("measured")
    assert profile is not None and profile.preruns == 1
    assert [point.cpus for point in profile.cpu_curve] == [1, 2]
    assert lab.run(["squeue", "-h", "-t", "all", "-u", ALICE, "-n", "measured.sh"]).stdout == ""


SHORT = """\
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    optimizer.zero_grad()
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
"""


def test_a_pre_run_counts_once_in_the_profiles_of_its_user_and_of_the_site(lab: Lab) -> None:
    """A pre-run reports twice: before it acts on the waiting job, and afterwards with the result."""
    home = Path(run_as(ALICE, ["sh", "-c", "echo $HOME"]).stdout.strip())
    work = home / "counted"
    run_as(ALICE, ["mkdir", "-p", work])
    run_as(ALICE, ["tee", work / "short.py"], stdin=SHORT)
    run_as(ALICE, ["tee", work / "short.sh"], stdin=f"#!/bin/bash\n#SBATCH -N1 -G2 -t5\n{sys.executable} short.py\n")
    sent = lab.run(
        [sys.executable, "-m", "slurmwrap.gsub.gsub_main", "--prerun=auto", "short.sh"], ALICE, work, timeout=150
    )
    job = sent.stdout.split()[-1]
    assert lab.wait_job(job, ("COMPLETED", "FAILED", "CANCELLED"), 150) == "COMPLETED"
    command = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "profile", "list", "short", "--json"]
    (mine,) = json.loads(lab.run(command, ALICE, work).stdout)["rows"]
    assert (mine["preruns"], mine["script"], mine["submissions"]) == (1, str(work / "short.sh"), 1)
    lab.reconcile_once()
    with Database.open(LabDirectories(lab.dir).state / "site.db", readonly=True) as database:
        (theirs,) = [one for one in database.profiles() if one.key.endswith(f":{mine['key']}")]
    assert (theirs.preruns, theirs.runs) == (1, 1)
    (shown,) = json.loads(lab.run(command, ALICE, work).stdout)["rows"]
    assert (shown["preruns"], shown["runs"]) == (1, 1)  # the site's profile, which gsub uses because it has more data
