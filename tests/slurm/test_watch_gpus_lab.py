"""slurmwrap watch --gpus on a real Slurm: its step, the program on each node, the view.

NVML is a stand-in: no real GPU was available. The answers of each node are in a file that is read at each call.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from realslurm import Lab, command_environment, living
from test_watch_lab import INTERRUPTIBLE, NO_OWN_RECORDS, WATCH, Terminal, wait_until_no_jobs
from waiting import allow, wait_for

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]

SOURCE = Path(__file__).parents[1] / "data/nvml/by_node.c"
SLEEP = "#!/bin/bash\nsleep {}\n"
STEP_PROGRAM = "SLURMWRAP_PROGRAM"  # in the command line of the program that runs on the nodes
BUSY = "sm=91 used_mib=62464 process=7"


class Drivers:
    """The stand-in for NVML on all nodes. `environ`: the environment that makes a watch use it."""

    def __init__(self, directory: Path, compiler: str) -> None:
        self.answers = directory / "answers"
        self.answers.mkdir(parents=True)
        self.environ = {"LD_LIBRARY_PATH": str(directory)}
        define = f'-DANSWERS="{self.answers}"'
        flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libnvidia-ml.so.1", define]
        subprocess.run([compiler, *flags, "-o", str(directory / "libnvidia-ml.so.1"), str(SOURCE)], check=True)

    def set_answers(self, node: str, answers: str) -> None:
        (self.answers / f".{node}").write_text(answers)
        (self.answers / f".{node}").replace(self.answers / node)


@pytest.fixture(scope="module")
def drivers(lab_scratch: Path) -> Drivers:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (Debian: apt-get install gcc)")
    return Drivers(lab_scratch / "nvml-by-node", compiler)


@pytest.fixture
def user(lab: Lab, lab_users: tuple[str, str]) -> Iterator[str]:
    yield lab_users[0]
    lab.run(["scancel", f"--user={lab_users[0]}"])
    wait_until_no_jobs(lab, lab_users[0])


def start_job(lab: Lab, user: str, *options: str, script: str = SLEEP.format(86400)) -> tuple[str, list[str]]:
    """Submits a job and waits until it runs. Returns its id and its nodes."""
    job = lab.submit("-o/dev/null", "-t1440", "-Jtrain", "--mem=100", *options, user=user, script=script)
    lab.wait_job(job, ("RUNNING",), timeout=60)
    nodes = lab.run(["squeue", "-h", "-j", job, "-o", "%N"]).stdout.strip()
    return job, lab.run(["scontrol", "show", "hostnames", nodes]).stdout.split()


def list_steps(lab: Lab, job: str) -> list[str]:
    return lab.run(["squeue", "-h", "-s", "-j", job, "-o", "%j"]).stdout.split()


def assert_nothing_is_left(lab: Lab, job: str, state: str = "RUNNING") -> None:
    """No step of watch and no program on the nodes is left, and watching did not change the job."""
    assert (
        wait_for(lambda: [name for name in list_steps(lab, job) if "slurmwrap" in name], lambda left: not left, 60)
        == []
    )
    assert wait_for(lambda: living(STEP_PROGRAM), lambda left: not left, 60) == []
    lab.wait_job(job, (state,), timeout=60)
    ended = lab.run(["squeue", "-h", "-t", "all", "-j", job, "-O", "exit_code,DerivedEC"]).stdout.split()
    assert ended == ["0", "0"] or ended == ["0:0", "0:0"]


def start_watch(lab: Lab, drivers: Drivers, *words: str, **environ: str) -> subprocess.Popen[str]:
    full_environ = {**command_environment(None), **lab.env, **NO_OWN_RECORDS, **drivers.environ, **environ}
    out = subprocess.PIPE
    argv = [*INTERRUPTIBLE, *WATCH, *words]
    return subprocess.Popen(argv, env=full_environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out, text=True)


def wait_for_line(process: subprocess.Popen[str], what: str = "GPU use") -> str:
    """Reads the output up to the first line that contains `what`."""
    assert process.stdout is not None
    return next(line for line in iter(process.stdout.readline, "") if what in line)


def test_a_terminal_shows_the_gpu_use_of_all_nodes_and_ctrl_c_leaves_no_step(
    lab: Lab, user: str, drivers: Drivers
) -> None:
    job, (first, second) = start_job(lab, user, "-N2", "--gpus-per-node=2")
    drivers.set_answers(first, BUSY)
    drivers.set_answers(second, f"{BUSY} sm@1=4 process@1=0")
    terminal = Terminal(lab, job, "--gpus", "--every", "1", environ=drivers.environ)
    try:
        terminal.until(f"GPU use  69 % of 4 (lowest {second}:1 4 %)", timeout=60)
        terminal.until("GPU mem  up to 61 of 80 GiB")
        terminal.until(f"idle     {second}:1 (no program on it)")
        drivers.set_answers(second, "hang=nvmlDeviceGetUtilizationRates")
        terminal.until(f"trouble  {second}: the NVIDIA driver does not answer (GPU 0)", timeout=90)
        terminal.process.send_signal(signal.SIGINT)  # the pty is not its controlling terminal
        assert terminal.ended(60) == 130
        assert f"slurmwrap: watching ends; job {job} continues" in terminal.text
    finally:
        terminal.close()
    assert_nothing_is_left(lab, job)


def test_json_lists_each_gpu_once_and_another_user_is_refused(
    lab: Lab, user: str, lab_users: tuple[str, str], drivers: Drivers
) -> None:
    """One of the two nodes has no driver."""
    job, (first, second) = start_job(lab, user, "-N2", "--gpus-per-node=1")
    drivers.set_answers(first, f"minor@0=5 gpus=1 {BUSY} power=350400")
    drivers.set_answers(second, "init=12")
    done = lab.run([*WATCH, job, "--gpus", "--once", "--json"], user=user, env=drivers.environ)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    gpu = {"index": 5, "uuid": "GPU-0-fake", "percent": 91.0, "memory_mib": 62464, "total_mib": 81920}
    assert (report["gpu_percent"], report["gpu_use"]) == (
        91.0,
        {
            "nodes": [first, second], "of_nodes": 2, "idle": [], "given_up": None,
            "gpus": [{"node": first, **gpu, "power_w": 350, "programs": 1}],
            "troubles": {second: "there is no NVIDIA driver"},
        },
    )  # fmt: skip
    refused = lab.run([*WATCH, job, "--gpus"], user=lab_users[1])
    assert (refused.returncode, refused.stdout, refused.stderr.splitlines()) == (
        1,
        "",
        [
            f"slurmwrap: error: job {job} is {user}'s: only its user, or root, can start a step in it",
            f"slurmwrap: slurmwrap watch {job} without --gpus shows the rest",
        ],
    )
    assert_nothing_is_left(lab, job)


def test_watching_gpus_does_not_change_how_the_job_ends(lab: Lab, user: str, drivers: Drivers) -> None:
    """A step gets all resources of the job, a signal for the job does not end the watch step, and no node drains."""
    script = "#!/bin/bash\nuntil [ -e $HOME/go ]; do sleep 0.2; done\nsrun --gpus-per-node=3 --mem=100 -n1 true\n"
    go = Path(f"~{user}").expanduser() / "go"
    job, nodes = start_job(lab, user, "--gpus-per-node=3", script=script)
    drivers.set_answers(nodes[0], BUSY)
    watch = start_watch(lab, drivers, job, "--gpus", "--every", "1")
    try:
        line = wait_for_line(watch)
        assert "; GPU use 91 % of 3; GPU mem up to 61 of 80 GiB\n" in line
        assert list_steps(lab, job).count("slurmwrap-watch") == 1
        lab.run(["scancel", "--signal=USR1", job], user)
        go.touch()
        rest, errors = watch.communicate(timeout=allow(90))
    finally:
        watch.kill()
        go.unlink(missing_ok=True)
    assert (watch.returncode, errors) == (0, "")
    assert " (train): completed after " in rest.splitlines()[-1]
    assert_nothing_is_left(lab, job, "COMPLETED")
    assert "drain" not in lab.run(["sinfo", "-h", "-n", nodes[0], "-o", "%T"]).stdout


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_the_step_ends_when_watch_is_killed(lab: Lab, user: str, drivers: Drivers, number: signal.Signals) -> None:
    job, nodes = start_job(lab, user, "--gpus-per-node=1")
    drivers.set_answers(nodes[0], f"gpus=1 {BUSY}")
    watch = start_watch(lab, drivers, job, "--gpus")
    wait_for_line(watch)
    watch.send_signal(number)
    watch.communicate(timeout=allow(60))
    assert watch.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert_nothing_is_left(lab, job)


@pytest.mark.slow
def test_the_step_ends_when_the_output_pipe_is_closed(lab: Lab, user: str, drivers: Drivers) -> None:
    job, nodes = start_job(lab, user, "--gpus-per-node=1")
    drivers.set_answers(nodes[0], f"gpus=1 {BUSY}")
    watch = start_watch(lab, drivers, job, "--gpus")
    wait_for_line(watch)
    assert watch.stdout is not None and watch.stderr is not None
    watch.stdout.close()
    assert watch.wait(allow(60)) == 141
    assert watch.stderr.read() == ""
    watch.stderr.close()
    assert_nothing_is_left(lab, job)


@pytest.mark.slow
def test_the_programs_on_the_nodes_end_after_srun_is_killed(lab: Lab, user: str, drivers: Drivers) -> None:
    job, nodes = start_job(lab, user, "--gpus-per-node=1")
    drivers.set_answers(nodes[0], f"gpus=1 {BUSY}")
    watch = start_watch(lab, drivers, job, "--gpus")
    wait_for_line(watch)
    sruns = [child for child in psutil.Process(watch.pid).children(recursive=True) if child.name() == "srun"]
    for one in sruns:
        one.kill()
    assert "GPU use not measured any more: its step ended" in wait_for_line(watch, "any more")
    watch.send_signal(signal.SIGINT)
    watch.communicate(timeout=allow(60))
    assert wait_for(lambda: living(STEP_PROGRAM), lambda left: not left, 150) == []
    assert_nothing_is_left(lab, job)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "given"),
    [
        (("-N2", "--ntasks=4", "--gpus-per-task=1"), 4),
        (("-N3", "--gpus=7", "--ntasks-per-node=1"), 7),
        (("-N2", "--gpus=4"), 4),
        (("-N2", "--gpus-per-node=8", "--exclusive"), 16),
        (("-N1", "--gres=gpu:a100:2"), 2),
    ],
)
def test_all_gpus_are_measured_for_each_kind_of_gpu_request(
    lab: Lab, user: str, drivers: Drivers, options: tuple[str, ...], given: int
) -> None:
    """Also with different numbers of GPUs per node. The driver shows all eight of a node; those of the step count."""
    job, nodes = start_job(lab, user, *options)
    for node in nodes:
        drivers.set_answers(node, f"gpus=8 {BUSY}")
    done = lab.run([*WATCH, job, "--gpus", "--once", "--json"], user=user, env=drivers.environ)
    use = json.loads(done.stdout)["gpu_use"]
    assert (use["nodes"], use["troubles"], use["given_up"]) == (nodes, {}, None)
    assert [(gpu["node"], gpu["index"]) for gpu in use["gpus"]] == _allocated(lab, job)
    assert len(use["gpus"]) == given
    assert_nothing_is_left(lab, job)


def _allocated(lab: Lab, job: str) -> list[tuple[str, int]]:
    """(node, GPU index) as scontrol shows the allocation."""
    shown = lab.run(["scontrol", "show", "job", "-d", "-o", job]).stdout
    found = []
    for nodes, indexes in re.findall(r" Nodes=(\S+) CPU_IDs=\S+ Mem=\d+ GRES=gpu:a100:\d+\(IDX:([0-9,-]+)\)", shown):
        for node in lab.run(["scontrol", "show", "hostnames", nodes]).stdout.split():
            for part in indexes.split(","):
                first, _, last = part.partition("-")
                found += [(node, index) for index in range(int(first), int(last or first) + 1)]
    return found


@pytest.mark.slow
def test_gpu_nodes_limits_the_measurement_to_the_first_nodes(lab: Lab, user: str, drivers: Drivers) -> None:
    job, nodes = start_job(lab, user, "-N3", "--gpus-per-node=1")
    for node in nodes:
        drivers.set_answers(node, f"gpus=1 {BUSY}")
    done = lab.run([*WATCH, job, "--gpus", "--gpu-nodes=2", "--once"], user=user, env=drivers.environ)
    assert done.stdout.endswith("; GPU use 91 % of 2 on 2 of 3 nodes; GPU mem up to 61 of 80 GiB\n")
    assert_nothing_is_left(lab, job)


@pytest.mark.slow
def test_a_step_that_does_not_start_is_given_up_and_the_view_continues(lab: Lab, user: str, drivers: Drivers) -> None:
    job, nodes = start_job(lab, user, "--gpus-per-node=1")
    assert lab.run(["scontrol", "update", f"NodeName={nodes[0]}", "State=DRAIN", "Reason=test"]).returncode == 0
    try:
        missing = lab.run([*WATCH, job, "--gpus", "--once"], user=user, env={"PATH": str(Path(sys.executable).parent)})
        assert missing.returncode != 0  # without squeue nothing can be shown
        for pid in _find_slurmds(lab, nodes[0]):
            os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        done = lab.run([*WATCH, job, "--gpus", "--once"], user=user, env=drivers.environ, timeout=120)
        assert (done.returncode, time.monotonic() - began < 100) == (0, True)
        assert "(train): running for" in done.stdout
        assert "GPU use not measured: " in done.stdout
    finally:
        for pid in _find_slurmds(lab, nodes[0]):
            os.kill(pid, signal.SIGCONT)
        lab.run(["scontrol", "update", f"NodeName={nodes[0]}", "State=RESUME"])


def _find_slurmds(lab: Lab, node: str) -> list[int]:
    """The pids of the slurmd of this node."""
    return [
        one.pid
        for one in psutil.process_iter(["name", "cmdline"])
        if one.info["name"] == "slurmd"
        and node in one.info["cmdline"]
        and str(lab.dir) in " ".join(one.info["cmdline"])
    ]


@pytest.mark.slow
def test_a_requeued_job_is_measured_again(lab: Lab, user: str, drivers: Drivers) -> None:
    for number in range(8):
        drivers.set_answers(f"n{number}", f"gpus=1 {BUSY}")
    job, _ = start_job(lab, user, "--gpus-per-node=1", "--requeue")
    watch = start_watch(lab, drivers, job, "--gpus", "--every", "1")
    wait_for_line(watch)
    lab.run(["scontrol", "requeue", job], user)
    wait_for_line(watch, "pending")
    lab.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], user)
    assert "GPU use 91 %" in wait_for_line(watch)
    watch.send_signal(signal.SIGINT)
    watch.communicate(timeout=allow(60))
    assert_nothing_is_left(lab, job)
