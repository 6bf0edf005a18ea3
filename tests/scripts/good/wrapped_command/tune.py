import random

import torch

trials = []
for trial in range(2):
    lr = 10 ** random.uniform(-4, -1)
    net = torch.nn.Linear(5, 1)
    opt = torch.optim.SGD(net.parameters(), lr=lr)
    for step in range(2):
        x = torch.randn(16, 5)
        loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    trials.append((loss.item(), lr))
print(min(trials))
