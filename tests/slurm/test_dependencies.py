"""Jobs that cannot start yet end as with sbatch, even if their pre-run finds missing files. On a real Slurm."""

from __future__ import annotations

import json
import pwd
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from realslurm import USERS, Lab
from waiting import wait_for

ALICE = USERS[0]
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]

RESOURCES = ("--gres=gpu:2", "--mem=300", "--cpus-per-task=1", "--time=5")
SCRIPTS = {
    "make": "sleep 1; echo 1 > data.txt",
    "read": "python3 -c \"open('data.txt')\"",
    "train": 'if [ "$1" = --resume ]; then python3 -c "open(\'last.pt\')"; else sleep 1; echo 1 > last.pt; fi',
    "fail": '[ -n "$SLURMWRAP_PRERUN" ] || exit 3',
    "make one": "sleep 1; echo 1 > data$SLURM_ARRAY_TASK_ID; [ $SLURM_ARRAY_TASK_ID != 2 ]",
    "read one": "cat data$SLURM_ARRAY_TASK_ID",
}
DONE, FAILED, NEVER = ["COMPLETED"], ["FAILED"], ["PENDING"]
# name -> (programs that submit, first job, second job with the id of the first for {}, states at the end)
CHAINS = {
    "afterok": ("gsub gsub", ["make"], ["-dafterok:{}", "read"], (DONE, DONE)),
    "behind sbatch": ("sbatch gsub", ["make"], ["-dafterok:{}", "read"], (DONE, DONE)),
    "before sbatch": ("gsub sbatch", ["make"], ["-dafterok:{}", "read"], (DONE, DONE)),
    "resume": ("gsub gsub", ["train"], ["-dafterany:{}", "train", "--resume"], (DONE, DONE)),
    "either": ("gsub gsub", ["make"], ["-dafterok:{}?afternotok:{}", "read"], (DONE, DONE)),
    "aftercorr": (
        "gsub gsub", ["--array=1-3", "make one"], ["--array=1-3", "-daftercorr:{}", "read one"],
        ([*DONE * 2, *FAILED], [*DONE * 2, *NEVER]),
    ),
    "singleton": ("gsub gsub", ["-Jone", "make"], ["-Jone", "-dsingleton", "read"], (DONE, DONE)),
    "failing": ("gsub gsub", ["fail"], ["-dafterok:{}", "read"], (FAILED, NEVER)),
}  # fmt: skip


@pytest.fixture
def home(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A new directory of alice. Her jobs from earlier tests are gone."""
    lab.clear(ALICE)
    path = Path(pwd.getpwnam(ALICE).pw_dir) / f"{re.sub(r'[^a-z]', '_', request.node.name)[:60]}_{time.monotonic_ns()}"
    lab.run(["mkdir", "-p", str(path)], user=ALICE)
    yield path
    lab.run(["scancel", f"--user={ALICE}"])


def run_program(
    lab: Lab, home: Path, program: str, *words: str, grace_s: int = 600, fails: bool = False
) -> subprocess.CompletedProcess[str]:
    environ = {"SLURMWRAP_PRERUN_GRACE_S": str(grace_s), "XDG_STATE_HOME": str(home / ".state")}
    environ["SLURMWRAP_SUBMIT_SNAPSHOT_KEPT_S"] = "0"  # a reservation that was just created is seen
    environ["SLURMWRAP_PRERUN_NO_TRAINING_S"] = "3600"
    done = lab.run([program, *words], user=ALICE, cwd=home, env=environ)
    assert fails or done.returncode == 0, done.stderr
    return done


def submit(lab: Lab, home: Path, program: str, *words: str, grace_s: int = 600) -> int:
    return int(run_program(lab, home, program, "--parsable", *RESOURCES, *words, grace_s=grace_s).stdout)


def write_script(lab: Lab, home: Path, name: str, text: str) -> str:
    lab.run(["tee", str(home / name)], user=ALICE, stdin=f"#!/bin/bash\n{text}\n# {time.monotonic_ns()}\n")
    return name


def read_job_fields(lab: Lab, job: int) -> dict[str, str]:
    text = lab.run(["scontrol", "show", "job", "-o", str(job)]).stdout.splitlines()[0]
    return dict(re.findall(r"(?:^| )(\w+)=(\S*)", text))


def run_slurmwrap(lab: Lab, home: Path, *words: str) -> str:
    """Runs `slurmwrap ...` as alice, with the state directory of this test."""
    done = lab.slurmwrap(*words, user=ALICE, cwd=home, env={"XDG_STATE_HOME": str(home / ".state")})
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_verdict(lab: Lab, home: Path, job: int) -> tuple[str, str]:
    shown = json.loads(run_slurmwrap(lab, home, "prerun", "show", str(job), "--json"))
    return shown["verdict"], shown["reason"]


def prerun_of(lab: Lab, home: Path, job: int) -> int:
    rows = json.loads(run_slurmwrap(lab, home, "prerun", "list", "--all", "--json"))["rows"]
    return int(next(row["prerun_job_id"] for row in rows if row["job_id"] == job))


def submit_chain(lab: Lab, home: Path, name: str, programs: list[str]) -> tuple[int, int]:
    """Submits the two jobs of a chain in a directory of its own."""
    _, first, second, _ = CHAINS[name]
    place = home / f"{'-'.join(programs)} {name}"
    lab.run(["mkdir", str(place)], user=ALICE)
    for script, text in SCRIPTS.items():
        write_script(lab, place, script, text)
    before = submit(lab, place, programs[0], *first)
    return before, submit(lab, place, programs[1], *(word.replace("{}", str(before)) for word in second))


def list_unfinished_jobs(lab: Lab) -> list[str]:
    """alice's pending and running jobs, without those that can never start."""
    rows = lab.run(["squeue", "-h", f"--user={ALICE}", "-o", "%i %r"]).stdout.splitlines()
    return [row for row in rows if not row.endswith("DependencyNeverSatisfied")]


def run_chains(lab: Lab, home: Path, programs: dict[str, list[str]]) -> dict[str, tuple[int, int]]:
    """Submits all chains, waits until no job can continue and checks the states against CHAINS. Returns the jobs."""
    with ThreadPoolExecutor(4) as pool:
        jobs = dict(zip(programs, pool.map(lambda one: submit_chain(lab, home, *one), programs.items()), strict=True))
    assert not wait_for(lambda: list_unfinished_jobs(lab), lambda left: not left, 200, pause=0.5)
    ends = {name: tuple(sorted(lab.states(job)) for job in both) for name, both in jobs.items()}
    assert ends == {name: CHAINS[name][3] for name in programs}
    return jobs


def test_each_chain_of_dependencies_ends_as_with_sbatch(lab: Lab, home: Path) -> None:
    jobs = run_chains(lab, home, {name: words[0].split() for name, words in CHAINS.items()})
    # the pre-run is gone, so the begin time of the job is removed; the job still cannot start
    stuck = jobs["failing"][1]
    run_slurmwrap(lab, home / "gsub-gsub failing", "reconcile", "--user")
    never = "DependencyNeverSatisfied"
    assert wait_for(lambda: read_job_fields(lab, stuck)["Reason"], lambda reason: reason == never, 60) == never


@pytest.mark.slow
def test_each_chain_of_dependencies_ends_in_the_same_way_with_plain_sbatch(lab: Lab, home: Path) -> None:
    run_chains(lab, home, {name: ["sbatch", "sbatch"] for name in CHAINS})


def test_a_dependency_met_after_the_grace_period_starts_a_new_grace_period(lab: Lab, home: Path) -> None:
    before = lab.submit("--hold", "-n1", "--mem=10", "--wrap=echo 1 > data.txt", user=ALICE, cwd=home)
    # another job keeps the GPUs that the job needs, so its pre-run starts earlier
    script = write_script(lab, home, "job", '[ -z "$SLURMWRAP_PRERUN" ] || sleep 4\ncat data.txt')
    lab.submit("-N8", "--gres=gpu:7", "--mem=10", "--wrap=sleep 600", user=ALICE, cwd=home)
    job = submit(lab, home, "gsub", "-N8", f"-dafterok:{before}", script, grace_s=20)
    trial = prerun_of(lab, home, job)
    begin = read_job_fields(lab, job)["EligibleTime"]
    lab.run(["scontrol", "update", f"JobId={job}", "StartTime=now"])  # as after the grace period
    given = home / ".state" / "slurmwrap" / "prerun"
    waiting = next(given.glob("*/waiting.json"))
    plain = json.loads(waiting.read_text())
    waiting.write_text(json.dumps({**plain, "given": [time.time() - 1]}))
    assert read_job_fields(lab, trial)["Reason"] == "Dependency"
    lab.run(["scontrol", "release", before], user=ALICE)
    lab.wait_job(trial, {"RUNNING"})
    times = wait_for(lambda: json.loads(waiting.read_text())["given"], lambda given: len(given) == 2, 60)
    assert len(times) == 2

    def waits_anew(now: dict[str, str]) -> bool:
        return now["Reason"] == "BeginTime" and now["EligibleTime"] >= begin  # both may be in the same second

    assert waits_anew(wait_for(lambda: read_job_fields(lab, job), waits_anew, 60))
    lab.wait_job(trial, {"COMPLETED"})
    assert read_verdict(lab, home, job)[0] == "pass"
    assert wait_for(lambda: read_job_fields(lab, job)["Reason"], lambda now: now != "BeginTime", 60) != "BeginTime"


MISSES = '[ -z "$SLURMWRAP_PRERUN" ] || until [ -e GO ]; do sleep 0.1; done\npython3 misses.py "$@"'
MISSES_PY = "import sys\nif sys.argv[1] == 'bug': undefined_name\nopen('nowhere_' + sys.argv[1])\n"


def test_a_missing_file_does_not_cancel_a_job_that_starts_later_but_a_bug_does(lab: Lab, home: Path) -> None:
    lab.run(["tee", str(home / "misses.py")], user=ALICE, stdin=MISSES_PY)
    other = lab.submit("--hold", "-n1", "--mem=10", "--wrap=true", user=ALICE)
    reserved = ["ReservationName=later", "StartTime=now+1hour", "Duration=9", f"Users={ALICE}", "Nodes=n7"]
    assert lab.run(["scontrol", "create", *reserved]).returncode == 0
    go = lab.dir / f"go-{time.monotonic_ns()}"  # no pre-run ends before this file exists
    try:
        options = {
            "held": ["--hold"],
            "reserved": ["--reservation=later"],
            "bug": ["--begin=now+3hours"],
            "late dependency": [],
        }
        for name in options:
            write_script(
                lab, home, f"job {name}", MISSES.replace("GO", str(go))
            )  # different scripts, so that no two jobs share a pre-run
        with ThreadPoolExecutor(4) as pool:
            sent = pool.map(lambda one: submit(lab, home, "gsub", *one[1], f"job {one[0]}", one[0]), options.items())
            jobs = dict(zip(options, sent, strict=True))
        lab.run(["scontrol", "update", f"JobId={jobs['late dependency']}", f"Dependency=afterok:{other}"], user=ALICE)
        go.touch()
        for job in jobs.values():
            lab.wait_job(prerun_of(lab, home, job), {"COMPLETED"})
        found = {name: (lab.states(job)[0], *read_verdict(lab, home, job)) for name, job in jobs.items()}
    finally:
        lab.run(["scancel", f"--user={ALICE}"])
        deleted = ["scontrol", "delete", "ReservationName=later"]
        wait_for(lambda: lab.run(deleted).returncode, lambda code: code == 0, 60)
    assert {name: one[:2] for name, one in found.items()} == {
        "held": ("PENDING", "inconclusive"),
        "reserved": ("PENDING", "inconclusive"),
        "bug": ("CANCELLED", "fail"),
        "late dependency": ("PENDING", "inconclusive"),
    }
    assert found["held"][2].startswith("the job is held (--hold), and what is missing now may be there when it starts")


def test_a_missing_file_does_not_refuse_a_dependent_job_but_a_syntax_error_does(lab: Lab, home: Path) -> None:
    other = lab.submit("--hold", "-n1", "--mem=10", "--wrap=true", user=ALICE)
    missing = write_script(lab, home, "missing", "set -e\ncd nowhere\npython3 not_there.py\n")
    wrong = write_script(lab, home, "wrong", "if true; then\n")
    options = [*RESOURCES, "--dry-run", "--output=/no/such/place/%j.out"]
    assert run_program(lab, home, "gsub", *options, missing, fails=True).returncode != 0
    dependent = run_program(lab, home, "gsub", *options, f"-dafterok:{other}", missing)
    assert (
        "it may be there when it starts" in dependent.stderr
        and "its pre-run waits for the same jobs" in dependent.stderr
    )
    assert run_program(lab, home, "gsub", *options, f"-dafterok:{other}", wrong, fails=True).returncode != 0
    singleton = run_program(lab, home, "gsub", *RESOURCES, "--dry-run", "-dsingleton", missing)
    assert "its pre-run would be: off (its pre-run cannot wait for --dependency=singleton)" in singleton.stderr


# --- Slurm's variables -----------------------------------------------------------------------------------------------

SHAPES = (
    ["--array=1,3,5-9:2%2", "--gpus=2", "--mem=300"],
    ["-N2", "--ntasks-per-node=4", "--gres=gpu:4", "--mem=900", "--cpus-per-task=2"],
    ["--gpus=4", "--cpus-per-gpu=2", "--mem-per-gpu=1G", "--threads-per-core=1"],
    ["--ntasks=4", "--gpus-per-task=1", "--mem-per-cpu=100", "--export=ALL,MINE=1", "--open-mode=append"],
    ["-N2", "--gpus-per-node=2", "--mem=300", "--overcommit", "--distribution=cyclic", "--gpu-bind=closest"],
)
# These variables differ for a pre-run on one node and one GPU. All others must be equal to those of the job.
SIZES = re.compile(
    r"SLURM(D_NODENAME|_GTIDS|_.*(CPUS|TASKS|NPROCS|NODE|GPU|MEM_PER|JOBID|_ID$|PARTITION|TASK_PID|TOPOLOGY|TIME).*)"
)


def test_a_pre_run_has_every_slurm_variable_of_its_job(lab: Lab, home: Path) -> None:
    script = write_script(lab, home, "shape", "env | grep '^SLURM_'")

    def compare(number: int) -> tuple[set[str], dict[str, tuple[str, str]]]:
        shape, state = SHAPES[number], home / f"state{number}"
        job = lab.submit("--time=1", f"--output={home}/{number}.%a", *shape, script, user=ALICE, cwd=home)
        environ = {"XDG_STATE_HOME": str(state)}
        command = ["gsub", "--prerun=only", "--time=1", *shape, script]
        assert lab.run(command, user=ALICE, cwd=home, env=environ).returncode == 0
        lab.wait_job(job)
        real = read_slurm_variables(min(home.glob(f"{number}.*")))
        tried = read_slurm_variables(next(state.glob("slurmwrap/prerun/*/output")))
        others = {name: (real[name], tried[name]) for name in real.keys() & tried.keys() if real[name] != tried[name]}
        return real.keys() - tried.keys(), {name: both for name, both in others.items() if not SIZES.fullmatch(name)}

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(compare, range(len(SHAPES)))) == [(set(), {})] * len(SHAPES)


def read_slurm_variables(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if line.startswith("SLURM_"))
