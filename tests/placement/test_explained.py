"""The full output of `gsub --explain` on the captured clusters with TopologyPlugin=topology/block.

The golden texts are in tests/data/placement; SLURMWRAP_GOLDEN=write writes them again. Those of other topologies come
from a lab: tests/slurm/test_placement_lab.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from test_asking import EVEN, SKEWED, blocks
from test_resource_units import parse_options

from slurmwrap.config.load_config import Config
from slurmwrap.model.cluster import Node, Snapshot
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.placement.plan_placement import plan
from slurmwrap.placement.slurm_options import PlanningFacts
from slurmwrap.sbatch.explain import explain
from slurmwrap.sbatch.rewrite import render

GOLDEN = Path(__file__).parents[1] / "data" / "placement"
FOUR = "-N4 --gres=gpu:1 -c1 --mem=1G"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A job on a cluster where the nodes in `full` are full and others have two GPUs in use.

    The two GPUs in use are one of each socket (`split`) or both of the first socket (`half`).
    """

    name: str
    options: str
    full: tuple[int, ...] = ()
    split: tuple[int, ...] = ()
    half: tuple[int, ...] = ()
    profile: ResourceProfile | None = EVEN


SCENES = (
    Scene(name="a block has room", options=FOUR),
    Scene(name="no block has room", options=FOUR, full=(0, 4, 8)),
    Scene(name="no block has room for a skewed model", options=FOUR, full=(0, 4, 8), profile=SKEWED),
    Scene(name="no block has room and the skew is unknown", options=FOUR, full=(0, 4, 8), profile=None),
    Scene(name="no room at all", options=FOUR, full=(0, 1, 2, 4, 5, 6, 8, 9, 10)),
    Scene(name="two blocks together have room", options="-N6 --gres=gpu:1 -c1 --mem=1G"),
    Scene(name="more nodes than any block has", options="-N9 --gres=gpu:1 -c1 --mem=1G", profile=SKEWED),
    Scene(name="a range of nodes", options="-N2-4 --gres=gpu:1 -c1 --mem=1G", full=(0, 4, 8)),
    Scene(name="segments that the user asks for", options=f"{FOUR} --segment=1", full=(0, 4, 8)),
    Scene(name="a partition of whole nodes", options="-pwhole -N2 --gres=gpu:4 -c8 --mem=1G -t30"),
    Scene(name="two GPUs on one socket", options="--gres=gpu:2 -c8 --mem=1G", full=tuple(range(1, 12))),
    Scene(name="two GPUs on two sockets", options="--gres=gpu:2 -c8 --mem=1G", full=tuple(range(1, 12)), split=(0,)),
    Scene(name="a free socket beats a split one", options="--gres=gpu:2 -c8 --mem=1G", split=(0, 4), half=(2,)),
)


def cluster(release: str, scene: Scene) -> Snapshot:
    found = blocks(release, *scene.full)
    used = {**dict.fromkeys(scene.split, (0, 2)), **dict.fromkeys(scene.half, (0, 1))}
    return replace(found, nodes=tuple(_use_two_gpus(node, used.get(int(node.name[1:]))) for node in found.nodes))


def _use_two_gpus(one: Node, gpus: tuple[int, int] | None) -> Node:
    return replace(one, state="MIXED", gpus_used=2, gpus_used_at=gpus, cpus_alloc=16) if gpus else one


def explain_scene(release: str, scene: Scene) -> str:
    request = parse_options(scene.options)
    outlook = PlanningFacts(relaxing=True, starts_now=True)
    found = plan(request, scene.profile, cluster(release, scene), (), Config(), outlook)
    explanation = explain(request, render(request, found.lines), colour=False, remarks=found.remarks)
    return f"=== {scene.name}: {scene.options}\n{explanation}\n"


@pytest.mark.parametrize(
    ("options", "full", "wanted"),
    [
        ("-N3 --gres=gpu:1 -c1 --mem=1G", (), "n[0-2]"),
        (FOUR, (0, 4, 8), None),  # the free nodes are in two blocks
        ("-N2 --gres=gpu:1 -c1 --mem=1G --segment=1", (8,), None),
        ("-N9 --gres=gpu:1 -c1 --mem=1G", (11,), None),  # three nodes of each of three blocks
    ],
)
def test_a_node_list_is_set_only_if_one_block_holds_the_nodes(
    options: str, full: tuple[int, ...], wanted: str | None
) -> None:
    scene = Scene(name="", options=options, full=full)
    outlook = PlanningFacts(relaxing=True, starts_now=True)
    found = plan(parse_options(options), EVEN, cluster("26.05", scene), (), Config(), outlook)
    assert {wish.option: wish.value for wish in found.lines}.get("nodelist") == wanted


@pytest.mark.parametrize("release", ["24.11", "26.05"])
def test_explanations_with_topology_block_equal_the_golden_text(release: str) -> None:
    text = "".join(explain_scene(release, scene) for scene in SCENES)
    golden = GOLDEN / f"explain_block_{release}.txt"
    if os.environ.get("SLURMWRAP_GOLDEN") == "write":
        golden.write_text(text)
    assert text == golden.read_text()
