"""gsub on a real Slurm: jobs that do not train, and scripts whose earlier run completed."""

from __future__ import annotations

import json
import pwd
import re
import time
from pathlib import Path
from typing import Any

import pytest
from realslurm import USERS, Lab
from waiting import wait_for

ALICE = USERS[0]
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks"), pytest.mark.timeout(300)]
HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:2 -c 1 --mem=500 --time=5\necho started\n"
SERVER = "from http.server import HTTPServer, SimpleHTTPRequestHandler as H\nHTTPServer(('', 0), H).serve_forever()\n"
EVALUATION = "import time\nfor i in range(100_000):\n    print('evaluated', i, flush=True)\n    time.sleep(0.1)\n"


@pytest.fixture
def home(lab: Lab, request: pytest.FixtureRequest) -> Path:
    """A new directory of alice."""
    name = re.sub(r"\W", "_", request.node.name)[:60] + f"_{time.monotonic_ns()}"
    path = Path(pwd.getpwnam(ALICE).pw_dir) / name
    lab.run(["mkdir", "-p", str(path)], user=ALICE)
    return path


def gsub(lab: Lab, home: Path, *words: str, body: str = "", patience_s: int = 5, **files: str) -> Any:
    """Runs gsub for a script with `body`; `files` are written as NAME.py. `patience_s`: prerun.no_training_s."""
    for name, text in {**{f"{name}.py": text for name, text in files.items()}, "job.sh": HEAD + body}.items():
        if body or not name.endswith(".sh"):
            (home / name).write_text(text)
            (home / name).chmod(0o755)
    environ = {"SLURMWRAP_PRERUN_NO_TRAINING_S": str(patience_s), "XDG_STATE_HOME": str(home / "state")}
    return lab.run(["gsub", *words, "job.sh"], user=ALICE, cwd=home, env=environ)


def parse_job_id(done: Any) -> int:
    assert done.returncode == 0, done.stderr
    return int(re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout)[1])


def wait_for_start(lab: Lab, home: Path, job: int) -> bool:
    """Whether the script of the job starts, long before the end of the grace period of ten minutes."""
    found = wait_for(lambda: (home / f"slurm-{job}.out").exists(), bool, 120)
    lab.run(["scancel", str(job)], user=ALICE)
    return found


def read_verdicts(home: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (home / "state/slurmwrap/prerun").glob("*/verdict.json")]


@pytest.mark.parametrize("body", ["sleep infinity\n", "python3 -m http.server 0\n", "tail -f /dev/null\n"])
def test_a_script_that_only_runs_known_tools_starts_without_a_pre_run(lab: Lab, home: Path, body: str) -> None:
    done = gsub(lab, home, "--explain", body=body)
    assert "which does not train: a pre-run could show nothing" in done.stderr
    assert "--begin" not in done.stderr
    assert wait_for_start(lab, home, parse_job_id(done))
    assert read_verdicts(home) == []


@pytest.mark.parametrize(
    ("body", "files", "why"),
    [
        ("python3 serve.py\n", {"serve": SERVER}, "a server waits for its clients"),
        ("python3 run.py\n", {"run": EVALUATION}, "nothing in its code trains"),
        ("./md\n", {}, "no Python is in it|nothing in its code trains"),  # Python starts the pre-run itself
    ],
)
def test_a_program_that_does_not_train_is_released_and_not_pre_run_again(
    lab: Lab, home: Path, body: str, files: dict[str, str], why: str
) -> None:
    (home / "md").write_text("#!/bin/sh\nwhile :; do awk 'BEGIN { for (i = 0; i < 3e5; i++) x += i }'; done\n")
    (home / "md").chmod(0o755)
    patience_s = 300 if "serve" in files else 5  # a program that listens on a port is recognized at once
    first = gsub(lab, home, body=body, patience_s=patience_s, **files)
    assert "waits for its pre-run" in first.stderr
    assert wait_for_start(lab, home, parse_job_id(first))
    (verdict,) = read_verdicts(home)
    assert (verdict["outcome"], verdict["layer"]) == ("inconclusive", "no_training")
    assert re.search(why, verdict["reason"])
    second = gsub(lab, home, "--explain")
    assert "an earlier pre-run was inconclusive: no optimizer step will come" in second.stderr
    assert wait_for_start(lab, home, parse_job_id(second))
    dry_run = gsub(lab, home, "--dry-run", "--prerun=auto")
    assert "its pre-run would be: auto" in dry_run.stderr


def test_a_completed_run_counts_as_a_pass(lab: Lab, home: Path) -> None:
    job = parse_job_id(gsub(lab, home, "--prerun=off", body="srun hostname\n"))
    running = gsub(lab, home, "--dry-run")
    lab.wait_job(job, {"COMPLETED"}, timeout=90)
    again = gsub(lab, home, "--dry-run")
    assert "a run of this script, its code and its arguments completed" in again.stderr, running.stderr
    changed = gsub(lab, home, "--dry-run", body="srun hostname -f\n")
    assert "first run of this script" in changed.stderr


def test_a_completed_run_with_a_failed_step_does_not_count_as_a_pass(lab: Lab, home: Path) -> None:
    job = parse_job_id(gsub(lab, home, "--prerun=off", body="srun false\necho done\n"))
    lab.wait_job(job, {"COMPLETED"}, timeout=90)
    assert "first run of this script" in gsub(lab, home, "--dry-run").stderr


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            "python3 one.py > out/log.txt; echo done\n",
            "'python3 one.py' (line 4) did not run: out/log.txt: No such file or directory",
        ),
        ("python3 one.py &\n", "add `wait` as its last line"),
    ],
)
def test_a_script_that_ended_without_its_program_is_inconclusive(lab: Lab, home: Path, body: str, why: str) -> None:
    done = gsub(lab, home, "--prerun=only", "--json", body=body, one="import time\ntime.sleep(5)\n")
    assert done.returncode == 4, done.stderr
    found = json.loads(done.stdout)
    assert (found["verdict"], found["lasting"]) == ("inconclusive", False)
    assert why in found["reason"]


def test_a_script_whose_program_ran_to_its_end_passes(lab: Lab, home: Path) -> None:
    done = gsub(lab, home, "--prerun=only", body="python3 one.py\n", one="print(1)\n")
    assert (done.returncode, done.stdout) == (0, "pass: the script ran to its end; no optimizer step was seen\n")
