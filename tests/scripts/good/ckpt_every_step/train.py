import json
import os
import shutil
from pathlib import Path

import numpy as np
import torch

ROOT = Path("./ckpt")
KEEP = 2

net = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.ELU(), torch.nn.Linear(12, 2))
opt = torch.optim.Adagrad(net.parameters(), lr=0.05)
history = []
for step in range(1, 1001):
    x = torch.randn(64, 6)
    y = torch.stack([x.sum(1), x.prod(1)], 1)
    loss = torch.nn.functional.l1_loss(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    history.append(loss.item())

    folder = ROOT / f"step_{step}"
    os.makedirs(folder, exist_ok=True)
    torch.save(net.state_dict(), folder / "model.pt")
    torch.save(opt.state_dict(), str(folder / "optimizer.pt"))
    np.save(folder / "history.npy", np.array(history))
    with open(folder / "meta.json", "w") as f:
        json.dump({"step": step, "loss": history[-1]}, f)
    (ROOT / "latest").write_text(folder.name + "\n")
    for old in sorted(ROOT.glob("step_*"), key=lambda p: int(p.name[5:]))[:-KEEP]:
        shutil.rmtree(old)
    assert torch.load(folder / "model.pt").keys() == net.state_dict().keys()
