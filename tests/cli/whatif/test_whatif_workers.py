"""The parts of a study, side by side or one after the other."""

from __future__ import annotations

from whatif.month import month

from slurmwrap.cli.whatif.whatif_command import studied
from slurmwrap.sim.trace.read_trace import parse_trace
from slurmwrap.sim.whatif.cluster_shape import site_of_dump
from slurmwrap.sim.whatif.whatif_replay import StudyOptions, study_of, submissions_of


def test_side_by_side_gives_the_same_study_as_one_after_the_other() -> None:
    load = parse_trace(month(jobs=80, nodes=2, seed=5).splitlines(), "month.psv")
    site = site_of_dump(load)
    said = submissions_of(load, site, {}, StudyOptions())
    beside = studied(said, lambda words, done, of: None, large=0)
    assert beside == study_of(load, site, {}, StudyOptions())
