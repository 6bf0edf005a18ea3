"""Trials in container runtimes that Debian does not have, by stand-ins with the options of their documentation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

SITE_IMAGE = "train.sif"
APPTAINER = {
    "apptainer exec": "apptainer exec --nv train.sif python3 train.py {steps}",
    "cleaned environment": "singularity exec --cleanenv -B $PWD train.sif python3 train.py {steps}",
    "contained": "apptainer exec --containall --no-home -B $PWD:/work --pwd /work train.sif python3 train.py {steps}",
    "runscript": "apptainer run --nv train.sif train.py {steps}",
    "variable and launcher": "I=$PWD/train.sif; srun --gpus=1 singularity exec -eC -B .:/work --pwd /work $I bash -c"
    " 'python train.py {steps}'",
    "own PYTHONPATH": "apptainer exec --env PYTHONPATH=/opt/lib:. train.sif python3 train.py {steps}",
}
OTHERS = {
    "docker": "docker run --rm --gpus all --ipc=host -it -v $PWD:/work -w /work -e LR=0.1 train:latest"
    " python3 train.py {steps}",
    "docker with an entry point": "docker run --rm -v$PWD:/work --workdir=/work --entrypoint python3 train"
    " train.py {steps}",
    "enroot": "enroot start --rw -m $PWD:/work train sh -c 'cd /work && python3 train.py {steps}'",
    "pyxis": "srun -N 2 --ntasks-per-node=8 --container-image=train.sqsh --container-mounts=$PWD:/work"
    " --container-workdir=/work --no-container-mount-home python3 train.py {steps}",
    "pyxis with little exported": "srun --export=LR --container-image=$PWD/train.sqsh --container-mounts=$PWD:/work:rw"
    " --container-workdir=/work python3 -u train.py {steps}",
    "oci bundle": "export PYTHONPATH=/opt/lib; srun --container=$PWD/bundle python3 train.py {steps}",
}


def put_runtimes(site: Any, stand_in: Callable[[str], None]) -> None:
    for name in ("apptainer", "singularity", "docker", "enroot", "srun"):
        stand_in(name)
    mounts = [{"destination": "/work", "source": str(site.job), "options": ["rbind", "rw"]}]
    config = {
        "root": {"path": str(site.images / "train")},
        "process": {"cwd": "/work", "args": ["sh"]},
        "mounts": mounts,
    }
    (site.job / "bundle").mkdir()
    (site.job / "bundle/config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", [*APPTAINER, *OTHERS])
def test_a_training_in_a_container_parks_in_its_third_step(
    name: str, site: Any, stand_in: Callable[[str], None]
) -> None:
    put_runtimes(site, stand_in)
    before = site.list_files()
    found = site.run(f"#!/bin/bash\n{ {**APPTAINER, **OTHERS}[name].format(steps=9) }\n")
    shown = json.dumps(found, indent=1)
    assert (found["outcome"], found["layer"], found["steps"], found["source"]) == ("pass", "step", 3, "optimizer"), (
        shown
    )
    assert "wandb disabled" in found["output"]
    assert site.list_files() == before


DETACHED = {
    "docker": "docker run --rm -v $PWD:/work -w /work train",
    "pyxis": "srun --container-image=train.sqsh --container-mounts=$PWD:/work --container-workdir=/work",
}


@pytest.mark.parametrize("runtime", DETACHED)
def test_a_shell_that_writes_where_no_overlay_is_proves_nothing_and_changes_nothing(
    runtime: str, site: Any, stand_in: Callable[[str], None]
) -> None:
    put_runtimes(site, stand_in)
    before = site.list_files()
    found = site.run(f"#!/bin/bash\n{DETACHED[runtime]} sh -c 'rm train.py && echo x > new'\n")
    assert found["outcome"] == "inconclusive", json.dumps(found, indent=1)
    assert "ead-only file system" in found["output"] or "would touch /work/train.py" in found["reason"]
    assert site.list_files() == before


@pytest.mark.parametrize("runtime", DETACHED)
def test_python_may_write_where_no_overlay_is_and_reads_it_back(
    runtime: str, site: Any, stand_in: Callable[[str], None]
) -> None:
    put_runtimes(site, stand_in)
    before = site.list_files()
    (site.job / "train.py").write_text(
        "import os\nos.makedirs('out', exist_ok=True)\nopen('out/a.log', 'w').write('1')\n"
        "print(open('out/a.log').read(), os.listdir('/work/out'))\n"
    )
    found = site.run(f"#!/bin/bash\n{DETACHED[runtime]} python3 train.py\n")
    assert (found["exit_code"], found["output"]) == (0, "1 ['a.log']\n"), json.dumps(found, indent=1)
    assert found["logs"] == {f"{site.job}/out/a.log": "1"}
    assert site.list_files() == before


def test_a_missing_package_in_the_image_fails_with_the_line(site: Any, stand_in: Callable[[str], None]) -> None:
    put_runtimes(site, stand_in)
    (site.job / "train.py").write_text("import torch.optim\nimport transformers\n")
    found = site.run("#!/bin/bash\napptainer exec --nv train.sif python3 train.py\n")
    assert found["outcome"] == "fail", json.dumps(found, indent=1)
    assert "train.py:2: ModuleNotFoundError: No module named 'transformers'" in found["reason"]


def test_a_missing_image_fails(site: Any, stand_in: Callable[[str], None]) -> None:
    put_runtimes(site, stand_in)
    found = site.run("#!/bin/bash\napptainer exec --nv none.sif python3 train.py\n")
    assert found["outcome"] == "fail", json.dumps(found, indent=1)


def test_a_script_whose_whole_job_is_in_a_container_is_tried_there(site: Any, stand_in: Callable[[str], None]) -> None:
    put_runtimes(site, stand_in)
    before = site.list_files()
    container = ("--container-image=train.sqsh", f"--container-mounts={site.job}:/work", "--container-workdir=/work")
    script = "#!/bin/bash\n[ -e /opt/lib/imagepackage.py ] || exit 9\npython train.py $1\n"
    found = site.run(script, container=container, args=["9"])
    assert (found["outcome"], found["steps"]) == ("pass", 3), json.dumps(found, indent=1)
    assert site.list_files() == before


def test_an_absolute_path_of_a_runtime_is_replaced_by_its_shim(site: Any, stand_in: Callable[[str], None]) -> None:
    put_runtimes(site, stand_in)
    away = site.home / "opt"
    away.mkdir(exist_ok=True)
    (site.home / "bin/apptainer").rename(away / "apptainer")
    found = site.run(
        f"#!/bin/bash\n{away}/apptainer exec --containall -B $PWD --pwd $PWD train.sif python3 train.py 9\n"
    )
    assert (found["outcome"], found["steps"]) == ("pass", 3), json.dumps(found, indent=1)


def test_torchrun_inside_starts_one_process(site: Any, stand_in: Callable[[str], None]) -> None:
    put_runtimes(site, stand_in)
    (site.job / "torch/distributed").mkdir()
    (site.job / "torch/distributed/__init__.py").write_text("")
    (site.job / "torch/distributed/run.py").write_text("import sys\nprint('run', *sys.argv[1:])\n")
    found = site.run(
        "#!/bin/bash\nsrun -N4 singularity exec --cleanenv -B $PWD:/w --pwd /w train.sif"
        " python3 -m torch.distributed.run --nnodes 4 --nproc_per_node 8 --rdzv_backend=c10d train.py 9\n"
    )
    assert "run --standalone --nnodes=1 --nproc_per_node=1 train.py 9" in found["output"], json.dumps(found, indent=1)


def test_mpirun_inside_starts_one_rank(site: Any, stand_in: Callable[[str], None]) -> None:
    put_runtimes(site, stand_in)
    mpirun = site.job / "mpi/mpirun"
    mpirun.parent.mkdir()
    mpirun.write_text("#!/bin/sh\necho 16 ranks\n")
    mpirun.chmod(0o755)
    inside = "PATH=$PATH:$PWD/mpi; mpirun -np 16 --bind-to none python3 train.py 9"
    found = site.run(f"#!/bin/bash\napptainer exec --nv train.sif sh -c '{inside}'\n")
    assert (found["outcome"], found["steps"]) == ("pass", 3), json.dumps(found, indent=1)


@pytest.fixture
def set_uid_apptainer(site: Any, stand_in: Callable[[str], None]) -> Iterator[None]:
    """An apptainer whose starter has the set-uid bit, outside of the home: a new owner would clear the bit."""
    put_runtimes(site, stand_in)
    prefix = site.images / "suid"
    starter = prefix / "libexec/apptainer/bin/starter-suid"
    for folder in (prefix / "bin", starter.parent):
        folder.mkdir(parents=True)
    shutil.move(site.home / "bin/apptainer", prefix / "bin/apptainer")
    starter.touch()
    starter.chmod(0o4755)
    site.path = f"{prefix}/bin:{site.path}"
    yield
    shutil.rmtree(prefix)


# The second name is known only when the script runs, so the overlay is given up in the middle of the trial.
@pytest.mark.parametrize("name", ["apptainer", '"${R}ainer"'])
@pytest.mark.usefixtures("set_uid_apptainer")
def test_a_set_uid_apptainer_is_tried_without_an_overlay_and_changes_nothing(name: str, site: Any) -> None:
    before = site.list_files()
    call = f"{name} exec --nv -B $PWD:/work --pwd /work train.sif"
    found = site.run(f"#!/bin/bash\nR=appt\n{call} sh -c 'echo free: $SLURMWRAP_FREE; python3 train.py 9'\n")
    assert (found["outcome"], found["steps"]) == ("pass", 3), json.dumps(found, indent=1)
    free = found["output"].partition("free: ")[2].splitlines()[0].split(":")
    assert str(site.home) not in free
    assert site.list_files() == before


@pytest.mark.parametrize("line", ["rm train.py", "echo x > new", "cd /work && echo x > new"])
@pytest.mark.usefixtures("set_uid_apptainer")
def test_a_shell_in_a_set_uid_apptainer_changes_no_file_of_the_home(line: str, site: Any) -> None:
    before = site.list_files()
    found = site.run(f"#!/bin/bash\napptainer exec --nv -B $PWD:/work train.sif bash -c '{line}'\n")
    assert found["outcome"] == "inconclusive", json.dumps(found, indent=1)
    assert site.list_files() == before


def test_docker_on_another_machine_is_not_tried(site: Any, stand_in: Callable[[str], None]) -> None:
    put_runtimes(site, stand_in)
    found = site.run(f"#!/bin/bash\nexport DOCKER_HOST=tcp://gpu7:2376\n{DETACHED['docker']} python3 train.py 9\n")
    assert found["outcome"] == "inconclusive"
    assert "this container cannot be tried: docker runs it on tcp://gpu7:2376" in found["reason"]
