"""slurmwrap watch on a real Slurm: on a terminal, in a pipe, as JSON, and how it ends."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import pwd
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from realslurm import MORE_USERS, Lab, command_environment, make_user
from waiting import allow, wait_for

from slurmwrap.model.evidence import RunKey
from slurmwrap.model.run_time import RunTimeSample
from slurmwrap.profiling.run_time import RunTimeQuery, RunTimeRecord
from slurmwrap.store.database import Database
from slurmwrap.store.user_state_files import UserState

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]

WATCH = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "watch"]
# If a shell started the tests in the background, they ignore SIGINT, and their child processes would ignore it too.
INTERRUPTIBLE = ["env", "--default-signal=INT"]
LONG = 86400  # seconds: longer than any test
SLEEP = "#!/bin/bash\nsleep {}\nexit {}\n"
# root may have records of jobs of other labs with the same ids
NO_OWN_RECORDS = {"XDG_STATE_HOME": "/nonexistent"}
GATED = "#!/bin/bash\nsleep 1\nuntil [ -e {} ]; do sleep 0.1; done\nexit {}\n"
_SEQUENCE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def submit_sleep(lab: Lab, user: str, seconds: float, *options: str, code: int = 0) -> str:
    return lab.submit("-o/dev/null", "-t1440", *options, user=user, script=SLEEP.format(seconds, code))


def submit_gated(lab: Lab, user: str, gate: Path, *options: str, code: int = 0) -> str:
    """A job that runs until the file `gate` exists, so that its RUNNING state cannot be missed."""
    return lab.submit("-o/dev/null", "-t1440", *options, user=user, script=GATED.format(gate, code))


def wait_until_no_jobs(lab: Lab, user: str) -> None:
    """Waits until the user has no pending, running or COMPLETING job: a cancelled job is COMPLETING for a while."""
    left = wait_for(lambda: lab.run(["squeue", "-h", f"--user={user}"]).stdout, lambda text: not text, 90)
    assert left == ""


class Terminal:
    """`slurmwrap watch` on its own pty."""

    def __init__(
        self, lab: Lab, *words: str, columns: int = 80, rows: int = 24, environ: dict[str, str] | None = None
    ) -> None:
        self.master, slave = pty.openpty()
        self.resize(columns, rows)
        more = {**NO_OWN_RECORDS, "TERM": "xterm-256color", **(environ or {})}
        environ = {**command_environment(None), **lab.env, **more}
        self.process = subprocess.Popen(
            [*INTERRUPTIBLE, *WATCH, *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environ,
            start_new_session=True,
        )
        os.close(slave)
        os.set_blocking(self.master, False)
        self.text = ""

    def resize(self, columns: int, rows: int = 24) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self) -> str:
        """All output so far."""
        try:
            while chunk := os.read(self.master, 65536):
                self.text += chunk.decode("utf-8", "replace")
        except OSError:  # no more output at the moment, or the other end is closed
            pass
        return self.text

    def until(self, what: str, timeout: float = 30.0) -> None:
        seen = wait_for(self.read, lambda text: what in text, timeout)
        assert what in seen, seen

    def press(self, keys: bytes, what: str, *, stopped: bool = False) -> None:
        """Press keys, or stop it as Ctrl-Z does on a controlling terminal, and wait until this is shown."""
        self.read()
        self.text = ""
        if stopped:
            self.process.send_signal(signal.SIGTSTP)
        else:
            os.write(self.master, keys)
        self.until(what)

    def ended(self, timeout: float = 30.0) -> int:
        def look() -> int | None:
            self.read()
            return self.process.poll()

        code = wait_for(look, lambda code: code is not None, timeout)
        self.read()
        assert code is not None, self.text
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        os.close(self.master)


@pytest.fixture
def user(lab: Lab, lab_users: tuple[str, str]) -> Iterator[str]:
    yield lab_users[0]
    lab.run(["scancel", f"--user={lab_users[0]}"])
    wait_until_no_jobs(lab, lab_users[0])


def test_a_terminal_view_is_redrawn_in_place_and_the_last_view_stays(lab: Lab, user: str, open_dir: Path) -> None:
    held = submit_gated(lab, user, open_dir / "gate", "-H", "-J", "sleeper")
    terminal = Terminal(lab, held, "--every", "1")
    try:
        terminal.until("it is held by its user (JobHeldUser)")
        terminal.until("Ctrl-C ends the view, not the job")
        terminal.resize(40)
        lab.run(["scontrol", "release", held])
        terminal.until("running for", 60)
        (open_dir / "gate").touch()
        assert terminal.ended(60) == 0
        assert "\x1b[1mjob" in terminal.text  # colour
        assert re.search(r"\x1b\[\dA\r\x1b\[J", terminal.text)  # the view is redrawn in place
        last = _SEQUENCE.sub("", terminal.text.rpartition("\x1b[J")[2]).replace("\r", "").splitlines()
        assert last[0].startswith(f"job {held} (sleeper): completed after")
        assert [line for line in last if len(line) > 40] == []
    finally:
        terminal.close()


def test_ctrl_c_ends_the_view_and_not_the_job(lab: Lab, user: str) -> None:
    running = submit_sleep(lab, user, LONG)
    lab.wait_job(running, ("RUNNING",))
    terminal = Terminal(lab, running)
    try:
        terminal.until("Ctrl-C ends the view")
        os.write(terminal.master, b"\x03")
        terminal.until("^C")  # a terminal discards earlier output before it echoes this
        terminal.process.send_signal(signal.SIGINT)  # the pty is not its controlling terminal
        assert terminal.ended() == 130
        assert f"slurmwrap: watching ends; job {running} continues" in terminal.text
    finally:
        terminal.close()
    assert lab.states(running) == ["RUNNING"]


def test_a_pipe_gets_one_line_per_change_and_watch_exits_with_1_for_a_failed_job(
    lab: Lab, user: str, open_dir: Path
) -> None:
    held = submit_gated(lab, user, open_dir / "gate", "-H", code=3)
    environ = {**command_environment(None), **lab.env, **NO_OWN_RECORDS}
    piped = subprocess.Popen(
        [*WATCH, held, "--every", "1"], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert piped.stdout is not None
    first = piped.stdout.readline()
    lab.run(["scontrol", "release", held])
    running = next(line for line in iter(piped.stdout.readline, "") if "running" in line)
    (open_dir / "gate").touch()
    rest, errors = piped.communicate(timeout=allow(60))
    assert (piped.returncode, errors, "\x1b" in first + rest) == (1, "", False)
    assert f"job {held} (sbatch): pending" in first
    assert "it is held by its user (JobHeldUser)" in first
    lines = rest.splitlines()
    assert f"job {held} (sbatch): running for" in running
    ended = next(line for line in lines if "failed with exit code 3" in line)
    assert re.match(
        rf"\d\d:\d\d:\d\d job {held} \(sbatch\): failed with exit code 3 after \d+ s on n\d, 1 node$", ended
    )
    assert lines[-1] == f"slurmwrap why {held} shows more"


def test_an_array_is_shown_as_task_counts_in_text_and_json(lab: Lab, user: str) -> None:
    array = submit_sleep(lab, user, LONG, "--array=0-49%3")
    shown = lab.run([*WATCH, array, "--once"], user=user)
    assert shown.returncode == 0
    assert re.search(rf"job {array} \(sbatch\): (\d+ \w+, )*\d+ \w+; ", shown.stdout)
    assert shown.stdout.count("\n") == 1
    progress = json.loads(lab.run([*WATCH, array, "--once", "--json"], user=user).stdout)
    assert (progress["job"], progress["state"], sum(progress["tasks"].values())) == (array, None, 50)
    lab.run(["scancel", array])
    done = lab.run([*WATCH, array, "--json", "--every", "1"], user=user)
    assert done.returncode == 1
    objects = [json.loads(line) for line in done.stdout.splitlines()]
    assert "CANCELLED" in objects[-1]["tasks"]


def test_the_state_of_the_pre_run_and_the_last_output_line_are_shown(lab: Lab, user: str, open_dir: Path) -> None:
    full = lab.submit("-o/dev/null", "-t5", "--nodes=8", "--exclusive", user=user, script=SLEEP.format(LONG, 0))
    lab.wait_job(full, ("RUNNING",))
    open_dir.chmod(0o777)
    script = open_dir / "train.sh"
    script.write_text(f"#!/bin/bash\necho epoch 1\nuntil [ -e {open_dir}/gate ]; do sleep 0.1; done\n")
    options = ["-G2", "-N1", "-t5", "--prerun=auto", f"-o{open_dir}/out"]
    sent = lab.run([sys.executable, "-m", "slurmwrap.gsub.gsub_main", *options, str(script)], user=user, cwd=open_dir)
    job = sent.stdout.split()[-1]
    progress = wait_for(
        lambda: json.loads(lab.run([*WATCH, job, "--once", "--json"], user=user).stdout),
        lambda found: found["prerun"]["pending_reason"] == "Resources",
        60,
    )
    prerun = progress["prerun"]["job"]
    assert progress["prerun"]["state"] == "PENDING"
    # On a full cluster the job keeps its place in the queue, unless an answer of Slurm of some seconds ago is used.
    next_in_line = "it is the next in line, and what it asks for is not free yet"
    assert progress["reason_words"] in ("it waits for its pre-run", next_in_line)
    line = lab.run([*WATCH, job, "--once"], user=user).stdout
    assert f"; pre-run (job {prerun}) waits for a free GPU" in line
    # The cluster stays full: without it the job would start at once, since it keeps its place.
    lab.run(["scancel", str(prerun)])
    left = lab.run([*WATCH, job, "--once"], user=user).stdout
    assert f"pre-run (job {prerun}) cancelled; it left no verdict" in left or "pre-run inconclusive" in left
    lab.run(["scancel", full])
    lab.run(["scontrol", "update", f"jobid={job}", "StartTime=now"], user=user)
    lab.wait_job(job, ("RUNNING",))
    output = wait_for(
        lambda: json.loads(lab.run([*WATCH, job, "--once", "--json"], user=user).stdout)["output"],
        lambda found: found and found["last_line"] == "epoch 1",
        60,
    )
    assert output["last_at"] > 0 and output["silent_s"] is None


def keep_run_times(lab: Lab, user: str, state: Path, gpus: int, run_s: float) -> None:
    """Writes a database of the user with five runs of this length."""
    account = pwd.getpwnam(user)
    job = RunTimeQuery(user=str(account.pw_uid), gpus=gpus, partition="gpu")
    state.mkdir(parents=True)
    with Database.open(UserState(state).database) as database:
        for number in range(1, 6):
            database.save_run_time(
                RunTimeRecord(
                    attempt=RunKey(cluster=lab.cluster, job_id=number, submit_time=number),
                    uid=account.pw_uid,
                    end_time=10_000 + number,
                    job=job,
                    sample=RunTimeSample(run_s=run_s),
                )
            )
    for path in (state, *state.iterdir()):
        os.chown(path, account.pw_uid, account.pw_gid)


def test_start_and_end_are_forecast_by_the_run_times_of_earlier_jobs(lab: Lab, user: str, open_dir: Path) -> None:
    keep_run_times(lab, user, open_dir / "slurmwrap", gpus=64, run_s=3600.0)
    # Other tests' jobs of this size may be among the run times that the lab's reconciler published.
    known = {"XDG_STATE_HOME": str(open_dir), "SLURMWRAP_SITE_PUBLISHED": ""}
    full = submit_sleep(lab, user, LONG, "--nodes=8", "--gres=gpu:8")
    lab.wait_job(full, ("RUNNING",))
    waiting = submit_sleep(lab, user, LONG, "--nodes=1", "--gres=gpu:1")
    start = wait_for(
        lambda: json.loads(lab.run([*WATCH, waiting, "--once", "--json"], user=user, env=known).stdout),
        lambda found: found["forecast_start"] is not None,
        90,
    )
    end = json.loads(lab.run([*WATCH, full, "--once", "--json"], user=user, env=known).stdout)["forecast_end"]
    assert (start["forecast_start"]["jobs"], start["forecast_start"]["predicted"]) == (1, 1)
    assert (end["source"], end["runs"]) == ("user", 5)
    # Both by the same expected run time of about an hour, and not by the time limit of a day.
    assert abs(start["forecast_start"]["at"] - end["at"]) < 600
    assert abs(end["at"] - start["at"] - 3600) < 600


def test_another_users_job_is_shown_with_fewer_fields(lab: Lab, lab_users: tuple[str, str], user: str) -> None:
    running = submit_sleep(lab, user, LONG)
    lab.wait_job(running, ("RUNNING",))
    progress = json.loads(lab.run([*WATCH, running, "--once", "--json"], user=lab_users[1]).stdout)
    assert (progress["state"], progress["prerun"], progress["steps"]) == ("RUNNING", None, None)


def test_newest_is_the_newest_job_that_is_no_pre_run(lab: Lab, user: str) -> None:
    submit_sleep(lab, user, 1, "-H")
    newest = submit_sleep(lab, user, 1, "-H")
    submit_sleep(lab, user, 1, "-H", "-J", "x.prerun")
    assert f" job {newest} (" in lab.run([*WATCH, "--newest", "--once"], user=user).stdout


def test_all_jobs_are_listed_live_and_the_terminal_is_left_as_it_was(lab: Lab, open_dir: Path) -> None:
    """A search, a job, its log, an array with its tasks, a stop and a cancelled job; all of root, who owns the pty."""
    out = open_dir / "out"
    script = f"#!/bin/bash\nprintf 'epoch 1\\033]0;title\\007\\n'\nuntil [ -e {open_dir}/gate ]; do sleep 0.1; done\n"
    job = lab.submit(f"-o{out}", "-t1440", "-J", "trains", user="root", script=script)
    array = submit_sleep(lab, "root", LONG, "-H", "-J", "sweep", "--array=0-5")
    lab.wait_job(job, ("RUNNING",))
    terminal = Terminal(lab, "--every", "1")
    modes = termios.tcgetattr(terminal.master)
    try:
        terminal.until("6 pending, JobHeldUser")
        terminal.press(b"/trains\r", "'trains' of")
        terminal.press(b"\r", f"job {job} (trains): running for")
        terminal.press(b"l", "epoch 1")
        terminal.press(b"\x1b", "Esc back, l log")
        terminal.press(b"q", "Enter opens")
        terminal.press(b"\x1b/sweep\r ", f"{array}_[0-5]")
        terminal.press(b"\x1a", "\x1b[?1049l", stopped=True)
        terminal.process.send_signal(signal.SIGCONT)
        terminal.until("Enter opens")
        terminal.press(b"x", f"cancel job {array}?")
        terminal.press(b"y", "cancelled")
        assert lab.states(array) == ["CANCELLED"]
        (open_dir / "gate").touch()
        terminal.press(b"\x1b", "completed")
        terminal.press(b"q", "\x1b[?1049l")
        assert terminal.ended() == 0
        assert termios.tcgetattr(terminal.master) == modes
    finally:
        terminal.close()
        lab.run(["scancel", job, array])


def test_the_output_of_a_job_is_followed_until_its_end(lab: Lab, user: str, open_dir: Path) -> None:
    open_dir.chmod(0o777)
    gate = open_dir / "gate"
    script = f"#!/bin/bash\necho one\nuntil [ -e {gate} ]; do sleep 0.1; done\necho two\nexit 3\n"
    job = lab.submit(f"-o{open_dir}/out", "-t1440", user=user, script=script)
    lab.wait_job(job, ("RUNNING",))
    gate.touch()
    done = lab.run([*WATCH, job, "--follow", "--every", "1"], user=user)
    assert (done.returncode, done.stdout) == (1, "one\ntwo\n")
    assert f"job {job} (sbatch): failed with exit code 3" in done.stderr
    assert done.stderr.endswith(f"slurmwrap why {job} shows more\n")


def test_a_job_unknown_to_slurm_is_an_error(lab: Lab, lab_users: tuple[str, str]) -> None:
    done = lab.run([*WATCH, "999999"], user=lab_users[1])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "slurmwrap: error: Slurm does not know job 999999: it ended a while ago, or it never existed",
        "slurmwrap: slurmwrap why 999999 shows its records; slurmwrap history lists your jobs",
    ]


def test_watch_of_a_user_without_jobs_is_an_error(lab: Lab) -> None:
    """The user never had a job: Slurm still shows ended jobs of other users, and a cancelled job is COMPLETING."""
    make_user(MORE_USERS[0])
    done = lab.run([*WATCH, "--newest"], user=MORE_USERS[0])
    answer = (done.returncode, done.stderr.splitlines()[:1])
    assert answer == (1, ["slurmwrap: error: Slurm knows no job of yours now"])
    everything = lab.run([*WATCH, "--once"], user=MORE_USERS[0])
    assert (everything.returncode, everything.stdout[:32]) == (0, "Slurm knows no job of yours now.")


def test_a_closed_output_pipe_ends_watch_without_a_message(lab: Lab, user: str, tmp_path: Path) -> None:
    held = submit_sleep(lab, user, 1, "-H")
    script = f"{' '.join(WATCH)} {held} --every 1 | head -n1; echo ${{PIPESTATUS[0]}}"
    (tmp_path / "x.sh").write_text(script)
    environ = {**command_environment(None), **lab.env, **NO_OWN_RECORDS}
    piped = subprocess.Popen(
        ["bash", str(tmp_path / "x.sh")], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert piped.stdout is not None
    assert "JobHeldUser" in piped.stdout.readline()
    lab.run(["scontrol", "release", held])
    rest, errors = piped.communicate(timeout=allow(60))
    assert (rest, errors) == ("141\n", "")
