import os
import sys

import torch

width, lr, iters = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(int(os.environ["SEED"]))
torch.set_num_threads(1)
enc = torch.nn.Linear(10, width)
dec = torch.nn.Linear(width, 10)
opt = torch.optim.Adadelta([{"params": enc.parameters()}, {"params": dec.parameters(), "lr": lr / 2}], lr=lr)
for i in range(iters):
    x = torch.randn(16, 10)
    loss = (dec(torch.relu(enc(x))) - x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
