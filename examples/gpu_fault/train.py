"""Stands for a job whose GPU breaks under it: the first run dies as CUDA programs do, the second one ends well.

Only a lab needs this file: there the GPUs are not real, so the program prints what CUDA would have said. The kernel's
own line (Xid 79) is supplied beside it with `slurmwrap lab kernel NODE LINE`.
"""

import os
import time

import torch


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first_run = "SLURM_RESTART_COUNT" not in os.environ
    for step in range(1, 81):
        x = torch.randn(256, 64)
        loss = torch.nn.functional.mse_loss(model(x).squeeze(-1), x.sum(dim=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}/80 loss {loss.item():.4f}", flush=True)
        if first_run:
            time.sleep(0.1)
            if step == 60:
                raise RuntimeError("CUDA error: unspecified launch failure")
    print("done", flush=True)


if __name__ == "__main__":
    main()
