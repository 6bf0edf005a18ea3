"""Placement on a real Slurm: what `gsub --explain` prints if every rule applies, and the updates of the levels.

The golden texts are in tests/data/placement. SLURMWRAP_GOLDEN=write writes them again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from realslurm import USERS, Lab, started
from waiting import wait_for

from slurmwrap.model.cluster import NodeHealth, NodeLoad
from slurmwrap.model.hostlist import expand
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.protocols import Published
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.store.serialize import to_json_dict

pytestmark = pytest.mark.lab
ALICE = USERS[0]
GOLDEN = Path(__file__).parents[1] / "data" / "placement"
GSUB = [sys.executable, "-m", "slurmwrap.gsub.gsub_main"]
KEYS = f"place-{os.getpid()}"  # test sessions that run at the same time share a home
SKEWED = ResourceProfile(key=f"{KEYS}-skewed", skew=0.72, runs=3, cpus_per_gpu=2.0, mem_mib_per_gpu=20_000)
EVEN = ResourceProfile(key=f"{KEYS}-even", skew=0.05, runs=3, cpus_per_gpu=2.0, mem_mib_per_gpu=20_000)
HUNGRY = ResourceProfile(key=f"{KEYS}-hungry", runs=3, cpus_per_gpu=7.0, mem_mib_per_gpu=20_000)
SUSPECT = NodeHealth(node="n3", status="suspect", since=1.0, reason="2 strikes: Xid 79")
LEMON = NodeHealth(node="n6", status="lemon", since=2.0, reason="9 failures of 4 users in 30 days")
NEWER = NodeHealth(node="n1", status="suspect", since=3.0, reason="1 strike: NCCL timeout")
LOADS = tuple(NodeLoad(node=name, cpus_busy=busy) for name, busy in (("n0", 15.0), ("n1", 2.0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A job, its resource profile, and whether the site's reconciler relaxes requests (`relaxing`)."""

    name: str
    options: tuple[str, ...]
    profile: str = "unknown"
    relaxing: bool = True
    health: tuple[NodeHealth, ...] = (SUSPECT,)


NO_SNAPSHOT_CACHE = {"SLURMWRAP_SUBMIT_SNAPSHOT_KEPT_S": "0"}  # a list of nodes is requested only with a fresh snapshot
ONE_GPU = ("--gres=gpu:1", "-c1", "--mem=4G")
SCENES = (
    Scene(name="two nodes of a skewed model", options=("-N2", "--gres=gpu:8", "-c16", "--mem=200G"), profile="skewed"),
    Scene(name="two nodes, skew unknown", options=("-N2", "--gres=gpu:8", "-c16", "--mem=200G"), relaxing=False),
    Scene(name="two nodes of a model without skew", options=("-N2", "--gpus=8", "-c4", "--mem=8G"), profile="even"),
    Scene(name="a fragment for one GPU", options=ONE_GPU),
    Scene(name="a neighbour that leaves its CPUs", options=("--gres=gpu:2", "-c14", "--mem=60G"), profile="hungry"),
    Scene(name="a number of nodes left open", options=("--gpus=16", "--mem-per-gpu=8G", "-t60"), profile="skewed"),
    Scene(
        name="a range of nodes",
        options=("-N1-4", "-n8", "--gpus-per-task=1", "-c2", "--mem-per-gpu=8G"),
        relaxing=False,
    ),
    Scene(name="more nodes than one switch has", options=("-N6", "--gres=gpu:1", "-c1", "--mem=4G"), profile="skewed"),
    Scene(name="nodes that the user picks", options=("-wn4", "--gres=gpu:1", "-c1", "--mem=4G")),
    Scene(name="a job across the maintenance", options=("-N2", "--gres=gpu:8", "-c8", "--mem=8G", "-t300")),
    Scene(name="nodes alike but for Slurm's Weight", options=("--gres=gpu:8", "-c16", "--mem=100G")),
    Scene(name="a lemon beside the suspect", options=(*ONE_GPU, "-t60"), health=(SUSPECT, LEMON)),
    Scene(name="more doubtful nodes than the cap", options=(*ONE_GPU, "-t60"), health=(SUSPECT, LEMON, NEWER)),
    Scene(name="a partition of nothing but the suspect", options=("-psolo", *ONE_GPU)),
    Scene(name="a job that needs the suspect, and room", options=("-N8", "--gres=gpu:2", "-c1", "--mem=4G", "-t60")),
    Scene(
        name="raises that the partition cuts",
        options=("-psmall", "--gres=gpu:4", "-c4", "--mem=16G", "-t60"),
        profile="hungry",
    ),
    Scene(
        name="no memory said, no CPU above its share",
        options=("-psmall", "--gres=gpu:4", "-c8", "-t60"),
        profile="hungry",
    ),
)
PLANNED = Scene(name="a node that Slurm plans for a job that waits", options=("--gres=gpu:8", "-c16", "--mem=100G"))


def occupy(lab: Lab, node: str, gpus: int, cpus: int) -> str:
    options = (f"--nodelist={node}", f"--gres=gpu:{gpus}", f"--cpus-per-task={cpus}", f"--mem={20 * gpus}G")
    # Slurm plans a node for a waiting job only if the running job has a time limit
    return lab.submit(*options, "--time=60", "--output=/dev/null", user=ALICE, script="#!/bin/sh\nsleep 3000\n")


def run_scontrol(lab: Lab, *words: str) -> str:
    done = lab.run(["scontrol", *words])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def set_up_cluster(lab: Lab) -> Lab:
    """Adds fragments, idle nodes, one node with a higher Weight, racks as node features, a maintenance reservation in
    two hours, and two partitions: one with a single node, one with limits."""
    for at in range(8):
        features = f"rack{1 + at // 4}"
        run_scontrol(lab, "update", f"NodeName=n{at}", f"AvailableFeatures={features}", f"ActiveFeatures={features}")
    for job in [occupy(lab, *size) for size in (("n0", 4, 16), ("n1", 4, 4), ("n2", 7, 28))]:
        lab.wait_job(job, ("RUNNING",))
    run_scontrol(lab, "update", "NodeName=n4", "Weight=5")
    run_scontrol(lab, "create", "PartitionName=solo", "Nodes=n3")
    run_scontrol(lab, "create", "PartitionName=small", "Nodes=n[4-6]", "MaxCPUsPerNode=16", "MaxMemPerNode=64000")
    when = ("StartTime=now+2hours", "Duration=60")
    run_scontrol(lab, "create", "reservation=service", *when, "Nodes=n7", "Flags=MAINT", "Users=root")
    profiles = lab.dir / "profiles.json"
    kept = [to_json_dict(one) for one in (SKEWED, EVEN, HUNGRY)]
    profiles.write_text(json.dumps({"slurmwrap_profiles": 1, "profiles": kept}))
    profiles.chmod(0o644)
    Path(get_state_environ(lab)["XDG_STATE_HOME"]).mkdir()
    shutil.chown(get_state_environ(lab)["XDG_STATE_HOME"], ALICE)
    done = lab.slurmwrap("profile", "import", str(profiles), user=ALICE, env=get_state_environ(lab))
    assert done.returncode == 0, done.stdout + done.stderr
    slurm = SlurmCommands({**os.environ, **lab.env})
    wait_for(slurm.snapshot, lambda now: sum(node.gpus_used for node in now.nodes) == 15, 60)
    return lab


def get_state_environ(lab: Lab) -> dict[str, str]:
    """A state directory of alice for this lab: for ten seconds after a job with a list of nodes the next gets none."""
    return {"XDG_STATE_HOME": str(lab.dir / "alices-state")}


@pytest.fixture(scope="module")
def tree(lab_scratch: Path) -> Iterator[Lab]:
    with started(lab_scratch / "placing", "--no-hooks") as lab:
        yield set_up_cluster(lab)


@pytest.fixture(scope="module")
def flat(lab_scratch: Path) -> Iterator[Lab]:
    """No TopologyPlugin: racks are node features."""
    with started(lab_scratch / "flat", "--no-hooks", "--topology", "none") as lab:
        config = lab.dir / "etc" / "slurmwrap" / "config.toml"
        config.write_text(config.read_text().replace("[placement]\n", '[placement]\ntopology_features = "rack"\n'))
        yield set_up_cluster(lab)


def publish(lab: Lab, *, relaxing: bool, health: tuple[NodeHealth, ...] = (SUSPECT,)) -> None:
    """Writes published.json as the site's reconciler would write it now."""
    file = lab.dir / "published" / "published.json"
    published = Published(at=time.time(), health=health, loads=LOADS, relaxing=relaxing)
    file.write_text(json.dumps(to_json_dict(published)))
    file.chmod(0o644)


def explain(lab: Lab, scene: Scene) -> str:
    """The output of gsub for one scene. Nothing is submitted, so each scene has the same cluster."""
    publish(lab, relaxing=scene.relaxing, health=scene.health)
    own = ("--explain", "--dry-run", "--prerun=off", f"--resource-profile={KEYS}-{scene.profile}", "--no-retry")
    environ = {**NO_SNAPSHOT_CACHE, **get_state_environ(lab)}
    done = lab.run([*GSUB, *own, *scene.options, "--output=/dev/null", "--wrap=true"], ALICE, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    text = done.stderr.replace("gsub: nothing submitted\ngsub: its pre-run would be: off (as asked)\n", "")
    return f"=== {scene.name}: {' '.join(scene.options)}\n{text}\n"


def assert_equals_golden(name: str, text: str) -> None:
    golden = GOLDEN / name
    if os.environ.get("SLURMWRAP_GOLDEN") == "write":
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_explain_output_of_each_scene_with_switches(tree: Lab) -> None:
    text = "".join(explain(tree, scene) for scene in SCENES)
    assert max(len(line) for line in text.splitlines() if line[:3] != "===") <= 80
    assert_equals_golden("explain_tree.txt", text)


def test_explain_output_of_each_scene_without_a_slurm_topology(flat: Lab) -> None:
    assert_equals_golden("explain_features.txt", "".join(explain(flat, scene) for scene in SCENES))


def planned_nodes(lab: Lab) -> list[str]:
    slurm = SlurmCommands({**os.environ, **lab.env})
    return [node.name for node in slurm.snapshot().nodes if "PLANNED" in node.flags]


def test_a_node_that_slurm_plans_for_a_waiting_job_is_not_requested(tree: Lab) -> None:
    options = ("--nodelist=n[1,5]", "-N2", "--gres=gpu:8", "--mem=4G", "--time=5", "--output=/dev/null")
    waiting = tree.submit(*options, user=ALICE, script="#!/bin/sh\n")
    try:  # backfill may be running, so repeat until it has planned
        text = wait_for(lambda: explain(tree, PLANNED), lambda text: "plans another job" in text, 60)
    finally:
        tree.run(["scancel", waiting])
        wait_for(lambda: planned_nodes(tree), lambda names: not names, 60)
    assert_equals_golden("explain_planned.txt", text)


def run_and_find_nodes(lab: Lab, *options: str) -> tuple[str, ...]:
    """Runs a job with these options and returns its nodes. (--test-only cannot be used: it ignores --prefer.)"""
    job = lab.submit(*options, "--time=5", "--output=/dev/null", user=ALICE, script="#!/bin/sh\n")
    lab.wait_job(job, timeout=60)
    return expand(lab.run(["squeue", "-h", "-t", "all", "-o", "%N", "-j", job]).stdout.strip())


def test_a_one_gpu_job_fills_a_fragment_and_its_node_list_can_be_relaxed(tree: Lab) -> None:
    publish(tree, relaxing=True)
    state = tree.dir / "fresh-state"  # another session of the same user may have chosen nodes a moment ago
    state.mkdir()
    state.chmod(0o777)
    done = tree.run(
        ["gsub", "--prerun=off", "--no-retry", *ONE_GPU, "--output=/dev/null", "--wrap=true"],
        ALICE,
        env={"XDG_STATE_HOME": str(state), **NO_SNAPSHOT_CACHE},
    )
    job = re.findall(r"Submitted batch job (\d+)", done.stdout)[0]
    tree.wait_job(job, timeout=60)
    assert tree.run(["squeue", "-h", "-t", "all", "-o", "%N", "-j", job]).stdout.strip() == "n2"
    (kept,) = (json.loads(file.read_text()) for file in (state / "slurmwrap" / "spool").iterdir())
    plan = kept["facts"]["submission"]["plan"]
    assert [(level["name"], level["wait_s"], level["updates"]) for level in plan["levels"]] == [
        ("these nodes", 60, []),
        ("any", 0, [["ReqNodeList", ""]]),
    ]


def test_preferred_racks_are_optional_and_a_job_gets_one_rack_if_it_is_free(flat: Lab) -> None:
    both = "--prefer=[rack1|rack2]"
    alone = run_and_find_nodes(flat, "-N3", "--gres=gpu:4", "--mem=4G", "--exclude=n0,n1", both)
    assert {int(name[1:]) // 4 for name in alone} == {1}
    mixed = run_and_find_nodes(flat, "-N4", "--gres=gpu:2", "--mem=4G", "--exclude=n4", both)  # n2 has one GPU free
    assert {int(name[1:]) // 4 for name in mixed} == {0, 1}


def test_slurm_takes_the_fewest_nodes_of_a_range_that_hold_the_gpus(flat: Lab) -> None:
    """Therefore placement/slurm_options.py requests nothing for a range of nodes."""
    for gpus in ("--gpus=8", "--gpus-per-task=1"):
        assert len(run_and_find_nodes(flat, "-N1-4", "-n8", gpus, "--mem-per-gpu=4G")) == 1
