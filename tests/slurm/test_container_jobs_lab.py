"""Jobs in containers on a real Slurm: gsub's pre-run counts inside, and the job then runs in its container."""

from __future__ import annotations

import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from container_image import FAKE_TORCH, build_image
from realslurm import USERS, Lab
from waiting import wait_for

ALICE = USERS[0]
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks"), pytest.mark.timeout(300)]

TRAIN = """
import sys, torch.optim
optimizer = torch.optim.SGD()
for step in range(5):
    optimizer.step()
open('checkpoint.txt', 'w').write('5 steps')
print('trained by', sys.version_info[:2], misspelt if len(sys.argv) > 1 else '')
"""
SCRIPT = """\
#!/bin/bash
#SBATCH --gpus=2 --time=5
IMG={images}/train
srun -n1 ch-run -b $PWD:/work -c /work $IMG -- python3 train.py
"""


@pytest.fixture(scope="module")
def images() -> Iterator[Path]:
    if shutil.which("ch-run") is None:
        pytest.skip("ch-run is not installed (Debian: apt-get install charliecloud)")
    folder = Path(tempfile.mkdtemp(prefix="slurmwrap-images-", dir="/var/tmp"))
    folder.chmod(0o755)
    build_image(folder / "train")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def job(lab: Lab, images: Path) -> Path:
    folder = Path(pwd.getpwnam(ALICE).pw_dir) / "contained"
    lab.run(["rm", "-rf", str(folder)], user=ALICE)
    for name, text in {**FAKE_TORCH, "train.py": TRAIN, "job.sbatch": SCRIPT.format(images=images)}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["chown", "-R", f"{ALICE}:", str(folder)], check=True)
    return folder


def test_a_job_in_a_container_starts_after_its_pre_run_counted_three_steps_inside(lab: Lab, job: Path) -> None:
    done = lab.run(["gsub", "--prerun=wait", "job.sbatch"], user=ALICE, cwd=job)
    assert done.returncode == 0, done.stderr
    assert "3 optimizer steps ran on one GPU" in done.stderr
    number = int(done.stdout.split()[-1])
    lab.wait_job(number, {"COMPLETED"}, timeout=120)
    assert (job / f"slurm-{number}.out").read_text().startswith("trained by")
    assert (job / "checkpoint.txt").read_text() == "5 steps"


def test_a_bug_inside_a_container_stops_the_job_before_it_is_submitted(lab: Lab, job: Path) -> None:
    (job / "train.py").write_text("import torch.optim\nprint(misspelt)\n")
    done = lab.run(["gsub", "--prerun=wait", "job.sbatch"], user=ALICE, cwd=job)
    assert done.returncode == 3, done.stderr
    assert "NameError: name 'misspelt' is not defined" in done.stderr
    assert not (job / "checkpoint.txt").exists()


FAILING = """
import logging, sys
logging.basicConfig(filename=sys.argv[2], level='INFO')
try:
    logging.info('step 1')
    {'loss': 1}['lost']
except KeyError:
    logging.exception('training failed')
    sys.exit(1)
"""


def test_an_error_in_a_log_that_only_the_container_wrote_elsewhere_is_explained(lab: Lab, job: Path) -> None:
    """The log is appended to, and an earlier job left another error in it. The job's own output is empty."""
    out = job.parent / "scratch"
    (job / "train.py").write_text(FAILING)
    script = SCRIPT.replace("-b $PWD:/work", "-b $PWD:/work -b $HOME/scratch:/mnt/0").replace(
        "train.py", "train.py --log-file /mnt/0/train.log"
    )
    images = (job / "job.sbatch").read_text().partition("IMG=")[2].partition("/train\n")[0]
    (job / "job.sbatch").write_text(script.format(images=images))
    lab.run(["sh", "-c", f"mkdir -p {out} && echo 'RuntimeError: CUDA out of memory' > {out}/train.log"], user=ALICE)
    done = lab.run(["gsub", "--prerun=off", "job.sbatch"], user=ALICE, cwd=job)
    assert done.returncode == 0, done.stderr
    number = done.stdout.split()[-1]
    lab.wait_job(int(number), {"FAILED"}, timeout=120)
    # The Epilog's record comes after the job's final state.
    ask = ["slurmwrap", "why", number]
    why = wait_for(lambda: lab.run(ask, user=ALICE).stdout, lambda text: "KeyError" in text, 60)
    assert "KeyError: 'lost'" in why, why
    assert f"{out}/train.log" in why and "out of memory" not in why, why
    lab.run(["rm", "-rf", str(out)], user=ALICE)
