"""The pre-run's eye on the job that waits for it, and the environment that both will see."""

from __future__ import annotations

import pytest
from fakes import START, FakeClock, FakeSlurm, job

from slurmwrap.gsub.prerun_job import AGAIN_S, WATCH_S, JobGone, RealJobWatcher
from slurmwrap.prerun.trial.trial_environment import select_passed_on
from slurmwrap.prerun.trial.trial_spec import make_export_file
from slurmwrap.sbatch.job_request import JobRequest
from slurmwrap.sbatch.parse_request import parse_request


def watch(*states: str, number: str | None = "7") -> tuple[RealJobWatcher, FakeSlurm, FakeClock]:
    slurm, clock = FakeSlurm(), FakeClock()
    slurm.add(*(job(7, state=state) for state in states))
    return RealJobWatcher(number, slurm, clock.now), slurm, clock


@pytest.mark.parametrize(
    ("states", "said"),
    [
        (("CANCELLED",), "job 7 was cancelled"),
        (("RUNNING",), "job 7 started"),
        (("COMPLETED",), "job 7 started"),
    ],
)
def test_a_trial_for_which_nobody_waits_is_given_up(states: tuple[str, ...], said: str) -> None:
    with pytest.raises(JobGone, match=said):
        watch(*states)[0].look()


def test_a_job_that_slurm_does_not_know_three_times_in_a_row_has_ended() -> None:
    eye, _, clock = watch()
    for _ in range(2):
        eye.look()
        clock.sleep(AGAIN_S)
    with pytest.raises(JobGone, match="job 7 ended"):
        eye.look()


def test_a_job_that_slurm_misses_now_and_then_is_still_waited_for() -> None:
    eye, slurm, clock = watch("PENDING")
    for known in (False, False, True, False, False):
        slurm.records = {7: job(7, state="PENDING")} if known else {}
        eye.look()
        clock.sleep(eye.next_at - clock.now())
    assert clock.now() == START + 4 * AGAIN_S + WATCH_S


def test_answers_that_do_not_come_are_no_sign_of_an_end() -> None:
    eye, slurm, clock = watch()
    eye.look()
    slurm.away = True
    for _ in range(3):
        clock.sleep(WATCH_S)
        eye.look()
    assert (eye.missed, eye.next_at) == (1, START + 4 * WATCH_S)


def test_a_waiting_job_and_a_silent_controller_change_nothing() -> None:
    eye, slurm, clock = watch("PENDING")
    eye.look()
    slurm.away = True
    clock.sleep(WATCH_S)
    eye.look()
    assert eye.next_at == START + 2 * WATCH_S


def test_slurm_is_not_asked_more_often_than_agreed() -> None:
    eye, slurm, clock = watch("PENDING")
    eye.look()
    slurm.add(job(7, state="CANCELLED"))
    clock.sleep(WATCH_S - 1)
    eye.look()
    clock.sleep(1)
    with pytest.raises(JobGone):
        eye.look()


def test_a_pre_run_that_speaks_for_no_job_watches_none() -> None:
    watch(number=None)[0].look()


def asked(*words: str) -> JobRequest:
    return parse_request(
        [*words, "-G1", "a.sh"],
        environ={},
        cwd="/home/alice",
        read_script=lambda path: b"#!/bin/sh\n",
        read_stdin=lambda: b"",
    )


@pytest.mark.parametrize(
    ("words", "known"),
    [
        ((), {"CODE": "/code", "DATA": "/data"}),
        (("--export=ALL,DATA=/other",), {"CODE": "/code", "DATA": "/other"}),
        (("--export=DATA,NEW=1",), {"DATA": "/data", "NEW": "1"}),
        (("--export=NONE",), {}),
        (("--export-file=env0",), {}),
    ],
)
def test_what_the_job_will_know_of_the_callers_environment(words: tuple[str, ...], known: dict[str, str]) -> None:
    environ = {"PATH": "/bin", "CODE": "/code", "DATA": "/data", "SLURM_SUBMIT_DIR": "/old"}
    assert select_passed_on(asked(*words), environ, "/here") == {"PATH": "/bin", "SLURM_SUBMIT_DIR": "/here", **known}


@pytest.mark.parametrize("content", [b"", b"A=1\0B=two\nlines\0", b"A=1\0B=two\nlines"])
def test_the_pre_runs_parameters_follow_the_users_exported_file(content: bytes) -> None:
    made = make_export_file(content, {"SLURMWRAP_REAL_JOB": "7", "HOME": "/home/\udce4", "SECRET": "x"})
    assert made == content.rstrip(b"\0") + (b"\0" if content else b"") + b"SLURMWRAP_REAL_JOB=7\0HOME=/home/\xe4\0"
