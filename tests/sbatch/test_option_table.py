"""The option tables are complete and without duplicates; no gsub option can be mistaken for one of sbatch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurmwrap.sbatch.command_line import BadOption, Names, build_names, scan
from slurmwrap.sbatch.job_request import GsubOptions
from slurmwrap.sbatch.option_table import (
    ALIASES,
    BY_LETTER,
    BY_NAME,
    EXCLUSIVE_GROUPS,
    NONE,
    OPPOSITES,
    OPTIONAL,
    OWN,
    REQUIRED,
    SBATCH,
)

CAPTURES = Path(__file__).parents[1] / "data" / "slurm"
RELEASES = {"22.05": (22, 5), "24.11": (24, 11), "26.05": (26, 5)}
# Where --help shows an argument differently from getopt_long: `--export[=names]`, `--wrap[=command string]`,
# `--get-user-env`, `-k, --no-kill`, `--resv-ports`, `--container <path>`, `--mem MB`.
_HELP_IS_LOOSE = {"export", "wrap", "get-user-env", "no-kill", "resv-ports", "container", "container-id", "mem"}
_HELP = re.compile(r"^\s+(?:-(\w),? )?\s*--([a-z-]+)(\[?=?)", re.MULTILINE)
_KIND = {"": NONE, "=": REQUIRED, "[=": OPTIONAL}


def captured(release: str, what: str) -> str:
    return (CAPTURES / release / "lab" / f"sbatch_{what}.txt").read_text(encoding="utf-8")


def list_options(release: str) -> list[str]:
    """Every long option, in the order in which `sbatch --=x` finds it ambiguous."""
    return re.findall(r"'--([a-z-]+)'", captured(release, "ambiguous"))


@pytest.mark.parametrize("release", RELEASES)
def test_the_table_has_each_releases_options_in_sbatchs_order(release: str) -> None:
    known = [option.name for option in SBATCH if option.known_to(RELEASES[release])]
    assert known == list_options(release)


@pytest.mark.parametrize("release", RELEASES)
def test_letters_and_arguments_match_sbatchs_help(release: str) -> None:
    shown = {name: (short, _KIND[kind]) for short, name, kind in _HELP.findall(captured(release, "help"))}
    ours = {name: (BY_NAME[name].short, BY_NAME[name].argument_in(RELEASES[release])) for name in shown}
    assert {name: pair for name, pair in shown.items() if name not in _HELP_IS_LOOSE} == {
        name: pair for name, pair in ours.items() if name not in _HELP_IS_LOOSE
    }
    assert len(shown) > 85


def test_options_that_a_release_added_or_removed() -> None:
    names = {release: set(list_options(release)) for release in RELEASES}
    assert names["22.05"] - names["24.11"] == {"power"}
    assert names["24.11"] - names["22.05"] == {
        *("autocomplete", "container-id", "extra", "oom-kill-step", "resv-ports", "segment", "stepmgr"),
        *("tres-bind", "tres-per-task"),
    }  # fmt: skip
    assert names["26.05"] ^ names["24.11"] == {
        *("consolidate-segments", "container-type", "external", "mem-update", "resources", "spread-segments")
    }


def test_an_option_may_change_its_argument_or_be_missing_in_one_release() -> None:
    requeue, user, exported = (BY_NAME[name] for name in ("requeue", "get-user-env", "export-file"))
    assert [requeue.argument_in(release) for release in ((25, 5), (25, 11), None)] == [NONE, OPTIONAL, OPTIONAL]
    assert [user.argument_in(release) for release in ((24, 11), (25, 5), None)] == [OPTIONAL, NONE, OPTIONAL]
    assert [exported.known_to(release) for release in ((23, 2), (23, 11), (24, 5), None)] == [True, False, True, True]


PREFIXES = sorted({option.name[:length] for option in SBATCH for length in range(1, len(option.name) + 1)})


@pytest.mark.parametrize("release", [(22, 5), (23, 2), (23, 11), (24, 5), (24, 11), (25, 5), (25, 11), (26, 5)])
def test_an_abbreviation_without_known_release_agrees_with_the_release_or_is_refused(release) -> None:
    """gsub does not ask sbatch's version first: sbatch gets the words as they were typed, and may refuse them."""
    anyone, there = build_names(), build_names(release)
    both = [(_meant(prefix, anyone), _meant(prefix, there)) for prefix in PREFIXES]
    # 22.05 has no --extra: there it is short for --extra-node-info, on which no plan depends
    expected = [("extra", "extra-node-info")] if release == (22, 5) else []
    assert [pair for pair in both if None not in pair and pair[0] != pair[1]] == expected


def _meant(prefix: str, names: Names) -> str | None:
    try:
        return scan([f"--{prefix}", "x"], names).given[0].option
    except BadOption:
        return None


def test_names_letters_and_variables_are_unique() -> None:
    variables = [variable for option in SBATCH for variable in option.variables]
    assert len(BY_NAME) == len(SBATCH)
    assert len(BY_LETTER) == sum(1 for option in SBATCH if option.short)
    assert len(set(variables)) == len(variables)


def test_aliases_groups_and_opposites_name_known_options() -> None:
    named = {*ALIASES, *ALIASES.values(), *OPPOSITES, *(name for group in EXCLUSIVE_GROUPS for name in group)}
    assert named <= set(BY_NAME)


def test_a_gsub_option_sets_a_field_and_is_no_prefix_of_an_sbatch_option() -> None:
    assert [own.name for own in OWN if not hasattr(GsubOptions(), own.field)] == []
    assert [(own.name, o.name) for own in OWN for o in SBATCH if o.name.startswith(own.name)] == []
