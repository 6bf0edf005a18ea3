"""The option tables: complete, without doubles, and without a name of ours that sbatch could mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.job.options import ALIASES, BASE, BY_LETTER, BY_NAME, EXCLUSIVE_GROUPS, OPPOSITES, OWN, SBATCH
from slurmwrap.job.request import Own

# What sbatch 22.05.8 lists, in its order, for the ambiguous option `--=x`.
SBATCH_22_05 = (Path(__file__).parents[1] / "data" / "job" / "sbatch-22.05.options.txt").read_text().split()


def test_the_table_holds_22_05s_options_in_sbatchs_order() -> None:
    assert [option.name for option in SBATCH if option.known_to(BASE)] == SBATCH_22_05


def test_26_05_has_lost_power_and_won_fifteen() -> None:
    now = {option.name for option in SBATCH if option.known_to((26, 5))}
    assert set(SBATCH_22_05) - now == {"power"}
    assert len(now - set(SBATCH_22_05)) == 15


def test_names_letters_and_variables_are_unique() -> None:
    variables = [variable for option in SBATCH for variable in option.variables]
    assert len(BY_NAME) == len(SBATCH)
    assert len(BY_LETTER) == sum(1 for option in SBATCH if option.short)
    assert len(set(variables)) == len(variables)


def test_aliases_groups_and_opposites_name_known_options() -> None:
    named = {*ALIASES, *ALIASES.values(), *OPPOSITES, *(name for group in EXCLUSIVE_GROUPS for name in group)}
    assert named <= set(BY_NAME)


@pytest.mark.parametrize("own", OWN, ids=lambda own: own.name)
def test_an_own_option_is_no_name_or_abbreviation_of_sbatchs(own) -> None:
    assert [option.name for option in SBATCH if option.name.startswith(own.name)] == []


@pytest.mark.parametrize("own", OWN, ids=lambda own: own.name)
def test_an_own_option_sets_a_field_of_own(own) -> None:
    assert hasattr(Own(), own.field)
