"""Choose a running job to take from its GPUs at a checkpoint, so that others start or it runs faster. Pure.

reconcile/move_running.py and the simulator (sim/) call `find_move`. A move is signal, checkpoint, requeue. It costs the
work since the last checkpoint and the restart. There are three occasions:

    feedback        a waiting job of a higher class fits on the GPUs of a running one whose attained service has put
                    it into a lower class                            (2D-LAS of Tiresias, NSDI 2019; see queue_order.py)
    fragmentation   enough GPUs are free for a waiting job, but scattered: moving a few one-GPU jobs to the other free
                    ones frees its nodes                                                         (Gandiva, OSDI 2018)
    slow            a run is much slower than its profile on its nodes, or spread over switches, and could run elsewhere

Gain and cost are seconds of completion time, summed over the jobs: what a waiting job waits less or a moved one runs
less, minus what moved ones wait. Waiting jobs are given in the order in which Slurm starts them, so that no move is for
a job whose place another one would take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from slurmwrap.config.config_defaults import Move
from slurmwrap.fast_dataclasses import dataclass, replace

FEEDBACK, FRAGMENTATION, SLOW = "feedback", "fragmentation", "slow"
MOVE_OCCASIONS = (FEEDBACK, FRAGMENTATION, SLOW)
# Waiting jobs that are considered, first ones first: those behind them will hardly be the next to start.
_WAITING = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveNode:
    """A node that takes jobs, and what is free on it. `switch`: its closest switch, "" if not known."""

    node: str
    free: int  # GPUs
    partitions: tuple[str, ...] = ()
    switch: str = ""
    cpus_free: int = 0
    mem_free_mib: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveCandidate:
    """A running job whose user agreed, that is known to resume, and that the site does not preempt itself."""

    job: str
    gpus: tuple[tuple[str, int], ...]  # node and number of GPUs there
    attained_s: float  # that all of its runs held its GPUs
    remaining_s: float  # expected
    unsaved_s: float  # work since its last checkpoint, or that it needs to write one now
    restart_s: float  # from its start until it goes on
    order_class: int = 0  # by its attained service: classify_attained()
    moved_before_s: float = inf  # time since its last move; inf: never
    slowdown: float = 1.0  # its time per step here, divided by that of its profile
    partitions: tuple[str, ...] = ()
    cpus: int = 0  # on each of its nodes
    mem_mib: int = 0

    @property
    def cost_s(self) -> float:
        """Return what a move costs it, in seconds."""
        return self.unsaved_s + self.restart_s

    @property
    def total_gpus(self) -> int:
        """Return the number of its GPUs."""
        return sum(count for _, count in self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRequest:
    """A job that waits only for resources. It needs `gpus` GPUs on `nodes` nodes; None: on any number of nodes."""

    job: str
    gpus: int
    nodes: int | None
    run_s: float  # expected
    order_class: int = 0
    starts_s: float = inf  # expected start without a move, seconds from now; inf: not known
    partitions: tuple[str, ...] = ()  # (): any node
    cpus: int = 0  # on each node
    mem_mib: int = 0
    allowed: frozenset[str] = frozenset()  # the only nodes on which it may run; empty: all


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveView:
    """The cluster at one moment. `waiting`: in Slurm's order; `moving_gpus`: GPUs whose jobs are being moved."""

    nodes: tuple[MoveNode, ...]
    candidates: tuple[MoveCandidate, ...]
    waiting: tuple[PendingRequest, ...]
    total_gpus: int
    moving_gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMove:
    """Jobs to move, and why. `gain_s` and `cost_s`: seconds of completion time of all jobs together."""

    occasion: str  # one of MOVE_OCCASIONS
    jobs: tuple[str, ...]
    gain_s: float
    cost_s: float
    waiting: str = ""  # the job that starts instead; "" with SLOW
    waits_s: float = 0.0  # how long that job would wait without the move, as far as it counts in the gain
    avoid: tuple[str, ...] = ()  # nodes that the moved job leaves for good
    one_switch: bool = False  # the moved job is to run below one switch
    gained_gpu_s: float = 0.0  # GPU time that is not wasted: idle GPUs in use, or a faster run
    lost_gpu_s: float = 0.0  # GPU time of work that is done again


def classify_attained(gpu_seconds: float, thresholds: Sequence[float]) -> int:
    """Return the class of a running job by its attained service; 0 is first. `thresholds`: queue_order's."""
    return sum(gpu_seconds >= limit for limit in thresholds)


def find_move(view: MoveView, settings: Move) -> JobMove | None:
    """Return the move that gains most, or None. Only one at a time: each changes the view for the next."""
    movable = tuple(one for one in view.candidates if may_move(one, settings))
    if not movable:
        return None
    occupied = {node for one in movable for node, _ in one.gpus}
    waiting, left = _start_fitting(view.waiting[:_WAITING], view.nodes)
    nodes = tuple(node for node in left if node.free or node.node in occupied)
    moves = [
        *_find_feedback(movable, waiting, nodes, settings),
        *_find_defragmentations(movable, waiting, nodes, settings),
        *_find_undone(movable, nodes, settings),
    ]
    gpus = {one.job: one.total_gpus for one in movable}
    worth = [
        move
        for move in moves
        if move.gain_s > 0
        and move.gain_s >= settings.gain_factor * move.cost_s
        and _is_within_share(sum(gpus[job] for job in move.jobs), len(move.jobs), view, settings)
    ]
    return max(worth, key=lambda move: (move.gain_s - move.cost_s, move.jobs), default=None)


def may_move(one: MoveCandidate, settings: Move) -> bool:
    """Return whether the job may be moved now, whatever for."""
    whole_s = one.attained_s + one.remaining_s
    return one.moved_before_s >= settings.every_s and one.remaining_s > settings.last_share * whole_s


def find_successor(
    one: MoveCandidate, waiting: Sequence[PendingRequest], nodes: Sequence[MoveNode]
) -> PendingRequest | None:
    """Return the first waiting job that could start if this job left its GPUs, and cannot start without that."""
    blocked, left = _start_fitting(waiting, nodes)
    freed = _free_nodes(left, [one])
    return next((job for job in blocked if _place(job, freed) is not None), None)


def _is_within_share(gpus: int, jobs: int, view: MoveView, settings: Move) -> bool:
    if view.moving_gpus == 0 and jobs == 1:
        return True
    return view.moving_gpus + gpus <= settings.gpu_share * view.total_gpus


# --- occasions --------------------------------------------------------------------------------------------------------


def _find_feedback(
    movable: Sequence[MoveCandidate], waiting: Sequence[PendingRequest], nodes: Sequence[MoveNode], settings: Move
) -> Iterable[JobMove]:
    """Yield moves of jobs of lower classes for the first waiting job that starts instead."""
    for job in _select_first_of_each_shape(waiting):
        lower = sorted(
            (
                one
                for one in movable
                if one.order_class > job.order_class and _share_a_partition(one.partitions, job.partitions)
            ),
            key=lambda one: (-one.order_class, one.cost_s, one.job),
        )
        victims = _choose_victims(job, lower, nodes, settings.most_jobs)
        if not victims:
            continue
        started = _list_started(waiting, _free_nodes(nodes, victims))
        if not started or started[0] is not job:
            continue
        # Of the others, those count that may pass the moved jobs too.
        started = [one for one in started if one.order_class < min(victim.order_class for victim in victims)]
        left_s = max(one.remaining_s for one in victims)
        saved_s = sum(min(one.starts_s, left_s) for one in started)
        delay_s = max(one.run_s for one in started)
        yield JobMove(
            occasion=FEEDBACK,
            jobs=tuple(one.job for one in victims),
            waiting=job.job,
            waits_s=min(job.starts_s, left_s),
            gain_s=saved_s - delay_s * len(victims),
            cost_s=sum(one.cost_s for one in victims),
            lost_gpu_s=_sum_lost(victims),
        )


def _choose_victims(
    job: PendingRequest, lower: Sequence[MoveCandidate], nodes: Sequence[MoveNode], most: int
) -> list[MoveCandidate]:
    """Return few running jobs whose GPUs make room for `job`; [] if there are none."""
    for one in lower:
        if _makes_room(job, [one], nodes):
            return [one]
    chosen: list[MoveCandidate] = []
    for one in _sort_by_room(lower, nodes):
        chosen.append(one)
        if _makes_room(job, chosen, nodes):
            break
    else:
        return []
    for one in tuple(chosen):
        rest = [other for other in chosen if other is not one]
        if _makes_room(job, rest, nodes):
            chosen = rest
    return chosen if len(chosen) <= most else []


def _makes_room(job: PendingRequest, victims: Sequence[MoveCandidate], nodes: Sequence[MoveNode]) -> bool:
    return _place(job, _free_nodes(nodes, victims)) is not None


def _sort_by_room(lower: Sequence[MoveCandidate], nodes: Sequence[MoveNode]) -> list[MoveCandidate]:
    """Return the jobs, those first on the nodes that would have most free GPUs."""
    room = Counter({node.node: node.free for node in nodes})
    for one in lower:
        room.update(dict(one.gpus))
    return sorted(lower, key=lambda one: (-max(room[node] for node, _ in one.gpus), one.gpus[0][0]))


def _find_defragmentations(
    movable: Sequence[MoveCandidate], waiting: Sequence[PendingRequest], nodes: Sequence[MoveNode], settings: Move
) -> Iterable[JobMove]:
    """Yield moves of one-GPU jobs to scattered free GPUs, for the waiting job that is next."""
    single: dict[str, list[MoveCandidate]] = {}
    for one in sorted(movable, key=lambda one: (one.cost_s, one.job)):
        if one.total_gpus == 1:
            single.setdefault(one.gpus[0][0], []).append(one)
    for job in _select_first_of_each_shape(waiting):
        if job.nodes is None:
            continue
        usable = [node for node in nodes if _may_use(job, node)]
        if sum(node.free for node in usable) < _share_of(job) * max(1, job.nodes):
            continue
        jobs = _choose_one_gpu_jobs(job, usable, single, settings.most_jobs)
        if jobs is None:
            continue
        started = _list_started(waiting, _free_nodes(nodes, jobs))
        if not started or started[0] is not job:
            continue
        saved_s = min(job.starts_s, max(one.remaining_s for one in jobs))
        yield JobMove(
            occasion=FRAGMENTATION,
            jobs=tuple(one.job for one in jobs),
            waiting=job.job,
            waits_s=saved_s,
            gain_s=saved_s,
            cost_s=sum(one.cost_s for one in jobs),
            gained_gpu_s=saved_s * job.gpus,
            lost_gpu_s=_sum_lost(jobs),
        )


def _choose_one_gpu_jobs(
    job: PendingRequest, nodes: Sequence[MoveNode], single: Mapping[str, Sequence[MoveCandidate]], most: int
) -> list[MoveCandidate] | None:
    """Return the cheapest at most `most` one-GPU jobs whose moves free enough nodes; None if there are none.

    The search is exact: (nodes, moves) -> least cost. Jobs on different nodes do not depend on each other.
    """
    count, best = max(1, job.nodes or 1), {(0, 0): (0.0, tuple[MoveCandidate, ...]())}
    for node in nodes:
        needed = _list_to_clear(job, node, single.get(node.node, ()), most)
        if needed is None:
            continue
        price = sum(one.cost_s for one in needed)
        for (taken, moves), (cost, jobs) in sorted(best.items(), key=lambda item: item[0], reverse=True):
            state = (taken + 1, moves + len(needed))
            if state[0] > count or state[1] > most or (state in best and best[state][0] <= cost + price):
                continue
            best[state] = (cost + price, (*jobs, *needed))
    found = [option for (taken, moves), option in best.items() if taken == count and moves]
    return list(min(found, key=lambda option: option[0])[1]) if found else None


def _list_to_clear(
    job: PendingRequest, node: MoveNode, there: Sequence[MoveCandidate], most: int
) -> tuple[MoveCandidate, ...] | None:
    """Return the cheapest one-GPU jobs without which the node has room for its share of `job`; None if it never has."""
    for count in range(min(len(there), most) + 1):
        (freed,) = _free_nodes([node], there[:count])
        if _has_room(job, _share_of(job), freed):
            return tuple(there[:count])
    return None


def _find_undone(movable: Sequence[MoveCandidate], nodes: Sequence[MoveNode], settings: Move) -> Iterable[JobMove]:
    """Yield moves of slow jobs away from their nodes, or of spread ones to a single switch."""
    switches = {node.node: node.switch for node in nodes}
    for one in movable:
        if one.slowdown < settings.slowdown:
            continue
        mine = [node for node, _ in one.gpus]
        spread = len({switches.get(node, "") for node in mine} - {""}) > 1
        again = PendingRequest(
            job=one.job,
            gpus=one.total_gpus,
            nodes=len(mine),
            run_s=one.remaining_s,
            partitions=one.partitions,
            cpus=one.cpus,
            mem_mib=one.mem_mib,
        )
        if spread:
            groups: dict[str, list[MoveNode]] = {}
            for node in _free_nodes(nodes, [one]):
                groups.setdefault(node.switch, []).append(node)
            fits = any(switch and _place(again, group) is not None for switch, group in groups.items())
        else:
            fits = _place(again, [node for node in nodes if node.node not in mine]) is not None
        if not fits:
            continue
        faster_s = one.remaining_s * (1 - 1 / one.slowdown)
        yield JobMove(
            occasion=SLOW,
            jobs=(one.job,),
            avoid=() if spread else tuple(mine),
            one_switch=spread,
            gain_s=faster_s,
            cost_s=one.cost_s,
            gained_gpu_s=faster_s * one.total_gpus,
            lost_gpu_s=_sum_lost([one]),
        )


def _sum_lost(jobs: Iterable[MoveCandidate]) -> float:
    return sum(one.cost_s * one.total_gpus for one in jobs)


def _select_first_of_each_shape(waiting: Iterable[PendingRequest]) -> list[PendingRequest]:
    """Return the jobs without those that need the same as one before them: that one would start instead."""
    first: dict[object, PendingRequest] = {}
    for one in waiting:
        first.setdefault((one.gpus, one.nodes, one.partitions, one.cpus, one.mem_mib, one.allowed), one)
    return list(first.values())


# --- where a job fits -------------------------------------------------------------------------------------------------


def _start_fitting(
    waiting: Sequence[PendingRequest], nodes: Sequence[MoveNode]
) -> tuple[tuple[PendingRequest, ...], tuple[MoveNode, ...]]:
    """Return the jobs that cannot start on what is free, and what is left after the others have started."""
    blocked: list[PendingRequest] = []
    left = {node.node: node for node in nodes}
    for job in waiting:
        taken = _place(job, left.values())
        if taken is None:
            blocked.append(job)
        else:
            left.update({node.node: node for node in taken})
    return tuple(blocked), tuple(left.values())


def _list_started(waiting: Sequence[PendingRequest], nodes: Sequence[MoveNode]) -> list[PendingRequest]:
    blocked = {one.job for one in _start_fitting(waiting, nodes)[0]}
    return [one for one in waiting if one.job not in blocked]


def _free_nodes(nodes: Sequence[MoveNode], jobs: Sequence[MoveCandidate]) -> tuple[MoveNode, ...]:
    """Return the nodes without these running jobs."""
    freed: dict[str, MoveNode] = {}
    mine = {node for one in jobs for node, _ in one.gpus}
    for node in nodes:
        if node.node in mine:
            freed[node.node] = node
    for one in jobs:
        for name, count in one.gpus:
            if name in freed:
                node = freed[name]
                freed[name] = replace(
                    node,
                    free=node.free + count,
                    cpus_free=node.cpus_free + one.cpus,
                    mem_free_mib=node.mem_free_mib + one.mem_mib,
                )
    return tuple(freed.get(node.node, node) for node in nodes)


def _place(job: PendingRequest, nodes: Iterable[MoveNode]) -> list[MoveNode] | None:
    """Return the nodes that change when the job starts, the fullest ones on which it fits; None if it does not fit."""
    per_node = _share_of(job)
    fitting = sorted((one for one in nodes if _has_room(job, per_node, one)), key=lambda one: (one.free, one.node))
    if job.nodes is None:
        # Uneven shares are allowed, and Slurm takes as few nodes as possible.
        whole = next((one for one in fitting if one.free >= job.gpus), None)
        fitting = [whole] if whole is not None else fitting[::-1]
    taken, left = [], job.gpus
    for node in fitting[: job.nodes]:
        used = per_node if job.nodes is not None else min(node.free, left)
        left -= used
        taken.append(
            replace(
                node,
                free=node.free - used,
                cpus_free=node.cpus_free - job.cpus,
                mem_free_mib=node.mem_free_mib - job.mem_mib,
            )
        )
        if job.nodes is None and left <= 0:
            break
    complete = left <= 0 if job.nodes is None else len(taken) == job.nodes
    return taken if complete else None


def _share_of(job: PendingRequest) -> int:
    """Return how many GPUs the job needs on each of its nodes; at least one where the number of nodes is free."""
    return 1 if job.nodes is None else -(-job.gpus // max(1, job.nodes))


def _has_room(job: PendingRequest, per_node: int, node: MoveNode) -> bool:
    if node.free < per_node or node.cpus_free < job.cpus or node.mem_free_mib < job.mem_mib:
        return False
    return _may_use(job, node)


def _may_use(job: PendingRequest, node: MoveNode) -> bool:
    return (not job.allowed or node.node in job.allowed) and _share_a_partition(job.partitions, node.partitions)


def _share_a_partition(one: Sequence[str], other: Sequence[str]) -> bool:
    return not one or not other or not set(one).isdisjoint(other)
