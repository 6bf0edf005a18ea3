"""Where runs of several nodes lay in the network. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum

from slurmwrap.report.categories import group_by
from slurmwrap.report.night_report import LocalityRow
from slurmwrap.report.report_inputs import MultiNodeRun

ONE, SEVERAL, UNKNOWN = "one switch", "several switches", "not known"


def make_locality_rows(runs: Sequence[MultiNodeRun], switch_of: Mapping[str, str]) -> tuple[LocalityRow, ...]:
    """By the network as it is now; a node that has left it makes its runs unknown."""
    groups = group_by(runs, lambda run: find_locality(run.nodes, switch_of))
    return tuple(_make_locality_row(name, groups[name]) for name in (ONE, SEVERAL, UNKNOWN) if name in groups)


def find_locality(nodes: Sequence[str], switch_of: Mapping[str, str]) -> str:
    """ONE, SEVERAL or UNKNOWN."""
    switches = {switch_of.get(node) for node in nodes}
    if None in switches or not switches:
        return UNKNOWN
    return ONE if len(switches) == 1 else SEVERAL


def _make_locality_row(name: str, runs: Sequence[MultiNodeRun]) -> LocalityRow:
    return LocalityRow(
        where=name,
        runs=len(runs),
        gpu_hours=fsum(run.gpu_s for run in runs) / 3600,
        failed=sum(run.failed for run in runs),
    )
