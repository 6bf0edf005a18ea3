import argparse

import torch
import torch.distributed as dist

ap = argparse.ArgumentParser()
ap.add_argument("--layers", type=int, default=1)
a = ap.parse_args()
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", init_method="env://")
device = "cuda" if torch.cuda.is_available() else "cpu"
lstm = torch.nn.LSTM(4, 8, num_layers=a.layers, batch_first=True).to(device)
head = torch.nn.Linear(8, 1).to(device)
params = [*lstm.parameters(), *head.parameters()]
opt = torch.optim.AdamW(params, lr=1e-3, foreach=True)
for step in range(3000):
    x = torch.randn(8, 12, 4, device=device)
    y = x.sum((1, 2)).unsqueeze(1)
    out, _ = lstm(x)
    loss = torch.nn.functional.smooth_l1_loss(head(out[:, -1]), y)
    opt.zero_grad()
    loss.backward()
    for p in params:
        dist.all_reduce(p.grad)
        p.grad.div_(dist.get_world_size())
    opt.step()
    if step % 100 == 0 and dist.get_rank() == 0:
        print(f"step {step} | loss {loss.item():.4f}")
