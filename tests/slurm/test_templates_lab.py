"""gsub --template on a real Slurm: the processes join one process group and get their arguments unchanged."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from realslurm import Lab
from waiting import wait_for

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]

GSUB = [sys.executable, "-m", "slurmwrap.gsub.gsub_main"]
ARGUMENTS = ["--lr", "3e-4", "a b", "it's $HOME", "é\nz"]
# One program for all templates: it joins the process group that the environment describes and writes the members.
WORLD = """\
import json, os, sys
import torch.distributed as dist
dist.init_process_group("gloo")
told = {"rank": dist.get_rank(), "world": dist.get_world_size(), "local": int(os.environ["LOCAL_RANK"])}
gathered = [None] * told["world"]
dist.all_gather_object(gathered, {**told, "node": os.environ["SLURMD_NODENAME"]})
if told["rank"] == 0:
    with open("met.json", "w") as file:
        json.dump({"met": gathered, "args": sys.argv[1:]}, file)
dist.destroy_process_group()
"""
JAX = """\
import json, sys
import jax
jax.distributed.initialize()
from jax.experimental import multihost_utils
met = multihost_utils.process_allgather(jax.numpy.array([jax.process_index()]))
if jax.process_index() == 0:
    told = {"met": sorted(int(one) for one in met.ravel()), "world": jax.process_count(), "args": sys.argv[1:]}
    with open("met.json", "w") as file:
        json.dump(told, file)
"""
ACCELERATE = """\
import json, os, sys
from accelerate import Accelerator
from accelerate.utils import gather_object
here = Accelerator(cpu=True)
met = gather_object([[here.process_index, os.environ["SLURMD_NODENAME"]]])
if here.is_main_process:
    with open("met.json", "w") as file:
        json.dump({"met": sorted(met), "world": here.num_processes, "args": sys.argv[1:]}, file)
here.wait_for_everyone()
"""


@pytest.fixture
def work(lab_users: tuple[str, str], request: pytest.FixtureRequest) -> Path:
    """A directory of the first user."""
    folder = Path(f"/var/tmp/{lab_users[0]}/templates-{request.node.name.partition('[')[0][:40]}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.chown(folder, lab_users[0])
    return folder


def run_template(lab: Lab, user: str, work: Path, template: str, *words: str, program: str) -> dict:
    """Runs a template and returns what the program wrote, after its job completed."""
    (work / "train.py").write_text(program)
    call = [*GSUB, f"--template={template}", "--prerun=off", "--no-tune", "-t", "5", *words, "train.py", *ARGUMENTS]
    environ = {"JAX_PLATFORMS": "cpu", "ACCELERATE_USE_CPU": "true"}
    done = lab.run(call, user=user, cwd=work, env=environ)
    assert done.returncode == 0, done.stderr
    job = done.stdout.removeprefix("Submitted batch job ").strip()
    lab.wait_job(job, ("COMPLETED",), timeout=120)
    return json.loads((work / "met.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.torch
@pytest.mark.parametrize(
    "template",
    ["srun", pytest.param("torchrun", marks=pytest.mark.slow), pytest.param("deepspeed", marks=pytest.mark.slow)],
)
def test_four_processes_on_two_nodes_join_one_process_group(lab: Lab, lab_users, work: Path, template: str) -> None:
    found = run_template(lab, lab_users[0], work, template, "-N2", "-G4", program=WORLD)
    assert found["args"] == ARGUMENTS
    met = sorted(found["met"], key=lambda one: one["rank"])
    assert [(one["rank"], one["world"], one["local"]) for one in met] == [(0, 4, 0), (1, 4, 1), (2, 4, 0), (3, 4, 1)]
    assert len({one["node"] for one in met[:2]}) == len({one["node"] for one in met[2:]}) == 1
    assert met[0]["node"] != met[2]["node"]


@pytest.mark.frameworks
@pytest.mark.parametrize(("template", "program"), [("jax", JAX), ("accelerate", ACCELERATE)])
def test_jax_and_accelerate_processes_join_one_process_group(
    lab: Lab, lab_users, work: Path, template: str, program: str
) -> None:
    pytest.importorskip(template)
    found = run_template(lab, lab_users[0], work, template, "-N2", "-G4", program=program)
    assert (found["world"], len(found["met"]), found["args"]) == (4, 4, ARGUMENTS)


def test_an_array_runs_its_program_once_per_value(lab: Lab, lab_users, work: Path) -> None:
    program = "import sys, os\nopen('got-' + os.environ['SLURM_ARRAY_TASK_ID'], 'w').write(repr(sys.argv[1:]))\n"
    (work / "train.py").write_text(program)
    words = [
        "--template=array",
        "--prerun=off",
        "-G1",
        "-t1",
        "--values=1e-4,a b,$x%2",
        "train.py",
        "--lr",
        "{}",
        "-n={}",
    ]
    done = lab.run([*GSUB, *words], user=lab_users[0], cwd=work)
    job = done.stdout.removeprefix("Submitted batch job ").strip()
    assert done.returncode == 0, done.stderr
    lab.wait_job(job, ("COMPLETED",))
    got = [(work / f"got-{task}").read_text() for task in range(3)]
    assert got == [repr(["--lr", value, f"-n={value}"]) for value in ("1e-4", "a b", "$x")]
    assert sorted(path.name for path in work.glob("*.out")) == [f"train-{job}_{task}.out" for task in range(3)]


def test_each_line_of_a_file_is_a_packed_member_and_no_shell_reads_it(lab: Lab, lab_users, work: Path) -> None:
    program = "import sys, os\nopen('line-' + os.environ['SLURM_ARRAY_TASK_ID'], 'w').write(repr(sys.argv[1:]))\n"
    (work / "train.py").write_text(program)
    (work / "lines.txt").write_text('# rate, name\n--lr 1e-4 --name "a $HOME"\n\n--lr 3e-4 --name `id`;x\r\n')
    words = ["--template=array", "--prerun=off", "--pack=2", "-G1", "-t1", "--values-file=lines.txt"]
    done = lab.run([*GSUB, *words, "train.py", "{@}", "--out={2}", "{}"], user=lab_users[0], cwd=work)
    assert done.returncode == 0, done.stderr
    assert "lines.txt: task 0 has line 2, task 1 has line 4" in done.stderr
    lab.wait_job(f"{done.stdout.split()[-1]}_0", ("COMPLETED",))
    assert (work / "line-0").read_text() == repr(
        ["--lr", "1e-4", "--name", "a $HOME", "--out=1e-4", '--lr 1e-4 --name "a $HOME"']
    )
    assert (work / "line-1").read_text() == repr(
        ["--lr", "3e-4", "--name", "`id`;x", "--out=3e-4", "--lr 3e-4 --name `id`;x"]
    )


def test_more_gpus_than_the_partition_has_are_refused_with_the_maximum(lab: Lab, lab_users, work: Path) -> None:
    (work / "train.py").write_text("print(1)\n")
    done = lab.run([*GSUB, "--template=torchrun", "-G100", "train.py"], user=lab_users[0], cwd=work)
    assert (done.returncode, done.stdout) == (255, "")
    assert done.stderr.splitlines() == [
        "gsub: error: 20 nodes with 5 GPUs: that is more than partition gpu has, 8 nodes with 8 GPUs",
        "gsub: Ask for 64 GPUs at most, or for another partition (-p).",
    ]


def test_sixteen_gpus_get_two_nodes_and_the_job_equals_the_written_script(lab: Lab, lab_users, work: Path) -> None:
    (work / "train.py").write_text("print(1)\n")
    words = ["--template=torchrun", "-G16", "-H", "-t", "60", "train.py", "--lr", "3e-4"]
    written = lab.run([*GSUB, "new", "-o", "-", *words], user=lab_users[0], cwd=work)
    done = lab.run([*GSUB, "--prerun=off", "--no-place", "--no-tune", *words], user=lab_users[0], cwd=work)
    assert done.stderr == "gsub: Template torchrun: 2 nodes with 8 GPUs and 1 task each.\n"
    job = done.stdout.removeprefix("Submitted batch job ").strip()
    stored = lab.run(["scontrol", "write", "batch_script", job, "-"], user=lab_users[0]).stdout
    assert stored.rstrip("\n") == written.stdout.rstrip("\n")
    shown = lab.run(["squeue", "-h", "-j", job, "-o", "%D %C %b %j %l"]).stdout.replace("gres:", "gres/").split()
    lab.run(["scancel", job])
    assert shown == ["2", "64", "gres/gpu:8", "train", "1:00:00"]  # 22.05 prints gres:gpu:8


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("template", ["torchrun", "srun", "accelerate", "deepspeed", "jax"])
def test_the_pre_run_passes_with_each_launcher(lab: Lab, lab_users, work: Path, template: str) -> None:
    """One process on one GPU makes optimizer steps with each launcher."""
    if template in ("jax", "accelerate"):
        pytest.importorskip(template)
    program = """\
import os, sys, torch
import torch.distributed as dist
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    assert dist.get_world_size() == 1, dist.get_world_size()
layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
while True:
    optimizer.zero_grad()
    layer(torch.randn(8, 4)).sum().backward()
    optimizer.step()
"""
    (work / "train.py").write_text(program)
    words = [f"--template={template}", "--prerun=only", "--json", "-G16", "-t", "5", "train.py", "--lr", "1"]
    done = lab.run([*GSUB, *words], user=lab_users[0], cwd=work, timeout=120, env={"ACCELERATE_USE_CPU": "true"})
    verdict = json.loads(done.stdout)
    assert (done.returncode, verdict["verdict"], verdict["steps"]) == (0, "pass", 3), done.stdout


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("template", ["torchrun", "accelerate", "srun"])
def test_a_signal_reaches_the_program_and_does_not_end_its_launcher(
    lab: Lab, lab_users, work: Path, template: str
) -> None:
    """--signal sends the signal to all processes of a step: the launcher must survive it."""
    if template == "accelerate":
        pytest.importorskip(template)
    program = """\
import os, signal, time
told = []
signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
rank = os.environ["RANK"]
open(f"ready-{rank}", "w").close()
while not told:
    time.sleep(0.1)
open(f"checkpoint-{rank}", "w").close()
"""
    (work / "train.py").write_text(program)
    words = [f"--template={template}", "--prerun=off", "--signal=USR1@60", "-N2", "-G4", "-t", "5", "train.py"]
    done = lab.run([*GSUB, *words], user=lab_users[0], cwd=work, env={"ACCELERATE_USE_CPU": "true"})
    job = done.stdout.removeprefix("Submitted batch job ").strip()
    assert wait_for(lambda: len(list(work.glob("ready-*"))), lambda count: count == 4, 60) == 4
    lab.run(["scancel", "--signal=USR1", job], user=lab_users[0])
    lab.wait_job(job, ("COMPLETED",), timeout=60)
    assert len(list(work.glob("checkpoint-*"))) == 4


def test_watch_ends_when_a_job_from_a_template_completes(lab: Lab, lab_users, work: Path) -> None:
    """A job is submitted from a template and watched until it completed."""
    (work / "train.py").write_text("import time\ntime.sleep(1)\n")
    done = lab.run([*GSUB, "--template=srun", "--prerun=off", "-G2", "-t1", "train.py"], user=lab_users[0], cwd=work)
    job = done.stdout.removeprefix("Submitted batch job ").strip()
    watched = lab.slurmwrap("watch", job, "--every", "1", user=lab_users[0])
    assert (watched.returncode, watched.stderr) == (0, "")
    assert f"job {job} (train): completed after" in watched.stdout.splitlines()[-1]
    assert wait_for(lambda: lab.states(job), lambda now: now == ["COMPLETED"], 60) == ["COMPLETED"]
