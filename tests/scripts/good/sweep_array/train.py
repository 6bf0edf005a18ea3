import argparse
import json
import os

import torch

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--wd", type=float, default=0)
parser.add_argument("--out", required=True)
args = parser.parse_args()
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))
torch.manual_seed(rank)
if rank == 0:
    with open(os.path.join(args.out, "params.json"), "w") as f:
        json.dump(vars(args), f, indent=2)
model = torch.nn.Bilinear(4, 4, 1)
optimizer = torch.optim.ASGD(model.parameters(), lr=args.lr, weight_decay=args.wd)
losses = []
for it in range(1500):
    a, b = torch.randn(16, 4), torch.randn(16, 4)
    loss = (model(a, b).squeeze(1) - (a * b).sum(1)).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
if rank == 0:
    with open(os.path.join(args.out, "losses.json"), "w") as f:
        json.dump(losses, f)
