"""From gsub to `why` with slurmctld and reconciler as user `slurm`: what a user sees and what other users do not."""

from __future__ import annotations

import json
import re
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from realslurm import USERS, Lab
from site_records import reconcile_until_judged, site, site_rows
from waiting import allow, wait_until

from slurmwrap.lab.lab_spec import gpu_bus_id

pytestmark = [pytest.mark.lab, pytest.mark.timeout(allow(300))]
ALICE, BOB = USERS
ENDED = ("COMPLETED", "FAILED", "CANCELLED")
GSUB = (sys.executable, "-m", "slurmwrap.gsub.gsub_main")
OPTIONS = ("--gres=gpu:1", "--cpus-per-task=2", "--mem=300", "--time=10")
# The first run fails in srun with a CUDA error. The second run appends to the same output and succeeds.
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
    """Submits the script NAME.sbatch as alice. Returns (job id or "", stderr)."""
    done = lab.run(["/usr/bin/tee", f"{name}.sbatch"], ALICE, stdin=f"#!/bin/bash\n{body}\n")
    assert done.returncode == 0, done.stderr
    done = lab.run([*GSUB, *OPTIONS, f"--output={name}-%j.out", *options, f"{name}.sbatch"], ALICE)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout)
    return (found[1] if found else ""), done.stderr


def read_why(lab: Lab, job: str, runs: int = 1) -> dict[str, Any]:
    """The output of `why --json` for alice, after this number of runs is judged."""
    assert len(reconcile_until_judged(lab, job, how_many=runs)) >= runs
    return json.loads(lab.slurmwrap("why", job, "--json", user=ALICE).stdout)


def categories(timeline: dict[str, Any]) -> list[str]:
    return [attempt["diagnosis"]["category"] for attempt in timeline["attempts"]]


@pytest.fixture(scope="module")
def failed_prerun(lab_as_slurm: Lab) -> str:
    """A job with 16 GPUs whose pre-run found a bug. The site's database has both."""
    lab, body = lab_as_slurm, "srun python3 -c 'import secret_name_of_alice'"
    job, _ = gsub(lab, "bug", body, "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:8", "--prerun=auto")
    lab.wait_job(job, ("CANCELLED",))

    def known() -> bool:
        verdicts = reconcile_until_judged(lab, job) and site_rows(
            lab, "SELECT * FROM preruns WHERE job_id = ?", int(job)
        )
        return bool(verdicts)

    wait_until(known, "the site's reconciler knows the pre-run and judged the job", pause=0.5)
    return job


def test_a_pre_run_stops_a_job_with_a_bug_and_why_explains_it_to_the_owner(
    lab_as_slurm: Lab, failed_prerun: str
) -> None:
    lab = lab_as_slurm
    shown = lab.run(["scontrol", "show", "job", failed_prerun]).stdout
    assert "RunTime=00:00:00" in shown
    why = lab.slurmwrap("why", failed_prerun, user=ALICE).stdout
    assert "No module named 'secret_name_of_alice'" in why and "16 GPUs kept free" in why


def test_a_gpu_fault_reruns_the_job_on_another_node_and_drains_the_node(lab_as_slurm: Lab) -> None:
    lab = lab_as_slurm
    job, _ = gsub(lab, "fault", FAULT, "--prerun=off", "--retry")
    # Slurm shows RUNNING while the Prolog, which marks the position in the kernel log, still runs
    wait_until((home() / f"runs-{job}").exists, "the job runs")
    shown = lab.run(["scontrol", "show", "job", "-d", job]).stdout
    found = re.search(r"Nodes=(\w+) .*?GRES=gpu\S*\(IDX:(\d+)", shown)
    assert found, shown
    node, bus = found[1], gpu_bus_id(int(found[2])).rpartition(".")[0]
    lab.kernel(node, f"NVRM: Xid (PCI:{bus}): 79, pid=4711, name=python, GPU has fallen off the bus.")
    lab.run(["/usr/bin/touch", f"go-{job}"], ALICE)  # the job fails only now
    lab.wait_job(job, ("FAILED",))
    try:
        assert categories(read_why(lab, job)) == ["gpu_hardware"]
        assert f"{node} slurmwrap: gpu_hardware" in lab.run(["sinfo", "-h", "-R", "-o", "%N %E"]).stdout
        lab.wait_job(job, ("COMPLETED",))
        timeline = read_why(lab, job, 2)
        assert categories(timeline) == ["gpu_hardware", "success"]
        assert timeline["attempts"][1]["nodes"] != [node]
    finally:
        lab.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])


def test_a_deterministic_failure_is_not_retried_despite_consent(lab_as_slurm: Lab) -> None:
    lab = lab_as_slurm
    job, _ = gsub(lab, "crash", "python3 -c 'raise KeyError(1)'", "--prerun=off", "--retry")
    lab.wait_job(job, ("FAILED",))
    timeline = read_why(lab, job)
    assert [(a["diagnosis"]["category"], a["decision"]) for a in timeline["attempts"]] == [
        ("traceback_from_crash", "stop")
    ]
    assert timeline["actions"] == []
    again, stderr = gsub(lab, "crash", "python3 -c 'raise KeyError(1)'", "--prerun=off")
    assert again, stderr  # the site judged the job; gsub refuses the next one only after a reconcile of the user
    lab.run(["scancel", again])


def test_other_users_see_nothing_of_a_job_and_administrators_see_it(lab_as_slurm: Lab, failed_prerun: str) -> None:
    lab = lab_as_slurm
    for command in (["why", failed_prerun], ["why"], ["history"], ["report"]):
        done = lab.slurmwrap(*command, user=BOB)
        assert ALICE not in done.stdout and "secret_name" not in done.stdout + done.stderr
    for user in ("slurm", None):
        assert failed_prerun in lab.slurmwrap("history", user=user).stdout
        assert ALICE in lab.slurmwrap("why", failed_prerun, user=user).stdout


def test_site_files_are_private_and_other_users_cannot_read_published_reasons(
    lab_as_slurm: Lab, failed_prerun: str
) -> None:
    del failed_prerun  # the fixture makes a record that is published
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


def test_reconcile_as_slurm_user_fails_if_root_owns_the_state_directory(lab_as_slurm: Lab) -> None:
    lab = lab_as_slurm
    foreign = lab.dir / "roots-state"
    foreign.mkdir(mode=0o755)
    config = lab.dir / "roots.toml"
    config.write_text(f'[site]\nstate_dir = "{foreign}"\nslurm_user = "slurm"\n', encoding="utf-8")
    argv = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "reconcile", "--once"]
    done = lab.run(argv, "slurm", env={"SLURMWRAP_CONFIG": str(config)})
    assert (done.returncode, str(foreign) in done.stderr) == (6, True)
