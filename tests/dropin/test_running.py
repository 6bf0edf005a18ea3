"""A running job gets the same surroundings from gsub as from sbatch; probe scripts are submitted with both."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from dropin_compare import ALICE, GSUB, PLANNED
from realslurm import Lab

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]

# The jobs run one after the other on the same node, so each gets the same CPUs and GPUs.
HEAD = "#SBATCH --gres=gpu:2 -n2\n#SBATCH --mem=200 -w n5   # a comment\n#SBATCH --exclusive -o %x-%j.txt\n"
PROBES = {
    "bash": f"""#!/bin/bash
{HEAD}
#SBATCH --time=5
# what a script can see of itself
echo "args=$# [$1] [$2] [$3]"
echo "zero=${{0##*/}} dir=$(dirname "$0" | sed 's/job[0-9]*/jobN/')"
pwd; umask; ulimit -c; ulimit -n
echo "line=$LINENO"
nosuchcommand here
cat "$0" | md5sum
scontrol show job "$SLURM_JOB_ID" | grep -E "Command|WorkDir|SubmitLine"
srun -n2 sh -c 'echo step $SLURM_PROCID $SLURM_STEP_GPUS' | sort
""",
    "sh -e": f"#!/bin/sh -e\n{HEAD}set -u\necho $LINENO\necho $NOT_SET_AT_ALL\necho never\n",
    "python": f"""#!/usr/bin/env python3
{HEAD}
import os, sys
print(sys.argv[1:], os.path.basename(sys.argv[0]), os.getcwd(), __name__)
print(open(__file__).read())
def deep():
    raise ValueError("on purpose")
deep()
""",
    "perl": f"""#!/usr/bin/perl -w
{HEAD}
use strict;
print "args: @ARGV\\n";
print "line ", __LINE__, "\\n";
warn "a warning";
exit 5;
""",
}
ENVIRON = f"#!/bin/sh\n{HEAD}cat /proc/$$/environ\n"  # as set by Slurm, before a shell or Python adds to it
# Variables that differ between jobs or belong to the shell that started the script.
_ITS_OWN = {
    "SLURM_JOB_ID",
    "SLURM_JOB_SLUID",
    "SLURM_JOBID",
    "SLURM_TASK_PID",
    "SLURM_JOB_START_TIME",
    "SLURM_JOB_END_TIME",
    "_",
}


def submit_one(lab: Lab, home: Path, program: Sequence[str], words: Sequence[str], environ: Mapping[str, str]) -> str:
    done = lab.run([*program, *words], user=ALICE, cwd=home, env={"GIVEN": "a b\tc", **environ})
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def wait_and_read(lab: Lab, home: Path, job: str) -> tuple[str, str, str]:
    """(state, output without the job's directory in Slurm's spool, script stored by Slurm), once the job ended."""
    state = lab.wait_job(job, {"COMPLETED", "FAILED"})
    kept = lab.run(["scontrol", "write", "batch_script", job, "-"]).stdout
    output = next(home.glob(f"*-{job}.txt")).read_text(errors="replace")
    return state, re.sub(rf"/job0*{job}/", "/JOB/", output), kept


def test_a_running_script_sees_the_same_as_with_sbatch(lab: Lab, home: Path) -> None:
    jobs = {}
    for kind, text in PROBES.items():
        (home / "probe").write_text(text)
        words = ("probe", "--gres=none", "two words", "")
        jobs[kind] = [submit_one(lab, home, program, words, {}) for program in (("sbatch",), PLANNED)]
    for kind, pair in jobs.items():
        theirs, ours = (wait_and_read(lab, home, job) for job in pair)
        assert ours == theirs, kind
        assert theirs[2].rstrip("\n") == PROBES[kind].rstrip("\n")
        assert len(theirs[1]) > 20, kind


# Words and variables of a call, and a variable of the job with its expected value (None: not set).
ENVIRONMENTS: tuple[tuple[tuple[str, ...], dict[str, str], str, str | None], ...] = (
    (("--comment=c", "-J", "named"), {"SBATCH_TIMELIMIT": "7"}, "SLURM_JOB_NAME", "named"),
    (("--comment=c",), {}, "GIVEN", "a b\tc"),
    (("--export=NONE",), {}, "GIVEN", None),
    (("--export=GIVEN,NEW=1",), {}, "NEW", "1"),
    (("--export-file=given",), {}, "FROM_FILE", "1"),
    (("--get-user-env",), {}, "GIVEN", "a b\tc"),
    ((), {"LANG": "C"}, "LC_CTYPE", None),  # set by Python in the C locale
)


def test_the_environment_of_a_job_is_the_same_as_with_sbatch(lab: Lab, home: Path) -> None:
    (home / "probe").write_text(ENVIRON)
    (home / "given").write_bytes(b"FROM_FILE=1\0PATH=/usr/bin:/bin\0")
    jobs = [
        [submit_one(lab, home, program, (*words, "probe"), environ) for program in (("sbatch",), PLANNED)]
        for words, environ, _, _ in ENVIRONMENTS
    ]
    for (words, environ, name, value), pair in zip(ENVIRONMENTS, jobs, strict=True):
        theirs, ours = (_environ(wait_and_read(lab, home, job)) for job in pair)
        assert ours == theirs, (words, environ)
        assert theirs.get(name) == value, (words, environ)


def test_the_environment_of_a_job_is_the_same_after_a_pre_run(lab: Lab, home: Path) -> None:
    (home / "probe").write_text(ENVIRON)
    jobs = [submit_one(lab, home, program, ["probe"], {}) for program in (("sbatch",), (GSUB, "--no-place"))]
    theirs, ours = (_environ(wait_and_read(lab, home, job)) for job in jobs)
    assert ours == theirs


def _environ(run: tuple[str, str, str]) -> dict[str, str]:
    state, output, _ = run
    assert state == "COMPLETED", output
    found = dict(entry.split("=", 1) for entry in output.split("\0") if entry)
    return {name: value for name, value in found.items() if name not in _ITS_OWN}
