"""The mechanisms by name."""

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


def test_graded_is_the_very_function_that_gsub_and_the_reconciler_call() -> None:
    graded = make_mechanism("graded")
    assert isinstance(graded, partial)
    assert graded.func is submission_tuning.allocate is reconciler.allocate is sim_tuner.allocate
    assert graded.keywords == {"policy": "graded", "settings": GradedSettings()}


def test_only_the_simulator_divides_servers_in_rounds() -> None:
    """Figures of rounds are not production's: no other package imports the lease-based allocation."""
    rounds = make_mechanism("graded", leases=True)
    assert isinstance(rounds, partial) and rounds.func is lease_rounds.allocate_lease_rounds
    home = Path(slurmwrap.__file__).parent
    texts = {path.relative_to(home): path.read_text(encoding="utf-8") for path in home.rglob("*.py")}
    using = {name.parts[0] for name, text in texts.items() if "import allocate_lease_rounds" in text}
    assert using == {"sim"}


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_name_gives_a_mechanism_that_answers_nobody_with_nothing(name: str) -> None:
    assert tuple(make_mechanism(name)((), make_equal_servers(1, gpus=8, cpus=24, mem_gb=500))) == ()


def test_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no mechanism 'best': proportional, greedy"):
        make_mechanism("best")


def test_habits_are_those_of_synergy_s_simulator() -> None:
    assert make_habits("greedy", "fifo") == Habits(whole_queue=True)
    assert make_habits("greedy", "las") == make_habits("tune", "srtf") == Habits()
    assert make_habits("opt", "srtf") == Habits(at_best=True)


def test_graded_lets_no_critical_job_wait_where_run_times_are_known() -> None:
    assert make_habits("graded", "srtf") == make_habits("graded", "srsf") == Habits(critical=CRITICAL, equal_parts=True)
    assert make_habits("graded", "srtf", strict_order=True) == Habits(equal_parts=True)
    assert make_habits("graded", "fifo") == make_habits("graded", "las") == Habits(equal_parts=True)
