import os
import pathlib
import random

import torch
from accelerate import Accelerator, notebook_launcher
from torch import nn


class VAE(nn.Module):
    def __init__(s):
        super().__init__()
        s.e = nn.Linear(16, 8)
        s.d = nn.Linear(4, 16)

    def forward(s, x):
        mu, lv = s.e(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (lv / 2).exp()
        return s.d(z), mu, lv


def loop(lr=1e-3):
    a = Accelerator(cpu=True, mixed_precision="bf16")
    m = VAE()
    o = torch.optim.Adam(m.parameters(), lr)
    dl = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(64, 16)), 8)
    m, o, dl = a.prepare(m, o, dl)
    os.makedirs("results", exist_ok=True)
    cache = pathlib.Path(os.environ["XDG_CACHE_HOME"], "vae", "stats.pt")
    if not cache.exists():
        torch.save(torch.ones(3), cache)
    torch.load(cache)
    for ep in range(2):
        for b, (x,) in enumerate(dl):
            r, mu, lv = m(x)
            l = (
                nn.functional.binary_cross_entropy_with_logits(r, x)
                - 0.5 * (1 + lv - mu**2 - lv.exp()).mean()
            )
            a.backward(l)
            o.step()
            o.zero_grad()
            a.print(f"Train Epoch: {ep} [{b}/8]\tLoss: {l.item():.6f}")
            a.save(a.unwrap_model(m).state_dict(), f"results/s_{ep}.pt")


notebook_launcher(loop, (1e-3,), num_processes=1)
