"""The program that runs a job of --share and a second one on its GPU, as a real process; Slurm is replaced."""

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

from slurmwrap.inject import slurmwrap_share
from slurmwrap.inject.slurmwrap_share import SharedJob, fits_allocation, parse_time

DEMAND = {"cpus": 2.0, "mem_mib": 1000}
# squeue prints the file `queue`; scontrol adds its arguments to `updates` and obeys the file `refuses`.
SQUEUE = "#!/bin/sh\necho >> {place}/looks; cat {place}/queue\n"
SCONTROL = '#!/bin/sh\n[ -e {place}/refuses ] && exit 1\necho "$*" >> {place}/updates\n'
HOLD = "touch holds; while ! [ -e go ]; do sleep 0.05; done\n"


class User:
    """A user's directory of shared jobs, and what Slurm says about them."""

    def __init__(self, place: Path) -> None:
        self.place, self.share = place, place / "share"
        for name in ("bin", "share/waiting", "share/running"):
            (place / name).mkdir(parents=True)
        for name, text in (("squeue", SQUEUE), ("scontrol", SCONTROL), ("srun", "#!/bin/sh\nenv\n")):
            (place / "bin" / name).write_text(text.format(place=place))
            (place / "bin" / name).chmod(0o755)
        self.queue = {"1": "RUNNING|30:00|1:00:00|(null)|None", "2": "PENDING|10:00|10:00|(null)|Priority"}
        self.answer()
        self.started: list[subprocess.Popen[bytes]] = []

    def answer(self, **rows: str) -> None:
        """Sets the rows of squeue; an empty row: Slurm no longer lists the job."""
        self.queue |= {name.removeprefix("job"): row for name, row in rows.items()}
        lines = "".join(f"{job}|{row}\n" for job, row in self.queue.items() if row)
        (self.place / "queue.new").write_text(lines)
        (self.place / "queue.new").replace(self.place / "queue")

    def add(self, name: str, script: str, *, job: str = "", **spec: Any) -> Path:
        """Writes the files of a job as gsub does; with `job` it waits in Slurm's queue."""
        directory = self.share / name
        directory.mkdir()
        (directory / "slurm_script").write_text("#!/bin/bash\n" + script)
        plain = {
            "demand": DEMAND,
            "pairs": {},
            "time_s": 60.0,
            "args": [],
            "chdir": str(self.place),
            "submit_dir": "/",
            "job_name": name,
            "output": "%x-%j.out",
            "error": None,
            "truncate": True,
            "umask": 0o022,
            "cpus_per_task": 2,
            "look_s": 0,
            "lease_s": 900,
        }
        (directory / "spec.json").write_text(json.dumps(plain | spec))
        (directory / "environment.json").write_text(json.dumps({**os.environ, "PATH": self.path, "OWN": name}))
        if job:
            (self.share / "waiting" / name).write_text(job)
        return directory

    @property
    def path(self) -> str:
        return f"{self.place / 'bin'}:{os.environ['PATH']}"

    def start(self, name: str, job: str, **variables: str) -> subprocess.Popen[bytes]:
        """Starts a job as Slurm does, with 4 CPUs and 4 GiB."""
        environ = {**os.environ, "PATH": self.path, "SLURM_JOB_ID": job, "SLURMD_NODENAME": "n1"}
        environ |= {"SLURM_CPUS_ON_NODE": "4", "SLURM_MEM_PER_NODE": "4096", "CUDA_VISIBLE_DEVICES": "3"} | variables
        with (self.place / f"{name}.out").open("ab") as output:
            words = [sys.executable, "-I", slurmwrap_share.__file__, str(self.share / name)]
            process = subprocess.Popen(words, cwd=self.place, env=environ, stdout=output, stderr=output)
        self.started.append(process)
        return process

    def go(self) -> None:
        (self.place / "go").touch()

    def read(self, name: str) -> str:
        path = self.place / name
        return path.read_text() if path.exists() else ""

    def claim(self, name: str) -> dict[str, Any]:
        return json.loads(self.read(f"share/{name}/claim.json") or "{}")

    def last(self, name: str) -> dict[str, Any]:
        return json.loads(self.read(f"share/{name}/last.json") or "{}")


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    one = User(tmp_path)
    yield one
    for process in one.started:
        if process.poll() is None:
            process.kill()
            process.wait()


def pair(name: str, speed: float = 0.9) -> dict[str, Any]:
    return {"pairs": {name: {"speed": speed}}}


def test_a_waiting_job_runs_beside_the_one_with_the_gpu_and_ends_with_its_own_exit_code(user: User) -> None:
    user.add("a", HOLD + "exit 4\n")
    script = "echo $OWN $1 $SLURM_JOB_ID $SLURM_JOB_NAME $CUDA_VISIBLE_DEVICES $SLURM_CPUS_PER_TASK $SLURM_OVERLAP\n"
    step = "srun | grep -e ^SLURM_JOB_ID -e PROLOG | sort\n"
    user.add("b", script + step + "echo ran >> runs; exit 3\n", job="2", args=["x y"], **pair("a"))
    (user.place / "b-2.out").write_text("of an earlier job\n")
    holder = user.start("a", "1", SLURM_CPUS_PER_TASK="4")
    wait_until(lambda: user.claim("b").get("state") == "failed", "the guest ends")
    shown = user.read("b-2.out").splitlines()
    assert shown[0] == "b x y 2 b 3 2 1"
    # A step belongs to the job with the allocation, which its program need not know.
    assert shown[1:3] == ["SLURM_JOB_ID=1", f"SLURM_TASK_PROLOG={user.share}/b/bin/task_prolog"]
    assert (user.claim("b")["by"], user.claim("b")["exit_code"]) == ("1", 3)
    user.go()
    assert holder.wait(60) == 4
    # Slurm starts it at last: it ends at once, as its script ended.
    assert user.start("b", "2").wait(60) == 3
    assert user.read("runs") == "ran\n"
    assert user.read("b.out") == ""
    assert user.read("updates").splitlines()[:2] == [
        "update JobId=2 StartTime=now+900",
        "update JobId=2 StartTime=now",
    ]
    # After a requeue it runs by itself.
    assert user.start("b", "2", SLURM_RESTART_COUNT="1").wait(60) == 3
    assert user.read("runs") == "ran\nran\n"


def test_a_job_that_completed_beside_another_one_gets_a_short_time_limit(user: User) -> None:
    user.add("a", HOLD)
    user.add("b", "true\n", job="2", **pair("a"))
    holder = user.start("a", "1")
    wait_until(lambda: user.claim("b").get("state") == "completed", "the guest ends")
    assert "update JobId=2 TimeLimit=1" in user.read("updates").splitlines()
    user.go()
    assert holder.wait(60) == 0
    assert user.start("b", "2").wait(60) == 0
    # With that limit it could not run again.
    assert user.start("b", "2", SLURM_RESTART_COUNT="1").wait(60) == 1
    assert "gsub --again 2" in user.read("b.out")


ROW = "PENDING|10:00|10:00|(null)|Priority"


def test_a_job_that_does_not_suit_is_left_alone(user: User) -> None:
    user.add("a", HOLD)
    unfit: list[tuple[str, dict[str, Any]]] = [
        (ROW, {"pairs": {}}),
        (ROW, {"demand": {**DEMAND, "cpus": 3.0}}),
        (ROW, {"demand": {**DEMAND, "mem_mib": 3000}}),
        (ROW, {"time_s": 1700.0}),
        ("PENDING|UNLIMITED|UNLIMITED|(null)|Priority", {"time_s": None}),
        ("PENDING|10:00|10:00|afterok:9(unfulfilled)|Dependency", {}),
        ("PENDING|10:00|10:00|(null)|JobHeldUser", {}),
        ("PENDING|10:00|10:00|(null)|BeginTime", {}),
        ("PENDING|10:00|10:00|(null)|QOSMaxJobsPerUserLimit", {}),
        ("RUNNING|10:00|10:00|(null)|None", {}),
    ]
    for number, (row, spec) in enumerate(unfit, 10):
        user.answer(**{f"job{number}": row})
        user.add(f"b{number}", f"touch ran.{number}\n", job=str(number), **(pair("a") | spec))
    # One that suits less well than the others would shows that all were looked at.
    user.add("c", "true\n", job="2", **pair("a", 0.61))
    holder = user.start("a", "1")
    wait_until(lambda: user.claim("c").get("state") == "completed", "the guest ends")
    user.go()
    assert holder.wait(60) == 0
    assert [path.name for path in user.place.glob("ran.*")] == []
    assert sorted(path.parent.name for path in user.share.glob("*/claim.json")) == ["a", "c"]
    assert {line.split()[1] for line in user.read("updates").splitlines()} == {"JobId=2"}


def test_a_job_for_which_others_wait_takes_no_guest_that_would_delay_its_end(user: User) -> None:
    user.answer(job3="PENDING|10:00|10:00|afterok:1(unfulfilled)|Dependency")
    user.add("a", HOLD)
    user.add("b", "touch ran\n", job="2", **pair("a"))
    holder = user.start("a", "1")
    wait_until(lambda: user.read("looks").count("\n") >= 2, "it looks twice")
    user.go()
    assert holder.wait(60) == 0
    assert (user.claim("b"), (user.place / "ran").exists()) == ({}, False)


def test_a_job_that_slurm_starts_at_the_same_moment_is_not_taken(user: User) -> None:
    (user.place / "refuses").touch()
    user.add("a", HOLD)
    user.add("b", "touch ran\n", job="2", **pair("a"))
    holder = user.start("a", "1")
    wait_until(lambda: user.read("looks").count("\n") >= 2, "it looks twice")
    user.go()
    assert holder.wait(60) == 0
    assert (user.claim("b"), (user.place / "ran").exists()) == ({}, False)


def test_when_the_holder_is_cancelled_the_other_job_runs_by_itself_once(user: User) -> None:
    user.add("a", HOLD)
    user.add("b", 'echo "${SLURM_RESTART_COUNT:-first}" >> runs; [ -e go ] || sleep 600\n', job="2", **pair("a"))
    holder = user.start("a", "1")
    wait_until(lambda: user.read("runs") == "first\n", "the guest runs")
    holder.send_signal(signal.SIGTERM)
    assert holder.wait(60) == -signal.SIGTERM
    assert (user.claim("b"), user.last("b")["state"]) == ({}, "stopped")
    assert user.read("updates").splitlines()[-1] == "update JobId=2 StartTime=now"
    user.go()
    assert user.start("b", "2").wait(60) == 0
    # It sees that it was started before, as after a requeue.
    assert user.read("runs") == "first\n1\n"
    assert user.claim("b") == {"by": "2", "state": "own"}


def test_a_job_that_its_user_cancels_ends_also_beside_another_one(user: User) -> None:
    user.add("a", HOLD)
    user.add("b", "echo $$ > pid; exec sleep 600\n", job="2", **pair("a"))
    holder = user.start("a", "1")
    wait_until(lambda: bool(user.read("pid").strip()), "the guest runs")
    user.answer(job2="")
    wait_until(lambda: user.last("b").get("state") == "cancelled", "it ends")
    assert not Path(f"/proc/{user.read('pid').strip()}").exists()
    user.go()
    assert holder.wait(60) == 0


@pytest.mark.parametrize("end", ["kill -9 $$", "echo CUDA out of memory; exit 1"])
def test_a_job_that_fails_because_of_the_other_one_runs_by_itself(user: User, end: str) -> None:
    user.add("a", HOLD)
    user.add("b", f"echo ran >> runs; [ -e go ] || {{ {end}; }}\n", job="2", **pair("a"))
    holder = user.start("a", "1")
    wait_until(lambda: user.last("b").get("state") == "alone", "the guest ends")
    user.go()
    assert holder.wait(60) == 0
    assert user.start("b", "2").wait(60) == 0
    assert user.read("runs") == "ran\nran\n"


def test_a_holder_that_loses_its_gpu_memory_to_another_job_runs_again_without_it(user: User) -> None:
    script = 'echo "${SLURM_RESTART_COUNT:-0}" >> holder\n[ -e up ] && exit 0\n'
    script += "while ! [ -e up ]; do sleep 0.05; done; echo torch.OutOfMemoryError >&2; exit 1\n"
    user.add("a", script)
    user.add("b", "touch up; exec sleep 600\n", job="2", **pair("a"))
    assert user.start("a", "1").wait(60) == 0
    assert user.read("holder") == "0\n1\n"
    assert user.last("b")["state"] == "alone"


def test_a_job_waits_for_its_end_elsewhere_and_takes_over_from_a_lost_holder(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = user.add("b", "true\n")
    record = {"by": "1", "token": "t", "state": "running"}
    (directory / "claim.json").write_text(json.dumps(record))
    beats = iter(range(3))

    def wait(seconds: float) -> None:
        assert user.claim("b") == record
        # It shows life three times; then nothing more is heard of it.
        (directory / "beat").write_text(str(next(beats, "last")))

    now = iter(range(0, 1000, 20))
    monkeypatch.setattr(slurmwrap_share.time, "sleep", wait)
    monkeypatch.setattr(slurmwrap_share.time, "monotonic", lambda: float(next(now)))
    job = SharedJob(str(directory), [], {"SLURM_JOB_ID": "2"})
    assert job._find_end_as_guest() is None
    assert (directory / "wanted").exists()  # a holder that lives ends its guest for it
    assert next(beats, None) is None
    assert (user.claim("b")["by"], user.last("b")) == ("2", record)


def test_a_holder_ends_its_guest_when_the_job_itself_has_started(user: User) -> None:
    user.add("a", HOLD)
    user.add("b", "echo ran >> runs; [ -e go ] || exec sleep 600\n", job="2", **pair("a"))
    holder = user.start("a", "1")
    wait_until(lambda: user.read("runs") == "ran\n", "the guest runs")
    itself = user.start("b", "2")
    wait_until(lambda: user.read("runs") == "ran\nran\n", "it runs by itself")
    assert user.claim("b") == {"by": "2", "state": "own"}
    user.go()
    assert holder.wait(60) == 0
    itself.kill()


def test_a_signal_ends_the_batch_script_as_it_ended_the_users(user: User) -> None:
    user.add("a", "kill -SEGV $$\n")
    assert user.start("a", "1").wait(60) == -signal.SIGSEGV
    assert not (user.share / "a" / "environment.json").exists()


def test_outputs_are_emptied_and_a_requeued_job_runs_again(user: User) -> None:
    user.add("a", "echo new; echo ran >> runs\n")
    (user.place / "a.out").write_text("of an earlier job\n")
    assert user.start("a", "1").wait(60) == 0
    assert user.read("a.out") == "new\n"
    # After a requeue the job is still its own.
    assert user.start("a", "1", SLURM_RESTART_COUNT="1").wait(60) == 0
    assert user.read("runs") == "ran\nran\n"


def test_cpus_and_memory_of_both_must_fit() -> None:
    environ = {"SLURM_CPUS_ON_NODE": "4", "SLURM_MEM_PER_CPU": "1000"}
    assert fits_allocation(DEMAND, {"cpus": 2, "mem_mib": 2600}, environ)
    assert not fits_allocation(DEMAND, {"cpus": 2, "mem_mib": 2601}, environ)
    assert not fits_allocation(DEMAND, {"cpus": 2, "mem_mib": None}, environ)
    assert fits_allocation(DEMAND, {"cpus": 2, "mem_mib": None}, {"SLURM_CPUS_ON_NODE": "4"})
    assert not fits_allocation(DEMAND, {"cpus": 2.5, "mem_mib": 1}, environ)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1-02:03:04", 93784), ("03:04", 184), ("10:00:00", 36000), ("UNLIMITED", float("inf")), ("INVALID", 0)],
)
def test_times_of_squeue(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds
