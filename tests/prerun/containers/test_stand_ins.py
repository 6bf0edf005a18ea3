"""Trials in container runtimes that Debian does not have, by stand-ins with the options of their documentation."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

SITE_IMAGE = "train.sif"
APPTAINER = {
    "apptainer exec": "apptainer exec --nv train.sif python3 train.py {steps}",
    "cleaned environment": "singularity exec --cleanenv -B $PWD train.sif python3 train.py {steps}",
    "contained": "apptainer exec --containall --no-home -B $PWD:/work --pwd /work train.sif python3 train.py {steps}",
    "runscript": "apptainer run --nv train.sif train.py {steps}",
    "variable and launcher": "IMG=$PWD/train.sif; srun --gpus=1 singularity exec -eC -B .:/work --pwd /work $IMG bash -c"
    " 'python train.py {steps}'",
    "own PYTHONPATH": "apptainer exec --env PYTHONPATH=/opt/lib:. train.sif python3 train.py {steps}",
}
OTHERS = {
    "docker": "docker run --rm --gpus all --ipc=host -it -v $PWD:/work -w /work -e LR=0.1 train:latest python3 train.py {steps}",
    "docker with an entry point": "docker run --rm -v$PWD:/work --workdir=/work --entrypoint python3 train train.py {steps}",
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
