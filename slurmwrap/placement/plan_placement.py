"""Make the PlacementPlan of a job from request, profile and snapshot: sbatch options, each with its reason. Pure.

The steps, in order: what the job needs (resource_units.py); the candidate nodes (candidates.py) and those to avoid
(node_ranking.py); CPUs and memory (submission_tuning.py, within tuning_bounds.py and quota.py); the best nodes now and
how long the job waits for locality (locality.py, node_ranking.py); the options for Slurm (slurm_options.py); the levels
in which the request is relaxed, and the reasons in sentences (here). The plan never contradicts what the user set and
never excludes a node without which the job could not run at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.hostlist import fold
from slurmwrap.model.placement_plan import Level, PlacementPlan
from slurmwrap.placement.candidates import CandidateNodes, NodeSlot, find_candidate_nodes, has_opaque_node_choice
from slurmwrap.placement.locality import (
    SHARE_OF_TIME,
    LocalityDelay,
    LostTime,
    NodeChoice,
    Rank,
    choose,
    compute_fullest_domain,
    compute_locality_delay,
    is_whole_node_broken,
)
from slurmwrap.placement.node_ranking import Avoidance, NodeRankScore, avoid, compute_clash, is_on_one_socket, score
from slurmwrap.placement.resource_units import ResourceUnits, compute_resource_units
from slurmwrap.placement.slurm_options import (
    LocalityStep,
    PlacementContext,
    PlanningFacts,
    SlurmOptions,
    ask_for_node_count,
    ask_for_nodes,
    ask_for_one_domain,
)
from slurmwrap.sbatch.job_request import CpuUnit, JobRequest, MemUnit, OptionChange

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.config.load_config import Config
    from slurmwrap.model.cluster import Node, NodeHealth, Snapshot
    from slurmwrap.model.resource_profile import ResourceProfile
    from slurmwrap.placement.submission_tuning import TunedRequestPlan


# Levels: what the job insists on, in order, each with its deadline and the updates that relax it.
#
# these nodes → fewest nodes, one domain → one domain → any node with the tuned CPUs and memory → as the user asked
#
# A level's `wait_s` counts from the moment when the job became eligible, so it grows from level to level.
def make_levels(steps: Sequence[LocalityStep]) -> tuple[Level, ...]:
    """Return one level per step, and a last level in which the job insists on nothing."""
    levels: list[Level] = []
    waited, updates, reason = 0, tuple[tuple[str, str], ...](), ""
    for step in _name_steps(steps):
        waited += step.wait_s
        levels.append(Level(name=step.name, wait_s=waited, updates=updates, reason=reason))
        updates, reason = step.updates, step.reason
    last = "CPUs and memory as asked" if steps and steps[-1].name == "any" else "any"
    return (*levels, Level(name=last, wait_s=0, updates=updates, reason=reason))


def make_tuned_step(
    request: JobRequest, tuned: Sequence[OptionChange], longest_s: float | None, config: Config
) -> tuple[LocalityStep, ...]:
    """Return the step that sets raised CPUs and memory back to the request after the job waited too long for them.

    `longest_s`: expected run time, else the time limit; None if both are unknown.
    """
    if not tuned:
        return ()
    # Imported here because only a job with a profile is tuned.
    from slurmwrap.placement.retune import list_restoring_updates

    updates = list_restoring_updates(tuned, request)
    wait = config.placement.switch_wait_s
    if longest_s is not None:
        wait = min(wait, int(SHARE_OF_TIME * longest_s))
    if not updates:
        return ()
    return (
        LocalityStep(
            name="any", wait_s=wait, updates=updates, reason="more CPUs or memory than asked did not come free"
        ),
    )


def _name_steps(steps: Sequence[LocalityStep]) -> list[LocalityStep]:
    """Return the steps; "fewest nodes" becomes "fewest nodes, one switch" if a domain is required too."""
    places = [step.name for step in steps if step.name not in ("these nodes", "fewest nodes", "any")]
    return [
        replace(step, name=f"{step.name}, {places[0]}") if step.name == "fewest nodes" and places else step
        for step in steps
    ]


# Remarks for `--explain`: why these nodes are the best ones now.
def list_placement_remarks(
    candidates: CandidateNodes,
    choice: NodeChoice,
    avoided: frozenset[str],
    profile: ResourceProfile | None,
    outlook: PlanningFacts,
) -> tuple[str, ...]:
    """Return clauses without a full stop; () if no candidate node is known.

    `avoided`: nodes that the job does not get.
    """
    if not candidates.able:
        return ()
    found = [_describe_nodes(candidates, choice)]
    if candidates.reserved:
        found.append(
            f"{_format_names(candidates.reserved)} cannot be had: a reservation begins before the job would end"
        )
    if len(choice.nodes) == 1:
        slot, group = next((s, group) for group in candidates.free for s in group if s.node.name == choice.nodes[0])
        found += _explain_spared_nodes(slot, group, avoided, candidates)
        found += _explain_choice(slot.node, min(slot.units, candidates.need.units), candidates, profile, outlook)
    return tuple(found)


def _describe_nodes(candidates: CandidateNodes, choice: NodeChoice) -> str:
    if not choice.nodes:
        return "no place has room for all of it now: it waits, and takes nothing before it can have everything"
    names = _format_names(choice.nodes)
    inside = f" in {choice.domain}" if choice.domain else ""
    if len(choice.nodes) == 1 and choice.broken:
        return f"best now: {names}{inside}, an idle node: none in use has room for it"
    if len(choice.nodes) == 1:
        return f"best now: {names}{inside}, {_explain_node(candidates, choice)}"
    spread = "" if choice.domain or not candidates.levels else "; no single network domain has room for it"
    return f"best now: {names}{inside}, the fewest nodes that hold it{spread}"


def _explain_node(candidates: CandidateNodes, choice: NodeChoice) -> str:
    node = next(s.node for group in candidates.free for s in group if s.node.name == choice.nodes[0])
    if node.gpus_free <= candidates.need.units * candidates.need.gpus:
        return "whose free GPUs it fills"
    return "a node in use, so that no idle one is broken"


def _explain_spared_nodes(
    chosen: NodeSlot, group: Sequence[NodeSlot], avoided: frozenset[str], candidates: CandidateNodes
) -> Iterator[str]:
    """Yield which equally free nodes rank lower only because of Slurm's Weight."""
    node, units = chosen.node, candidates.need.units
    heavier = (s for s in group if s.node.weight > node.weight and s.units >= units and s.node.name not in avoided)
    alike = tuple(s.node.name for s in heavier if (s.node.gpus, s.node.gpus_free) == (node.gpus, node.gpus_free))
    if alike:
        yield f"{_format_names(alike)} would do too, but Slurm's Weight spares {'it' if len(alike) == 1 else 'them'}"


def _explain_choice(
    node: Node, units: int, candidates: CandidateNodes, profile: ResourceProfile | None, outlook: PlanningFacts
) -> Iterator[str]:
    """Yield what made this node better than others with as many free GPUs."""
    gpus = candidates.need.on(units)[0]
    parts = score(node, units, candidates.need, profile, outlook.loads, outlook.contention)
    if gpus > 1 and is_on_one_socket(node, gpus):
        yield f"its {gpus} GPUs can lie on one socket of {node.name}"
    if parts.sockets:
        yield f"its {gpus} GPUs would lie on two sockets of {node.name}; no node that ranks better is free"
    if parts.balance < -0.5:
        yield f"{node.name} has CPUs or memory that its light jobs left over"
    if node.name in outlook.loads and profile is not None:
        load = outlook.loads[node.name]
        busy = f"{load.cpus_busy:.0f} of its {node.cpus} CPUs"
        yield f"the jobs on {node.name} keep {busy} busy"


def _format_names(names: tuple[str, ...]) -> str:
    text = fold(names)
    return text if len(text) <= 60 else f"{len(names)} nodes"


NOTHING = PlanningFacts()


def plan(
    request: JobRequest,
    profile: ResourceProfile | None,
    snapshot: Snapshot,
    health: Sequence[NodeHealth],
    config: Config,
    outlook: PlanningFacts = NOTHING,
    before: PlacementPlan | None = None,
) -> PlacementPlan:
    """Return what to change about `request`, given the present state of cluster and nodes.

    Never raises, whatever the request contains. `before`: the plan with which the job was submitted, when a pending job
    is planned again.
    """
    need = compute_resource_units(request)
    if request.hetjob or need is None:
        return PlacementPlan()
    field = find_candidate_nodes(request, need, snapshot)
    placing = config.placement.enabled and request.own.place
    avoidance = avoid(request, field, health, config) if placing else Avoidance()
    tuned = _tune_request(request, profile, field, snapshot, config, outlook) if profile is not None else None
    wishes = tuned.wishes if tuned is not None else ()
    field = _find_tuned_candidates(request, wishes, field, snapshot)
    rank = _make_ranking(field.need, profile, outlook)
    known = avoidance.readable and not has_opaque_node_choice(request)
    choice = choose(field, avoidance.nodes, rank) if known else NodeChoice()
    longest_s = _find_longest_run(request, outlook)
    lost = _find_lost_time(field.need, field.fewest, profile, outlook.run_s, config)
    delay = _compute_delay(longest_s, profile, field, avoidance, config, lost)
    context = PlacementContext(
        request=request, field=field, choice=choice, avoided=avoidance.nodes, patience=delay, snapshot=snapshot,
        outlook=outlook, config=config,
    )  # fmt: skip
    asked = _collect_options(context, avoidance, before) if placing else SlurmOptions()
    remarks = list_placement_remarks(field, choice, avoidance.nodes, profile, outlook) if known else ()
    return PlacementPlan(
        lines=(*asked.wishes, *wishes),
        node_count=field.fewest,
        gpus_per_node=request.shape.gpus_per_node,
        candidates=choice.nodes,
        switch=choice.domain,
        locality=_name_locality(choice),
        levels=make_levels((*asked.steps, *make_tuned_step(request, wishes, longest_s, config))),
        cpus_per_gpu=None if tuned is None or tuned.given.cpus_per_gpu is None else ceil(tuned.given.cpus_per_gpu),
        mem_mib_per_gpu=None if tuned is None else tuned.given.mem_mib_per_gpu,
        profile_key=profile.key if profile else "",
        lost_s=None if lost is None else round(lost.seconds, 1),
        remarks=(*remarks, *asked.remarks, *snapshot.topology.remarks) if placing else (),
    )


def _tune_request(
    request: JobRequest,
    profile: ResourceProfile,
    candidates: CandidateNodes,
    snapshot: Snapshot,
    config: Config,
    outlook: PlanningFacts,
) -> TunedRequestPlan:
    # Imported here because without a profile everything stays as the user asked.
    from slurmwrap.placement.quota import compute_limits
    from slurmwrap.placement.submission_tuning import tune

    limits = compute_limits(request, candidates.partitions, snapshot.quotas, qos=outlook.qos, account=outlook.account)
    return tune(request, profile, candidates, config, limits)


def _name_locality(choice: NodeChoice) -> str:
    if not choice.nodes:
        return "any"
    return "spread" if len(choice.nodes) > 1 and not choice.domain else "consolidated"


def _collect_options(context: PlacementContext, avoidance: Avoidance, before: PlacementPlan | None) -> SlurmOptions:
    """Return the nodes to avoid, then what the job insists on, in the order in which it is relaxed."""
    avoided = SlurmOptions(wishes=(avoidance.wish,) if avoidance.wish else ())
    if has_opaque_node_choice(context.request):
        return avoided + SlurmOptions(remarks=("you pick the nodes yourself, so nothing is asked for about them",))
    count = ask_for_node_count(context, before)
    network = ask_for_one_domain(context, before, count)
    return avoided + ask_for_nodes(context, count + network) + count + network


def _find_tuned_candidates(
    request: JobRequest, wishes: Sequence[OptionChange], candidates: CandidateNodes, snapshot: Snapshot
) -> CandidateNodes:
    """Return the candidate nodes of the job with the CPUs and memory that it will ask for."""
    given = {wish.option: wish.value for wish in wishes if wish.value}
    if not given:
        return candidates
    shape = request.shape
    for option, value in given.items():
        if option in ("cpus-per-task", "cpus-per-gpu"):
            shape = replace(shape, cpus=int(value), cpu_unit=CpuUnit(option))
        else:
            shape = replace(shape, mem_mib=int(value.removesuffix("M")), mem_unit=MemUnit(option))
    changed = replace(request, shape=shape)
    need = compute_resource_units(changed)
    return candidates if need is None else find_candidate_nodes(changed, need, snapshot, like=candidates)


def _find_longest_run(request: JobRequest, outlook: PlanningFacts) -> float | None:
    """Return the expected run time if it is known, at most the time limit; None if neither is known."""
    return min((s for s in (outlook.run_s, request.shape.time_limit_s) if s is not None), default=None)


def _compute_delay(
    longest_s: float | None,
    profile: ResourceProfile | None,
    candidates: CandidateNodes,
    avoidance: Avoidance,
    config: Config,
    lost: LostTime | None,
) -> LocalityDelay:
    """Return how long the job waits for locality; never firm if the user's list of excluded nodes cannot be read."""
    found = compute_locality_delay(
        skew=profile.skew if profile else None,
        limit=config.placement.skew_limit,
        nodes=max(2, candidates.fewest),
        room=compute_fullest_domain(candidates, avoidance.nodes),
        base_s=config.placement.switch_wait_s,
        run_s=longest_s,
        lost=lost,
    )
    return replace(found, firm=found.firm and avoidance.readable)


def _find_lost_time(
    need: ResourceUnits, fewest: int, profile: ResourceProfile | None, run_s: float | None, config: Config
) -> LostTime | None:
    """Return what the job loses on one node more than `fewest`; None if its run time or slow-down is not known."""
    if profile is None or run_s is None or need.units * need.gpus < 2 or not (profile.model_mib or profile.speeds):
        return None
    # Imported here because only a job with a profile has a known slow-down.
    from slurmwrap.profiling.communication import choose_links, compute_slowdown

    settings = config.placement
    links = choose_links(settings.network_gbit_s, settings.gpu_link_gbit_s, profile.gpu_type, (profile,))
    known = None if links.network.assumed else links
    found = compute_slowdown(profile, need.units * need.gpus, fewest, known)
    return None if found is None else LostTime(seconds=run_s * (found[0] - 1), slowdown=found[0], basis=found[1])


def _make_ranking(need: ResourceUnits, profile: ResourceProfile | None, outlook: PlanningFacts) -> Rank:
    """Return a function that ranks nodes. Equal-looking nodes are scored once; on a large cluster most nodes look
    alike.
    """
    known: dict[tuple[object, ...], NodeRankScore] = {}

    def rank(slot: NodeSlot, units: int) -> tuple[bool, int, float]:
        node = slot.node
        alike = (
            units, node.gpus, node.gpus_used, node.cpus, node.cpus_alloc, node.mem_mib, node.mem_alloc_mib,
            node.gpus_used_at, node.gpu_sockets,
        )  # fmt: skip
        alone = known.get(alike)
        if alone is None:
            alone = known[alike] = score(node, units, need, profile, {})
        load = outlook.loads.get(node.name)
        more = (
            compute_clash(node, units * need.gpus, load, profile, outlook.contention)
            if load is not None and profile is not None
            else 0.0
        )
        return is_whole_node_broken(slot, need, units), node.weight, alone.total_with(more)

    return rank
