"""The parts of a study, side by side or one after the other."""

from __future__ import annotations

from whatif.month import month

from slurmwrap.cli.whatif.whatif_command import replay_study
from slurmwrap.sim.trace.read_trace import parse_trace
from slurmwrap.sim.whatif.cluster_shape import cluster_shape_from_dump
from slurmwrap.sim.whatif.whatif_replay import StudyOptions, make_whatif_study, submissions_of


def test_side_by_side_gives_the_same_study_as_one_after_the_other() -> None:
    load = parse_trace(month(jobs=80, nodes=2, seed=5).splitlines(), "month.psv")
    site = cluster_shape_from_dump(load)
    said = submissions_of(load, site, {}, StudyOptions())
    beside = replay_study(said, lambda words, done, of: None, large=0)
    assert beside == make_whatif_study(load, site, {}, StudyOptions())
