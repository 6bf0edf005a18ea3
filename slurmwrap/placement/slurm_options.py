"""What of a place is asked of Slurm: the records that network_options.py and node_options.py speak in. Records only."""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.fast_dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.config import Config
    from slurmwrap.model.node import Node, Snapshot
    from slurmwrap.model.placement_plan import PlacementPlan
    from slurmwrap.placement.candidates import CandidateNodes
    from slurmwrap.placement.locality import NodeChoice
    from slurmwrap.placement.locality_delay import LocalityDelay
    from slurmwrap.placement.planning_facts import PlanningFacts
    from slurmwrap.sbatch.request import JobRequest, OptionChange

_FIRM = {"nodes": ("fewest nodes", "NumNodes"), "constraint": ("one rack", "Features")}  # option → level, its key


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalityStep:
    """Something that is insisted on: its name as a level, how long it holds, and what loosens it."""

    name: str
    wait_s: int
    updates: tuple[tuple[str, str], ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """Wishes for Slurm, steps in the order in which they are loosened, and remarks on what changes nothing."""

    wishes: tuple[OptionChange, ...] = ()
    steps: tuple[LocalityStep, ...] = ()
    remarks: tuple[str, ...] = ()

    def __add__(self, other: SlurmOptions) -> SlurmOptions:
        return SlurmOptions(
            wishes=self.wishes + other.wishes, steps=self.steps + other.steps, remarks=self.remarks + other.remarks
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementContext:
    """Everything that a question about one job's place may look at."""

    request: JobRequest
    field: CandidateNodes
    choice: NodeChoice
    avoided: frozenset[str]
    patience: LocalityDelay
    snapshot: Snapshot
    outlook: PlanningFacts
    config: Config

    @property
    def most(self) -> int:
        """Nodes that it takes at most, as far as we know."""
        return max(self.field.fewest, self.field.need.most_nodes or 0)

    @property
    def usable(self) -> list[Node]:
        """Able nodes that are not avoided."""
        return [node for node in self.field.able if node.name not in self.avoided]

    @property
    def firm(self) -> bool:
        """Whether it may insist: it gains by that, someone loosens it again, and we know what it needs."""
        return self.patience.firm and self.patience.wait_s > 0 and self.outlook.relaxing and self.field.need.sure


def keep_submitted_options(before: PlacementPlan, options: Sequence[str], case: PlacementContext) -> SlurmOptions:
    """The parts of the plan that the job was submitted with which only a reconciler may change now."""
    wishes = tuple(wish for wish in before.lines if wish.option in options and wish.value is not None)
    updates = {key: value for level in before.levels for key, value in level.updates}
    firm = [_FIRM[wish.option] for wish in wishes if wish.option in _FIRM]
    steps = tuple(
        LocalityStep(
            name=name, wait_s=case.patience.wait_s, updates=((key, updates[key]),), reason=case.patience.reason
        )
        for name, key in firm
        if key in updates
    )
    return SlurmOptions(wishes=wishes, steps=steps)
