import argparse

import torch

ap = argparse.ArgumentParser()
ap.add_argument("--epochs", type=int, default=2, help="full-batch passes")
a = ap.parse_args()
x = torch.randn(500, 20)
y = x.sum(1, keepdim=True)
m = torch.nn.Linear(20, 1)
o = torch.optim.SGD(m.parameters(), lr=0.05, weight_decay=1e-3)
for e in range(a.epochs):
    loss = (m(x) - y).pow(2).mean()
    o.zero_grad()
    loss.backward()
    o.step()
    print("epoch", e, "mse", loss.item())
