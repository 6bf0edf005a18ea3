"""Allocation mechanisms by name."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import slurmwrap
from slurmwrap.placement import submission_tuning
from slurmwrap.placement.demand import GradedSettings
from slurmwrap.reconcile import tune_pending as reconciler
from slurmwrap.sim.engines import sim_tuner
from slurmwrap.sim.mechanism import lease_rounds
from slurmwrap.sim.mechanism.mechanism import Habits
from slurmwrap.sim.mechanism.mechanism_registry import CRITICAL, MECHANISMS, make_habits, make_mechanism
from slurmwrap.sim.sim_job import make_equal_servers


def test_graded_is_the_function_that_gsub_and_the_reconciler_call() -> None:
    graded = make_mechanism("graded")
    assert isinstance(graded, partial)
    assert graded.func is submission_tuning.allocate is reconciler.allocate is sim_tuner.allocate
    assert graded.keywords == {"policy": "graded", "settings": GradedSettings()}


def test_only_the_simulator_imports_allocate_lease_rounds() -> None:
    """Results of rounds do not apply to production, so no other package may import this allocation."""
    rounds = make_mechanism("graded", leases=True)
    assert isinstance(rounds, partial) and rounds.func is lease_rounds.allocate_lease_rounds
    home = Path(slurmwrap.__file__).parent
    texts = {path.relative_to(home): path.read_text(encoding="utf-8") for path in home.rglob("*.py")}
    using = {name.parts[0] for name, text in texts.items() if "import allocate_lease_rounds" in text}
    assert using == {"sim"}


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_gives_no_allocations_for_an_empty_queue(name: str) -> None:
    assert tuple(make_mechanism(name)((), make_equal_servers(1, gpus=8, cpus=24, mem_gb=500))) == ()


def test_an_unknown_mechanism_name_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no mechanism 'best': proportional, greedy"):
        make_mechanism("best")


def test_habits_equal_those_of_synergys_simulator() -> None:
    assert make_habits("greedy", "fifo") == Habits(whole_queue=True)
    assert make_habits("greedy", "las") == make_habits("tune", "srtf") == Habits()
    assert make_habits("opt", "srtf") == Habits(at_best=True)


def test_graded_prefers_critical_jobs_if_the_policy_knows_run_times() -> None:
    assert make_habits("graded", "srtf") == make_habits("graded", "srsf") == Habits(critical=CRITICAL, equal_parts=True)
    assert make_habits("graded", "srtf", strict_order=True) == Habits(equal_parts=True)
    assert make_habits("graded", "fifo") == make_habits("graded", "las") == Habits(equal_parts=True)
