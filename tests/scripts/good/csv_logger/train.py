import argparse
import csv
import logging
import os

import numpy as np
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--data", required=True)
parser.add_argument("--steps", type=int, default=400)
args = parser.parse_args()

logging.basicConfig(filename=os.path.join(args.out, "run.log"), level=logging.INFO)
logging.info("start %s", vars(args))
with np.load(args.data) as z:
    x, y = torch.from_numpy(z["x"]).float(), torch.from_numpy(z["y"]).long()
model = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 16), torch.nn.ReLU(), torch.nn.Linear(16, int(y.max()) + 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
with open(os.path.join(args.out, "log.csv"), "w", newline="") as f:
    writer = csv.DictWriter(f, fieldnames=["step", "loss", "acc"])
    writer.writeheader()
    for step in range(args.steps):
        logits = model(x)
        loss = torch.nn.functional.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        writer.writerow({"step": step, "loss": loss.item(), "acc": (logits.argmax(1) == y).float().mean().item()})
        f.flush()
