"""Trials in the container runtimes that Debian has: bubblewrap, Charliecloud, Podman."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

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


WRITE = "sh -c 'echo new > /work/new.txt && rm -f /work/train.py && ls /work'"


@pytest.mark.parametrize(
    "call", ["bwrap --ro-bind {images}/train / --bind $PWD /work", "ch-run -b $PWD:/work {images}/train --"]
)
def test_writes_of_any_program_in_a_container_are_discarded(call: str, site: Any, need: Callable[[str], None]) -> None:
    need(call.split()[0])
    before = site.list_files()
    found = site.run(f"#!/bin/bash\nmkdir -p made\n{call.format(images=site.images)} {WRITE}\n")
    assert found["exit_code"] == 0, json.dumps(found, indent=1)
    assert "new.txt" in found["output"] and "made" in found["output"]
    assert "train.py" not in found["output"].split()
    assert site.list_files() == before


def test_a_bug_in_a_container_fails_with_its_line_on_the_host(site: Any, need: Callable[[str], None]) -> None:
    need("bwrap")
    (site.job / "train.py").write_text("import torch.optim\nimages, labels = 1, 2\nprint(image)\n")
    found = site.run(BWRAP.format(images=site.images, steps=1))
    assert found["outcome"] == "fail", json.dumps(found, indent=1)
    assert found["reason"].startswith("/work/train.py:3: NameError")


def test_a_container_without_python_is_no_failure_of_its_own(site: Any, need: Callable[[str], None]) -> None:
    need("ch-run")
    found = site.run(f"#!/bin/bash\nch-run {site.images}/bare -- sh -c 'echo done'\n")
    assert (found["outcome"], found["output"]) == ("pass", "done\n"), json.dumps(found, indent=1)


def test_an_image_that_is_missing_fails_as_the_job_would(site: Any, need: Callable[[str], None]) -> None:
    need("ch-run")
    found = site.run(f"#!/bin/bash\nch-run {site.images}/none -- python3 train.py 3\n")
    assert found["outcome"] == "fail", json.dumps(found, indent=1)
    assert "none" in found["reason"]


def test_files_that_one_podman_container_wrote_are_seen_by_the_next(podman: Any) -> None:
    before = podman.list_files()
    found = podman.run(
        "#!/bin/bash\npodman run --rm -v $PWD:/out train sh -c 'echo 5 > /out/data.log'\n"
        "podman run --rm -v $PWD:/in train cat /in/data.log\n"
    )
    assert (found["exit_code"], found["output"]) == (0, "5\n"), json.dumps(found, indent=1)
    assert podman.list_files() == before
    assert found["logs"] == {f"{podman.job}/data.log": "5\n"}


def test_a_named_podman_container_is_removed_after_the_trial(podman: Any) -> None:
    script = "#!/bin/bash\npodman run --name mine -v $PWD:/work -w /work train python3 train.py 9\n"
    assert podman.run(script)["outcome"] == "pass"
    again = podman.run(script)
    assert again["outcome"] == "pass", json.dumps(again, indent=1)


def test_memory_and_cpu_of_a_podman_container_are_measured(podman: Any) -> None:
    (podman.job / "train.py").write_text(
        "import torch.optim, time\nheld = bytearray(300 << 20)\noptimizer = torch.optim.SGD()\n"
        "for step in range(3):\n    ends = time.process_time() + 0.6\n"
        "    while time.process_time() < ends: pass\n    optimizer.step()\n"
    )
    found = podman.run(PODMAN.format(steps=3))
    assert found["steps"] == 3, json.dumps(found, indent=1)
    assert 300 <= found["memory"] < 600
    assert found["cpu_s"] > 1.2


def test_another_user_of_the_image_can_count_steps_too(podman: Any) -> None:
    found = podman.run("#!/bin/bash\npodman run --rm -u 1000 -v $PWD:/work:ro -w /work train python3 - <<'X'\nX\n")
    assert found["exit_code"] == 0
    (podman.job / "train.py").write_text("import torch.optim\no = torch.optim.SGD()\nfor _ in range(9): o.step()\n")
    podman.job.chmod(0o755)
    found = podman.run("#!/bin/bash\npodman run --rm -u 1000 -v $PWD:/work:ro -w /work train python3 train.py\n")
    assert (found["outcome"], found["steps"]) == ("pass", 3), json.dumps(found, indent=1)


LATE_BUG = """
import torch.optim
optimizer = torch.optim.SGD()
for epoch in range(2):
    for step in range(50):
        optimizer.step()
open('final.txt', 'w').write('x')
print(undefined_name)
"""


@pytest.mark.parametrize("runtime", ["bwrap", "ch-run"])
def test_a_bug_after_the_training_is_found_inside_by_the_rehearsal(
    runtime: str, site: Any, need: Callable[[str], None]
) -> None:
    need(runtime)
    (site.job / "train.py").write_text(LATE_BUG)
    script = {"bwrap": BWRAP, "ch-run": CH_RUN}[runtime].format(images=site.images, steps=1)
    found = site.run(script, rehearse_s=60.0)
    assert found["outcome"] == "fail", json.dumps(found, indent=1)
    assert found["reason"].startswith("/work/train.py:8: NameError")
    assert not (site.job / "final.txt").exists()
