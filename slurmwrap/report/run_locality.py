"""Where runs of several nodes lay in the network. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum

from slurmwrap.report.categories import grouped
from slurmwrap.report.night_report import LocalityRow
from slurmwrap.report.report_inputs import MultiNodeRun

ONE, SEVERAL, UNKNOWN = "one switch", "several switches", "not known"


def locality(runs: Sequence[MultiNodeRun], switch_of: Mapping[str, str]) -> tuple[LocalityRow, ...]:
    """By the network as it is now; a node that has left it makes its runs unknown."""
    groups = grouped(runs, lambda run: where(run.nodes, switch_of))
    return tuple(_row(name, groups[name]) for name in (ONE, SEVERAL, UNKNOWN) if name in groups)


def where(nodes: Sequence[str], switch_of: Mapping[str, str]) -> str:
    """ONE, SEVERAL or UNKNOWN."""
    switches = {switch_of.get(node) for node in nodes}
    if None in switches or not switches:
        return UNKNOWN
    return ONE if len(switches) == 1 else SEVERAL


def _row(name: str, runs: Sequence[MultiNodeRun]) -> LocalityRow:
    return LocalityRow(
        where=name,
        runs=len(runs),
        gpu_hours=fsum(run.gpu_s for run in runs) / 3600,
        failed=sum(run.failed for run in runs),
    )
