import argparse

import torch
from lion import Lion

p = argparse.ArgumentParser()
p.add_argument("--optimizer", choices=["adam", "lion"], default="adam")
p.add_argument("--weight-decay", type=float, default=0.0)
p.add_argument("--steps", type=int, default=800)
a = p.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(torch.nn.Conv1d(2, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv1d(8, 1, 3, padding=1)).to(device)
decay = [q for q in model.parameters() if q.ndim > 1]
plain = [q for q in model.parameters() if q.ndim <= 1]
groups = [{"params": decay, "weight_decay": a.weight_decay}, {"params": plain, "weight_decay": 0.0}]
opt = Lion(groups, lr=1e-3) if a.optimizer == "lion" else torch.optim.Adam(groups, lr=1e-3)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 50))
for s in range(a.steps):
    x = torch.randn(8, 2, 20, device=device)
    y = x[:, :1] * x[:, 1:]
    loss = (model(x) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if s % 100 == 0:
        print(s, f"{loss.item():.4f}")
