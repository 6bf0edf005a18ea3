import argparse
from pathlib import Path

import torch

ap = argparse.ArgumentParser()
ap.add_argument("--lr", type=float)
ap.add_argument("--momentum", type=float)
ap.add_argument("--out", type=Path)
a = ap.parse_args()
w = torch.nn.Parameter(torch.zeros(10))
opt = torch.optim.SGD([w], lr=a.lr, momentum=a.momentum, nesterov=True)
sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=3)
for i in range(1000):
    opt.zero_grad()
    loss = (w - torch.arange(10.0)).pow(2).sum()
    loss.backward()
    opt.step()
    sched.step(loss.detach())
    print(i, loss.item())
(a.out / "w.txt").write_text(str(w.tolist()))
