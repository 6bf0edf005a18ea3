"""Reading all jobs: by one call of squeue, with records, forecasts and files; a file system that hangs; the output."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import wait_for

from slurmwrap.cli.record_access import RecordSource
from slurmwrap.cli.watch import job_list_reader
from slurmwrap.cli.watch.background_poll import BackgroundPoll, compute_pause
from slurmwrap.cli.watch.full_screen import decode_keys
from slurmwrap.cli.watch.job_list_reader import JobListReader, read_log_page
from slurmwrap.cli.watch.job_list_view import print_changes, print_list_once
from slurmwrap.cli.watch.job_status import JobStatus
from slurmwrap.cli.watch.log_follower import LogFollower, make_printable
from slurmwrap.cli.watch.watch_output import ScreenStyle
from slurmwrap.config.load_config import Config
from slurmwrap.errors import SlurmError, SlurmUnreachable
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.running_job import DIVERGED, EarlyFinding
from slurmwrap.slurm.squeue_parser import WatchedJob
from slurmwrap.store.database import Database

ME = os.geteuid()
RUNNING = JobRecord(
    job_id=81, name="train", user="ada", uid=ME, state="RUNNING", num_nodes=1, submit_time=900, start_time=1000,
    nodes=("n0",), time_limit_s=3600,
)  # fmt: skip
ENDED = replace(RUNNING, job_id=82, state="COMPLETED", end_time=1060)
TASK = replace(RUNNING, job_id=101, array_job_id=77, array_task_id=1)


class ScriptedSlurm:
    """Returns a given series of queues, or errors."""

    def __init__(self, *queues: tuple[JobRecord, ...] | SlurmError) -> None:
        self.queues, self.calls = list(queues), 0

    def jobs_of(self, user: str) -> tuple[WatchedJob, ...]:
        self.calls += 1
        found = self.queues.pop(0) if len(self.queues) > 1 else self.queues[0]
        if isinstance(found, SlurmError):
            raise found
        return tuple(WatchedJob(record=one) for one in found)

    def cluster_name(self) -> str:
        return "c"


def make_reader(slurm: ScriptedSlurm, folder: Path) -> JobListReader:
    source = RecordSource(database=folder / "user.db", site=False, uid=ME)
    environ = {"XDG_STATE_HOME": str(folder), "SLURM_CONF": "/nonexistent"}
    return JobListReader("ada", slurm, (source,), Config(), environ)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_accounting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_list_reader, "find_final_state", lambda address, *_: "FAILED" if address == "81" else "")


def test_all_jobs_are_read_by_one_call_of_squeue(tmp_path: Path) -> None:
    slurm = ScriptedSlurm((RUNNING, ENDED, TASK))
    jobs = make_reader(slurm, tmp_path).look()
    assert ([one.address for one in jobs.jobs], slurm.calls, jobs.user) == (["81", "82", "77"], 1, "ada")


def test_jobs_that_slurm_forgets_stay_in_the_list_with_their_end(tmp_path: Path) -> None:
    other = replace(RUNNING, job_id=83)
    reader = make_reader(ScriptedSlurm((RUNNING, ENDED, other), ()), tmp_path)
    reader.look()
    jobs = reader.look()
    assert {one.address: one.record.state for one in jobs.jobs} == {"81": "FAILED", "82": "COMPLETED"}
    assert (jobs.forgotten, jobs.ended, jobs.completed) == (1, True, False)


def test_findings_and_progress_are_added(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("step 100/1000 loss nan\n")
    with Database.open(tmp_path / "user.db") as database:
        run = RunKey(cluster="c", job_id=81, submit_time=900)
        finding = EarlyFinding(
            attempt=run, kind=DIVERGED, at=1500.0, n=5, evidence="loss nan", uid=ME, address="81", mode="advise"
        )
        for one in (
            finding,
            replace(finding, attempt=replace(run, job_id=82)),
            replace(finding, kind="stuck", gone_at=1600.0),
            replace(finding, attempt=replace(run, submit_time=1)),
        ):
            database.save_early_finding(one)
    reader = make_reader(ScriptedSlurm((replace(RUNNING, std_out=str(out)), replace(TASK, std_out=str(out)))), tmp_path)
    job, array = reader.look(("77_1",)).jobs
    assert job.status.findings == (finding,)
    assert job.status.output is not None
    assert job.status.output.last_line == "step 100/1000 loss nan"
    # Of an array the tasks on the screen are read.
    assert array.tasks["77_1"].output == job.status.output


def test_tasks_that_slurm_had_forgotten_are_recalled_from_the_records(tmp_path: Path) -> None:
    waits = replace(RUNNING, job_id=77, array_job_id=77, state="PENDING", array_tasks="5-9", start_time=None)
    with Database.open(tmp_path / "user.db") as database:
        for number, (state, submitted) in enumerate((("FAILED", 900), ("COMPLETED", 900), ("FAILED", 100))):
            run = RunKey(cluster="c", job_id=200 + number, submit_time=submitted)
            database.save_attempt(JobRun(attempt=run, address=f"77_{number + 2}", uid=ME, state=state))
    (array,) = make_reader(ScriptedSlurm((waits, TASK)), tmp_path).look().jobs
    # The last one is of an older job with the same id.
    assert array.counts == {"PENDING": 5, "RUNNING": 1, "FAILED": 1, "COMPLETED": 1}


def test_files_that_do_not_answer_hold_up_neither_the_list_nor_other_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, reading = threading.Event(), threading.Event()
    monkeypatch.setattr(job_list_reader, "_WAIT_S", 0.05)

    class HangingFacts:
        def __init__(self, *_: object) -> None:
            pass

        def add(self, status: JobStatus, *_: object) -> JobStatus:
            if status.address == "81":
                reading.set()
                release.wait(60)
            return replace(status, counts_steps=True)

    monkeypatch.setattr(job_list_reader, "OwnerFacts", HangingFacts)
    reader = make_reader(ScriptedSlurm((RUNNING, replace(RUNNING, job_id=83))), tmp_path)
    try:
        assert [one.status.counts_steps for one in reader.look(("81",)).jobs] == [False, False]
        assert reading.wait(60)
        monkeypatch.setattr(job_list_reader, "_HUNG_S", 0.0)
        found = wait_for(
            lambda: [one.status.counts_steps for one in reader.look(("81",)).jobs], lambda got: got == [False, True], 60
        )
        assert found == [False, True]
    finally:
        release.set()


def test_a_pipe_gets_a_line_per_change_of_each_job_until_all_have_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    no_answer = SlurmUnreachable("squeue: no answer")
    slurm = ScriptedSlurm((RUNNING, ENDED), (RUNNING, ENDED), no_answer, (replace(RUNNING, state="FAILED"), ENDED))
    waited: list[float] = []
    completed = print_changes(make_reader(slurm, tmp_path), 5.0, ScreenStyle(), waited.append, as_json=False)
    found = capsys.readouterr()
    lines = [line.partition(" job ")[2] for line in found.out.splitlines()]
    assert (completed, waited) == (False, [5.0, 6.25, 5.0])
    assert [line.split(":")[0] for line in lines] == ["81 (train)", "82 (train)", "81 (train)"]
    assert lines[2].startswith("81 (train): failed")
    assert found.err == "Slurm does not answer (squeue: no answer)\n"


def test_once_prints_the_table_or_one_object_per_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = make_reader(ScriptedSlurm((RUNNING, ENDED)), tmp_path).look()
    print_list_once(jobs, ScreenStyle(), as_json=False)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["2", "JOB", "81", "82"]
    print_list_once(jobs, ScreenStyle(), as_json=True)
    assert capsys.readouterr().out.count('"kind": "slurmwrap.watch"') == 2
    print_list_once(replace(jobs, jobs=()), ScreenStyle(), as_json=False)
    assert capsys.readouterr().out.startswith("Slurm knows no job of yours now")


# --- polls and keys ---------------------------------------------------------------------------------------------------


def test_a_poll_reads_in_the_background_and_raises_its_errors() -> None:
    answers: list[int | Exception] = [1, SlurmError("refused"), 2]
    ended = threading.Semaphore(0)

    def read() -> int:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    poll = BackgroundPoll(read, 0.0, wake=ended.release)
    assert (poll.poll(), poll.wait(60), poll.value) == (False, True, 1)
    poll.poll()
    with pytest.raises(SlurmError):
        poll.wait(60)
    poll.poll()
    assert (poll.wait(60), poll.value, poll.busy_s) == (True, 2, 0.0)
    assert all(ended.acquire(timeout=60) for _ in range(3))


def test_the_pause_grows_while_nothing_changes() -> None:
    assert [compute_pause(5.0, 5.0, False), compute_pause(5.0, 5.0, True), compute_pause(59.0, 5.0, True)] == [
        5.0,
        6.25,
        60.0,
    ]


@pytest.mark.parametrize(
    ("given", "keys", "rest"),
    [
        (b"jq", ["j", "q"], b""),
        (b"\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1b[4~", ["up", "down", "pageup", "pagedown", "home", "end"], b""),
        (b"\r\n\t\x7f", ["enter", "enter", "tab", "backspace"], b""),
        (b"\x1b", [], b"\x1b"),
        (b"\x1b[", [], b"\x1b["),
        (b"\x1b[1;5", [], b"\x1b[1;5"),
        (b"\x1b\x1b[A", ["escape", "up"], b""),
        (b"\x1bq", ["escape", "q"], b""),
        (b"\x1b[200~x", ["x"], b""),
        ("é".encode(), ["é"], b""),
        ("é".encode()[:1], [], "é".encode()[:1]),
        (b"\xff\x00\x01a", ["a"], b""),
    ],
)
def test_keys_are_decoded(given: bytes, keys: list[str], rest: bytes) -> None:
    assert decode_keys(given) == (keys, rest)


# --- the output -------------------------------------------------------------------------------------------------------


def test_the_end_of_the_newest_output_is_shown(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    job = replace(RUNNING, std_out=str(out), std_err=str(err))
    assert read_log_page(job, (), None).note.startswith("there is no output: it is not on this machine")
    assert read_log_page(replace(job, state="PENDING"), (), None).note == "there is no output: it has not started"
    out.write_text("first\n" * 20_000 + "last\n")
    err.write_text("")
    os.utime(out, (1000, 1000))
    os.utime(err, (900, 900))
    page = read_log_page(job, (), None)
    assert (page.path, page.place, page.files, page.text[-11:]) == (str(out), 0, 2, "first\nlast\n")
    assert page.text.startswith("first\n")
    assert read_log_page(job, (), 1).note == "nothing was written yet"
    assert read_log_page(job, (), 2).path == str(out)
    out.unlink()
    out.symlink_to(err)
    assert read_log_page(job, (), 0).note
    assert "only its user" in read_log_page(replace(job, uid=ME + 1), (), None).note


def test_text_for_a_terminal_has_colours_and_no_other_control_sequence() -> None:
    text = "\x1b[1;31mred\x1b[0m\r 5%\t\x1b]0;evil\x07\x1b[2J\x1bP\x9b1A\n"
    assert make_printable(text, True) == "\x1b[1;31mred\x1b[0m\r 5%\t\\x1bP\\x9b1A\n"
    assert make_printable(text, False) == "red\r 5%\t\\x1bP\\x9b1A\n"


def follow(follower: LogFollower, *records: JobRecord, address: str = "81") -> None:
    rows = tuple(WatchedJob(record=one) for one in records)
    follower.show(JobStatus(at=2000.0, address=address, rows=rows))


def test_the_output_is_followed_from_its_last_lines_to_the_end_of_the_job(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    job = replace(RUNNING, std_out=str(out))
    out.write_text("".join(f"line {at}\n" for at in range(30)))
    follower = LogFollower(ScreenStyle(), terminal=False, colour=False)
    follow(follower, job)
    with out.open("ab") as file:
        file.write(b"half \xc3")
        file.flush()
        follow(follower, job)
        file.write(b"\xa9 \x1b]0;x\x07\n")
    follow(follower, replace(job, state="COMPLETING"))
    follow(follower, replace(job, state="COMPLETED", end_time=1100))
    found = capfd.readouterr()
    assert found.out == "".join(f"line {at}\n" for at in range(20, 30)) + "half é \x1b]0;x\x07\n"
    states = [line.partition("job ")[2].split(" on ")[0] for line in found.err.splitlines()]
    assert states[0].startswith("81 (train): running for")
    assert states[-1] == "81 (train): completed after 100 s"


def test_a_job_that_starts_later_is_printed_from_its_first_line_and_a_new_file_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    job = replace(RUNNING, std_out=str(out))
    follower = LogFollower(ScreenStyle(), terminal=True, colour=False)
    follow(follower, replace(job, state="PENDING", start_time=None, nodes=()))
    out.write_text("".join(f"line {at}\n" for at in range(30)))
    follow(follower, job)
    assert capfd.readouterr().out.count("line") == 30
    out.write_text("again\x1b[")
    follow(follower, job)
    with out.open("a") as file:
        file.write("2J\n")
    follow(follower, job)
    assert capfd.readouterr().out == "again\n"


def test_each_task_of_an_array_is_followed_under_the_name_of_its_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def task(number: int, state: str = "RUNNING") -> JobRecord:
        path = tmp_path / f"out_{number}"
        if not path.exists():
            path.write_text(f"task {number}\n")
        end = None if state == "RUNNING" else 1100
        return replace(TASK, job_id=100 + number, array_task_id=number, std_out=str(path), state=state, end_time=end)

    follower = LogFollower(ScreenStyle(), terminal=False, colour=False)
    follow(follower, task(0, "FAILED"), task(1), address="77")
    follow(follower, task(0, "FAILED"), task(1), task(2, "COMPLETED"), address="77")
    follow(follower, task(0, "FAILED"), task(1, "COMPLETED"), task(2, "COMPLETED"), address="77")
    shown = capfd.readouterr().out
    assert shown == f"==> {tmp_path}/out_1 <==\ntask 1\n\n==> {tmp_path}/out_2 <==\ntask 2\n"
