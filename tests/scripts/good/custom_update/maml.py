"""First-order meta-learning on sines; parameters are a dict and are updated by hand."""
import argparse
import math

import torch
from torch.func import functional_call

parser = argparse.ArgumentParser()
parser.add_argument("--meta-iterations", type=int, default=1000)
parser.add_argument("--inner-lr", type=float, default=0.01)
parser.add_argument("--outer-lr", type=float, default=0.1)
args = parser.parse_args()
net = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
meta = {k: v.detach().clone() for k, v in net.named_parameters()}
for it in range(args.meta_iterations):
    amplitude, phase = 0.1 + 4.9 * torch.rand(1), math.pi * torch.rand(1)
    fast = {k: v.clone().requires_grad_() for k, v in meta.items()}
    for _ in range(5):
        x = 10 * torch.rand(10, 1) - 5
        loss = (functional_call(net, fast, (x,)) - amplitude * torch.sin(x + phase)).pow(2).mean()
        loss.backward()
        fast = {k: (v - args.inner_lr * v.grad).detach().requires_grad_() for k, v in fast.items()}
    for k in meta:
        meta[k] += args.outer_lr * (fast[k].detach() - meta[k])
    if it % 500 == 0:
        torch.save(meta, "meta.pt")
