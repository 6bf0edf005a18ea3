"""One process of a data-parallel training: worker.py NAME STEPS [RANK WORLD]. Rank 0 prints what loopback carried.

Without RANK it trains alone, as in a pre-run. The network namespace is the worker's own, so nothing else uses loopback.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import distributed, nn

from traffic.models import MODELS


def main(name: str, steps: int, rank: int | None = None, world: int = 1) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    architecture = MODELS[name]
    model: nn.Module = architecture.make()
    if rank is not None:
        # Gloo resolves the host's name, which need not exist in this namespace.
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        distributed.init_process_group("gloo", f"tcp://127.0.0.1:29871?rank={rank}&world_size={world}")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    carried = 0
    for step in range(steps + 1):
        # The first step of DistributedDataParallel rebuilds its buckets.
        if step == 1 and rank is not None:
            distributed.barrier()
            carried = read_loopback_bytes()
            distributed.barrier()
        model(architecture.batch()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank is not None:
        distributed.barrier()
        if rank == 0:
            print((read_loopback_bytes() - carried) / steps)
        distributed.barrier()
        distributed.destroy_process_group()


def read_loopback_bytes() -> int:
    """Return the bytes that the loopback of this network namespace has sent."""
    with Path("/proc/self/net/dev").open(encoding="ascii") as lines:
        row = next(line for line in lines if line.strip().startswith("lo:"))
    return int(row.partition(":")[2].split()[8])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *map(int, sys.argv[3:]))
