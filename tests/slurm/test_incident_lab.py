"""An incident on a real Slurm: jobs of two users on several nodes lose their file system within a minute."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from realslurm import USERS, Lab, started
from site_records import consent_to_retries, site, site_rows, submit_script
from waiting import wait_for, wait_until

pytestmark = pytest.mark.lab
ALICE, BOB = USERS
ENDED = ("FAILED",)
KERNEL_LINE = "nfs: server filer1 not responding, still trying"
JOB = "#!/bin/bash\n#SBATCH --gres=gpu:1 --mem=200 --time=1 --partition=gpu\ntrue\n"


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A separate file system, like a shared one: it is in the mount table of the controller."""
    place = Path("/swtest-scratch")
    place.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "swtest", str(place)], capture_output=True, text=True
    )
    if done.returncode:
        place.rmdir()
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    place.chmod(0o1777)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True, capture_output=True)
    place.rmdir()


@pytest.fixture
def own_lab(lab_scratch: Path, scratch: Path) -> Iterator[Lab]:
    """A lab without records of other tests: their failures would become part of the incident.

    Its nodes have the file system `scratch`, which must be mounted before they start.
    """
    with started(lab_scratch / "lab-incident") as running:
        yield running


def test_jobs_that_lose_a_file_system_are_one_incident(own_lab: Lab, scratch: Path) -> None:
    lab = own_lab
    jobs = []
    for number, user in enumerate((ALICE, BOB, ALICE, BOB, ALICE)):
        error = f"OSError: [Errno 5] Input/output error: '{scratch}/{user}/data.pt'"
        waiting = f"touch {scratch}/runs-{number}; until [ -e {scratch}/go ]; do sleep 0.1; done"
        body = f'{waiting}; echo "{error}" >&2; exit 1'
        job = submit_script(lab, body, "--requeue", "--open-mode=append", f"--nodelist=n{number + 1}", user=user)
        consent_to_retries(lab, [job], user)
        jobs.append(job)
    # Slurm shows RUNNING while the Prolog, which marks the position in the kernel log, still runs.
    wait_until(lambda: len(list(scratch.glob("runs-*"))) == len(jobs), "all jobs run")
    for node in ("n1", "n2"):
        lab.kernel(node, KERNEL_LINE)
    (scratch / "go").touch()
    for job in jobs:
        lab.wait_job(job, ENDED)

    def read_judged_runs() -> list[dict[str, object]]:
        lab.reconcile_once()
        # Not the second run of a job whose retry did not wait.
        return site_rows(lab, "SELECT * FROM attempts WHERE diagnosis_category != '' AND restarts = 0")

    # the observation of EpilogSlurmctld may arrive after the end of the job
    assert len(wait_for(read_judged_runs, lambda runs: len(runs) == len(jobs), 60)) == len(jobs)
    lab.reconcile_once()

    (incident,) = site_rows(lab, "SELECT * FROM incidents")
    assert (incident["category"], incident["scope"], incident["over_at"]) == ("storage_io", f"path {scratch}", None)
    assert len(json.loads(str(incident["jobs"]))) == 5 and len(json.loads(str(incident["uids"]))) == 2
    runs = site_rows(lab, "SELECT * FROM attempts WHERE restarts = 0 ORDER BY end_time")
    assert {(run["diagnosis_category"], run["decision"], run["incident"]) for run in runs} == {
        ("storage_io", "retry", incident["incident_id"])
    }
    assert json.loads(str(incident["more"]))["proof"] == ["n1", "n2"]
    waits = [float(str(run["retry_at"])) - float(str(incident["last"])) for run in runs]
    # Those that were decided before the kernel's lines of both nodes were known do not wait.
    assert any(wait >= 590 for wait in waits)
    assert site_rows(lab, "SELECT * FROM strikes") == []
    assert "DRAIN" not in lab.run(["sinfo", "-h", "-o", "%T"]).stdout.upper()

    published = json.loads((Path(site(lab)["published"]) / "published.json").read_text(encoding="ascii"))["incidents"]
    assert [(one["category"], one["scope"], one["jobs"], one["users"]) for one in published] == [
        ("storage_io", f"path {scratch}", 5, 2)
    ]
    work = scratch / "work"
    lab.run(["mkdir", work], BOB)
    script = work / "train.sbatch"
    script.write_text(JOB)
    script.chmod(0o755)
    affected_call = lab.run(["gsub", "--prerun=off", "--hold", script], BOB, cwd=work)
    assert affected_call.returncode == 0, affected_call.stderr
    (warning,) = [line for line in affected_call.stderr.splitlines() if "storage_io" in line]
    assert warning.startswith(f"gsub: warning: storage_io on {scratch} since ")
    assert warning.endswith("(5 jobs of 2 users): the job may fail the same way; it is submitted anyway")
    other_call = lab.run(["gsub", "--prerun=off", "--hold", "--wrap=true", "--gres=gpu:1", "--mem=200"], BOB)
    assert other_call.returncode == 0 and "storage_io" not in other_call.stderr, other_call.stderr
    report = lab.slurmwrap("report").stdout
    rows = [line.split() for line in report.splitlines() if "file syste" in line]
    # the user whose runs took longer comes first
    assert sorted(row[:2] for row in rows) == [["file", "syste…"], [ALICE, "3"], [BOB, "2"]], report
    assert "WHAT FAILED" not in report  # runs of an incident are counted in no other row
    assert "Part of an incident" in lab.slurmwrap("why", jobs[4], user=ALICE).stdout
