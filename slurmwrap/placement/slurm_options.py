"""Choose the sbatch options for placement: number of nodes, network locality, node list. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.cluster import NO_EVIDENCE
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
    from slurmwrap.model.cluster import ContentionWeights, Node, NodeLoad, Snapshot


# Option that is firm → (name of its level, key of `scontrol update` that relaxes it).
_FIRM = {"nodes": ("fewest nodes", "NumNodes"), "constraint": ("one rack", "Features")}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningFacts:
    """What is published about nodes, and what happens to the job next. The defaults assume nothing."""

    loads: Mapping[str, NodeLoad] = field(default_factory=dict)  # by node name
    contention: ContentionWeights = NO_EVIDENCE  # what the site's runs prove about nodes with busy neighbours
    # Whether a reconciler relaxes pending jobs; only then may firm options be asked for.
    relaxing: bool = False
    # QOS and account that Slurm gave a job that is submitted already; "": not known yet.
    qos: str = ""
    account: str = ""
    # The job is eligible at once: no pre-run, --begin, --hold or dependency delays it.
    starts_now: bool = False
    run_s: float | None = None  # expected run time by earlier runs of the same job; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalityStep:
    """Something that the job insists on: its name as a level, how long it holds, and the updates that relax it."""

    name: str
    wait_s: int
    updates: tuple[tuple[str, str], ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """Options for Slurm, steps in the order in which they are relaxed, and remarks that change nothing."""

    wishes: tuple[OptionChange, ...] = ()
    steps: tuple[LocalityStep, ...] = ()
    remarks: tuple[str, ...] = ()

    def __add__(self, other: SlurmOptions) -> SlurmOptions:
        return SlurmOptions(
            wishes=self.wishes + other.wishes, steps=self.steps + other.steps, remarks=self.remarks + other.remarks
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementContext:
    """Everything that decisions on one job's placement may use."""

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
        """Greatest number of nodes that the job takes, as far as is known."""
        return max(self.field.fewest, self.field.need.most_nodes or 0)

    @property
    def usable(self) -> list[Node]:
        """Able nodes that are not avoided."""
        return [node for node in self.field.able if node.name not in self.avoided]

    @property
    def firm(self) -> bool:
        """Whether the job may insist: it gains by that, a reconciler relaxes it later, and its needs are known."""
        return self.patience.firm and self.patience.wait_s > 0 and self.outlook.relaxing and self.field.need.sure


def keep_submitted_options(before: PlacementPlan, options: Sequence[str], context: PlacementContext) -> SlurmOptions:
    """Return those options and steps of the submitted plan that only a reconciler may change now."""
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


# How Slurm is asked to place a job in one network domain, by the source of the topology.
#
# Measured on 22.05.8 (tests/slurm/test_placement_lab.py, test_relax_lab.py) and, for blocks, on 24.11.5 and 26.05.5:
#
# tree      `--switches=N@t` is soft: Slurm waits t for N leaf switches, at most SchedulerParameters=max_switch_wait.
#           If the least number of nodes of a job is below what its GPUs need (--gpus=32 on nodes of 8), Slurm may try a
#           switch that has too few GPUs, and then shows the job as one that can never run, though another switch could
#           hold it. So --switches is used only together with a number of nodes.
# block     is firm without any option: a job must lie in the smallest block that can hold it, however long it waits.
#           `--segment=G` relaxes that: pieces of G nodes, each in one block, spread even where they need not be. G must
#           divide the number of nodes and be at most the base block's size. It cannot be changed on a pending job, and
#           --switches has no effect there.
# features  `--prefer=[a|b]` is soft: all nodes with one of the features if they are free now, else any nodes. Slurm
#           refuses it if no rack could ever hold the job, and it replaces --constraint, so it is only for jobs that
#           name no feature. `--constraint=[a|b]` is firm until `scontrol update Features=`.
# file      Slurm does not know the network: only a node list can express locality (ask_for_nodes).
#
# MAX_RACKS limits the alternatives in one --constraint or --prefer: slurmctld tries each of them at every pass.
MAX_RACKS = 32


def ask_for_one_domain(context: PlacementContext, before: PlacementPlan | None, count: SlurmOptions) -> SlurmOptions:
    """Return the options that keep a job of several nodes in one network domain.

    `before`: the plan with which the job was submitted. `count`: the options for the number of nodes.
    """
    source = context.snapshot.topology.source
    if context.most < 2:
        return SlurmOptions()
    if any(partition.topology for partition in context.field.partitions):
        return SlurmOptions(remarks=("its partition has a network topology of its own, which we do not see",))
    if before is not None and source != "tree":
        return keep_submitted_options(before, ("constraint", "prefer", "segment"), context)
    count_planned = any(wish.option == "nodes" for wish in count.wishes)
    least = context.request.shape.nodes
    count_named = context.field.need.exact or (least is not None and context.field.holds_on(context.usable, least))
    if source == "tree" and not (count_planned or count_named or context.request.setting("switches")):
        return SlurmOptions(
            remarks=("if you set the number of nodes (--nodes), Slurm can be asked to keep the job under one switch",)
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
    """Return --switches with the fewest leaf switches that can hold the job, and the time to wait for them.

    The wait is at most max_switch_wait, because Slurm would cut it to that anyway.
    """
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
    """Return (leaf switches that the job needs in the closest domain that can hold it, leaf switches with nodes for
    it).
    """
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
    """Return --segment only if the block that Slurm requires is not free now and the job loses little on several
    blocks.
    """
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
    """Return the smallest level with a block of so many nodes: Slurm requires one block of it. None: no block is so
    large.
    """
    blocks = context.snapshot.topology.blocks
    return min((b.level for b in blocks if (b.size or len(b.nodes)) >= context.field.need.least_nodes), default=None)


def _find_largest_segment(context: PlacementContext, *, now: bool) -> int | None:
    """Return the largest piece that divides the job, fits a base block, and fits often enough: now, or with all nodes
    idle.
    """
    nodes = context.field.need.least_nodes
    blocks = [block for block in context.snapshot.topology.blocks if block.level == 0]
    base = min((block.size or len(block.nodes) for block in blocks), default=0)
    idle = [node.name for node in context.usable if node.name in context.field.ready]
    groups = [[slot.node.name for slot in group] for group in context.field.free] if now else [idle]
    for group in groups:
        available = frozenset(group) - context.avoided
        free = [min(len(available.intersection(block.nodes)), block.size or len(block.nodes)) for block in blocks]
        for size in range(min(base, nodes - 1), 0, -1):
            if nodes % size == 0 and sum(one // size for one in free) * size >= nodes:
                return size
    return None


# ------------------------------------------------------------------------------------------- features


def _ask_for_racks(context: PlacementContext) -> SlurmOptions:
    """Return --prefer or --constraint for one rack. Racks are the domains of the closest level, named like the
    features.
    """
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


# The number of nodes and the node list: what Slurm is asked for to get Philly's "fewest servers".
#
# Measured on 22.05.8 (tests/slurm/test_placement_lab.py, test_relax_lab.py):
#
# - Without a number of nodes Slurm takes the fewest nodes that are free now. A job that insists gets `--nodes=k`, and
#   `scontrol update NumNodes=k-m` relaxes it: with --gpus and --gpus-per-task, srun and SLURM_* then agree with a job
#   that never named a number. `NumNodes=m` alone is refused.
# - Of a range (-N1-4) Slurm takes the most, with --use-min-nodes the fewest that are free. With GPUs, CPUs or memory
#   per node, fewer nodes mean less of them in all: then the user decides on the range.
# - `--nodelist` and `ReqNodeList=` are firm until `ReqNodeList=`. A job whose number of nodes is open could get others
#   in addition, and all tasks of an array would want the same nodes.
#
# On 24.11.5 and 26.05.5, `--gpus=4 --nodes=2 --ntasks-per-node=2` is refused with any node list ("Requested node
# configuration is not available"), and so is each such job whose tasks are a multiple of its GPUs. The releases between
# 22.05 and 24.11 were not tested.
_TAKES_EVERY_LIST = (22, 5)


def ask_for_node_count(context: PlacementContext, before: PlacementPlan | None) -> SlurmOptions:
    """Return the options for the number of nodes. `before`: the plan with which the job was submitted."""
    if before is not None:
        return keep_submitted_options(before, ("nodes",), context)
    shape = context.request.shape
    if shape.nodes is None:
        return _ask_for_fewest(context)
    if context.field.need.exact or shape.gpu_unit not in (GpuUnit.GRES, GpuUnit.PER_NODE):
        return SlurmOptions()
    return SlurmOptions(remarks=("on fewer nodes of your range it would have fewer GPUs: Slurm takes the most it can",))


def _ask_for_fewest(context: PlacementContext) -> SlurmOptions:
    """Return --nodes with the fewest nodes that can hold a job that names no number of nodes.

    Only for a job that may insist on it; NumNodes then relaxes it to the range that Slurm would have used.
    """
    field, need = context.field, context.field.need
    if context.request.shape.gpu_unit not in (GpuUnit.GPUS, GpuUnit.PER_TASK) or need.per_node is not None:
        return SlurmOptions()
    if not context.firm or need.units < 2:
        return SlurmOptions(remarks=("Slurm takes the fewest nodes that are free",) if need.units > 1 else ())
    allowed = [p.max_nodes for p in field.partitions if p.max_nodes]
    # Each node needs at least one task.
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
    """Return the node list for a job that would start on these nodes at once. `others`: the plan's other options."""
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
    """Return why these nodes are not asked for, as a clause; "" if they are."""
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
            "they are in different network domains, and the job waits for a closer place",
        ),
    )
    return next((why for hit, why in reasons if hit), "")


def _is_allowed_everywhere(context: PlacementContext) -> bool:
    """Return whether every partition of the job has these nodes.

    With EnforcePartLimits=ALL Slurm refuses a node list that one of the partitions does not have.
    """
    names = {partition.name for partition in context.field.partitions}
    return all(names <= set(node.partitions) for node in context.field.able if node.name in context.choice.nodes)


def _is_refused_by_slurm(context: PlacementContext) -> bool:
    """Return whether the job has several nodes, --gpus, and --ntasks-per-node with as many tasks for each GPU."""
    shape, nodes = context.request.shape, len(context.choice.nodes)
    if context.snapshot.release == _TAKES_EVERY_LIST or shape.gpu_unit is not GpuUnit.GPUS or nodes < 2:
        return False
    return bool(shape.tasks_per_node) and nodes * (shape.tasks_per_node or 0) % shape.gpus == 0


def _is_within_block(context: PlacementContext, others: SlurmOptions) -> bool:
    """Return whether the chosen nodes lie in one block that Slurm accepts.

    With topology/block Slurm never starts a job on nodes that its block, or its segments, do not hold.
    """
    if context.snapshot.topology.source != "block" or len(context.choice.nodes) < 2:
        return True
    cut = context.request.setting("segment") or any(wish.option == "segment" for wish in others.wishes)
    level, reached = find_insisted_level(context), context.choice.level
    return not cut and None not in (level, reached) and (reached or 0) <= (level or 0)


def _get_fixed_count(context: PlacementContext, others: SlurmOptions) -> int | None:
    """Return the number of nodes if it is fixed: by the request, by the plan, or because the job is a single unit."""
    need = context.field.need
    count_planned = next((int(wish.value) for wish in others.wishes if wish.option == "nodes" and wish.value), None)
    if count_planned is None and (need.exact or (need.units == 1 and need.most_nodes is None)):
        return need.least_nodes
    return count_planned
