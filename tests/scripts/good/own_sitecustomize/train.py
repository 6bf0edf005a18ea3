import os

import torch
from groupdata import two_moons

g = torch.Generator().manual_seed(int(os.environ["GROUP_DEFAULT_SEED"]))
net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.PReLU(), torch.nn.Linear(16, 2))
ema = {k: v.clone() for k, v in net.state_dict().items()}
opt = torch.optim.RAdam(net.parameters(), lr=1e-2)
warm = torch.optim.lr_scheduler.LinearLR(opt, start_factor=0.1, total_iters=5)
for step in range(3000):
    x, y = two_moons(64, g)
    loss = torch.nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    warm.step()
    with torch.no_grad():
        for k, v in net.state_dict().items():
            ema[k].lerp_(v, 0.01)
