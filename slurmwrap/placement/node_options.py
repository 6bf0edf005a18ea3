"""On how many nodes, and on which: what is asked of Slurm for Philly's "fewest servers". Pure.

Measured on 22.05.8 (tests/slurm/test_placement_lab.py, test_relax_lab.py):

- Where no one says a number Slurm takes the fewest nodes that are free now. A job that insists gets `--nodes=k`, and
  `scontrol update NumNodes=k-m` loosens it: with --gpus and --gpus-per-task, srun and SLURM_* then agree with a job
  that never named a number. `NumNodes=m` alone is refused.
- Of a range (-N1-4) Slurm takes the most, with --use-min-nodes the least that is free. With GPUs, CPUs or memory per
  node fewer nodes mean less of them in all: then the range is the user's to decide.
- `--nodelist` and `ReqNodeList=` are firm until `ReqNodeList=`. A job whose number of nodes is open could get others
  next to them, and tasks of an array would all want the same ones.

On 24.11.5 and 26.05.5: `--gpus=4 --nodes=2 --ntasks-per-node=2` is refused with a list of its nodes, whichever they are
("Requested node configuration is not available"), and so is each such job whose tasks are a multiple of its GPUs.
"""

from __future__ import annotations

from slurmwrap.model.hostlist import fold
from slurmwrap.placement.network_options import find_insisted_level
from slurmwrap.placement.slurm_options import LocalityStep, PlacementContext, SlurmOptions, keep_submitted_options
from slurmwrap.sbatch.request import GpuUnit, OptionChange

_TAKES_EVERY_LIST = (22, 5)  # what the releases between it and 24.11 do was not tried

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.placement_plan import PlacementPlan


def ask_for_node_count(case: PlacementContext, before: PlacementPlan | None) -> SlurmOptions:
    """The number of nodes. `before`: the plan that the job was submitted with."""
    if before is not None:
        return keep_submitted_options(before, ("nodes",), case)
    shape = case.request.shape
    if shape.nodes is None:
        return _ask_for_fewest(case)
    if case.field.need.exact or shape.gpu_unit not in (GpuUnit.GRES, GpuUnit.PER_NODE):
        return SlurmOptions()
    return SlurmOptions(remarks=("on fewer nodes of your range it would have fewer GPUs: Slurm takes the most it can",))


def _ask_for_fewest(case: PlacementContext) -> SlurmOptions:
    field, need = case.field, case.field.need
    if case.request.shape.gpu_unit not in (GpuUnit.GPUS, GpuUnit.PER_TASK) or need.per_node is not None:
        return SlurmOptions()
    if not case.firm or need.units < 2:
        return SlurmOptions(remarks=("Slurm takes the fewest nodes that are free",) if need.units > 1 else ())
    allowed = [p.max_nodes for p in field.partitions if p.max_nodes]
    most = min([need.units, need.tasks or need.units, len(field.able), *allowed])  # no node without a task
    least = max([1, *(p.min_nodes for p in field.partitions)])
    if not least <= field.fewest < most or not field.holds_on(case.usable, field.fewest):
        return SlurmOptions()
    nodes = f"{field.fewest} node{'s' * (field.fewest > 1)}"
    wait = case.patience.wait_s
    reason = f"{nodes} can hold it; {case.patience.reason}; the reconciler drops this after {wait} s"
    update = ("NumNodes", f"{field.fewest}-{most}")
    step = LocalityStep(
        name="fewest nodes", wait_s=wait, updates=(update,), reason=f"{nodes} did not come free in time"
    )
    return SlurmOptions(wishes=(OptionChange(option="nodes", value=str(field.fewest), reason=reason),), steps=(step,))


def ask_for_nodes(case: PlacementContext, others: SlurmOptions) -> SlurmOptions:
    """The very nodes, for a job that would start on them at once. `others`: what else is asked for."""
    seconds = case.config.placement.pin_s
    names = case.choice.nodes
    if not names or case.choice.spots <= len(names):
        return SlurmOptions()
    chosen = fold(names)
    if why := _explain_no_node_list(case, others):
        return SlurmOptions(remarks=(f"not tied to {chosen}: {why}",))
    reason = f"free now and best; if {chosen} is taken, it may start on other nodes after {seconds} s"
    step = LocalityStep(
        name="these nodes", wait_s=seconds, updates=(("ReqNodeList", ""),), reason=f"{chosen} did not come free in time"
    )
    return SlurmOptions(wishes=(OptionChange(option="nodelist", value=chosen, reason=reason),), steps=(step,))


def _explain_no_node_list(case: PlacementContext, others: SlurmOptions) -> str:
    """Why these nodes are not asked for, as a clause; "" when they are."""
    planned = [n.name for n in case.field.able if "PLANNED" in n.flags and n.name in case.choice.nodes]
    waits = {wish.option for wish in others.wishes} & {"switches", "constraint"} or case.request.setting("switches")
    reasons = (
        (not case.outlook.relaxing, "no reconciler here would release it to other nodes"),
        (case.config.placement.pin_s <= 0, "placement.pin_s is 0"),
        (case.request.setting("array") is not None, "tasks of an array would all want the same nodes"),
        (not case.outlook.starts_now, "it may not start at once"),
        (not case.field.need.sure, "what it needs on a node is not known for certain"),
        (_get_fixed_count(case, others) != len(case.choice.nodes), "its number of nodes is open"),
        (case.request.setting("prefer") is not None, "you prefer some nodes yourself"),
        (not _is_allowed_everywhere(case), "not all of your partitions have them"),
        (
            len(case.choice.nodes) > 1 and any(p.topology for p in case.field.partitions),
            "its partition has a network of its own",
        ),
        (_is_refused_by_slurm(case), "Slurm refuses any list of nodes with this --gpus and --ntasks-per-node"),
        (not _is_within_block(case, others), "Slurm lets it lie in one block, or in segments of one block each"),
        (bool(planned), f"Slurm plans another job on {', '.join(planned[:3])}"),
        (
            len(case.choice.nodes) > 1 and case.choice.level != 0 and bool(waits),
            "they lie apart, and it waits to lie close",
        ),
    )
    return next((why for hit, why in reasons if hit), "")


def _is_allowed_everywhere(case: PlacementContext) -> bool:
    """With EnforcePartLimits=ALL Slurm refuses a list of nodes that one of the partitions does not have."""
    names = {partition.name for partition in case.field.partitions}
    return all(names <= set(node.partitions) for node in case.field.able if node.name in case.choice.nodes)


def _is_refused_by_slurm(case: PlacementContext) -> bool:
    """Several nodes, --gpus, and --ntasks-per-node that makes as many tasks for each GPU."""
    shape, nodes = case.request.shape, len(case.choice.nodes)
    if case.snapshot.release == _TAKES_EVERY_LIST or shape.gpu_unit is not GpuUnit.GPUS or nodes < 2:
        return False
    return bool(shape.tasks_per_node) and nodes * (shape.tasks_per_node or 0) % shape.gpus == 0


def _is_within_block(case: PlacementContext, others: SlurmOptions) -> bool:
    """With topology/block Slurm never starts a job on nodes that its block, or its segments, do not hold."""
    if case.snapshot.topology.source != "block" or len(case.choice.nodes) < 2:
        return True
    cut = case.request.setting("segment") or any(wish.option == "segment" for wish in others.wishes)
    level, reached = find_insisted_level(case), case.choice.level
    return not cut and None not in (level, reached) and (reached or 0) <= (level or 0)


def _get_fixed_count(case: PlacementContext, others: SlurmOptions) -> int | None:
    """The number of nodes, where it is fixed: said outright or by us, or a single unit."""
    need = case.field.need
    by_us = next((int(wish.value) for wish in others.wishes if wish.option == "nodes" and wish.value), None)
    if by_us is None and (need.exact or (need.units == 1 and need.most_nodes is None)):
        return need.least_nodes
    return by_us
