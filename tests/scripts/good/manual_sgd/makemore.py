"""Bigram character model with the update written out: no torch.optim."""
import sys

import torch
import torch.nn.functional as F

words = open(sys.argv[1]).read().split()
chars = ["."] + sorted(set("".join(words)))
stoi = {c: i for i, c in enumerate(chars)}
pairs = [(stoi[a], stoi[b]) for w in words for a, b in zip("." + w, w + ".")]
xs, ys = (torch.tensor(column) for column in zip(*pairs))
g = torch.Generator().manual_seed(2147483647)
W1 = torch.randn((len(chars), 24), generator=g).requires_grad_()
W2 = (torch.randn((24, len(chars)), generator=g) * 0.1).requires_grad_()
parameters = [W1, W2]
for k in range(30):
    logits = torch.tanh(W1[xs]) @ W2
    loss = F.cross_entropy(logits, ys) + 0.001 * sum((p**2).mean() for p in parameters)
    for p in parameters:
        p.grad = None
    loss.backward()
    for p in parameters:
        p.data += -0.5 * p.grad
    if k % 10 == 0:
        print(k, loss.item())
