"""How one run ends: its work is done, its user ends it, its own cause strikes, or a node fails. Pure."""

from __future__ import annotations

from slurmwrap.sim.failures import node_failures as hosts
from slurmwrap.sim.failures.draw_failures import again_s
from slurmwrap.sim.failures.job_state import KILLED, SimJobState, SimRunEnding
from slurmwrap.sim.failures.named_random import Purpose
from slurmwrap.sim.failures.study_world import FailureWorld


def ending_of(world: FailureWorld, life: SimJobState, nodes: tuple[int, ...], excluded: frozenset[int]) -> SimRunEnding:
    """What comes first. `excluded`: places of nodes that this run was kept away from."""
    doom, left = life.doom, life.need_s - life.kept_s
    if doom.by_node:
        return _end_by_node_of_dump(world, life, nodes, excluded)
    own = again_s(doom, world.seed, life.run) if life.ailing else left
    category = doom.category if life.ailing and own <= left else KILLED if doom.killed else ""
    own = min(own, left)
    first = hosts.fails_after(world.hardware, nodes, world.seed, life.job.number, life.run)
    if first >= own:
        return SimRunEnding(ran_s=own, category=category)
    node = hosts.draw_struck_node(world.hardware, nodes, world.seed, life.job.number, life.run)
    gpu = hosts.blames_gpu(world.seed, life.job.number, life.run)
    return SimRunEnding(ran_s=first, category="gpu_hardware" if gpu else "node_failure", node=node, gpu_fault=gpu)


def compute_kept_s(life: SimJobState, progress_s: float, every_s: float | None) -> float:
    """Of `progress_s`, what the newest checkpoint holds; a job that cannot work resumes nothing."""
    if every_s is None or not life.sound:
        return life.kept_s
    return max(life.kept_s, progress_s // every_s * every_s)


def _end_by_node_of_dump(
    world: FailureWorld, life: SimJobState, nodes: tuple[int, ...], excluded: frozenset[int]
) -> SimRunEnding:
    """A dump says that a node failed, not which one: a lemon with the lemons' share of all failures, else a node of
    the run. A lemon that is avoided fails under no one."""
    if life.run:
        return SimRunEnding(ran_s=life.need_s - life.kept_s)
    lemons = sorted(world.hardware.lemons)
    chance, share = world.chance(life.job, Purpose.BY_LEMON), world.settings.lemons_cause
    node = lemons[int(chance / share * len(lemons))] if lemons and chance < share else nodes[0]
    if node in excluded:
        return SimRunEnding(ran_s=life.need_s - life.kept_s)
    return SimRunEnding(ran_s=life.doom.run_s, category="node_failure", node=node)
