#!/usr/bin/env python
"""Mixed precision regression on a CSV."""
import argparse
import csv

import torch
from torch import nn
from torch.amp import GradScaler, autocast
from torch.utils.data import DataLoader, TensorDataset


def read_table(path):
    with open(path, newline="") as f:
        reader = csv.DictReader(f)
        rows = list(reader)
    features = [c for c in reader.fieldnames if c != "target"]
    x = torch.tensor([[float(r[c]) for c in features] for r in rows])
    y = torch.tensor([float(r["target"]) for r in rows]).unsqueeze(1)
    return x, y


def endless(loader):
    while True:
        yield from loader


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", required=True)
    ap.add_argument("--steps", type=int, default=100)
    ap.add_argument("--hidden", type=int, default=64)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()

    dev = "cuda" if torch.cuda.is_available() else "cpu"
    amp_dtype = torch.float16 if dev == "cuda" else torch.bfloat16
    x, y = read_table(args.data)
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    net = nn.Sequential(nn.Linear(x.shape[1], args.hidden), nn.GELU(), nn.Linear(args.hidden, 1)).to(dev)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    scaler = GradScaler(dev)

    for step, (xb, yb) in enumerate(endless(loader)):
        if step >= args.steps:
            break
        xb, yb = xb.to(dev), yb.to(dev)
        opt.zero_grad(set_to_none=True)
        with autocast(device_type=dev, dtype=amp_dtype):
            pred = net(xb)
            loss = nn.functional.mse_loss(pred.float(), yb)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():.0f}", flush=True)
