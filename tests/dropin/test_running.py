"""What a running job finds is what sbatch would have given it: scripts that look around, submitted by both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from dropin_compare import ALICE, GSUB, PLANNED
from realslurm import Lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

HEAD = "#SBATCH --gres=gpu:2 -n2\n#SBATCH --mem=200 -w n5   # a comment\n#SBATCH -o %x-%j.txt\n"
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
ENVIRON = f"#!/bin/sh\n{HEAD}cat /proc/$$/environ\n"  # as Slurm made it, before a shell or Python added to it
# Of one job alone, or of the shell that started the script.
_ITS_OWN = {
    "SLURM_JOB_ID",
    "SLURM_JOB_SLUID",
    "SLURM_JOBID",
    "SLURM_TASK_PID",
    "SLURM_JOB_START_TIME",
    "SLURM_JOB_END_TIME",
    "_",
}


def run_one(lab: Lab, home: Path, program: Sequence[str], *words: str, **environ: str) -> tuple[str, str, str]:
    """(state, output with ids and places in Slurm's spool taken out, the script that Slurm kept)"""
    done = lab.run([*program, *words], user=ALICE, cwd=home, env={"GIVEN": "a b\tc", **environ})
    assert done.returncode == 0, done.stderr
    job = done.stdout.split()[-1]
    state = lab.wait_job(job, {"COMPLETED", "FAILED"}, timeout=60)
    kept = lab.run(["scontrol", "write", "batch_script", job, "-"]).stdout
    output = next(home.glob(f"*-{job}.txt")).read_text(errors="replace")
    return state, re.sub(rf"/job0*{job}/", "/JOB/", output), kept


@pytest.mark.parametrize("kind", PROBES)
def test_a_script_that_looks_around_sees_what_sbatch_shows_it(lab: Lab, home: Path, kind: str) -> None:
    (home / "probe").write_text(PROBES[kind])
    words = ("probe", "--gres=none", "two words", "")
    theirs, ours = (run_one(lab, home, program, *words) for program in (("sbatch",), PLANNED))
    assert ours == theirs
    assert theirs[2].rstrip("\n") == PROBES[kind].rstrip("\n")
    assert len(theirs[1]) > 20


def test_its_environment_is_that_of_a_job_of_sbatchs(lab: Lab, home: Path) -> None:
    (home / "probe").write_text(ENVIRON)
    words = ("--comment=c", "-J", "named", "probe")
    found = [_environ(run_one(lab, home, program, *words, SBATCH_TIMELIMIT="7")) for program in (("sbatch",), PLANNED)]
    assert found[1] == found[0]
    assert found[0]["GIVEN"] == "a b\tc" and found[0]["SLURM_JOB_NAME"] == "named"


@pytest.mark.parametrize("option", ["--export=NONE", "--export=GIVEN,NEW=1", "--export-file=given", "--get-user-env"])
def test_its_environment_follows_export_as_with_sbatch(lab: Lab, home: Path, option: str) -> None:
    (home / "probe").write_text(ENVIRON)
    (home / "given").write_bytes(b"FROM_FILE=1\0PATH=/usr/bin:/bin\0")
    found = [_environ(run_one(lab, home, program, option, "probe")) for program in (("sbatch",), PLANNED)]
    assert found[1] == found[0]


def test_its_environment_is_the_same_after_a_pre_run(lab: Lab, home: Path) -> None:
    (home / "probe").write_text(ENVIRON)
    found = [_environ(run_one(lab, home, program, "probe")) for program in (("sbatch",), (GSUB, "--no-place"))]
    assert found[1] == found[0]


def test_in_the_c_locale_the_job_gets_no_variable_of_pythons(lab: Lab, home: Path) -> None:
    (home / "probe").write_text(ENVIRON)
    found = [_environ(run_one(lab, home, program, "probe", LANG="C")) for program in (("sbatch",), PLANNED)]
    assert found[1] == found[0]
    assert "LC_CTYPE" not in found[0]


def _environ(run: tuple[str, str, str]) -> dict[str, str]:
    state, output, _ = run
    assert state == "COMPLETED", output
    found = dict(entry.split("=", 1) for entry in output.split("\0") if entry)
    return {name: value for name, value in found.items() if name not in _ITS_OWN}
