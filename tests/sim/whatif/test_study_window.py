"""The window of a what-if study: which jobs count, and how earlier jobs enter the simulation."""

from __future__ import annotations

from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.trace.trace_load import Actual, Load
from slurmwrap.sim.whatif.whatif_replay import (
    find_window_end,
    guess_window_begin,
    select_counted_jobs,
    select_entering_jobs,
)


def make_load(*times: tuple[float, float, float | None]) -> Load:
    """(eligible, start, end) of each job."""
    return Load(
        jobs=tuple(
            SimJob(number=n, job=str(n), submit_s=submit, work_s=(end or 1000.0) - start, gpus=1)
            for n, (submit, start, end) in enumerate(times)
        ),
        actual=tuple(Actual(submit_s=submit, start_s=start, end_s=end, nodes=1) for submit, start, end in times),
    )


CUT = make_load((0, 50, 130), (20, 140, 150), (110, 110, 140), (120, 125, 300), (125, 126, 400), (128, 150, None))


def test_the_window_of_a_truncated_dump_begins_at_the_first_end() -> None:
    cut = make_load((0, 50, 110), (20, 140, 150), (111, 111, 140), (120, 125, 300), (125, 126, 400))
    assert (guess_window_begin(cut), find_window_end(cut)) == (110, 400)


def test_the_window_of_a_complete_dump_begins_at_its_start() -> None:
    assert guess_window_begin(make_load((0, 1, 90), (5, 6, 95), (10, 11, 100))) == 0


def test_earlier_jobs_enter_at_their_start_or_at_the_beginning_of_the_window() -> None:
    jobs, actual = select_entering_jobs(CUT, 100.0)
    assert [(job.number, job.job, job.submit_s) for job in jobs] == [
        (0, "0", 50),
        (1, "1", 100.0),
        (2, "2", 110),
        (3, "3", 120),
        (4, "4", 125),
        (5, "5", 128),
    ]
    assert [one.start_s for one in actual] == [50, 140, 110, 125, 126, 150]


def test_only_ended_jobs_submitted_in_the_window_count() -> None:
    jobs, actual = select_entering_jobs(CUT, 100.0)
    assert [job.job for job in select_counted_jobs(jobs, actual, (100.0, 400.0))] == ["2", "3", "4"]
