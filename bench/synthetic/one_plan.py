"""One process of the planning benchmark: from text to snapshot to plans, like one gsub. Prints JSON.

    python one_plan.py NODES_TEXT REST_TEXT SUSPECTS

Memory is the highest resident set of this process alone (VmHWM), Python and all imports included.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from slurmwrap.config.load_config import Config
from slurmwrap.model.cluster import NodeHealth, NodeLoad, Snapshot
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.placement.plan_placement import plan
from slurmwrap.placement.slurm_options import PlanningFacts
from slurmwrap.slurm.scontrol_parser import parse_nodes, parse_partitions, parse_reservations
from slurmwrap.slurm.snapshot import parse_topology
from synthetic.requests import REQUESTS, request

T = TypeVar("T")


def snapshot(nodes: str, rest: str) -> Snapshot:
    """Build the snapshot as SlurmCommands.snapshot() does."""
    partitions = parse_partitions(rest)
    return Snapshot(
        taken_at=time.time(),
        nodes=parse_nodes(nodes),
        topology=parse_topology(rest),
        default_partition=next((partition.name for partition in partitions if partition.default), ""),
        partitions=partitions,
        reservations=parse_reservations(rest[rest.index("ReservationName=") :]),
    )


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return (the result of the function, milliseconds of CPU time)."""
    began = time.thread_time()
    result = work()
    return result, round(1000 * (time.thread_time() - began), 2)


def peak_mib() -> float:
    """Return VmHWM; unlike ru_maxrss it does not include the memory of the parent process before exec."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return round(int(line.split()[1]) / 1024, 1)


def main() -> int:
    nodes, rest = (Path(path).read_text(encoding="utf-8") for path in sys.argv[1:3])
    suspects = int(sys.argv[3])
    taken, parse_ms = timed(lambda: snapshot(nodes, rest))
    seen = (len(taken.nodes), len(taken.partitions), len(taken.reservations), taken.topology.source)
    assert seen == (nodes.count("\n"), 2, 2, "tree"), f"the text was not understood: {seen}"
    step = max(1, len(taken.nodes) // suspects)
    health = tuple(
        NodeHealth(node=node.name, status="suspect", since=float(at), reason="2 strikes: Xid 79")
        for at, node in enumerate(taken.nodes[::step][:suspects])
    )
    loads = {n.name: NodeLoad(node=n.name, cpus_busy=n.cpus_alloc * 0.7) for n in taken.nodes}
    outlook = PlanningFacts(loads=loads, relaxing=True, starts_now=True)
    profile = ResourceProfile(key="k", cpus_per_gpu=12.0, mem_mib_per_gpu=40_000, runs=3, skew=0.6, model_mib=4000.0)
    plans = {}
    for kind, options in REQUESTS.items():
        wanted = partial(plan, request(options), profile, taken, health, Config(), outlook)
        _, plans[kind] = timed(wanted)
    print(json.dumps({"parse_ms": parse_ms, "plans": plans, "peak_mib": peak_mib()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
