"""How a job is told to Slurm to lie in one network domain, by who knows the network. Pure.

Measured on 22.05.8 (tests/slurm/test_placement_lab.py, test_relax_lab.py) and, for blocks, on 24.11.5 and 26.05.5:

tree      `--switches=N@t` is soft: Slurm waits t for N leaf switches, at most SchedulerParameters=max_switch_wait.
          A job whose least number of nodes is below what its GPUs need (--gpus=32 on nodes of 8) may be tried under a
          switch that has too few GPUs, and is then told that it can never run, though another switch could hold it:
          so --switches goes with a number of nodes.
block     is firm without any option: a job must lie in the smallest block that can hold it, however long it waits.
          `--segment=G` loosens that: pieces of G nodes, each in one block, spread even where they need not be. G must
          divide the number of nodes and be at most the base block's size; it cannot be changed on a waiting job, and
          --switches means nothing there.
features  `--prefer=[a|b]` is soft: all nodes with one of the features where that is free now, else any nodes. It is
          refused where no rack could ever hold the job, and takes the place of --constraint, so it is only for jobs
          that name no feature. `--constraint=[a|b]` is firm until `scontrol update Features=`.
file      Slurm knows nothing: only a list of nodes says it (node_options.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from slurmwrap.placement.slurm_options import LocalityStep, PlacementContext, SlurmOptions, keep_submitted_options
from slurmwrap.sbatch.options import BY_NAME
from slurmwrap.sbatch.request import OptionChange

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.node import Node
    from slurmwrap.model.placement_plan import PlacementPlan

MAX_RACKS = 32  # alternatives in one --constraint or --prefer: slurmctld tries each of them at every pass


def ask_for_one_domain(case: PlacementContext, before: PlacementPlan | None, count: SlurmOptions) -> SlurmOptions:
    """What to ask for a job of several nodes. `before`: the plan that it was submitted with; `count`: what is asked for
    about the number of nodes."""
    source = case.snapshot.topology.source
    if case.most < 2:
        return SlurmOptions()
    if any(partition.topology for partition in case.field.partitions):
        return SlurmOptions(remarks=("its partition has a network topology of its own, which we do not see",))
    if before is not None and source != "tree":
        return keep_submitted_options(before, ("constraint", "prefer", "segment"), case)
    by_us = any(wish.option == "nodes" for wish in count.wishes)
    least = case.request.shape.nodes
    said = case.field.need.exact or (least is not None and case.field.holds_on(case.usable, least))
    if source == "tree" and not (by_us or said or case.request.setting("switches")):
        return SlurmOptions(
            remarks=("say the number of nodes (--nodes), and Slurm can be asked to keep it under one switch",)
        )
    return _BY_SOURCE.get(source, _explain_no_topology)(case)


def _explain_no_topology(case: PlacementContext) -> SlurmOptions:
    return SlurmOptions(remarks=("Slurm knows no network topology here, so its nodes may lie anywhere",))


def _explain_rack_file(case: PlacementContext) -> SlurmOptions:
    return SlurmOptions(
        remarks=("Slurm does not know the racks of placement.topology_file, so it cannot be asked for one",)
    )


# ------------------------------------------------------------------------------------------- topology/tree


def _ask_for_switches(case: PlacementContext) -> SlurmOptions:
    if case.request.setting("switches"):
        return SlurmOptions(remarks=("you ask for switches yourself",))
    count, leaves = _count_fewest_leaves(case)
    if case.config.placement.switch_wait_s <= 0 or count is None or count == leaves:
        return SlurmOptions()
    due, clamp = case.patience.wait_s, case.snapshot.max_switch_wait_s
    wait, where = min(due, clamp), "one switch" if count == 1 else f"{count} switches"
    if wait < 1:
        return SlurmOptions(remarks=(f"no switch is waited for: {case.patience.reason}",))
    cut = f", its max_switch_wait, for {due} s would be due" if wait < due else " for that"
    reason = f"{case.most} nodes fit under {where}; {case.patience.reason}; Slurm waits up to {wait} s{cut}"
    wish = OptionChange(option="switches", value=f"{count}@{wait // 60}:{wait % 60:02d}", reason=reason)
    step = LocalityStep(
        name=where, wait_s=wait, updates=(("Switches", "0"),), reason=f"{where} did not come free in time"
    )
    return SlurmOptions(wishes=(wish,), steps=(step,))


def _count_fewest_leaves(case: PlacementContext) -> tuple[int | None, int]:
    """(leaf switches that it needs in the closest domain that can hold it, leaf switches with nodes for it)."""
    usable = case.usable
    if not case.field.levels:
        return None, 0
    leaf_of = case.field.levels[0]
    for domain_of in case.field.levels:
        holding = [members for members in _group_by_domain(usable, domain_of).values() if _can_hold(members, case)]
        if holding:
            if domain_of is leaf_of:
                return 1, len(_group_by_domain(usable, leaf_of))
            needed = min(_count_leaves(members, leaf_of, case) for members in holding)
            return needed, len(_group_by_domain(usable, leaf_of))
    return None, 0


def _count_leaves(members: Sequence[Node], leaf_of: Mapping[str, str], case: PlacementContext) -> int:
    taken: list[Node] = []
    leaves = sorted(_group_by_domain(members, leaf_of).values(), key=len, reverse=True)
    for count, leaf in enumerate(leaves, start=1):
        taken += leaf
        if _can_hold(taken, case):
            return count
    return len(leaves)


def _can_hold(nodes: Sequence[Node], case: PlacementContext) -> bool:
    return len(nodes) >= case.most and case.field.holds(nodes, case.most)


def _group_by_domain(nodes: Iterable[Node], domain_of: Mapping[str, str]) -> dict[str, list[Node]]:
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        if (name := domain_of.get(node.name)) is not None:
            groups.setdefault(name, []).append(node)
    return groups


# ------------------------------------------------------------------------------------------- topology/block


def _ask_for_segment(case: PlacementContext) -> SlurmOptions:
    """Loosened only where the block that Slurm insists on has no room now, for a job that loses little by it."""
    need, choice, level = case.field.need, case.choice, find_insisted_level(case)
    if case.request.setting("segment"):
        return SlurmOptions(remarks=("you ask for segments yourself",))
    release = case.snapshot.release
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
    if level is not None and (case.patience.firm or (case.patience.wait_s and not case.outlook.starts_now)):
        return SlurmOptions(remarks=(f"Slurm itself keeps it inside one block; {case.patience.reason}",))
    size = _find_largest_segment(case, now=level is not None)
    if size is None:
        return SlurmOptions(remarks=("no block has room for it, and it cannot be cut into segments that would have",))
    nodes, when = need.least_nodes, "now" if level is not None else "at all, so Slurm would refuse it"
    why = f"; {case.patience.reason}" if not case.patience.wait_s else "; it starts now instead of waiting for one"
    reason = f"no block has room for {nodes} nodes {when}, but blocks have for {size} each{why * (level is not None)}"
    return SlurmOptions(wishes=(OptionChange(option="segment", value=str(size), reason=reason),))


def find_insisted_level(case: PlacementContext) -> int | None:
    """The smallest level with a block of so many nodes: the job must lie in one of that. None: no block is so large."""
    blocks = case.snapshot.topology.blocks
    return min((b.level for b in blocks if (b.size or len(b.nodes)) >= case.field.need.least_nodes), default=None)


def _find_largest_segment(case: PlacementContext, *, now: bool) -> int | None:
    """The largest piece that divides the job, fits a base block, and has room often enough: now, or with all idle."""
    nodes = case.field.need.least_nodes
    blocks = [block for block in case.snapshot.topology.blocks if block.level == 0]
    base = min((block.size or len(block.nodes) for block in blocks), default=0)
    idle = [node.name for node in case.usable if node.name in case.field.ready]
    groups = [[spot.node.name for spot in group] for group in case.field.free] if now else [idle]
    for group in groups:
        here = frozenset(group) - case.avoided
        room = [min(len(here.intersection(block.nodes)), block.size or len(block.nodes)) for block in blocks]
        for size in range(min(base, nodes - 1), 0, -1):
            if nodes % size == 0 and sum(one // size for one in room) * size >= nodes:
                return size
    return None


# ------------------------------------------------------------------------------------------- features


def _ask_for_racks(case: PlacementContext) -> SlurmOptions:
    """Racks are the domains of the closest level, named as the features are."""
    if case.request.setting("constraint") or case.request.setting("prefer"):
        return SlurmOptions(remarks=("you ask for node features yourself, so no rack is asked for",))
    racks = _group_by_domain(case.usable, case.field.levels[0])
    holding = sorted(name for name, members in racks.items() if _can_hold(members, case))
    if not holding or len(racks) < 2 or len(holding) > MAX_RACKS:
        return SlurmOptions(remarks=(f"no single rack can hold {case.most} nodes for it",) if not holding else ())
    value = f"[{'|'.join(holding)}]" if len(holding) > 1 else holding[0]
    where = f"{case.most} nodes fit into one rack; {case.patience.reason}"
    if not case.firm:
        reason = f"{where}; Slurm takes one rack if that is free, else any nodes"
        return SlurmOptions(wishes=(OptionChange(option="prefer", value=value, reason=reason),))
    wait = case.patience.wait_s
    wish = OptionChange(option="constraint", value=value, reason=f"{where}; the reconciler drops this after {wait} s")
    step = LocalityStep(name="one rack", wait_s=wait, updates=(("Features", ""),), reason="no rack came free in time")
    return SlurmOptions(wishes=(wish,), steps=(step,))


_BY_SOURCE: Mapping[str, Callable[[PlacementContext], SlurmOptions]] = {
    "tree": _ask_for_switches,
    "block": _ask_for_segment,
    "features": _ask_for_racks,
    "file": _explain_rack_file,
}
