"""Runs that the replays read from slurmctld's log (lines of 22.05.8), and the figures computed from them."""

from __future__ import annotations

from datetime import datetime

from replay.measures import Given, figures, start_gaps
from replay.records import Run, read_runs, read_submits, read_updates

LOG = """\
[2026-11-21T10:30:59.190] _slurm_rpc_submit_batch_job: JobId=1 InitPrio=4294901759 usec=393
[2026-11-21T10:30:59.437] sched/backfill: _start_job: Started JobId=1 in gpu on n0
[2026-11-21T10:31:00.000] _slurm_rpc_update_job: complete JobId=2 uid=1007 usec=313
[2026-11-21T10:31:00.576] _job_complete: JobId=1 WEXITSTATUS 1
[2026-11-21T10:31:00.577] _job_complete: JobId=1 done
[2026-11-21T10:31:00.637] sched: Allocate JobId=2 NodeList=n[0-1] #CPUs=3 Partition=gpu
[2026-11-21T10:31:01.637] sched: Allocate JobId=3 NodeList=n1 #CPUs=3 Partition=gpu
[2026-11-21T10:31:02.000] sched: Allocate JobId=1 NodeList=n1 #CPUs=3 Partition=gpu
[2026-11-21T10:31:02.637] _job_complete: JobId=2 WEXITSTATUS 0
[2026-11-21T10:31:02.637] _job_complete: JobId=2 done
[2026-11-21T10:31:03.000] _job_complete: JobId=1 WEXITSTATUS 0
[2026-11-21T10:31:03.000] _job_complete: JobId=1 done
""".splitlines()


def parse_time(second: str) -> float:
    return datetime.fromisoformat(f"2026-11-21T10:{second}").timestamp()


def test_a_requeued_job_has_two_runs_and_a_running_job_has_none() -> None:
    assert read_runs(LOG, {1: "", 2: "", 3: ""}) == (
        Run(job_id=1, start=parse_time("30:59.437"), end=parse_time("31:00.577"), nodes=("n0",), exit_code=1),
        Run(job_id=2, start=parse_time("31:00.637"), end=parse_time("31:02.637"), nodes=("n0", "n1")),
        Run(job_id=1, start=parse_time("31:02.000"), end=parse_time("31:03.000"), nodes=("n1",)),
    )


def test_jobs_of_others_are_not_counted() -> None:
    assert [run.job_id for run in read_runs(LOG, {2: ""})] == [2]
    assert (read_updates(LOG, {1: ""}), read_submits(LOG, {2: ""})) == ((), {})


def test_times_of_updates_and_submissions_are_read() -> None:
    assert read_updates(LOG, {2: ""}) == (parse_time("31:00.000"),)
    assert read_submits(LOG, {1: ""}) == {1: parse_time("30:59.190")}


def run(job_id: int, start: float, end: float) -> Run:
    return Run(job_id=job_id, start=start, end=end, nodes=("n0",))


def test_a_start_gap_is_from_an_end_to_the_next_start_on_its_node() -> None:
    runs = [run(1, 1, 10), run(2, 1, 20), run(3, 10.5, 30), run(4, 22, 40)]

    assert start_gaps(runs) == [0.5, 2.0]


def test_figures_of_two_gpus_and_three_jobs() -> None:
    runs = [run(1, 0, 10), run(2, 0, 20), run(3, 12, 30)]
    given = {1: Given(cpus=1, mem_mib=1, speed=1.0), 2: Given(cpus=5, mem_mib=1, speed=2.0)}
    given[3] = Given(cpus=3, mem_mib=1, speed=1.0)

    found = figures(runs, given, dict.fromkeys(given, 0.0), up=0.0, gpus=2)

    assert (found.makespan_s, found.mean_jct_s, found.mean_queue_s) == (30, 20, 4)
    assert found.gpu_idle_share == 1 - 22 / 24  # until the last job started
    assert found.gpu_use == 48 / 60
    assert (found.mean_cpus, found.mean_speed) == ((10 + 100 + 54) / 48, (10 + 40 + 18) / 48)
