"""The mechanisms by name."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import slurmwrap
from slurmwrap.placement import tuning
from slurmwrap.placement.demand import GradedSettings
from slurmwrap.reconcile import tune_pending as reconciler
from slurmwrap.sim.engines import sim_tuner
from slurmwrap.sim.mechanism import lease_rounds
from slurmwrap.sim.mechanism.mechanism import Habits
from slurmwrap.sim.mechanism.mechanism_registry import CRITICAL, MECHANISMS, habits_of, mechanism_of
from slurmwrap.sim.sim_job import servers_of


def test_graded_is_the_very_function_that_gsub_and_the_reconciler_call() -> None:
    graded = mechanism_of("graded")
    assert isinstance(graded, partial)
    assert graded.func is tuning.allocate is reconciler.allocate is sim_tuner.allocate
    assert graded.keywords == {"policy": "graded", "settings": GradedSettings()}


def test_only_the_simulator_divides_servers_in_rounds() -> None:
    """Figures of rounds are not production's: no other package imports the lease-based allocation."""
    rounds = mechanism_of("graded", leases=True)
    assert isinstance(rounds, partial) and rounds.func is lease_rounds.allocate_lease_rounds
    home = Path(slurmwrap.__file__).parent
    texts = {path.relative_to(home): path.read_text(encoding="utf-8") for path in home.rglob("*.py")}
    using = {name.parts[0] for name, text in texts.items() if "import allocate_lease_rounds" in text}
    assert using == {"sim"}


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_name_gives_a_mechanism_that_answers_nobody_with_nothing(name: str) -> None:
    assert tuple(mechanism_of(name)((), servers_of(1, gpus=8, cpus=24, mem_gb=500))) == ()


def test_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no mechanism 'best': proportional, greedy"):
        mechanism_of("best")


def test_habits_are_those_of_synergy_s_simulator() -> None:
    assert habits_of("greedy", "fifo") == Habits(whole_queue=True)
    assert habits_of("greedy", "las") == habits_of("tune", "srtf") == Habits()
    assert habits_of("opt", "srtf") == Habits(at_best=True)


def test_graded_lets_no_critical_job_wait_where_run_times_are_known() -> None:
    assert habits_of("graded", "srtf") == habits_of("graded", "srsf") == Habits(critical=CRITICAL, equal_parts=True)
    assert habits_of("graded", "srtf", strict_order=True) == Habits(equal_parts=True)
    assert habits_of("graded", "fifo") == habits_of("graded", "las") == Habits(equal_parts=True)
