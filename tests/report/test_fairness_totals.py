"""Finish-time fairness in the report: from a real database, and against the simulator's on the same jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurmwrap.cli.record_access import JobRecords
from slurmwrap.cli.report import open_records_in_memory
from slurmwrap.config.load_config import Config
from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun, QueueDelay
from slurmwrap.model.submission import Submission
from slurmwrap.report.build_report import build
from slurmwrap.report.fairness_totals import ROWS
from slurmwrap.report.headline import build_page
from slurmwrap.report.night_report import NightReport
from slurmwrap.report.report_formats import render_text
from slurmwrap.sim.run_simulation import Simulation, run_simulation
from slurmwrap.sim.sim_job import SimJob, make_equal_servers
from slurmwrap.sim.sim_outcome import compute_fairness
from slurmwrap.sim.trace.read_trace import read_load
from slurmwrap.store.report_figures import read
from slurmwrap.store.report_reader import Period, ReportReader

TRACES = Path(__file__).parents[1] / "data" / "traces"
UNTIL = 1_700_604_800
SINCE = UNTIL - 7 * 86_400


def report_of(*attempts: JobRun, gpus: int | None = None, user: str = "", **records: object) -> NightReport:
    period = Period(since=SINCE, until=UNTIL, user=user)
    with (
        open_records_in_memory(JobRecords(attempts=attempts, **records)) as database,
        ReportReader(database.path, period, database.connection) as reader,
    ):
        return build(read(database, reader, Config(), site=True, switch_of=dict, count_gpus=lambda: gpus))


def run(
    number: int,
    user: str,
    submitted: int,
    start: int | None,
    end: int | None,
    *,
    gpus: int = 1,
    category: str = "success",
    restarts: int = 0,
) -> JobRun:
    """Seconds after SINCE."""
    return JobRun(
        attempt=RunKey(cluster="lab", job_id=number, submit_time=SINCE + submitted), user=user, uid=1001, gpus=gpus,
        nodes=() if start is None else ("n1",), address=f"{number}_1", restarts=restarts,
        start_time=None if start is None else SINCE + start, end_time=None if end is None else SINCE + end,
        diagnosis=None if end is None else Diagnosis(
            category=category, domain="", decision="stop", confidence=1.0, signature=""
        ),
    )  # fmt: skip


def read_jobs() -> tuple[SimJob, ...]:
    """The jobs of Philly's window, 40 times as fast, so that the whole simulation fits into a report's week."""
    jobs = read_load(TRACES / "philly480_window.csv").jobs
    return tuple(
        replace(job, submit_s=float(round(job.submit_s / 40)), work_s=float(max(1, round(job.work_s / 40))))
        for job in jobs
    )


def test_rho_is_that_of_the_simulator_on_the_same_jobs() -> None:
    jobs, servers = read_jobs(), make_equal_servers(15, gpus=4, cpus=24, mem_gb=500)
    outcome, _ = run_simulation(Simulation(jobs=jobs, servers=servers, mode="slurm"))
    expected = compute_fairness(jobs, outcome, servers)
    attempts = [
        run(job.number, job.user, round(job.submit_s), round(began), round(ended), gpus=job.gpus)
        for job in jobs
        if (began := outcome.began_s[job.number]) is not None and (ended := outcome.ended_s[job.number]) is not None
    ]
    assert all(float(end).is_integer() for end in outcome.ended_s if end is not None)
    found = report_of(*attempts, gpus=60).fairness
    assert (found.jobs, found.users, found.gpus, found.gpus_known) == (len(jobs), len(expected), 60, True)
    assert {row.user: row.rho for row in found.worst} == pytest.approx(dict(list(expected.items())[:ROWS]))
    assert max(expected.values()) > 1.5  # else the comparison says little
    assert sum(one.users for one in found.bins) == found.users


def test_a_requeued_job_counts_once_from_its_first_submission() -> None:
    """Two GPUs, two users: ada's job is there for 400 s and ran for 100 + 100 s; eve's part of it is 1 GPU."""
    attempts = (
        run(1, "ada", 0, 0, 100, gpus=2, category="node_failure"),
        run(1, "ada", 100, 300, 400, gpus=2, restarts=1),
        run(2, "eve", 0, 100, 300, category="cancelled"),
        run(3, "eve", 300, 300, 400),
    )
    found = report_of(*attempts, gpus=2).fairness
    ada, eve = sorted(found.worst, key=lambda row: row.user)
    # ada's 200 s on two GPUs are 400 s on one; eve's 300 s on one GPU stay, of 400 s.
    assert (ada.jobs, ada.rho, ada.held_share, ada.incomplete) == (1, 1.0, 1.0, 0)
    assert (eve.jobs, eve.rho, eve.worst_rho, eve.worst_job) == (2, pytest.approx(4 / 3), 1.5, "2_1")
    assert (eve.median_rho, eve.above_share, eve.held_share, eve.incomplete) == (1.25, 0.5, 0.75, 1)
    assert (found.incomplete, found.unfinished, found.median_rho) == (1, 0, 1.0)


def test_jobs_that_wait_or_run_count_as_present_and_have_no_rho() -> None:
    ended = (run(1, "ada", 0, 0, 100, gpus=4), run(2, "eve", 0, 0, 100))
    running = run(3, "bob", 0, 0, None)
    waiting = QueueDelay(
        attempt=RunKey(cluster="lab", job_id=4, submit_time=SINCE), address="4", user="zoe", gpus=1,
        eligible_at=SINCE, seen_at=SINCE + 100,
    )  # fmt: skip
    later = run(5, "kim", 0, 0, UNTIL - SINCE + 50)
    for more, users, unfinished in (((), 2, 0), ((running,), 3, 1), ((later,), 3, 1)):
        found = report_of(*ended, *more, gpus=4).fairness
        # ada's four GPUs of four take as many times longer as there are users.
        assert ({row.user: row.rho for row in found.worst}["ada"], found.unfinished) == (1 / users, unfinished)
    found = report_of(*ended, running, gpus=4, delays=(waiting,)).fairness
    assert ({row.user: row.rho for row in found.worst}["ada"], found.unfinished, found.jobs) == (1 / 4, 2, 2)


def test_users_of_different_clusters_do_not_share_gpus() -> None:
    there = replace(run(1, "ada", 0, 0, 100, gpus=4), attempt=RunKey(cluster="two", job_id=1, submit_time=SINCE))
    found = report_of(there, run(1, "eve", 0, 0, 100), run(2, "bob", 0, 100, 200), gpus=99).fairness
    assert {row.user: row.rho for row in found.worst} == {"ada": 1.0, "eve": 0.5, "bob": pytest.approx(4 / 3)}
    assert (found.gpus, found.gpus_known) == (5, False)


def test_jobs_without_gpus_pre_runs_and_jobs_that_never_started_have_no_rho() -> None:
    prerun = Submission(cluster="lab", job_id=1, uid=1001, user="ada", at=float(SINCE), prerun_job_id=9)
    attempts = (
        run(1, "ada", 0, 0, 100),
        run(9, "ada", 0, 0, 50),
        run(2, "eve", 0, 0, 100, gpus=0),
        run(3, "eve", 0, None, 100, category="cancelled"),
    )
    found = report_of(*attempts, submissions=(prerun,)).fairness
    assert [(row.user, row.jobs) for row in found.worst] == [("ada", 1)]
    # Without Slurm's answer the cluster has the GPUs that were in use at once.
    assert (found.gpus, found.gpus_known) == (1, False)


def test_a_report_of_one_user_compares_no_users() -> None:
    attempts = (run(1, "ada", 0, 0, 100), run(2, "eve", 0, 0, 100))
    assert report_of(*attempts, user="ada").fairness.jobs == 0
    assert "FAIRNESS" not in render_text(build_page(report_of(attempts[0]), None))


def test_many_users_are_a_short_table_and_a_distribution() -> None:
    attempts = [run(number, f"u{number}", number, 2 * number, 2 * number + 50) for number in range(1, 200)]
    report = report_of(*attempts, gpus=100)
    assert (len(report.fairness.worst), report.fairness.users) == (ROWS, 199)
    page = render_text(build_page(report, None))
    section = page[page.index("FAIRNESS BETWEEN USERS") : page.index("\nUSERS\n")]
    assert "1.5 to 2" in section and "u199 " in section and "u50 " not in section and len(section.splitlines()) < 40
