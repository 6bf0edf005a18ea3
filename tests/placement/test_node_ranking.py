"""How much a job would clash with the other jobs of a node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmwrap.model.cluster import ContentionWeights, Node, NodeLoad
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.placement.node_ranking import compute_clash

NODE = Node(name="n1", state="IDLE", gpus=8, cpus=64, mem_mib=512_000)


@pytest.mark.parametrize(
    ("load", "profile", "clash"),
    [
        pytest.param((0.0, 0), (8.0, 64_000), 0.0, id="an idle node"),
        pytest.param((32.0, 0), (8.0, 64_000), 8 * 0.5 * 0.25, id="only CPUs are shared"),
        pytest.param((0.0, 256_000), (8.0, 64_000), 8 * 0.5 * 0.25, id="only memory is shared"),
        pytest.param((32.0, 256_000), (8.0, 64_000), 8 * (0.125 + 0.125), id="both count"),
        pytest.param((640.0, 0), (640.0, 0), 8.0, id="no more than all of a node"),
    ],
)
def test_the_clash_of_two_jobs_grows_with_cpus_and_memory_of_both(
    load: tuple[float, int], profile: tuple[float, int], clash: float
) -> None:
    node_load = NodeLoad(node="n1", cpus_busy=load[0], mem_mib=load[1])
    needs = ResourceProfile(key="k", cpus_per_gpu=profile[0], mem_mib_per_gpu=profile[1])
    assert compute_clash(NODE, 2, node_load, needs) == pytest.approx(clash)


@pytest.mark.parametrize(
    ("profile", "clash"),
    [
        pytest.param({}, 8 * 0.25, id="a job that is not sensitive"),
        pytest.param({"sensitivity": {"cpu": 1.04}}, 8 * 0.25, id="too little to count"),
        pytest.param({"sensitivity": {"cpu": 1.3}}, 8 * (3 * 0.125 + 0.125), id="sensitive to CPUs"),
        pytest.param({"sensitivity": {"mem_bw": 1.3}}, 8 * (0.125 + 2 * 0.125), id="sensitive to memory"),
        pytest.param({"gpu_pcie": 0.5}, 8 * (0.25 + 0.5 * 0.25 * 0.125), id="it uses PCIe"),
    ],
)
def test_what_runs_at_the_site_prove_counts_for_sensitive_jobs_alone(profile: dict[str, object], clash: float) -> None:
    load = NodeLoad(node="n1", cpus_busy=32.0, mem_mib=256_000, pcie=2.0)
    needs = replace(ResourceProfile(key="k", cpus_per_gpu=8.0, mem_mib_per_gpu=64_000), **profile)  # type: ignore[arg-type]
    proved = ContentionWeights(cpus=3.0, memory=2.0, pcie=0.5, pairs=40)
    assert compute_clash(NODE, 2, load, needs, proved) == pytest.approx(clash)
    assert compute_clash(NODE, 2, load, needs) == compute_clash(NODE, 2, replace(load, pcie=0.0), needs) == 8 * 0.25
