"""What a plan may know next to the cluster's present state. Record only."""

from __future__ import annotations

from collections.abc import Mapping

from slurmwrap.fast_dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.node import NodeLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningFacts:
    """What is published, and what happens to the job next. The defaults promise nothing."""

    loads: Mapping[str, NodeLoad] = field(default_factory=dict)  # by node
    relaxing: bool = False  # a reconciler loosens waiting jobs: firm things may be asked for
    qos: str = ""  # and account: those that Slurm gave a job that is submitted already; "": no one knows yet
    account: str = ""
    starts_now: bool = False  # it is eligible at once: no pre-run, --begin, --hold or dependency in between
