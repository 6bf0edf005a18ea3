"""Slurm's configuration of priorities, and the terms of jobs, as the commands print them."""

from __future__ import annotations

import pytest

from slurmwrap.model.queue_priority import NICE, SITE_FACTOR, PriorityScheme
from slurmwrap.slurm.priority_parser import parse_priority_scheme, parse_priority_terms


@pytest.mark.parametrize(
    ("config", "scheme", "key"),
    [
        ({"PriorityType": "priority/basic"}, PriorityScheme(plugin="basic"), NICE),
        (
            {
                "PriorityType": "priority/multifactor",
                "PriorityWeightAge": "1000",
                "PriorityWeightFairShare": "9000",
                "PriorityWeightTRES": "CPU=100,GRES/gpu=200.50",
                "PrioritySiteFactorPlugin": "(null)",
            },
            PriorityScheme(plugin="multifactor", weights=10_300),
            SITE_FACTOR,
        ),
        (
            {"PriorityType": "priority/multifactor", "PriorityWeightTRES": "(null)", "PrioritySiteFactorPlugin": "own"},
            PriorityScheme(plugin="multifactor", site_factor_plugin=True),
            NICE,
        ),
        ({"PriorityType": "priority/own"}, PriorityScheme(plugin="own"), ""),
        ({}, PriorityScheme(), ""),
    ],
)
def test_the_term_that_may_be_set_follows_from_the_configuration(
    config: dict[str, str], scheme: PriorityScheme, key: str
) -> None:
    assert parse_priority_scheme(config) == scheme
    assert scheme.key == key


def test_a_job_in_several_partitions_has_one_term_and_other_lines_are_ignored() -> None:
    text = "     81 -40\n82    500  \n82 500\n\nUnable to find jobs matching user/id(s) specified\n83 x\n"
    assert parse_priority_terms(text) == {81: -40, 82: 500}
