"""slurmwrap.api on a real Slurm: submit, wait, explain, list; errors are exceptions."""

from __future__ import annotations

import json
import pwd
import sys
from pathlib import Path

import pytest
from realslurm import USERS, Lab

ALICE = USERS[0]
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]
# What a user's program does; it prints what it got.
PROGRAM = """\
import json, sys
from slurmwrap import api
from slurmwrap.errors import SlurmwrapError

job = api.submit("fails.sh", "--prerun=off", "--job-name=api-test", args=["7"])
runs = api.wait(job.job_id, poll_s=0.5)
told = api.why(job.job_id)
hidden = api.why(job.job_id, redact=True)
found = api.history(name="api-test")
errors = []
for call in (lambda: api.why("x"), lambda: api.submit("missing.sh"), lambda: api.profile("nothing.sh")):
    try:
        call()
    except SlurmwrapError as error:
        errors.append(type(error).__name__)
try:
    api.wait(api.submit("fails.sh", "--prerun=off", "--hold").job_id, poll_s=0.1, timeout_s=0.3)
except TimeoutError as error:
    errors.append(str(error))
print(json.dumps({
    "job": job.job_id, "states": [run.state for run in runs], "codes": [run.exit_code for run in told.runs],
    "next": dict(told.next_steps), "names": [run.name for run in found], "users": [run.user for run in hidden.runs],
    "errors": errors,
}))
"""


def test_a_program_submits_waits_and_asks_why(lab: Lab) -> None:
    work = Path(pwd.getpwnam(ALICE).pw_dir) / f"api-{lab.cluster}"
    lab.run(["mkdir", "-p", work], ALICE)
    script = "#!/bin/bash\n#SBATCH --gres=gpu:1 --mem=100 --output=out.txt\nexit $1\n"
    lab.run(["tee", work / "fails.sh"], ALICE, stdin=script)
    done = lab.run([sys.executable, "-c", PROGRAM], ALICE, work, env={"XDG_STATE_HOME": str(work / ".state")})
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["states"], told["codes"], told["names"]) == (["FAILED"], [7], ["api-test"])
    assert told["users"] == ["user1"]
    assert told["next"]
    assert told["errors"][:3] == ["UsageError", "SlurmwrapError", "UsageError"]
    assert "has not ended after 0.3 s" in told["errors"][3]
    lab.clear(ALICE)
