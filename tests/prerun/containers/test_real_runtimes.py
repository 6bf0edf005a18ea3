"""Trials in the container runtimes that Debian has: bubblewrap, Charliecloud, Podman."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

BWRAP = (
    "#!/bin/bash\nbwrap --unshare-all --clearenv --setenv PATH /usr/bin --setenv PYTHONPATH /opt/lib"
    " --ro-bind {images}/train / --proc /proc --dev /dev --tmpfs /tmp --bind $PWD /work --chdir /work"
    " python3 train.py {steps}\n"
)
CH_RUN = (
    "#!/bin/bash\nch-run --unset-env='*' --set-env=PATH=/usr/bin --set-env=PYTHONPATH=/opt/lib -b $PWD:/work -c /work"
    " {images}/train -- python3 train.py {steps}\n"
)
PODMAN = "#!/bin/bash\npodman run --rm -v $PWD:/work:rw -w /work train python3 train.py {steps}\n"


def test_a_training_in_bubblewrap_parks_in_its_third_step(site: Any, need: Callable[[str], None]) -> None:
    need("bwrap")
    before = site.list_files()
    found = site.run(BWRAP.format(images=site.images, steps=9))
    assert (found["outcome"], found["layer"], found["steps"], found["source"]) == ("pass", "step", 3, "optimizer"), (
        json.dumps(found, indent=1)
    )
    assert "wandb disabled" in found["output"]
    assert site.list_files() == before


def test_a_training_in_charliecloud_parks_in_its_third_step(site: Any, need: Callable[[str], None]) -> None:
    need("ch-run")
    before = site.list_files()
    found = site.run(CH_RUN.format(images=site.images, steps=9))
    assert (found["outcome"], found["layer"], found["steps"], found["source"]) == ("pass", "step", 3, "optimizer"), (
        json.dumps(found, indent=1)
    )
    assert "wandb disabled" in found["output"]
    assert site.list_files() == before


def test_a_training_in_podman_parks_in_its_third_step_and_leaves_nothing(podman: Any) -> None:
    before = podman.list_files()
    found = podman.run(PODMAN.format(steps=9))
    assert (found["outcome"], found["layer"], found["steps"], found["source"]) == ("pass", "step", 3, "optimizer"), (
        json.dumps(found, indent=1)
    )
    assert "wandb disabled" in found["output"]
    assert podman.list_files() == before
    left = subprocess.run(podman.as_user(["podman", "ps", "-aq"]), capture_output=True, text=True, cwd="/", check=False)
    assert left.stdout == ""
