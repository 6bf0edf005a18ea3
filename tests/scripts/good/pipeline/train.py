import argparse
import json

import numpy as np
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--tokens", required=True)
parser.add_argument("--vocab", required=True)
parser.add_argument("--out", required=True)
parser.add_argument("--dim", type=int, default=16)
parser.add_argument("--steps", type=int, default=300)
args = parser.parse_args()

tokens = torch.from_numpy(np.load(args.tokens))
vocab = json.load(open(args.vocab))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Bigram(nn.Module):
    def __init__(self, n, dim):
        super().__init__()
        self.emb = nn.Embedding(n, dim)
        self.out = nn.Linear(dim, n)

    def forward(self, x):
        return self.out(self.emb(x))


model = Bigram(len(vocab), args.dim).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(args.steps):
    i = torch.randint(0, len(tokens) - 1, (16,))
    loss = nn.functional.cross_entropy(model(tokens[i].to(device)), tokens[i + 1].to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save({"state": model.state_dict(), "n": len(vocab), "dim": args.dim}, args.out)
print("saved", args.out)
