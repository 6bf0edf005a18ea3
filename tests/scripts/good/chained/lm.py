import argparse
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", type=str, required=True)
    ap.add_argument("--dim", type=int, default=32)
    ap.add_argument("--lr", type=float, default=3e-4)
    ap.add_argument("--block", type=int, default=16)
    ap.add_argument("--resume", type=str, default="lm_last.pt")
    args = ap.parse_args()
    dist.init_process_group(backend="cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    data = np.memmap(args.data, dtype=np.uint8, mode="r")
    model = torch.nn.Sequential(torch.nn.Embedding(32, args.dim), torch.nn.Linear(args.dim, args.dim), torch.nn.GELU(), torch.nn.Linear(args.dim, 32))
    model = DistributedDataParallel(model.to(device))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=args.lr)
    it = 0
    if os.path.isfile(args.resume):
        state = torch.load(args.resume, map_location=device)
        model.module.load_state_dict(state["model"])
        it = state["it"]
    t0 = time.perf_counter()
    while it < 100_000:
        ix = np.random.randint(0, len(data) - args.block - 1, 8)
        batch = torch.from_numpy(np.stack([data[i : i + args.block + 1] for i in ix]).astype(np.int64)).to(device)
        loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        model.zero_grad(set_to_none=True)
        it += 1
        if it % 100 == 0 and dist.get_rank() == 0:
            print(f"iter {it} loss {loss.item():.3f} {(time.perf_counter() - t0) * 10:.2f} ms/iter", flush=True)


if __name__ == "__main__":
    main()
