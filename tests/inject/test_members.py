"""The program that runs the members of a packed task, as a real process. Without Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from slurmwrap.inject import slurmwrap_members
from slurmwrap.inject.slurmwrap_members import expand_pattern, share_cpus
from slurmwrap.store.pack_results import request_cancel

VALUES = {"A": "77", "a": "5", "b": "5", "j": "81", "J": "81", "N": "n1", "n": "0", "s": "batch", "t": "0"} | {
    "u": "alice",
    "x": "sweep",
}


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("slurm-%A_%a.out", "slurm-77_5.out"),
        ("logs/%x-%A_%4a.out", "logs/sweep-77_0005.out"),
        ("%j.out", "81_5.out"),
        ("%j_%a.out", "81_5.out"),
        ("all.log", "all.log"),
        ("%u@%N-%%-%a", "alice@n1-%-5"),
        (r"\%a.out", "%a.out"),
        ("%q-%a", "%q-5"),
    ],
)
def test_a_members_file_has_the_name_that_sbatch_would_give_it(pattern: str, name: str) -> None:
    assert expand_pattern(pattern, VALUES) == name


def test_cpus_are_shared_by_whole_cores() -> None:
    cores = [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert share_cpus(cores, 2) == [[0, 4, 1, 5], [2, 6, 3, 7]]
    assert share_cpus(cores, 3) == [[0, 4], [1, 5], [2, 6, 3, 7]]
    assert share_cpus(cores, 5) == [[]] * 5


class Task:
    """One packed task of the array 77 with the members 4, 6, 8, in a directory of its own."""

    def __init__(self, place: Path, script: str, **spec: Any) -> None:
        self.place, self.pack = place, place / "pack"
        self.pack.mkdir()
        (self.pack / "slurm_script").write_text(script)
        plain = {
            "indices": [4, 6, 8, 10, 12],
            "members": 3,
            "environment": {"SLURM_ARRAY_TASK_COUNT": "5", "SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_MAX": "8"},
            "output": "%A_%a.out",
            "error": None,
            "job_name": "sweep",
            "append": False,
            "mps": False,
        }
        (self.pack / "spec.json").write_text(json.dumps({**plain, **spec}))
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *args: str, task: int = 4, **variables: str) -> subprocess.Popen[bytes]:
        environ = {**os.environ, "SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_JOB_ID": "77", "SLURM_JOB_ID": "81"}
        with (self.place / "task.out").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-I", slurmwrap_members.__file__, str(self.pack), *args],
                cwd=self.place,
                env={**environ, **variables},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.started.append(process)
        return process

    def run(self, *args: str, task: int = 4, **variables: str) -> int:
        return self.start(*args, task=task, **variables).wait(60)

    def read(self, name: str) -> str:
        path = self.place / name
        return path.read_text() if path.exists() else ""

    def state(self, index: int) -> dict[str, Any]:
        path = self.pack / "members" / f"{index}.json"
        return json.loads(path.read_text()) if path.exists() else {}


@pytest.fixture
def make_task(tmp_path: Path) -> Iterator[Any]:
    tasks: list[Task] = []

    def make(script: str, **spec: Any) -> Task:
        tasks.append(Task(tmp_path, script, **spec))
        return tasks[-1]

    yield make
    for process in (one for task in tasks for one in task.started):
        if process.poll() is None:
            process.kill()
            process.wait()


def test_each_member_has_its_own_variables_arguments_and_output(make_task: Any) -> None:
    task = make_task(
        '#!/bin/sh\necho "$SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT, $SLURM_ARRAY_TASK_MAX: $1 $SLURM_JOB_ID"\n'
    )
    assert task.run("--lr=3 e") == 0
    assert [task.read(f"77_{index}.out") for index in (4, 6, 8)] == [
        f"{index} of 5, 8: --lr=3 e 81\n" for index in (4, 6, 8)
    ]
    assert [task.state(index)["state"] for index in (4, 6, 8)] == ["completed"] * 3
    assert not (task.place / "77_10.out").exists()


def test_the_last_task_has_the_rest_of_the_members(make_task: Any) -> None:
    task = make_task("#!/bin/sh\necho ran\n", members=4)
    assert task.run(task=12) == 0
    assert sorted(path.name for path in task.place.glob("77_*.out")) == ["77_12.out"]


def test_a_task_whose_member_runs_in_an_earlier_one_ends_at_once(make_task: Any) -> None:
    task = make_task("#!/bin/sh\necho ran\n", members=2)
    assert (task.run(task=6), list(task.place.glob("77_*.out"))) == (0, [])
    assert "member 6 runs in an earlier task" in task.read("task.out")


# Counts its steps as inject/slurmwrap_counter.py does. One member alone would be much faster than the three together.
STEPS = """#!/bin/sh
i=0
echo $$ > pid.$SLURM_ARRAY_TASK_ID
while :; do i=$((i + 1)); echo "$i explicit 1 2 0 0" 1<> "$SLURMWRAP_STEP_DIR/81.0.n1.$$"; sleep 0.05; done
"""
SLOW = {"counter": "/nowhere", "alone": 1e6, "separate_gain": 1.1, "separate_s": 1}


def test_members_that_are_no_faster_together_go_on_one_after_the_other(make_task: Any) -> None:
    task = make_task(STEPS, **SLOW)
    process = task.start()
    wait_until(lambda: sum(bool(task.state(i).get("paused")) for i in (4, 6, 8)) == 2, "two members wait")
    waiting = [i for i in (4, 6, 8) if task.state(i).get("paused")]
    assert [i for i in (4, 6, 8) if read_process_state(int(task.read(f"pid.{i}"))) == "T"] == waiting
    # The next one goes on when the first has ended.
    (first,) = {4, 6, 8} - set(waiting)
    os.kill(int(task.read(f"pid.{first}")), signal.SIGKILL)
    wait_until(lambda: sum(bool(task.state(i).get("paused")) for i in waiting) == 1, "the next one goes on")
    # A signal to the task also reaches the one that waits.
    process.terminate()
    process.wait(60)
    assert [task.state(i)["state"] for i in waiting] == ["stopped"] * 2
    assert all(task.state(i)["paused_s"] > 0 and not task.state(i)["paused"] for i in waiting)


def test_members_are_not_stopped_if_one_has_a_step_of_srun(make_task: Any) -> None:
    begin = "mkdir d.$SLURM_ARRAY_TASK_ID; cp /bin/sleep d.$SLURM_ARRAY_TASK_ID/srun; trap 'kill $!; exit 0' TERM\n"
    task = make_task(STEPS.replace("i=0\n", f"i=0\n{begin}d.$SLURM_ARRAY_TASK_ID/srun 600 &\n"), **SLOW)
    process = task.start()
    wait_until(lambda: "has a step of srun" in task.read("task.out"), "it is decided")
    assert not any("paused" in task.state(i) for i in (4, 6, 8))
    process.terminate()
    assert process.wait(60) == 0


def test_error_file_and_output_are_apart(make_task: Any) -> None:
    task = make_task("#!/bin/sh\necho out\necho err >&2\n", error="%a.err")
    assert task.run() == 0
    assert (task.read("77_6.out"), task.read("6.err")) == ("out\n", "err\n")


def test_a_failed_member_harms_no_other_and_the_worst_exit_code_counts(make_task: Any) -> None:
    script = '#!/bin/sh\ncase $SLURM_ARRAY_TASK_ID in 4) echo "ValueError: no"; exit 3;; 6) kill -SEGV $$;; esac\n'
    task = make_task(script)
    assert task.run() == 128 + signal.SIGSEGV
    assert (task.state(4)["state"], task.state(4)["exit_code"]) == ("failed", 3)
    assert (task.state(6)["state"], task.state(6)["signal"]) == ("failed", signal.SIGSEGV)
    assert task.state(8)["state"] == "completed"
    # The end of its output, for the diagnosis of the task.
    assert "[4] ValueError: no" in task.read("task.out") and "1 of 3 members completed" in task.read("task.out")


def test_after_a_requeue_only_members_that_have_not_completed_run(make_task: Any) -> None:
    script = (
        "#!/bin/sh\necho run >> runs.$SLURM_ARRAY_TASK_ID\n"
        '[ "$SLURM_ARRAY_TASK_ID" != 6 ] || [ -n "$SLURM_RESTART_COUNT" ] || { touch hangs; exec sleep 600; }\n'
    )
    task = make_task(script)
    first = task.start()
    wait_until(lambda: [task.state(i).get("state") for i in (4, 8)] == ["completed"] * 2, "two members end")
    wait_until(lambda: task.read("runs.6"), "the third one runs")
    # The node is lost: nothing gets a signal that it can handle.
    first.kill()
    first.wait()
    assert task.state(6)["state"] == "running"
    assert task.run(SLURM_RESTART_COUNT="1") == 0
    assert [task.read(f"runs.{index}").count("run") for index in (4, 6, 8)] == [1, 2, 1]
    assert (task.state(6)["runs"], task.state(6)["restart"]) == (2, 1)


def test_no_member_outlives_the_wrapper(make_task: Any) -> None:
    task = make_task("#!/bin/sh\necho $$ > pid.$SLURM_ARRAY_TASK_ID\nexec sleep 600\n")
    process = task.start()
    wait_until(lambda: all(task.read(f"pid.{index}").strip() for index in (4, 6, 8)), "all members run")
    process.kill()
    process.wait()
    wait_until(lambda: not any(is_alive(int(task.read(f"pid.{index}"))) for index in (4, 6, 8)), "all are gone")


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that is dead and not yet waited for does not."""
    return read_process_state(pid) not in "ZX"


def read_process_state(pid: int) -> str:
    """Return the letter of proc_pid_stat(5); X if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


TRAP = (
    "#!/bin/sh\ntrap 'echo got USR1 >> caught.$SLURM_ARRAY_TASK_ID' USR1\n"
    "trap 'echo got TERM >> caught.$SLURM_ARRAY_TASK_ID; exit 0' TERM\n"
    "touch ready.$SLURM_ARRAY_TASK_ID\nwhile :; do sleep 0.1; done\n"
)


def wait_for_traps(task: Task) -> None:
    wait_until(lambda: all((task.place / f"ready.{index}").exists() for index in (4, 6, 8)), "all members are ready")


def test_a_signal_to_the_batch_shell_reaches_each_member_once(make_task: Any) -> None:
    task = make_task(TRAP)
    process = task.start()
    wait_for_traps(task)
    process.send_signal(signal.SIGUSR1)
    wait_until(lambda: all(task.read(f"caught.{index}") for index in (4, 6, 8)), "all get the signal")
    process.terminate()
    # A member that ends well after SIGTERM has saved its state, and has not completed.
    assert process.wait(60) == 0
    assert [task.read(f"caught.{index}") for index in (4, 6, 8)] == ["got USR1\ngot TERM\n"] * 3
    assert [task.state(index)["state"] for index in (4, 6, 8)] == ["stopped"] * 3


def test_a_signal_to_all_processes_is_not_sent_twice(make_task: Any) -> None:
    task = make_task(TRAP)
    process = task.start()
    wait_for_traps(task)
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    for pid in (*children, process.pid):
        os.kill(pid, signal.SIGUSR1)
    wait_until(lambda: all(task.read(f"caught.{index}") for index in (4, 6, 8)), "all get the signal")
    for pid in (*children, process.pid):
        os.kill(pid, signal.SIGTERM)
    assert process.wait(60) == 0
    assert [task.read(f"caught.{index}") for index in (4, 6, 8)] == ["got USR1\ngot TERM\n"] * 3


def test_a_member_whose_gpu_memory_was_full_runs_again_alone_and_once(make_task: Any) -> None:
    script = (
        "#!/bin/sh\necho run >> runs.$SLURM_ARRAY_TASK_ID\n"
        'if [ "$SLURM_ARRAY_TASK_ID" = 4 ]; then [ -e done.6 ] && [ -e done.8 ] && exit 0\n'
        "echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB' >&2; exit 1; fi\n"
        'if [ "$SLURM_ARRAY_TASK_ID" = 8 ]; then while ! [ -e done.6 ]; do sleep 0.05; done; fi\n'
        "touch done.$SLURM_ARRAY_TASK_ID\n"
    )
    task = make_task(script)
    assert task.run() == 0
    assert task.read("runs.4").count("run") == 2
    assert (task.state(4)["state"], task.state(4)["alone"], task.state(4)["runs"]) == ("completed", True, 2)
    # What the first run printed is kept.
    assert "CUDA out of memory" in task.read("77_4.out")


def test_a_member_that_also_fails_alone_is_not_run_a_third_time(make_task: Any) -> None:
    task = make_task("#!/bin/sh\necho run >> runs.$SLURM_ARRAY_TASK_ID\necho CUDA out of memory; exit 1\n", members=1)
    assert task.run() == 1
    assert task.read("runs.4").count("run") == 2
    assert not task.state(4)["gpu_oom"]


def test_one_member_is_cancelled_by_a_request(make_task: Any) -> None:
    task = make_task(
        "#!/bin/sh\ntouch ready.$SLURM_ARRAY_TASK_ID\n[ $SLURM_ARRAY_TASK_ID != 6 ] || exec sleep 600\n"
        "while ! [ -e go ]; do sleep 0.05; done\n"
    )
    process = task.start()
    wait_for_traps(task)
    request_cancel(task.pack, 6)
    wait_until(lambda: task.state(6).get("state") == "cancelled", "the member is cancelled")
    (task.place / "go").touch()
    assert process.wait(60) == 0
    assert [task.state(index)["state"] for index in (4, 8)] == ["completed"] * 2


def test_a_member_that_is_cancelled_before_its_start_is_not_run(make_task: Any) -> None:
    task = make_task("#!/bin/sh\necho ran\n")
    request_cancel(task.pack, 6)
    assert task.run() == 0
    assert (task.state(6)["state"], task.read("77_6.out"), task.read("77_8.out")) == ("cancelled", "", "ran\n")


def test_each_member_is_bound_to_its_share_of_the_tasks_cpus(make_task: Any) -> None:
    task = make_task(
        f"#!/bin/sh\nexec {sys.executable} -c 'import os; print(sorted(os.sched_getaffinity(0)))'\n", members=1
    )
    own = sorted(os.sched_getaffinity(0))
    assert task.run(SLURM_CPUS_ON_NODE=str(len(own))) == 0
    assert json.loads(task.read("77_4.out")) == own
    assert task.state(4)["cpus"] == own or len(own) == 1


def test_a_task_that_slurm_does_not_bind_binds_no_member(make_task: Any) -> None:
    task = make_task("#!/bin/sh\ntrue\n")
    assert task.run(SLURM_CPUS_ON_NODE="0") == 0
    assert task.state(4)["cpus"] == []


def test_a_script_without_interpreter_and_a_missing_output_directory_end_that_member_alone(make_task: Any) -> None:
    task = make_task("echo $SLURM_ARRAY_TASK_ID\n", output="%a/out")
    for index in (4, 8):
        (task.place / str(index)).mkdir()
    assert task.run() == 1
    assert task.state(6)["state"] == "failed"
    assert (task.read("4/out"), task.read("8/out")) == ("4\n", "8\n")
