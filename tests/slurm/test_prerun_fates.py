"""A job ends as with plain sbatch, however its pre-run ends. On a real Slurm.

Not tested here: job limits of QOS and associations. They need an accounting database, which this lab does not have.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from realslurm import USERS, Lab, started
from waiting import wait_for

from slurmwrap.lab.lab_directories import LabDirectories

ALICE = USERS[0]
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]

JOB = """\
#!/bin/bash
#SBATCH --nodes=2 --gres=gpu:4 --cpus-per-task=1 --mem=500 --time=5
"""
# A command named `train` may be a training, so the pre-run waits for it.
SLOW_TRIAL = JOB + 'train() { sleep 60; }\n[ -z "$SLURMWRAP_PRERUN" ] || train\necho done\n'


@pytest.fixture
def home(lab: Lab, request: pytest.FixtureRequest) -> Path:
    """A new directory of alice. Her jobs from earlier tests are cancelled."""
    lab.run(["scancel", f"--user={ALICE}"])
    name = re.sub(r"\W", "_", request.node.name)[:60] + f"_{time.monotonic_ns()}"
    path = Path(pwd.getpwnam(ALICE).pw_dir) / name
    lab.run(["mkdir", "-p", str(path)], user=ALICE)
    return path


def write_script(home: Path, name: str, text: str) -> str:
    (home / name).write_text(text + f"# {time.monotonic_ns()}\n")  # a new fingerprint: no earlier pre-run passed it
    return name


def gsub(lab: Lab, home: Path, *words: str, grace_s: int = 600, **more: Any) -> subprocess.CompletedProcess[str]:
    environ = {"SLURMWRAP_PRERUN_GRACE_S": str(grace_s), "XDG_STATE_HOME": state_directory(home), **more.pop("env", {})}
    done = lab.run(["gsub", *words], user=ALICE, cwd=home, env=environ, **more)
    assert done.returncode == 0, done.stderr
    return done


def state_directory(home: Path) -> str:
    """A state directory for this test only: another lab may have used the same job ids."""
    return str(home / ".state")


def run_slurmwrap(lab: Lab, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs `slurmwrap ...` as alice, with the state directory of this test."""
    done = lab.slurmwrap(*words, user=ALICE, cwd=home, env={"XDG_STATE_HOME": state_directory(home)})
    assert done.returncode == 0, done.stderr
    return done


def parse_job_ids(done: subprocess.CompletedProcess[str]) -> tuple[int, int]:
    """(job id, id of its pre-run) as gsub printed them."""
    found = re.search(r"job (\d+) waits for .*, job (\d+)", done.stderr)
    assert found, done.stderr
    return int(found[1]), int(found[2])


def read_job_fields(lab: Lab, job: int) -> dict[str, str]:
    """The first record that scontrol shows of a job."""
    text = lab.run(["scontrol", "show", "job", "-o", str(job)]).stdout.splitlines()[0]
    return dict(re.findall(r"(?:^| )(\w+)=(\S*)", text))


def read_output(lab: Lab, trial: int) -> str:
    return Path(read_job_fields(lab, trial)["StdOut"]).read_text()


def read_prerun_json(lab: Lab, home: Path, *words: str) -> Any:
    return json.loads(run_slurmwrap(lab, home, "prerun", *words, "--json").stdout)


def wait_for_supervisor(lab: Lab, home: Path, trial: int) -> None:
    """Waits until the supervisor of the pre-run runs. A pre-run that ends earlier cannot release its jobs."""
    lab.wait_job(trial, {"RUNNING"}, timeout=60)
    reports = Path(state_directory(home), "slurmwrap", "prerun")
    assert wait_for(lambda: list(reports.glob("*/progress.json")), bool, timeout=60)


# --- the pre-run ends without a verdict ------------------------------------------------------------------------------


def test_a_pre_run_out_of_time_is_inconclusive_and_releases_its_job(lab: Lab, home: Path) -> None:
    script = write_script(home, "job.sh", SLOW_TRIAL)
    job, trial = parse_job_ids(gsub(lab, home, script, env={"SLURMWRAP_PRERUN_TIME_LIMIT_S": "2"}))
    lab.wait_job(job, {"COMPLETED"}, timeout=90)
    assert "inconclusive: " in wait_for(lambda: read_output(lab, trial), lambda text: "inconclusive: " in text, 60)


def test_a_pre_run_on_a_lost_node_delays_its_job_at_most_by_the_grace_period(lab: Lab, home: Path) -> None:
    job, trial = parse_job_ids(gsub(lab, home, write_script(home, "job.sh", SLOW_TRIAL), grace_s=8))
    lab.wait_job(trial, {"RUNNING"}, timeout=60)
    node = read_job_fields(lab, trial)["NodeList"]
    lab.run(["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test"])
    try:
        lab.wait_job(trial, {"NODE_FAIL", "COMPLETED", "FAILED", "CANCELLED"}, timeout=60)
        lab.wait_job(job, {"COMPLETED"}, timeout=90)
    finally:
        lab.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])


@contextlib.contextmanager
def closed_partition(lab: Lab) -> Iterator[str]:
    """A partition that accepts jobs and does not start them."""
    name = f"closed{time.monotonic_ns()}"
    done = lab.run(["scontrol", "create", f"PartitionName={name}", "Nodes=ALL", "State=DOWN"])
    assert done.returncode == 0, done.stderr
    try:
        yield name
    finally:
        lab.run(["scancel", f"--partition={name}"])
        wait_for(lambda: lab.run(["scontrol", "delete", f"PartitionName={name}"]).returncode, lambda code: not code, 60)


def test_a_pre_run_that_never_starts_delays_its_job_by_the_grace_period(lab: Lab, home: Path) -> None:
    with closed_partition(lab) as nowhere:
        script = write_script(home, "job.sh", JOB + "echo hi\n")
        job, trial = parse_job_ids(gsub(lab, home, script, grace_s=4, env={"SLURMWRAP_PRERUN_PARTITION": nowhere}))
        lab.wait_job(job, {"COMPLETED"}, timeout=90)
        assert lab.states(trial) == ["PENDING"]
        running = read_prerun_json(lab, home, "list", "--running")["rows"]
        assert [row["state"] for row in running if row["job_id"] == job] == ["pending"]


def test_reconcile_releases_gated_jobs_whose_pre_run_is_gone(lab: Lab, home: Path) -> None:
    with closed_partition(lab) as nowhere:
        script = write_script(home, "job.sh", JOB + "echo hi\n")
        done = gsub(lab, home, "--prerun=gate", script, env={"SLURMWRAP_PRERUN_PARTITION": nowhere})
        job, trial = parse_job_ids(done)
        second, same = parse_job_ids(
            gsub(lab, home, "--prerun=gate", script, "other", env={"SLURMWRAP_PRERUN_PARTITION": nowhere})
        )
        assert same == trial
        lab.run(["scancel", str(trial)], user=ALICE)
        lab.wait_job(trial, {"CANCELLED"}, timeout=60)
        assert lab.states(job) + lab.states(second) == ["PENDING", "PENDING"]
        done = run_slurmwrap(lab, home, "reconcile", "--user")
        assert f"job {job} was released: its pre-run is gone" in done.stderr, done.stderr
        lab.wait_job(job, {"COMPLETED"}, timeout=60)
        lab.wait_job(second, {"COMPLETED"}, timeout=60)


# --- the options of the user are kept --------------------------------------------------------------------------------


def test_a_released_job_has_the_dependency_begin_hold_and_array_of_plain_sbatch(lab: Lab, home: Path) -> None:
    script = write_script(home, "job.sh", JOB + "echo hi\n")
    first, second = (lab.submit("--hold", "-n1", "--mem=10", "--wrap=true", user=ALICE) for _ in range(2))
    singleton = f"one{time.monotonic_ns()}"
    lab.submit("--hold", "-n1", "--mem=10", "-J", singleton, "--wrap=true", user=ALICE)
    options = {
        "either": [f"--dependency=afterok:{first}?afternotok:{second}"],
        "both": [f"--dependency=afterany:{first},afterok:{second}"],
        "singleton": ["--dependency=singleton", "-J", singleton],
        "begin": ["--begin=2099-01-01T12:00:00"],
        "held": ["--hold"],
        "held later": ["--hold", "--begin=2099-01-01T12:00:00"],
        "array": ["--array=2-6:2%1", "--hold"],
    }
    with ThreadPoolExecutor(2) as pool:  # each job has a different argument, so no earlier pre-run passed it
        done = pool.map(lambda item: gsub(lab, home, *item[1], script, item[0]), options.items())
        submissions = dict(zip(options, done, strict=True))
    assert "pre-run" not in submissions["singleton"].stderr
    gsub_jobs = {name: int(re.findall(r"job (\d+)\n", one.stdout)[0]) for name, one in submissions.items()}
    for name, one in submissions.items():
        if name in ("either", "both"):  # the pre-run has the same dependency
            assert (
                read_job_fields(lab, parse_job_ids(one)[1])["Dependency"]
                == read_job_fields(lab, gsub_jobs[name])["Dependency"]
            )
        elif name != "singleton":
            lab.wait_job(parse_job_ids(one)[1], {"COMPLETED"}, timeout=120)
    sbatch_jobs = {name: int(lab.submit(*words, script, user=ALICE, cwd=home)) for name, words in options.items()}
    compared_fields = ("JobState", "Dependency", "Priority", "ArrayTaskId", "EligibleTime")
    for name in options:
        one, other = read_job_fields(lab, gsub_jobs[name]), read_job_fields(lab, sbatch_jobs[name])
        seen, wanted = ({key: record.get(key) for key in compared_fields} for record in (one, other))
        for record in (seen, wanted):
            if record["Priority"] != "0":  # without the multifactor plugin each later job has a lower priority
                record["Priority"] = "some"
            if name != "begin" and name != "held later":  # "Unknown", or the time of the release
                record["EligibleTime"] = "now"
        assert seen == wanted, name
    lab.run(["scancel", f"--user={ALICE}"])


def test_one_task_of_an_array_is_pre_run_and_a_failure_cancels_all_tasks(lab: Lab, home: Path) -> None:
    script = write_script(home, "job.sh", JOB + 'echo "task $SLURM_ARRAY_TASK_ID"\npython3 -c "1/0"\n')
    job, trial = parse_job_ids(gsub(lab, home, "--array=3,5-7", script))
    lab.wait_job(trial, {"COMPLETED"}, timeout=90)
    assert set(lab.states(job)) == {"CANCELLED"}
    shown = read_prerun_json(lab, home, "show", str(job))
    assert (shown["verdict"], shown["output"][0]) == ("fail", "task 3")


@pytest.mark.slow
def test_a_failed_pre_run_cancels_no_task_of_an_array_that_has_started(lab: Lab, home: Path) -> None:
    script = write_script(
        home, "job.sh", JOB + '[ -n "$SLURMWRAP_PRERUN" ] && { sleep 5; python3 -c "1/0"; }\nsleep 3\n'
    )
    job, trial = parse_job_ids(gsub(lab, home, "--array=1-3%1", script, grace_s=2))
    lab.wait_job(trial, {"COMPLETED"}, timeout=90)
    lab.wait_job(job, {"COMPLETED"}, timeout=90)


# A pre-run of a script with this line does not end before the file GO exists.
UNTIL_GO = '[ -z "$SLURMWRAP_PRERUN" ] || until [ -e GO ]; do sleep 0.1; done\n'
PATIENT = {"SLURMWRAP_PRERUN_NO_TRAINING_S": "3600"}
HET = f"""\
#!/bin/bash
#SBATCH --nodes=1 --gres=gpu:2 --cpus-per-task=1 --mem=500 --time=5
#SBATCH hetjob
#SBATCH --nodes=1 --cpus-per-task=1 --mem=300 --time=5
{UNTIL_GO}echo "components ${{SLURM_HET_SIZE:-none}}"
"""


def test_the_first_component_of_a_heterogeneous_job_is_pre_run_and_all_wait(lab: Lab, home: Path) -> None:
    go = lab.dir / f"go-{time.monotonic_ns()}"
    script = HET.replace("GO", str(go))
    job, trial = parse_job_ids(gsub(lab, home, write_script(home, "het.sh", script), env=PATIENT))
    components = ("-N1", "--gres=gpu:2", "--mem=500", ":", "-N1", "--mem=300")
    whole = write_script(home, "het2.sh", script.replace("#SBATCH hetjob", "#"))
    second, _ = parse_job_ids(gsub(lab, home, *components, whole, env=PATIENT))
    assert {*lab.states(job), *lab.states(second)} == {"PENDING"}
    go.touch()
    lab.wait_job(job, {"COMPLETED"}, timeout=90)
    lab.wait_job(second, {"COMPLETED"}, timeout=90)
    assert [(home / f"slurm-{one}.out").read_text() for one in (job, second)] == ["components 2\n"] * 2
    assert "update job" in read_output(lab, trial)
    assert read_prerun_json(lab, home, "show", str(trial))["output"] == ["components 2"]


# --- jobs that share a pre-run ---------------------------------------------------------------------------------------

SWEEP = JOB + UNTIL_GO + 'python3 -c "import sys; sys.argv[1] == \'bad\' and 1 / 0" "$1"\n'


def submit_sweep(lab: Lab, home: Path, *values: str, sweep_s: int = 120) -> list[tuple[int, int]]:
    """Submits one job for each argument, all before a pre-run ends. Returns (job id, id of its pre-run) for each."""
    go = lab.dir / f"go-{time.monotonic_ns()}"
    script = write_script(home, "sweep.sh", SWEEP.replace("GO", str(go)))
    environ = {"SLURMWRAP_PRERUN_SWEEP_S": str(sweep_s), **PATIENT}
    with ThreadPoolExecutor(4) as pool:
        jobs = list(pool.map(lambda value: parse_job_ids(gsub(lab, home, script, value, env=environ)), values))
    go.touch()
    return jobs


def test_jobs_of_a_sweep_submitted_at_once_share_a_pre_run(lab: Lab, home: Path) -> None:
    done = submit_sweep(lab, home, "1", "2", "3", "4", sweep_s=0)  # one pass releases all of them
    assert len({trial for _, trial in done}) == 1
    for job, trial in done:
        lab.wait_job(trial, {"COMPLETED"}, timeout=120)
        lab.wait_job(job, {"COMPLETED"}, timeout=120)
    rows = {row["job_id"]: row for row in read_prerun_json(lab, home, "list", "--all")["rows"]}
    assert sorted(rows[job]["attached"] for job, _ in done) == [False, True, True, True]
    assert [(rows[job]["verdict"], rows[job]["reason"]) for job, _ in done if rows[job]["verdict"] != "pass"] == []


def test_a_failure_cancels_equal_jobs_and_other_arguments_get_their_own_pre_run(lab: Lab, home: Path) -> None:
    jobs = [job for job, _ in submit_sweep(lab, home, "bad", "good", "bad", "better")]
    ends = [lab.wait_job(job, {"COMPLETED", "CANCELLED"}, timeout=120) for job in jobs]
    assert ends == ["CANCELLED", "COMPLETED", "CANCELLED", "COMPLETED"]
    rows = {row["job_id"]: row["verdict"] for row in read_prerun_json(lab, home, "list", "--all")["rows"]}
    assert [rows[job] for job in jobs] == ["fail", "pass", "fail", "pass"]


def test_a_cancelled_pre_run_releases_all_jobs_that_wait_for_it(lab: Lab, home: Path) -> None:
    script = write_script(home, "job.sh", SLOW_TRIAL)
    job, trial = parse_job_ids(gsub(lab, home, script, "1"))
    other, same = parse_job_ids(gsub(lab, home, script, "2"))
    assert same == trial
    wait_for_supervisor(lab, home, trial)
    lab.run(["scancel", str(trial)], user=ALICE)
    lab.wait_job(job, {"COMPLETED"}, timeout=90)
    lab.wait_job(other, {"COMPLETED"}, timeout=90)


# --- prerun wait, show, forget and off -------------------------------------------------------------------------------


def test_ctrl_c_detaches_and_the_pre_run_continues_to_its_verdict(lab: Lab, home: Path) -> None:
    script = write_script(home, "job.sh", JOB + "sleep 1\n")
    press = (
        "import signal, subprocess, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "p = subprocess.Popen(['gsub', '--prerun=wait', sys.argv[1]], stderr=subprocess.PIPE, text=True)\n"
        "first = p.stderr.readline()\n"
        "p.send_signal(signal.SIGINT)\n"
        "sys.stderr.write(first + p.stderr.read())\n"
        "sys.exit(100 if p.wait() == -signal.SIGINT else 101)\n"
    )
    done = lab.run(
        [sys.executable, "-c", press, script], user=ALICE, cwd=home, env={"XDG_STATE_HOME": state_directory(home)}
    )
    assert done.returncode == 100, done.stderr  # gsub ends by SIGINT, so that a shell loop stops too: $? is 130
    trial = int(re.search(r"the pre-run, job (\d+), goes on, and nothing else was submitted", done.stderr)[1])
    assert f"slurmwrap prerun show {trial} --follow" in done.stderr
    followed = run_slurmwrap(lab, home, "prerun", "show", str(trial), "--follow")
    assert "decided by layer" in followed.stdout, followed.stderr
    assert lab.states(trial) in (["COMPLETED"], ["COMPLETING"], ["RUNNING"])


def test_a_passed_script_is_pre_run_again_after_a_module_change_or_forget(lab: Lab, home: Path) -> None:
    (home / "model.py").write_text("depth = 3\n")
    (home / "train.py").write_text("import model\nprint(model.depth)\n")
    script = write_script(home, "job.sh", JOB + "python3 train.py\n")
    assert json.loads(gsub(lab, home, "--prerun=only", "--json", script).stdout)["verdict"] == "pass"
    assert "pre-run" not in gsub(lab, home, "--hold", script).stderr
    (home / "model.py").write_text("depth = 4\n")
    assert "waits for its pre-run" in gsub(lab, home, "--hold", script).stderr
    lab.clear(ALICE)
    (home / "model.py").write_text("depth = 3\n")
    assert "pre-run" not in gsub(lab, home, "--hold", script).stderr
    run_slurmwrap(lab, home, "prerun", "forget", "--script", script)
    assert "waits for its pre-run" in gsub(lab, home, "--hold", script).stderr
    lab.run(["scancel", f"--user={ALICE}"])


def test_auto_on_the_command_line_overrides_off_in_the_configuration(lab: Lab, home: Path) -> None:
    script = write_script(home, "job.sh", JOB + "echo hi\n")
    off = {"SLURMWRAP_PRERUN_MODE": "off"}
    assert "pre-run" not in gsub(lab, home, "--hold", script, env=off).stderr
    assert "waits for its pre-run" in gsub(lab, home, "--hold", "--prerun=auto", script, env=off).stderr
    lab.run(["scancel", f"--user={ALICE}"])


@pytest.mark.slow
def test_a_pre_run_killed_at_its_time_limit_delays_its_job_by_the_grace_period(lab: Lab, home: Path) -> None:
    job, trial = parse_job_ids(
        gsub(lab, home, write_script(home, "job.sh", SLOW_TRIAL.replace("60", "300")), grace_s=150)
    )
    lab.wait_job(trial, {"RUNNING"}, timeout=60)
    lab.run(["scontrol", "update", f"JobId={trial}", "TimeLimit=1"])
    lab.wait_job(job, {"COMPLETED"}, timeout=240)
    assert os.path.exists(home / f"slurm-{job}.out")  # noqa: PTH110


PREEMPTING = """
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
SlurmdTimeout=12
PartitionName=low Nodes=n[0-1] PriorityTier=1 PreemptMode=CANCEL State=UP
PartitionName=high Nodes=n[0-1] PriorityTier=100 PreemptMode=OFF State=UP
"""


@pytest.fixture(scope="module")
def preempting(lab_scratch: Path) -> Iterator[Lab]:
    """Two nodes, two partitions of which one preempts the other, and a short SlurmdTimeout."""
    with started(lab_scratch / "preempting", "--nodes", "2", "--switches", "1") as running:
        conf = Path(running.env["SLURM_CONF"])
        conf.write_text(conf.read_text() + PREEMPTING)
        done = running.run(["scontrol", "reconfigure"])
        assert done.returncode == 0, done.stderr
        yield running


@pytest.mark.slow
def test_a_preempted_pre_run_releases_its_job(preempting: Lab, home: Path) -> None:
    lab, low = preempting, {"SLURMWRAP_PRERUN_PARTITION": "low"}
    job, trial = parse_job_ids(gsub(lab, home, "--hold", write_script(home, "job.sh", SLOW_TRIAL), env=low))
    wait_for_supervisor(lab, home, trial)
    node = read_job_fields(lab, trial)["NodeList"]
    words = ("--partition=high", f"--nodelist={node}", "--exclusive", "--mem=100", "--output=/dev/null")
    lab.submit(*words, user=ALICE, script="#!/bin/sh\nsleep 3\n")
    lab.wait_job(trial, {"PREEMPTED", "COMPLETED"}, timeout=60)
    held = read_job_fields(lab, job)
    assert (held["JobState"], held["Priority"], held["Reason"]) == ("PENDING", "0", "JobHeldUser")
    lab.run(["scontrol", "release", str(job)], user=ALICE)
    lab.wait_job(job, {"COMPLETED"}, timeout=60)


@pytest.mark.slow
def test_a_pre_run_on_a_node_without_power_delays_its_job_by_the_grace_period(preempting: Lab, home: Path) -> None:
    lab = preempting
    script = SLOW_TRIAL.replace("--nodes=2", "--nodes=1").replace("60", "300")
    # longer than SlurmdTimeout: a job that starts on the lost node is requeued, which takes minutes
    job, trial = parse_job_ids(gsub(lab, home, write_script(home, "job.sh", script), grace_s=60))
    lab.wait_job(trial, {"RUNNING"}, timeout=60)
    node = read_job_fields(lab, trial)["NodeList"]
    spool = str(LabDirectories(lab.dir).node(node))
    slurmd = int(Path(spool, "slurmd.pid").read_text())
    # Slurm shows RUNNING before slurmd has started the slurmstepd of the job
    steps = wait_for(
        lambda: [p for p in psutil.process_iter() if spool in " ".join(_traces_of(p, "slurmstepd"))], bool, 60
    )
    for pid in (slurmd, *(p.pid for step in steps for p in (step, *step.children(recursive=True)))):
        os.kill(pid, signal.SIGKILL)
    lab.wait_job(trial, {"NODE_FAIL"}, timeout=100)
    lab.wait_job(job, {"COMPLETED"}, timeout=150)
    assert "was released" not in run_slurmwrap(lab, home, "reconcile", "--user").stderr  # it ran already
    rows = {row["prerun_job_id"]: row["state"] for row in read_prerun_json(lab, home, "list", "--all")["rows"]}
    assert rows[trial] == "lost"


def _traces_of(process: psutil.Process, name: str) -> list[str]:
    """Working directory and open files of a process named `name`, and the command lines of its children.

    The command lines are needed because slurmstepd 26.05 opens no file in its spool. Empty for a process with another
    name and for a process that has just ended.
    """
    try:
        if name not in process.name():
            return []
        words = [word for child in process.children() for word in child.cmdline()]
        return [process.cwd(), *(file.path for file in process.open_files()), *words]
    except psutil.Error:
        return []
