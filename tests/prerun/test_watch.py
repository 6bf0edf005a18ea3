"""How a pre-run watches the job that waits for it, and the environment that both get."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import START, FakeClock, FakeSlurm, job

from slurmwrap.gsub.prerun_job import AGAIN_S, WATCH_S, JobGone, RealJobWatcher
from slurmwrap.prerun.trial.trial_environment import select_passed_on
from slurmwrap.prerun.trial.trial_spec import make_export_file
from slurmwrap.sbatch.job_request import JobRequest
from slurmwrap.sbatch.parse_request import parse_request


def make_watcher(*states: str, number: str | None = "7") -> tuple[RealJobWatcher, FakeSlurm, FakeClock]:
    slurm, clock = FakeSlurm(), FakeClock()
    slurm.add(*(job(7, state=state) for state in states))
    return RealJobWatcher(number, slurm, clock.now), slurm, clock


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (("CANCELLED",), "job 7 was cancelled"),
        (("RUNNING",), "job 7 started"),
        (("COMPLETED",), "job 7 started"),
    ],
)
def test_a_trial_stops_when_its_job_was_cancelled_or_started(states: tuple[str, ...], message: str) -> None:
    with pytest.raises(JobGone, match=message):
        make_watcher(*states)[0].look()


def test_a_job_that_slurm_does_not_know_three_times_in_a_row_counts_as_ended() -> None:
    watcher, _, clock = make_watcher()
    for _ in range(2):
        watcher.look()
        clock.sleep(AGAIN_S)
    with pytest.raises(JobGone, match="job 7 ended"):
        watcher.look()


def test_a_job_that_slurm_occasionally_does_not_know_is_still_watched() -> None:
    watcher, slurm, clock = make_watcher("PENDING")
    for known in (False, False, True, False, False):
        slurm.records = {7: job(7, state="PENDING")} if known else {}
        watcher.look()
        clock.sleep(watcher.next_at - clock.now())
    assert clock.now() == START + 4 * AGAIN_S + WATCH_S


def test_missing_answers_of_slurm_do_not_count_as_the_end_of_the_job() -> None:
    watcher, slurm, clock = make_watcher()
    watcher.look()
    slurm.away = True
    for _ in range(3):
        clock.sleep(WATCH_S)
        watcher.look()
    assert (watcher.missed, watcher.next_at) == (1, START + 4 * WATCH_S)


def test_a_pending_job_and_an_unavailable_controller_do_not_stop_the_trial() -> None:
    watcher, slurm, clock = make_watcher("PENDING")
    watcher.look()
    slurm.away = True
    clock.sleep(WATCH_S)
    watcher.look()
    assert watcher.next_at == START + 2 * WATCH_S


def test_slurm_is_queried_at_most_once_per_interval() -> None:
    watcher, slurm, clock = make_watcher("PENDING")
    watcher.look()
    slurm.add(job(7, state="CANCELLED"))
    clock.sleep(WATCH_S - 1)
    watcher.look()
    clock.sleep(1)
    with pytest.raises(JobGone):
        watcher.look()


def test_a_pre_run_without_a_waiting_job_watches_no_job() -> None:
    make_watcher(number=None)[0].look()


def parse_options(*words: str) -> JobRequest:
    return parse_request(
        [*words, "-G1", "a.sh"],
        environ={},
        cwd="/home/alice",
        read_script=lambda path: b"#!/bin/sh\n",
        read_stdin=lambda: b"",
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), {"CODE": "/code", "DATA": "/data"}),
        (("--export=ALL,DATA=/other",), {"CODE": "/code", "DATA": "/other"}),
        (("--export=DATA,NEW=1",), {"DATA": "/data", "NEW": "1"}),
        (("--export=NONE",), {}),
        (("--export-file=env0",), {}),
    ],
)
def test_variables_passed_to_the_job_follow_the_export_options(
    words: tuple[str, ...], expected: dict[str, str]
) -> None:
    environ = {"PATH": "/bin", "CODE": "/code", "DATA": "/data", "SLURM_SUBMIT_DIR": "/old"}
    assert select_passed_on(parse_options(*words), environ, "/here") == {
        "PATH": "/bin",
        "SLURM_SUBMIT_DIR": "/here",
        **expected,
    }


@pytest.mark.parametrize("content", [b"", b"A=1\0B=two\nlines\0", b"A=1\0B=two\nlines"])
def test_the_parameters_of_the_pre_run_are_appended_to_the_users_export_file(content: bytes) -> None:
    made = make_export_file(content, {"SLURMWRAP_REAL_JOB": "7", "HOME": "/home/\udce4", "SECRET": "x"})
    assert made == content.rstrip(b"\0") + (b"\0" if content else b"") + b"SLURMWRAP_REAL_JOB=7\0HOME=/home/\xe4\0"


def test_a_released_job_may_run_but_not_on_the_node_of_its_pre_run() -> None:
    slurm, clock = FakeSlurm(), FakeClock()
    watcher = RealJobWatcher("7", slurm, clock.now, node="n1", released=True)
    for state, nodes in (("PENDING", ()), ("CONFIGURING", ("n2",)), ("RUNNING", ("n2", "n3"))):
        slurm.records = {7: replace(job(7, state=state), nodes=nodes)}
        watcher.look()
        clock.sleep(AGAIN_S)
    slurm.records = {7: replace(job(7, state="RUNNING"), nodes=("n1", "n2"))}
    with pytest.raises(JobGone, match="job 7 started"):
        watcher.look()


def test_a_released_job_that_ended_stops_the_trial() -> None:
    slurm = FakeSlurm()
    slurm.records = {7: replace(job(7, state="FAILED"), nodes=("n2",))}
    with pytest.raises(JobGone):
        RealJobWatcher("7", slurm, FakeClock().now, node="n1", released=True).look()
