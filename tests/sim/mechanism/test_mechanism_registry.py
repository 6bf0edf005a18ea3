"""The mechanisms by name."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import slurmwrap
from slurmwrap.placement import tuning
from slurmwrap.placement.demand import ROUNDS, GradedSettings
from slurmwrap.reconcile import tune_pending as reconciler
from slurmwrap.sim.engines import sim_tuner
from slurmwrap.sim.mechanism.mechanism import Habits
from slurmwrap.sim.mechanism.mechanism_registry import CRITICAL, MECHANISMS, habits_of, mechanism_of
from slurmwrap.sim.sim_job import servers_of


@pytest.mark.parametrize(("leases", "settings"), [(True, ROUNDS), (False, GradedSettings())], ids=["rounds", "slurm"])
def test_graded_is_the_very_function_that_gsub_and_the_reconciler_call(leases: bool, settings: GradedSettings) -> None:
    graded = mechanism_of("graded", leases=leases)
    assert isinstance(graded, partial)
    assert graded.func is tuning.allocate is reconciler.allocate is sim_tuner.allocate
    assert graded.keywords == {"policy": "graded", "settings": settings}


def test_only_the_simulator_asks_for_leases_that_end() -> None:
    """Nothing else names the setting, so no configuration leads there: figures of rounds are not production's."""
    home = Path(slurmwrap.__file__).parent
    texts = {str(path.relative_to(home)): path.read_text(encoding="utf-8") for path in home.rglob("*.py")}
    naming = {name for name, text in texts.items() if "leases_end" in text or ("ROUNDS" in text and "demand" in text)}
    assert naming == {
        *(f"placement/{name}.py" for name in ("allocate", "demand", "graded")),
        "sim/mechanism/mechanism_registry.py",
    }


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
