"""What Slurm is asked for to get a place: nodes, network locality, excluded nodes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.hostlist import fold
from slurmwrap.model.placement_plan import PlacementPlan
from slurmwrap.placement.candidates import CandidateNodes
from slurmwrap.placement.locality import (
    LocalityDelay,
    NodeChoice,
)
from slurmwrap.sbatch.job_request import GpuUnit, JobRequest, OptionChange
from slurmwrap.sbatch.option_table import BY_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.config.load_config import Config
    from slurmwrap.model.cluster import Node, NodeLoad, Snapshot
    from slurmwrap.model.placement_plan import PlacementPlan
    from slurmwrap.placement.candidates import CandidateNodes
    from slurmwrap.placement.locality import LocalityDelay, NodeChoice
    from slurmwrap.sbatch.job_request import JobRequest, OptionChange


# Option → level, its key.
_FIRM = {"nodes": ("fewest nodes", "NumNodes"), "constraint": ("one rack", "Features")}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningFacts:
    """What is published, and what happens to the job next. The defaults promise nothing."""

    loads: Mapping[str, NodeLoad] = field(default_factory=dict)  # by node
    relaxing: bool = False  # a reconciler loosens waiting jobs: firm things may be asked for
    qos: str = ""  # and account: those that Slurm gave a job that is submitted already; "": no one knows yet
    account: str = ""
    # It is eligible at once: no pre-run, --begin, --hold or dependency in between.
    starts_now: bool = False


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


def keep_submitted_options(before: PlacementPlan, options: Sequence[str], context: PlacementContext) -> SlurmOptions:
    """The parts of the plan that the job was submitted with which only a reconciler may change now."""
    wishes = tuple(wish for wish in before.lines if wish.option in options and wish.value is not None)
    updates = {key: value for level in before.levels for key, value in level.updates}
    firm = [_FIRM[wish.option] for wish in wishes if wish.option in _FIRM]
    steps = tuple(
        LocalityStep(
            name=name, wait_s=context.patience.wait_s, updates=((key, updates[key]),), reason=context.patience.reason
        )
        for name, key in firm
        if key in updates
    )
    return SlurmOptions(wishes=wishes, steps=steps)


# How Slurm is asked to place a job in one network domain, by who knows the network.
#
# Measured on 22.05.8 (tests/slurm/test_placement_lab.py, test_relax_lab.py) and, for blocks, on 24.11.5 and 26.05.5:
#
# tree      `--switches=N@t` is soft: Slurm waits t for N leaf switches, at most SchedulerParameters=max_switch_wait.
#           A job whose least number of nodes is below what its GPUs need (--gpus=32 on nodes of 8) may be tried under a
#           switch that has too few GPUs, and then shows it as one that can never run, though another switch
#           could hold it:
#           so --switches goes with a number of nodes.
# block     is firm without any option: a job must lie in the smallest block that can hold it, however long it waits.
#           `--segment=G` loosens that: pieces of G nodes, each in one block, spread even where they need not be. G must
#           divide the number of nodes and be at most the base block's size; it cannot be changed on a waiting job, and
#           --switches means nothing there.
# features  `--prefer=[a|b]` is soft: all nodes with one of the features where that is free now, else any nodes. It is
#           refused where no rack could ever hold the job, and takes the place of --constraint, so it is only for jobs
#           that name no feature. `--constraint=[a|b]` is firm until `scontrol update Features=`.
# file      Slurm knows nothing: only a list of nodes says it (slurm_options.py).
# Alternatives in one --constraint or --prefer: slurmctld tries each of them at every pass.
MAX_RACKS = 32


def ask_for_one_domain(context: PlacementContext, before: PlacementPlan | None, count: SlurmOptions) -> SlurmOptions:
    """What to ask for a job of several nodes. `before`: the plan that it was submitted with; `count`: what is asked for
    about the number of nodes."""
    source = context.snapshot.topology.source
    if context.most < 2:
        return SlurmOptions()
    if any(partition.topology for partition in context.field.partitions):
        return SlurmOptions(remarks=("its partition has a network topology of its own, which we do not see",))
    if before is not None and source != "tree":
        return keep_submitted_options(before, ("constraint", "prefer", "segment"), context)
    by_us = any(wish.option == "nodes" for wish in count.wishes)
    least = context.request.shape.nodes
    said = context.field.need.exact or (least is not None and context.field.holds_on(context.usable, least))
    if source == "tree" and not (by_us or said or context.request.setting("switches")):
        return SlurmOptions(
            remarks=("say the number of nodes (--nodes), and Slurm can be asked to keep it under one switch",)
        )
    return _BY_SOURCE.get(source, _explain_no_topology)(context)


def _explain_no_topology(context: PlacementContext) -> SlurmOptions:
    return SlurmOptions(remarks=("Slurm knows no network topology here, so its nodes may lie anywhere",))


def _explain_rack_file(context: PlacementContext) -> SlurmOptions:
    return SlurmOptions(
        remarks=("Slurm does not know the racks of placement.topology_file, so it cannot be asked for one",)
    )


# ------------------------------------------------------------------------------------------- topology/tree


def _ask_for_switches(context: PlacementContext) -> SlurmOptions:
    if context.request.setting("switches"):
        return SlurmOptions(remarks=("you ask for switches yourself",))
    count, leaves = _count_fewest_leaves(context)
    if context.config.placement.switch_wait_s <= 0 or count is None or count == leaves:
        return SlurmOptions()
    due, clamp = context.patience.wait_s, context.snapshot.max_switch_wait_s
    wait, where = min(due, clamp), "one switch" if count == 1 else f"{count} switches"
    if wait < 1:
        return SlurmOptions(remarks=(f"no switch is waited for: {context.patience.reason}",))
    cut = f", its max_switch_wait, for {due} s would be due" if wait < due else " for that"
    reason = f"{context.most} nodes fit under {where}; {context.patience.reason}; Slurm waits up to {wait} s{cut}"
    wish = OptionChange(option="switches", value=f"{count}@{wait // 60}:{wait % 60:02d}", reason=reason)
    step = LocalityStep(
        name=where, wait_s=wait, updates=(("Switches", "0"),), reason=f"{where} did not come free in time"
    )
    return SlurmOptions(wishes=(wish,), steps=(step,))


def _count_fewest_leaves(context: PlacementContext) -> tuple[int | None, int]:
    """(leaf switches that it needs in the closest domain that can hold it, leaf switches with nodes for it)."""
    usable = context.usable
    if not context.field.levels:
        return None, 0
    leaf_of = context.field.levels[0]
    for domain_of in context.field.levels:
        holding = [members for members in _group_by_domain(usable, domain_of).values() if _can_hold(members, context)]
        if holding:
            if domain_of is leaf_of:
                return 1, len(_group_by_domain(usable, leaf_of))
            needed = min(_count_leaves(members, leaf_of, context) for members in holding)
            return needed, len(_group_by_domain(usable, leaf_of))
    return None, 0


def _count_leaves(members: Sequence[Node], leaf_of: Mapping[str, str], context: PlacementContext) -> int:
    taken: list[Node] = []
    leaves = sorted(_group_by_domain(members, leaf_of).values(), key=len, reverse=True)
    for count, leaf in enumerate(leaves, start=1):
        taken += leaf
        if _can_hold(taken, context):
            return count
    return len(leaves)


def _can_hold(nodes: Sequence[Node], context: PlacementContext) -> bool:
    return len(nodes) >= context.most and context.field.holds(nodes, context.most)


def _group_by_domain(nodes: Iterable[Node], domain_of: Mapping[str, str]) -> dict[str, list[Node]]:
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        if (name := domain_of.get(node.name)) is not None:
            groups.setdefault(name, []).append(node)
    return groups


# ------------------------------------------------------------------------------------------- topology/block


def _ask_for_segment(context: PlacementContext) -> SlurmOptions:
    """Loosened only where the block that Slurm insists on has no room now, for a job that loses little by it."""
    need, choice, level = context.field.need, context.choice, find_insisted_level(context)
    if context.request.setting("segment"):
        return SlurmOptions(remarks=("you ask for segments yourself",))
    release = context.snapshot.release
    if release is None or not BY_NAME["segment"].known_to(release):
        return SlurmOptions(
            remarks=("Slurm itself keeps it inside one block; this release cannot cut it into segments",)
        )
    if not need.exact:
        return SlurmOptions(
            remarks=("Slurm itself keeps it inside one block; only a fixed number of nodes could be cut",)
        )
    if level is not None and choice.domain is not None and (choice.level or 0) <= level:
        return SlurmOptions(remarks=(f"Slurm itself keeps it inside one block; {choice.domain} has room now",))
    if level is not None and (context.patience.firm or (context.patience.wait_s and not context.outlook.starts_now)):
        return SlurmOptions(remarks=(f"Slurm itself keeps it inside one block; {context.patience.reason}",))
    size = _find_largest_segment(context, now=level is not None)
    if size is None:
        return SlurmOptions(remarks=("no block has room for it, and it cannot be cut into segments that would have",))
    nodes, when = need.least_nodes, "now" if level is not None else "at all, so Slurm would refuse it"
    why = (
        f"; {context.patience.reason}" if not context.patience.wait_s else "; it starts now instead of waiting for one"
    )
    reason = f"no block has room for {nodes} nodes {when}, but blocks have for {size} each{why * (level is not None)}"
    return SlurmOptions(wishes=(OptionChange(option="segment", value=str(size), reason=reason),))


def find_insisted_level(context: PlacementContext) -> int | None:
    """The smallest level with a block of so many nodes: the job must lie in one of that. None: no block is so large."""
    blocks = context.snapshot.topology.blocks
    return min((b.level for b in blocks if (b.size or len(b.nodes)) >= context.field.need.least_nodes), default=None)


def _find_largest_segment(context: PlacementContext, *, now: bool) -> int | None:
    """The largest piece that divides the job, fits a base block, and has room often enough: now, or with all idle."""
    nodes = context.field.need.least_nodes
    blocks = [block for block in context.snapshot.topology.blocks if block.level == 0]
    base = min((block.size or len(block.nodes) for block in blocks), default=0)
    idle = [node.name for node in context.usable if node.name in context.field.ready]
    groups = [[spot.node.name for spot in group] for group in context.field.free] if now else [idle]
    for group in groups:
        here = frozenset(group) - context.avoided
        room = [min(len(here.intersection(block.nodes)), block.size or len(block.nodes)) for block in blocks]
        for size in range(min(base, nodes - 1), 0, -1):
            if nodes % size == 0 and sum(one // size for one in room) * size >= nodes:
                return size
    return None


# ------------------------------------------------------------------------------------------- features


def _ask_for_racks(context: PlacementContext) -> SlurmOptions:
    """Racks are the domains of the closest level, named as the features are."""
    if context.request.setting("constraint") or context.request.setting("prefer"):
        return SlurmOptions(remarks=("you ask for node features yourself, so no rack is asked for",))
    racks = _group_by_domain(context.usable, context.field.levels[0])
    holding = sorted(name for name, members in racks.items() if _can_hold(members, context))
    if not holding or len(racks) < 2 or len(holding) > MAX_RACKS:
        return SlurmOptions(remarks=(f"no single rack can hold {context.most} nodes for it",) if not holding else ())
    value = f"[{'|'.join(holding)}]" if len(holding) > 1 else holding[0]
    where = f"{context.most} nodes fit into one rack; {context.patience.reason}"
    if not context.firm:
        reason = f"{where}; Slurm takes one rack if that is free, else any nodes"
        return SlurmOptions(wishes=(OptionChange(option="prefer", value=value, reason=reason),))
    wait = context.patience.wait_s
    wish = OptionChange(option="constraint", value=value, reason=f"{where}; the reconciler drops this after {wait} s")
    step = LocalityStep(name="one rack", wait_s=wait, updates=(("Features", ""),), reason="no rack came free in time")
    return SlurmOptions(wishes=(wish,), steps=(step,))


_BY_SOURCE: Mapping[str, Callable[[PlacementContext], SlurmOptions]] = {
    "tree": _ask_for_switches,
    "block": _ask_for_segment,
    "features": _ask_for_racks,
    "file": _explain_rack_file,
}


# On how many nodes, and on which: what is asked of Slurm for Philly's "fewest servers".
#
# Measured on 22.05.8 (tests/slurm/test_placement_lab.py, test_relax_lab.py):
#
# - Where no one says a number Slurm takes the fewest nodes that are free now. A job that insists gets `--nodes=k`, and
#   `scontrol update NumNodes=k-m` loosens it: with --gpus and --gpus-per-task, srun and SLURM_* then agree with a job
#   that never named a number. `NumNodes=m` alone is refused.
# - Of a range (-N1-4) Slurm takes the most, with --use-min-nodes the least that is free. With GPUs, CPUs or memory per
#   node fewer nodes mean less of them in all: then the range is the user's to decide.
# - `--nodelist` and `ReqNodeList=` are firm until `ReqNodeList=`. A job whose number of nodes is open could get others
#   next to them, and tasks of an array would all want the same ones.
#
# On 24.11.5 and 26.05.5: `--gpus=4 --nodes=2 --ntasks-per-node=2` is refused with a list of its nodes, whichever they
# are ("Requested node configuration is not available"), and so is each such job whose tasks are a multiple of its
# GPUs.
# What the releases between it and 24.11 do was not tried.
_TAKES_EVERY_LIST = (22, 5)


def ask_for_node_count(context: PlacementContext, before: PlacementPlan | None) -> SlurmOptions:
    """The number of nodes. `before`: the plan that the job was submitted with."""
    if before is not None:
        return keep_submitted_options(before, ("nodes",), context)
    shape = context.request.shape
    if shape.nodes is None:
        return _ask_for_fewest(context)
    if context.field.need.exact or shape.gpu_unit not in (GpuUnit.GRES, GpuUnit.PER_NODE):
        return SlurmOptions()
    return SlurmOptions(remarks=("on fewer nodes of your range it would have fewer GPUs: Slurm takes the most it can",))


def _ask_for_fewest(context: PlacementContext) -> SlurmOptions:
    field, need = context.field, context.field.need
    if context.request.shape.gpu_unit not in (GpuUnit.GPUS, GpuUnit.PER_TASK) or need.per_node is not None:
        return SlurmOptions()
    if not context.firm or need.units < 2:
        return SlurmOptions(remarks=("Slurm takes the fewest nodes that are free",) if need.units > 1 else ())
    allowed = [p.max_nodes for p in field.partitions if p.max_nodes]
    # No node without a task.
    most = min([need.units, need.tasks or need.units, len(field.able), *allowed])
    least = max([1, *(p.min_nodes for p in field.partitions)])
    if not least <= field.fewest < most or not field.holds_on(context.usable, field.fewest):
        return SlurmOptions()
    nodes = f"{field.fewest} node{'s' * (field.fewest > 1)}"
    wait = context.patience.wait_s
    reason = f"{nodes} can hold it; {context.patience.reason}; the reconciler drops this after {wait} s"
    update = ("NumNodes", f"{field.fewest}-{most}")
    step = LocalityStep(
        name="fewest nodes", wait_s=wait, updates=(update,), reason=f"{nodes} did not come free in time"
    )
    return SlurmOptions(wishes=(OptionChange(option="nodes", value=str(field.fewest), reason=reason),), steps=(step,))


def ask_for_nodes(context: PlacementContext, others: SlurmOptions) -> SlurmOptions:
    """The very nodes, for a job that would start on them at once. `others`: what else is asked for."""
    seconds = context.config.placement.pin_s
    names = context.choice.nodes
    if not names or context.choice.spots <= len(names):
        return SlurmOptions()
    chosen = fold(names)
    if why := _explain_no_node_list(context, others):
        return SlurmOptions(remarks=(f"not tied to {chosen}: {why}",))
    reason = f"free now and best; if {chosen} is taken, it may start on other nodes after {seconds} s"
    step = LocalityStep(
        name="these nodes", wait_s=seconds, updates=(("ReqNodeList", ""),), reason=f"{chosen} did not come free in time"
    )
    return SlurmOptions(wishes=(OptionChange(option="nodelist", value=chosen, reason=reason),), steps=(step,))


def _explain_no_node_list(context: PlacementContext, others: SlurmOptions) -> str:
    """Why these nodes are not asked for, as a clause; "" when they are."""
    planned = [n.name for n in context.field.able if "PLANNED" in n.flags and n.name in context.choice.nodes]
    waits = {wish.option for wish in others.wishes} & {"switches", "constraint"} or context.request.setting("switches")
    reasons = (
        (not context.outlook.relaxing, "no reconciler here would release it to other nodes"),
        (context.config.placement.pin_s <= 0, "placement.pin_s is 0"),
        (context.request.setting("array") is not None, "tasks of an array would all want the same nodes"),
        (not context.outlook.starts_now, "it may not start at once"),
        (not context.field.need.sure, "what it needs on a node is not known for certain"),
        (_get_fixed_count(context, others) != len(context.choice.nodes), "its number of nodes is open"),
        (context.request.setting("prefer") is not None, "you prefer some nodes yourself"),
        (not _is_allowed_everywhere(context), "not all of your partitions have them"),
        (
            len(context.choice.nodes) > 1 and any(p.topology for p in context.field.partitions),
            "its partition has a network of its own",
        ),
        (_is_refused_by_slurm(context), "Slurm refuses any list of nodes with this --gpus and --ntasks-per-node"),
        (not _is_within_block(context, others), "Slurm lets it lie in one block, or in segments of one block each"),
        (bool(planned), f"Slurm plans another job on {', '.join(planned[:3])}"),
        (
            len(context.choice.nodes) > 1 and context.choice.level != 0 and bool(waits),
            "they lie apart, and it waits to lie close",
        ),
    )
    return next((why for hit, why in reasons if hit), "")


def _is_allowed_everywhere(context: PlacementContext) -> bool:
    """With EnforcePartLimits=ALL Slurm refuses a list of nodes that one of the partitions does not have."""
    names = {partition.name for partition in context.field.partitions}
    return all(names <= set(node.partitions) for node in context.field.able if node.name in context.choice.nodes)


def _is_refused_by_slurm(context: PlacementContext) -> bool:
    """Several nodes, --gpus, and --ntasks-per-node that makes as many tasks for each GPU."""
    shape, nodes = context.request.shape, len(context.choice.nodes)
    if context.snapshot.release == _TAKES_EVERY_LIST or shape.gpu_unit is not GpuUnit.GPUS or nodes < 2:
        return False
    return bool(shape.tasks_per_node) and nodes * (shape.tasks_per_node or 0) % shape.gpus == 0


def _is_within_block(context: PlacementContext, others: SlurmOptions) -> bool:
    """With topology/block Slurm never starts a job on nodes that its block, or its segments, do not hold."""
    if context.snapshot.topology.source != "block" or len(context.choice.nodes) < 2:
        return True
    cut = context.request.setting("segment") or any(wish.option == "segment" for wish in others.wishes)
    level, reached = find_insisted_level(context), context.choice.level
    return not cut and None not in (level, reached) and (reached or 0) <= (level or 0)


def _get_fixed_count(context: PlacementContext, others: SlurmOptions) -> int | None:
    """The number of nodes, where it is fixed: said outright or by us, or a single unit."""
    need = context.field.need
    by_us = next((int(wish.value) for wish in others.wishes if wish.option == "nodes" and wish.value), None)
    if by_us is None and (need.exact or (need.units == 1 and need.most_nodes is None)):
        return need.least_nodes
    return by_us
