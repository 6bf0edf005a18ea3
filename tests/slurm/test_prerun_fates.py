"""Whatever becomes of a pre-run, its job ends up as it would have under plain sbatch. On a real Slurm.

Not here: job limits of QOS and associations, which need an accounting database that the lab has none of.
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
# A command of that name may train, so it is waited for.
SLOW_TRIAL = JOB + 'train() { sleep 60; }\n[ -z "$SLURMWRAP_PRERUN" ] || train\necho done\n'


@pytest.fixture
def home(lab: Lab, request: pytest.FixtureRequest) -> Path:
    """A fresh directory of alice's; her jobs of a test before are gone."""
    lab.run(["scancel", f"--user={ALICE}"])
    name = re.sub(r"\W", "_", request.node.name)[:60] + f"_{time.monotonic_ns()}"
    path = Path(pwd.getpwnam(ALICE).pw_dir) / name
    lab.run(["mkdir", "-p", str(path)], user=ALICE)
    return path


def write(home: Path, name: str, text: str) -> str:
    (home / name).write_text(text + f"# {time.monotonic_ns()}\n")  # nobody's fingerprint passed before
    return name


def gsub(lab: Lab, home: Path, *words: str, grace_s: int = 600, **more: Any) -> subprocess.CompletedProcess[str]:
    environ = {"SLURMWRAP_PRERUN_GRACE_S": str(grace_s), "XDG_STATE_HOME": state(home), **more.pop("env", {})}
    done = lab.run(["gsub", *words], user=ALICE, cwd=home, env=environ, **more)
    assert done.returncode == 0, done.stderr
    return done


def state(home: Path) -> str:
    """A state directory of this test's own: job ids of another lab may be the same."""
    return str(home / ".state")


def ask(lab: Lab, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`slurmwrap ...` as alice, with what this test's gsub remembers."""
    done = lab.slurmwrap(*words, user=ALICE, cwd=home, env={"XDG_STATE_HOME": state(home)})
    assert done.returncode == 0, done.stderr
    return done


def numbers(done: subprocess.CompletedProcess[str]) -> tuple[int, int]:
    """(real job, the pre-run that speaks for it) as gsub told them."""
    found = re.search(r"job (\d+) waits for .*, job (\d+)", done.stderr)
    assert found, done.stderr
    return int(found[1]), int(found[2])


def fields(lab: Lab, job: int) -> dict[str, str]:
    """scontrol's first record of a job."""
    text = lab.run(["scontrol", "show", "job", "-o", str(job)]).stdout.splitlines()[0]
    return dict(re.findall(r"(?:^| )(\w+)=(\S*)", text))


def said(lab: Lab, trial: int) -> str:
    return Path(fields(lab, trial)["StdOut"]).read_text()


def prerun(lab: Lab, home: Path, *words: str) -> Any:
    return json.loads(ask(lab, home, "prerun", *words, "--json").stdout)


def wait_until_it_watches(lab: Lab, home: Path, trial: int) -> None:
    """Until the pre-run's supervisor is up: who is ended before can let nobody go."""
    lab.wait_job(trial, {"RUNNING"}, timeout=60)
    reports = Path(state(home), "slurmwrap", "prerun")
    assert wait_for(lambda: list(reports.glob("*/progress.json")), bool, timeout=60)


# --- the pre-run ends in some other way than by its verdict ----------------------------------------------------------


def test_a_pre_run_out_of_time_is_inconclusive_and_lets_its_job_go(lab: Lab, home: Path) -> None:
    script = write(home, "job.sh", SLOW_TRIAL)
    job, trial = numbers(gsub(lab, home, script, env={"SLURMWRAP_PRERUN_TIME_LIMIT_S": "2"}))
    lab.wait_job(job, {"COMPLETED"}, timeout=90)
    assert "inconclusive: " in wait_for(lambda: said(lab, trial), lambda text: "inconclusive: " in text, 60)


def test_a_pre_run_whose_node_is_lost_delays_its_job_by_the_grace_at_most(lab: Lab, home: Path) -> None:
    job, trial = numbers(gsub(lab, home, write(home, "job.sh", SLOW_TRIAL), grace_s=8))
    lab.wait_job(trial, {"RUNNING"}, timeout=60)
    node = fields(lab, trial)["NodeList"]
    lab.run(["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test"])
    try:
        lab.wait_job(trial, {"NODE_FAIL", "COMPLETED", "FAILED", "CANCELLED"}, timeout=60)
        lab.wait_job(job, {"COMPLETED"}, timeout=90)
    finally:
        lab.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"])


@contextlib.contextmanager
def closed_partition(lab: Lab) -> Iterator[str]:
    """A partition that takes jobs and starts none."""
    name = f"closed{time.monotonic_ns()}"
    done = lab.run(["scontrol", "create", f"PartitionName={name}", "Nodes=ALL", "State=DOWN"])
    assert done.returncode == 0, done.stderr
    try:
        yield name
    finally:
        lab.run(["scancel", f"--partition={name}"])
        wait_for(lambda: lab.run(["scontrol", "delete", f"PartitionName={name}"]).returncode, lambda code: not code, 60)


def test_a_pre_run_that_never_starts_delays_its_job_by_the_grace_and_is_not_left_behind(lab: Lab, home: Path) -> None:
    with closed_partition(lab) as nowhere:
        script = write(home, "job.sh", JOB + "echo hi\n")
        job, trial = numbers(gsub(lab, home, script, grace_s=4, env={"SLURMWRAP_PRERUN_PARTITION": nowhere}))
        lab.wait_job(job, {"COMPLETED"}, timeout=90)
        assert lab.states(trial) == ["PENDING"]
        running = prerun(lab, home, "list", "--running")["rows"]
        assert [row["state"] for row in running if row["job_id"] == job] == ["pending"]


def test_a_gate_whose_pre_run_is_gone_is_opened_by_the_next_look(lab: Lab, home: Path) -> None:
    with closed_partition(lab) as nowhere:
        script = write(home, "job.sh", JOB + "echo hi\n")
        done = gsub(lab, home, "--prerun=gate", script, env={"SLURMWRAP_PRERUN_PARTITION": nowhere})
        job, trial = numbers(done)
        second, same = numbers(
            gsub(lab, home, "--prerun=gate", script, "other", env={"SLURMWRAP_PRERUN_PARTITION": nowhere})
        )
        assert same == trial
        lab.run(["scancel", str(trial)], user=ALICE)
        lab.wait_job(trial, {"CANCELLED"}, timeout=60)
        assert lab.states(job) + lab.states(second) == ["PENDING", "PENDING"]
        done = ask(lab, home, "reconcile", "--user")
        assert f"job {job} was released: its pre-run is gone" in done.stderr, done.stderr
        lab.wait_job(job, {"COMPLETED"}, timeout=60)
        lab.wait_job(second, {"COMPLETED"}, timeout=60)


# --- what the user asked for is kept ---------------------------------------------------------------------------------


def test_a_released_job_keeps_dependencies_begin_hold_and_array_as_plain_sbatch_would_have_them(
    lab: Lab, home: Path
) -> None:
    script = write(home, "job.sh", JOB + "echo hi\n")
    first, second = (lab.submit("--hold", "-n1", "--mem=10", "--wrap=true", user=ALICE) for _ in range(2))
    singleton = f"one{time.monotonic_ns()}"
    lab.submit("--hold", "-n1", "--mem=10", "-J", singleton, "--wrap=true", user=ALICE)
    asked = {
        "either": [f"--dependency=afterok:{first}?afternotok:{second}"],
        "both": [f"--dependency=afterany:{first},afterok:{second}"],
        "singleton": ["--dependency=singleton", "-J", singleton],
        "begin": ["--begin=2099-01-01T12:00:00"],
        "held": ["--hold"],
        "held later": ["--hold", "--begin=2099-01-01T12:00:00"],
        "array": ["--array=2-6:2%1", "--hold"],
    }
    with ThreadPoolExecutor(2) as pool:  # each with an argument of its own: none passed before
        done = pool.map(lambda item: gsub(lab, home, *item[1], script, item[0]), asked.items())
        told = dict(zip(asked, done, strict=True))
    assert "pre-run" not in told["singleton"].stderr
    ours = {name: int(re.findall(r"job (\d+)\n", one.stdout)[0]) for name, one in told.items()}
    for name, one in told.items():
        if name in ("either", "both"):  # its pre-run waits for the same jobs
            assert fields(lab, numbers(one)[1])["Dependency"] == fields(lab, ours[name])["Dependency"]
        elif name != "singleton":
            lab.wait_job(numbers(one)[1], {"COMPLETED"}, timeout=120)
    theirs = {name: int(lab.submit(*words, script, user=ALICE, cwd=home)) for name, words in asked.items()}
    kept = ("JobState", "Dependency", "Priority", "ArrayTaskId", "EligibleTime")
    for name in asked:
        one, other = fields(lab, ours[name]), fields(lab, theirs[name])
        seen, wanted = ({key: record.get(key) for key in kept} for record in (one, other))
        for record in (seen, wanted):
            if record["Priority"] != "0":  # without the multifactor plugin each later job has one less
                record["Priority"] = "some"
            if name != "begin" and name != "held later":  # "Unknown", or the moment at which it was let go
                record["EligibleTime"] = "now"
        assert seen == wanted, name
    lab.run(["scancel", f"--user={ALICE}"])


def test_of_an_array_one_task_is_tried_and_a_failure_cancels_all_of_them(lab: Lab, home: Path) -> None:
    script = write(home, "job.sh", JOB + 'echo "task $SLURM_ARRAY_TASK_ID"\npython3 -c "1/0"\n')
    job, trial = numbers(gsub(lab, home, "--array=3,5-7", script))
    lab.wait_job(trial, {"COMPLETED"}, timeout=90)
    assert set(lab.states(job)) == {"CANCELLED"}
    shown = prerun(lab, home, "show", str(job))
    assert (shown["verdict"], shown["output"][0]) == ("fail", "task 3")


@pytest.mark.slow
def test_of_an_array_that_has_begun_nothing_is_cancelled(lab: Lab, home: Path) -> None:
    script = write(home, "job.sh", JOB + '[ -n "$SLURMWRAP_PRERUN" ] && { sleep 5; python3 -c "1/0"; }\nsleep 3\n')
    job, trial = numbers(gsub(lab, home, "--array=1-3%1", script, grace_s=2))
    lab.wait_job(trial, {"COMPLETED"}, timeout=90)
    lab.wait_job(job, {"COMPLETED"}, timeout=90)


# A pre-run of a script with this line does not end before GO is there.
UNTIL_GO = '[ -z "$SLURMWRAP_PRERUN" ] || until [ -e GO ]; do sleep 0.1; done\n'
PATIENT = {"SLURMWRAP_PRERUN_NO_TRAINING_S": "3600"}
HET = f"""\
#!/bin/bash
#SBATCH --nodes=1 --gres=gpu:2 --cpus-per-task=1 --mem=500 --time=5
#SBATCH hetjob
#SBATCH --nodes=1 --cpus-per-task=1 --mem=300 --time=5
{UNTIL_GO}echo "components ${{SLURM_HET_SIZE:-none}}"
"""


def test_of_a_heterogeneous_job_the_first_component_is_tried_and_all_wait_for_it(lab: Lab, home: Path) -> None:
    go = lab.dir / f"go-{time.monotonic_ns()}"
    script = HET.replace("GO", str(go))
    job, trial = numbers(gsub(lab, home, write(home, "het.sh", script), env=PATIENT))
    components = ("-N1", "--gres=gpu:2", "--mem=500", ":", "-N1", "--mem=300")
    whole = write(home, "het2.sh", script.replace("#SBATCH hetjob", "#"))
    second, _ = numbers(gsub(lab, home, *components, whole, env=PATIENT))
    assert {*lab.states(job), *lab.states(second)} == {"PENDING"}
    go.touch()
    lab.wait_job(job, {"COMPLETED"}, timeout=90)
    lab.wait_job(second, {"COMPLETED"}, timeout=90)
    assert [(home / f"slurm-{one}.out").read_text() for one in (job, second)] == ["components 2\n"] * 2
    assert "update job" in said(lab, trial)
    assert prerun(lab, home, "show", str(trial))["output"] == ["components none"]


# --- one pre-run in flight -------------------------------------------------------------------------------------------

SWEEP = JOB + UNTIL_GO + 'python3 -c "import sys; sys.argv[1] == \'bad\' and 1 / 0" "$1"\n'


def submit_sweep(lab: Lab, home: Path, *values: str, sweep_s: int = 120) -> list[tuple[int, int]]:
    """Jobs of these arguments, all of them submitted before a pre-run of theirs ends."""
    go = lab.dir / f"go-{time.monotonic_ns()}"
    script = write(home, "sweep.sh", SWEEP.replace("GO", str(go)))
    environ = {"SLURMWRAP_PRERUN_SWEEP_S": str(sweep_s), **PATIENT}
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(lambda value: numbers(gsub(lab, home, script, value, env=environ)), values))
    go.touch()
    return told


def test_jobs_of_a_sweep_submitted_at_once_share_a_pre_run(lab: Lab, home: Path) -> None:
    done = submit_sweep(lab, home, "1", "2", "3", "4", sweep_s=0)  # one pass releases all of them
    assert len({trial for _, trial in done}) == 1
    for job, trial in done:
        lab.wait_job(trial, {"COMPLETED"}, timeout=120)
        lab.wait_job(job, {"COMPLETED"}, timeout=120)
    rows = {row["job_id"]: row for row in prerun(lab, home, "list", "--all")["rows"]}
    assert sorted(rows[job]["attached"] for job, _ in done) == [False, True, True, True]
    assert [(rows[job]["verdict"], rows[job]["reason"]) for job, _ in done if rows[job]["verdict"] != "pass"] == []


def test_a_failure_cancels_the_same_arguments_and_others_get_a_trial_of_their_own(lab: Lab, home: Path) -> None:
    jobs = [job for job, _ in submit_sweep(lab, home, "bad", "good", "bad", "better")]
    ends = [lab.wait_job(job, {"COMPLETED", "CANCELLED"}, timeout=120) for job in jobs]
    assert ends == ["CANCELLED", "COMPLETED", "CANCELLED", "COMPLETED"]
    rows = {row["job_id"]: row["verdict"] for row in prerun(lab, home, "list", "--all")["rows"]}
    assert [rows[job] for job in jobs] == ["fail", "pass", "fail", "pass"]


def test_a_cancelled_pre_run_lets_go_all_that_waited_for_it(lab: Lab, home: Path) -> None:
    script = write(home, "job.sh", SLOW_TRIAL)
    job, trial = numbers(gsub(lab, home, script, "1"))
    other, same = numbers(gsub(lab, home, script, "2"))
    assert same == trial
    wait_until_it_watches(lab, home, trial)
    lab.run(["scancel", str(trial)], user=ALICE)
    lab.wait_job(job, {"COMPLETED"}, timeout=90)
    lab.wait_job(other, {"COMPLETED"}, timeout=90)


# --- watching, asking, forgetting ------------------------------------------------------------------------------------


def test_ctrl_c_detaches_and_the_pre_run_goes_on_to_its_verdict(lab: Lab, home: Path) -> None:
    script = write(home, "job.sh", JOB + "sleep 1\n")
    press = (
        "import signal, subprocess, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "p = subprocess.Popen(['gsub', '--prerun=wait', sys.argv[1]], stderr=subprocess.PIPE, text=True)\n"
        "first = p.stderr.readline()\n"
        "p.send_signal(signal.SIGINT)\n"
        "sys.stderr.write(first + p.stderr.read())\n"
        "sys.exit(100 if p.wait() == -signal.SIGINT else 101)\n"
    )
    done = lab.run([sys.executable, "-c", press, script], user=ALICE, cwd=home, env={"XDG_STATE_HOME": state(home)})
    assert done.returncode == 100, done.stderr  # by SIGINT, so that a shell's loop around it stops: $? is 130
    trial = int(re.search(r"the pre-run, job (\d+), goes on, and nothing else was submitted", done.stderr)[1])
    assert f"slurmwrap prerun show {trial} --follow" in done.stderr
    followed = ask(lab, home, "prerun", "show", str(trial), "--follow")
    assert "decided by layer" in followed.stdout, followed.stderr
    assert lab.states(trial) in (["COMPLETED"], ["COMPLETING"], ["RUNNING"])


def test_what_passed_is_pre_run_again_when_a_module_changed_or_it_was_forgotten(lab: Lab, home: Path) -> None:
    (home / "model.py").write_text("depth = 3\n")
    (home / "train.py").write_text("import model\nprint(model.depth)\n")
    script = write(home, "job.sh", JOB + "python3 train.py\n")
    assert json.loads(gsub(lab, home, "--prerun=only", "--json", script).stdout)["verdict"] == "pass"
    assert "pre-run" not in gsub(lab, home, "--hold", script).stderr
    (home / "model.py").write_text("depth = 4\n")
    assert "waits for its pre-run" in gsub(lab, home, "--hold", script).stderr
    lab.clear(ALICE)
    (home / "model.py").write_text("depth = 3\n")
    assert "pre-run" not in gsub(lab, home, "--hold", script).stderr
    ask(lab, home, "prerun", "forget", "--script", script)
    assert "waits for its pre-run" in gsub(lab, home, "--hold", script).stderr
    lab.run(["scancel", f"--user={ALICE}"])


def test_off_in_the_configuration_gives_way_to_auto_on_the_command_line(lab: Lab, home: Path) -> None:
    script = write(home, "job.sh", JOB + "echo hi\n")
    off = {"SLURMWRAP_PRERUN_MODE": "off"}
    assert "pre-run" not in gsub(lab, home, "--hold", script, env=off).stderr
    assert "waits for its pre-run" in gsub(lab, home, "--hold", "--prerun=auto", script, env=off).stderr
    lab.run(["scancel", f"--user={ALICE}"])


@pytest.mark.slow
def test_a_pre_run_killed_by_slurms_time_limit_delays_its_job_by_the_grace_at_most(lab: Lab, home: Path) -> None:
    job, trial = numbers(gsub(lab, home, write(home, "job.sh", SLOW_TRIAL.replace("60", "300")), grace_s=150))
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
    """Two nodes on which a partition preempts another, and whose loss is seen soon."""
    with started(lab_scratch / "preempting", "--nodes", "2", "--switches", "1") as running:
        conf = Path(running.env["SLURM_CONF"])
        conf.write_text(conf.read_text() + PREEMPTING)
        done = running.run(["scontrol", "reconfigure"])
        assert done.returncode == 0, done.stderr
        yield running


@pytest.mark.slow
def test_a_preempted_pre_run_lets_its_job_go(preempting: Lab, home: Path) -> None:
    lab, low = preempting, {"SLURMWRAP_PRERUN_PARTITION": "low"}
    job, trial = numbers(gsub(lab, home, "--hold", write(home, "job.sh", SLOW_TRIAL), env=low))
    wait_until_it_watches(lab, home, trial)
    node = fields(lab, trial)["NodeList"]
    words = ("--partition=high", f"--nodelist={node}", "--exclusive", "--mem=100", "--output=/dev/null")
    lab.submit(*words, user=ALICE, script="#!/bin/sh\nsleep 3\n")
    lab.wait_job(trial, {"PREEMPTED", "COMPLETED"}, timeout=60)
    held = fields(lab, job)
    assert (held["JobState"], held["Priority"], held["Reason"]) == ("PENDING", "0", "JobHeldUser")
    lab.run(["scontrol", "release", str(job)], user=ALICE)
    lab.wait_job(job, {"COMPLETED"}, timeout=60)


@pytest.mark.slow
def test_a_pre_run_whose_node_loses_its_power_delays_its_job_by_the_grace_at_most(preempting: Lab, home: Path) -> None:
    lab = preempting
    one = SLOW_TRIAL.replace("--nodes=2", "--nodes=1").replace("60", "300")
    # long enough for Slurm to miss the node before: a job that is started there is requeued, minutes later
    job, trial = numbers(gsub(lab, home, write(home, "job.sh", one), grace_s=60))
    lab.wait_job(trial, {"RUNNING"}, timeout=60)
    node = fields(lab, trial)["NodeList"]
    spool = str(LabDirectories(lab.dir).node(node))
    slurmd = int(Path(spool, "slurmd.pid").read_text())
    # RUNNING is said before slurmd has started the job's slurmstepd
    steps = wait_for(
        lambda: [p for p in psutil.process_iter() if spool in " ".join(_traces_of(p, "slurmstepd"))], bool, 60
    )
    for pid in (slurmd, *(p.pid for step in steps for p in (step, *step.children(recursive=True)))):
        os.kill(pid, signal.SIGKILL)
    lab.wait_job(trial, {"NODE_FAIL"}, timeout=100)
    lab.wait_job(job, {"COMPLETED"}, timeout=150)
    assert "was released" not in ask(lab, home, "reconcile", "--user").stderr  # it ran already
    rows = {row["prerun_job_id"]: row["state"] for row in prerun(lab, home, "list", "--all")["rows"]}
    assert rows[trial] == "lost"


def _traces_of(process: psutil.Process, name: str) -> list[str]:
    """Files of a process of that name and its children's words (slurmstepd 26.05 opens no file in its spool); none of
    another, or of one that has just ended."""
    try:
        if name not in process.name():
            return []
        words = [word for child in process.children() for word in child.cmdline()]
        return [process.cwd(), *(file.path for file in process.open_files()), *words]
    except psutil.Error:
        return []
