"""Unusual callers of gsub: cron and hooks with a small environment, closed descriptors, odd locales, Python variables
that are meant for the job. The output of gsub and the job in Slurm are compared with those of sbatch."""

from __future__ import annotations

import pwd
import re
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from realslurm import USERS, Lab

ALICE = USERS[0]
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]

# Names of the standard library that old backports and scripts also use, and `slurmwrap`.
HOSTILE = "dataclasses enum fcntl json os pathlib pwd random re select selectors signal slurmwrap types typing"
WRONG = "import sys; sys.stderr.write('hostile'); raise SystemExit(9)"
CPU, GPU = "--hold --mem=10", "--hold --mem=10 --gres=gpu:1"

# `%s` is the program with its options. `CLEAN`: only what Slurm needs.
CLEAN = 'env -i PATH="$PATH" SLURM_CONF="$SLURM_CONF" SLURMWRAP_CONFIG="$SLURMWRAP_CONFIG" '
CALLERS = {  # several conditions share one caller, so that fewer calls are needed
    "a usual one": "%s a.sh one --two",
    "a Prolog or cron: no HOME, USER, LANG; script on stdin": CLEAN + "%s < a.sh",
    "the C locale": CLEAN + "LC_ALL=C %s a.sh",
    "LC_CTYPE as Python would set it, umask 077": "umask 077; " + CLEAN + "LC_CTYPE=C.UTF-8 %s a.sh",
    "a locale that is not installed": CLEAN + "LANG=xx_YY.ISO-8859-1 LC_ALL=xx_YY.ISO-8859-1 %s a.sh",
    "arguments, variables and a script's name that are no UTF-8": (
        r"export X=$'\xff' Y=$'a\nb' Z=; f() { echo 1; }; export -f f; "
        r"%s --job-name=$'caf\xe9' --comment=$'\xff\xfe' $'./caf\xe9.sh' $'\xe9\n' ''"
    ),
    "Python without UTF-8": (
        CLEAN + r"PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 LC_ALL=C %s --job-name=$'caf\xe9' $'./caf\xe9.sh' $'\xe9'"
    ),
    "stdin closed": "%s a.sh <&-",
    "stdin closed, and the script should come from there": "%s <&-",
    "stdout closed": "%s a.sh >&-",
    "stderr closed": "%s a.sh 2>&-",
    "all closed": "%s a.sh <&- >&- 2>&-",
    "all closed, and refused": "%s --nodes=none a.sh <&- >&- 2>&-",
    "stdout full": "%s a.sh > /dev/full",
    "a directory that is gone": "mkdir gone; cd gone; rmdir ../gone; %s ../a.sh",
    "a directory that cannot be read": "mkdir -p shut; chmod 700 shut; cd shut; chmod 111 .; %s ../a.sh",
    "a directory that cannot be passed": "mkdir -p shut; chmod 700 shut; cd shut; chmod 0 .; %s ../a.sh",
    "a home that is not there, few descriptors": "ulimit -n 20; HOME=/nonexistent %s a.sh",
    "a home that cannot be written, little memory": "ulimit -v 400000; HOME=/proc %s a.sh",
    "no HOME, a large environment": (
        "unset HOME; for i in {1..14}; do export BIG$i=$(head -c 100000 /dev/zero | tr '\\0' x); done; %s a.sh"
    ),
    "modules of Python's names in PYTHONPATH and behind PYTHONSTARTUP, warnings that are errors": (
        'PYTHONPATH="$PWD/hostile" PYTHONSTARTUP="$PWD/hostile/re.py" PYTHONWARNINGS=error PYTHONINSPECT=1 '
        "PYTHONIOENCODING=utf-16 %s < a.sh"
    ),
    "called in such a directory with an empty entry in PYTHONPATH": (
        "cd hostile; PYTHONPATH=:/nowhere PYTHONINSPECT=1 PYTHONOPTIMIZE=2 PYTHONNOUSERSITE=1 %s ../a.sh"
    ),
    "PYTHONDEVMODE": "PYTHONDEVMODE=1 PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1 %s a.sh",
    "another Python first on PATH, a relative home": (
        'PATH="$PWD/conda:$PATH" CONDA_PREFIX="$PWD" VIRTUAL_ENV="$PWD" HOME=home XDG_STATE_HOME=state %s a.sh; '
        "code=$?; ls -d home state; exit $code"
    ),
    "a named pipe": "rm -f p; mkfifo p; timeout 600 cat a.sh > p & timeout 600 %s p; code=$?; wait; exit $code",
    "a name for sbatch that leads back": 'GSUB_SBATCH="$(command -v gsub)" timeout 600 %s a.sh',
    "inside a job": "SLURM_JOB_ID=7 SLURM_JOBID=7 SLURM_NNODES=3 %s a.sh",
    "a broken configuration": 'SLURMWRAP_CONFIG="$PWD/broken.toml" %s a.sh',
    "an odd switch of ours": "GSUB_PASS=1 GSUB_RETRY=perhaps %s a.sh",
}

REFUSED = (  # sbatch refuses these too
    "stdin closed, and the script should come from there",
    "all closed, and refused",
    "a directory that cannot be passed",
    "a directory that is gone",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call. `jobs`: (environment, script) of every job that it made."""

    code: int
    stdout: str
    stderr: str
    jobs: list[tuple[list[bytes], bytes]]


@pytest.fixture(scope="module")
def place(lab: Lab) -> Path:
    """A directory of alice with the files that the callers need."""
    lab.clear(ALICE)  # every pending job of alice is then from the tested call
    home = Path(pwd.getpwnam(ALICE).pw_dir) / f"strange{time.monotonic_ns()}"
    make = (
        f"mkdir -p {home}/hostile/slurmwrap {home}/conda && cd {home} || exit; umask 022\n"
        r"printf '#!/bin/sh\n#SBATCH --output=/dev/null\nenv\n' | tee a.sh > $'caf\xe9.sh'" + "\n"
        "printf '[submit\\n' > broken.toml\n"
        f'for name in {HOSTILE}; do echo "{WRONG}" > hostile/$name.py; done\n'
        "cp hostile/re.py hostile/slurmwrap/__init__.py\n"
        "printf '#!/bin/sh\\nexit 9\\n' > conda/python3; cp conda/python3 conda/python; chmod 755 conda/*\n"
    )
    done = lab.run(["bash", "-c", make], user=ALICE)
    assert (done.returncode, done.stderr) == (0, "")
    return home


def run_call(lab: Lab, place: Path, caller: str, program: str) -> Answer:
    """Runs one call as alice. Its jobs are read from the state files of the controller and cancelled."""
    done = lab.run(["bash", "-c", caller.replace("%s", program)], user=ALICE, cwd=place)
    found = lab.run(["squeue", "-h", "-t", "PD", "-o", "%i", f"--user={ALICE}"]).stdout.split()
    jobs = [_job(lab, job) for job in found]
    lab.run(["scancel", f"--user={ALICE}"])
    return Answer(done.returncode, re.sub(r"\d+", "N", done.stdout), done.stderr, jobs)


def _job(lab: Lab, job: str) -> tuple[list[bytes], bytes]:
    directory = next((lab.dir / "slurmctld" / "state").glob(f"hash.*/job.{job}"))
    # the file begins with a count; the calling shell sets `_` to the path of the program
    environment = (directory / "environment").read_bytes()[4:].split(b"\0")
    kept = sorted(entry for entry in environment if not entry.startswith(b"_=") and len(entry) < 1000)
    return kept, (directory / "script").read_bytes()


def test_a_call_passed_on_unchanged_has_the_answer_and_the_job_of_sbatch(lab: Lab, place: Path) -> None:
    wrong = {}
    for name, caller in CALLERS.items():
        theirs, ours = (run_call(lab, place, caller, f"{program} {CPU}") for program in ("sbatch", "gsub"))
        if ours != theirs or len(theirs.jobs) != (name not in REFUSED):
            wrong[name] = (theirs, ours)
    assert wrong == {}


def test_a_planned_call_gives_the_same_job_as_sbatch(lab: Lab, place: Path) -> None:
    wrong = {}
    for name in sorted(CALLERS.keys() - {"an odd switch of ours"}):  # refused with an error message of gsub
        theirs, ours = (
            run_call(lab, place, CALLERS[name], f"{words} {GPU}") for words in ("sbatch", "gsub --prerun=off")
        )
        quiet = "hostile" not in ours.stderr and "Traceback" not in ours.stderr
        if (ours.code, ours.stdout, ours.jobs, quiet) != (theirs.code, theirs.stdout, theirs.jobs, True):
            wrong[name] = (theirs, ours)
    assert wrong == {}


def test_a_broken_configuration_is_reported_only_where_it_is_needed(lab: Lab, place: Path) -> None:
    caller = CALLERS["a broken configuration"]
    assert run_call(lab, place, caller, f"gsub {CPU}").stderr == ""
    lines = run_call(lab, place, caller, f"gsub {GPU}").stderr.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["gsub", "gsub"]
    assert "broken.toml" in lines[0] and lines[1] == "gsub: the job is handed to sbatch unchanged"


def test_a_closed_output_pipe_ends_the_call_as_it_ends_sbatch(lab: Lab, place: Path) -> None:
    run = (
        "import os, subprocess, sys\n"
        "r, w = os.pipe(); os.close(r)\n"
        "print(subprocess.run(sys.argv[1:], stdout=w).returncode)"
    )
    codes = [
        lab.run(["python3", "-c", run, program, *words.split()], user=ALICE, cwd=place).stdout
        for words in ("--usage", "--hold --gres=gpu:1 --mem=10 a.sh")
        for program in ("sbatch", "gsub")
    ]
    lab.run(["scancel", f"--user={ALICE}"])
    assert codes == ["-13\n"] * 4


PASSES: list[tuple[dict[str, str], list[str], str]] = [
    ({"GSUB_PASS": "1"}, ["--gres=gpu:1"], "GSUB_PASS is set."),
    ({}, ["--mem=10"], "The job asks for no GPU."),
    ({"SLURM_JOB_ID": "7"}, ["--gres=gpu:1"], "This call comes from inside job 7, and from no terminal."),
    ({"SLURMWRAP_SUBMIT_ENABLED": "no"}, ["--gres=gpu:1"], "gsub is switched off (submit.enabled)."),
    (
        {"SLURMWRAP_SUBMIT_ARRAY_THRESHOLD": "8"},
        ["--gres=gpu:1", "--array=0-8"],
        "The array has 9 tasks, more than 8 (submit.array_threshold).",
    ),
    (
        {"SLURMWRAP_SUBMIT_PASS_PARTITIONS": "inter*,gp?"},
        ["--gres=gpu:1", "-pgpu"],
        "Jobs for partition gpu are passed on (submit.pass_partitions).",
    ),
    (
        {"SLURMWRAP_SUBMIT_PASS_USERS": ALICE},
        ["--gres=gpu:1"],
        f"Jobs of user {ALICE} are passed on (submit.pass_users).",
    ),
]


def test_passing_a_call_on_is_silent_unless_explain_is_given(lab: Lab, place: Path) -> None:
    wrong = []
    for variables, words, reason in PASSES:
        calls = ([], ["--explain"], ["--dry-run"])
        results = [
            lab.run(["gsub", *more, "--hold", *words, "a.sh"], user=ALICE, cwd=place, env=variables) for more in calls
        ]
        answers = [(done.returncode, re.sub(r"job \d+", "job N", done.stdout), done.stderr) for done in results]
        if answers != [
            (0, "Submitted batch job N\n", ""),
            (0, "Submitted batch job N\n", f"gsub: {reason} Submitted unchanged.\n"),
            (0, (place / "a.sh").read_text(), f"gsub: {reason} Nothing is changed, nothing submitted.\n"),
        ]:
            wrong.append((reason, answers))
    lab.run(["scancel", f"--user={ALICE}"])
    assert wrong == []


def test_a_wrapper_named_sbatch_works_with_variables_that_stop_python(lab: Lab, place: Path) -> None:
    """The wrapper of docs/dropin.md: Python runs with -I, and the job still gets the variables."""
    python, gsub = sys.executable, Path(sys.executable).parent / "gsub"
    make = (
        f"mkdir -p front; printf '#!/bin/sh\\nexec {python} -I {gsub} \"$@\"\\n' > front/sbatch; chmod 755 front/sbatch"
    )
    assert lab.run(["bash", "-c", make], user=ALICE, cwd=place).returncode == 0
    variables = "PYTHONHOME=/nowhere PYTHONHASHSEED=odd PYTHONIOENCODING=none PYTHONPATH=$PWD/hostile "
    path = 'PATH="$PWD/front:$PATH" '
    theirs = run_call(
        lab, place, f"{path}{variables}%s a.sh", f"{shutil.which('sbatch', path='/usr/local/bin:/usr/bin:/bin')} {CPU}"
    )
    assert len(theirs.jobs) == 1
    assert run_call(lab, place, f"{path}{variables}%s a.sh", f"sbatch {CPU}") == theirs
