"""Mistakes on the command line, on a real Slurm: gsub reports at once what would otherwise wait without a message."""

from __future__ import annotations

import json
import pwd
import re
import shutil
from pathlib import Path
from typing import Any

import list_schemas
import pytest
from jsonschema import Draft202012Validator
from realslurm import USERS, Lab

ALICE = USERS[0]
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks"), pytest.mark.timeout(300)]


@pytest.fixture
def home(lab: Lab, request: pytest.FixtureRequest) -> Path:
    path = Path(pwd.getpwnam(ALICE).pw_dir) / re.sub(r"\W", "_", request.node.name)[:60]
    lab.run(["mkdir", "-p", str(path)], user=ALICE)
    (path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --gpus-per-node=2\n#SBATCH --time=5\nhostname\n")
    return path


def gsub(lab: Lab, home: Path, *words: str) -> Any:
    return lab.run(["gsub", *words], user=ALICE, cwd=home)


def test_more_nodes_than_the_partition_has_are_refused_unless_forced(lab: Lab, home: Path) -> None:
    done = gsub(lab, home, "-N", "20", "job.sbatch")
    assert (done.returncode, done.stdout) == (5, "")
    assert "20 nodes: partition gpu has 8, so the job could never start" in done.stderr
    assert "--nodes=8" in done.stderr and "--force" in done.stderr
    forced = gsub(lab, home, "-N", "20", "--force", "--prerun=off", "--parsable", "job.sbatch")
    assert forced.returncode == 0, forced.stderr
    lab.run(["scancel", forced.stdout.strip()], user=ALICE)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--prerun=off", "job.sbatch"), {"mode": "off", "reason": "as asked", "job_id": None, "shared": False}),
        (("--prerun=auto", "job.sbatch"), {"mode": "auto", "shared": False}),
    ],
)
def test_json_output_of_a_submission_is_one_object_of_its_schema(
    lab: Lab, home: Path, words: tuple[str, ...], expected: dict[str, Any]
) -> None:
    done = gsub(lab, home, "--json", *words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    Draft202012Validator(list_schemas.schemas()["submission"]).validate(found)
    assert found["cluster"] == lab.cluster
    assert expected.items() <= found["prerun"].items()
    assert (found["prerun"]["job_id"] is None) == (expected["mode"] == "off")
    lab.wait_job(found["job_id"], {"COMPLETED"}, timeout=120)


def test_json_output_of_a_refused_job_has_the_error(lab: Lab, home: Path) -> None:
    done = gsub(lab, home, "--json", "--prerun=off", "--gres=gpu:99", "job.sbatch")
    found = json.loads(done.stdout)
    assert (found["job_id"], found["exit_code"], done.returncode) == (None, 1, 1)
    assert found["error"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--json", "--mem=10", "--wrap=hostname"), "--json: this call goes to sbatch unchanged"),
        (("--json", "--dry-run", "job.sbatch"), "--json: --dry-run prints a batch script"),
        (("--json", "--dry-run", "--mem=10", "--wrap=hostname"), "--json: --dry-run prints a batch script"),
    ],
)
def test_json_is_refused_for_calls_without_json_output(lab: Lab, home: Path, words: tuple[str, ...], said: str) -> None:
    done = gsub(lab, home, *words)
    error = json.loads(done.stdout)
    assert (done.returncode, error["kind"], error["exit_code"]) == (255, "slurmwrap.error", 255)
    assert said in error["message"]
    assert said in done.stderr


@pytest.mark.skipif(shutil.which("script") is None, reason="no script(1) to make a terminal")
def test_reading_the_script_from_a_terminal_prints_a_prompt(lab: Lab, home: Path) -> None:
    typed = "#!/bin/sh\nhostname\n\x04"
    words = ["script", "-qec", "gsub --gpus=1 --prerun=off", "/dev/null"]
    done = lab.run(words, user=ALICE, cwd=home, stdin=typed)
    assert "reading the batch script from standard input; end it with Ctrl-D" in done.stdout
    submitted = re.search(r"Submitted batch job (\d+)", done.stdout)
    assert submitted
    piped = lab.run(["gsub", "--gpus=1", "--prerun=off"], user=ALICE, cwd=home, stdin="#!/bin/sh\nhostname\n")
    assert piped.stderr == ""
    lab.wait_job(int(submitted[1]), {"COMPLETED"}, timeout=120)
