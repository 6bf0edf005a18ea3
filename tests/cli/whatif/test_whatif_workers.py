"""The parts of a study, computed in parallel or sequentially."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from whatif.month import month

from slurmwrap.cli.whatif.whatif_command import _wait_for_parts, replay_study
from slurmwrap.sim.trace.read_trace import parse_trace
from slurmwrap.sim.whatif.cluster_shape import cluster_shape_from_dump
from slurmwrap.sim.whatif.whatif_replay import StudyOptions, make_whatif_study, submissions_of


def test_a_parallel_study_equals_a_sequential_study() -> None:
    load = parse_trace(month(jobs=80, nodes=2, seed=5).splitlines(), "month.psv")
    site = cluster_shape_from_dump(load)
    submissions = submissions_of(load, site, {}, StudyOptions())
    parallel = replay_study(submissions, lambda words, done, of: None, large=0)
    assert parallel == make_whatif_study(load, site, {}, StudyOptions())


def test_the_wait_ends_without_a_progress_line_when_all_parts_are_done() -> None:
    def progress(words: str, done: int, of: int) -> None:
        raise AssertionError(f"{words} {done} of {of}")

    parts: list[Future[Any]] = [Future(), Future()]
    for part in parts:
        part.set_result(None)
    _wait_for_parts(parts, progress)
