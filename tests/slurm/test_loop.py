"""The whole loop with slurmctld and reconciler as user `slurm`: what one user sees, and another must not."""

from __future__ import annotations

import json
import re
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from realslurm import USERS, Lab
from site_records import judged, site, site_rows
from waiting import allow, wait_until

from slurmwrap.lab.lab_spec import gpu_bus_id

pytestmark = [pytest.mark.lab, pytest.mark.timeout(allow(300))]
ALICE, BOB = USERS
ENDED = ("COMPLETED", "FAILED", "CANCELLED")
GSUB = (sys.executable, "-m", "slurmwrap.gsub.gsub_main")
OPTIONS = ("--gres=gpu:1", "--cpus-per-task=2", "--mem=300", "--time=10")
# The first run dies as CUDA programs do, and in srun; the second, which adds to the same output, ends well.
FAULT = """
if [ -z "$SLURM_RESTART_COUNT" ]; then
touch "runs-$SLURM_JOB_ID"
for _ in $(seq 300); do [ -e "go-$SLURM_JOB_ID" ] && break; sleep 0.1; done
srun python3 -c 'raise RuntimeError("CUDA error: unspecified launch failure")'
exit 1
fi
echo fine
"""


def home() -> Path:
    return Path("/var/tmp", ALICE)


def gsub(lab: Lab, name: str, body: str, *options: str) -> tuple[str, str]:
    """(job id or "", stderr) of alice's submission of a script NAME.sbatch."""
    done = lab.run(["/usr/bin/tee", f"{name}.sbatch"], ALICE, stdin=f"#!/bin/bash\n{body}\n")
    assert done.returncode == 0, done.stderr
    done = lab.run([*GSUB, *OPTIONS, f"--output={name}-%j.out", *options, f"{name}.sbatch"], ALICE)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout)
    return (found[1] if found else ""), done.stderr


def told(lab: Lab, job: str, runs: int = 1) -> dict[str, Any]:
    """What `why --json` tells alice, once so many runs are judged."""
    assert len(judged(lab, job, how_many=runs)) >= runs
    return json.loads(lab.slurmwrap("why", job, "--json", user=ALICE).stdout)


def categories(timeline: dict[str, Any]) -> list[str]:
    return [attempt["diagnosis"]["category"] for attempt in timeline["attempts"]]


@pytest.fixture(scope="module")
def failed_prerun(lab_as_slurm: Lab) -> str:
    """A 16-GPU job whose pre-run found a bug; the site knows of both."""
    lab, body = lab_as_slurm, "srun python3 -c 'import secret_name_of_alice'"
    job, _ = gsub(lab, "bug", body, "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:8", "--prerun=auto")
    lab.wait_job(job, ("CANCELLED",))

    def known() -> bool:
        verdicts = judged(lab, job) and site_rows(lab, "SELECT * FROM preruns WHERE job_id = ?", int(job))
        return bool(verdicts)

    wait_until(known, "the site's reconciler knows the pre-run and judged the job", pause=0.5)
    return job


def test_a_bug_is_stopped_by_the_prerun_and_its_owner_told(lab_as_slurm: Lab, failed_prerun: str) -> None:
    lab = lab_as_slurm
    shown = lab.run(["scontrol", "show", "job", failed_prerun]).stdout
    assert "RunTime=00:00:00" in shown
    why = lab.slurmwrap("why", failed_prerun, user=ALICE).stdout
    assert "No module named 'secret_name_of_alice'" in why and "16 GPUs kept free" in why


def test_a_failing_gpu_sends_the_job_elsewhere_and_drains_the_node(lab_as_slurm: Lab) -> None:
    lab = lab_as_slurm
    job, _ = gsub(lab, "fault", FAULT, "--prerun=off", "--retry")
    # RUNNING is said while the Prolog, which sets the mark in the kernel log, is still at work
    wait_until((home() / f"runs-{job}").exists, "the job runs")
    shown = lab.run(["scontrol", "show", "job", "-d", job]).stdout
    found = re.search(r"Nodes=(\w+) .*?GRES=gpu\S*\(IDX:(\d+)", shown)
    assert found, shown
    node, bus = found[1], gpu_bus_id(int(found[2])).rpartition(".")[0]
    lab.kernel(node, f"NVRM: Xid (PCI:{bus}): 79, pid=4711, name=python, GPU has fallen off the bus.")
    lab.run(["/usr/bin/touch", f"go-{job}"], ALICE)  # only now may it die
    lab.wait_job(job, ("FAILED",))
    try:
        assert categories(told(lab, job)) == ["gpu_hardware"]
        assert f"{node} slurmwrap: gpu_hardware" in lab.run(["sinfo", "-h", "-R", "-o", "%N %E"]).stdout
        lab.wait_job(job, ("COMPLETED",))
        timeline = told(lab, job, 2)
        assert categories(timeline) == ["gpu_hardware", "success"]
        assert timeline["attempts"][1]["nodes"] != [node]
    finally:
        lab.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])


def test_a_deterministic_failure_is_not_run_again_in_spite_of_consent(lab_as_slurm: Lab) -> None:
    lab = lab_as_slurm
    job, _ = gsub(lab, "crash", "python3 -c 'raise KeyError(1)'", "--prerun=off", "--retry")
    lab.wait_job(job, ("FAILED",))
    timeline = told(lab, job)
    assert [(a["diagnosis"]["category"], a["decision"]) for a in timeline["attempts"]] == [
        ("traceback_from_crash", "stop")
    ]
    assert timeline["actions"] == []
    again, said = gsub(lab, "crash", "python3 -c 'raise KeyError(1)'", "--prerun=off")
    assert again, said  # the site judged it; only his own reconcile would make gsub refuse the next one
    lab.run(["scancel", again])


def test_another_user_sees_nothing_of_it_and_the_administrators_all(lab_as_slurm: Lab, failed_prerun: str) -> None:
    lab = lab_as_slurm
    for command in (["why", failed_prerun], ["why"], ["history"], ["report"]):
        done = lab.slurmwrap(*command, user=BOB)
        assert ALICE not in done.stdout and "secret_name" not in done.stdout + done.stderr
    for user in ("slurm", None):
        assert failed_prerun in lab.slurmwrap("history", user=user).stdout
        assert ALICE in lab.slurmwrap("why", failed_prerun, user=user).stdout


def test_the_sites_files_are_closed_and_what_is_published_is_sealed(lab_as_slurm: Lab, failed_prerun: str) -> None:
    del failed_prerun  # there is something to seal
    lab, places = lab_as_slurm, site(lab_as_slurm)
    state = Path(places["state_dir"])
    files = [state, *state.rglob("*")]
    assert {stat.S_IMODE(path.lstat().st_mode) & 0o077 for path in files} == {0}
    assert stat.S_IMODE(Path(places["spool"]).stat().st_mode) == 0o1733
    published = Path(places["published"])
    assert ALICE not in (published / "published.json").read_text(encoding="utf-8")
    sealed = sorted((published / "why").glob("*/*.munge"))
    assert sealed
    for user in (BOB, "slurm"):
        done = lab.run(["unmunge", f"--socket={places['munge_socket']}", f"--input={sealed[0]}"], user)
        assert done.returncode != 0 and "Unauthorized" in done.stderr


def test_slurm_user_before_a_directory_of_roots_is_told_so_and_is_no_plain_user(lab_as_slurm: Lab) -> None:
    lab = lab_as_slurm
    foreign = lab.dir / "roots-state"
    foreign.mkdir(mode=0o755)
    config = lab.dir / "roots.toml"
    config.write_text(f'[site]\nstate_dir = "{foreign}"\nslurm_user = "slurm"\n', encoding="utf-8")
    argv = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "reconcile", "--once"]
    done = lab.run(argv, "slurm", env={"SLURMWRAP_CONFIG": str(config)})
    assert (done.returncode, str(foreign) in done.stderr) == (6, True)
