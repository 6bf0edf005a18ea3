import argparse
import sys

import torch

p = argparse.ArgumentParser()
p.add_argument("--name")
args = p.parse_args()
print(args)
torch.manual_seed(0)
x = torch.randn(256, 5)
y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
model = torch.nn.Linear(5, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.5)
for it in range(3000):
    sel = torch.randint(0, 256, (32,))
    loss = torch.nn.functional.cross_entropy(model(x[sel]), y[sel])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 100 == 0:
        print("iter", it, "loss %.2f" % loss.item())
        sys.stdout.flush()
