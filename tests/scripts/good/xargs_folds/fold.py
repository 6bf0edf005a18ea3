import argparse
import random

import torch

ap = argparse.ArgumentParser()
ap.add_argument("--fold", type=int, required=True)
ap.add_argument("--folds", type=int, required=True)
a = ap.parse_args()
random.seed(0)
index = list(range(200))
random.shuffle(index)
held_out = set(index[a.fold :: a.folds])
torch.manual_seed(0)
X = torch.randn(200, 7)
Y = X @ torch.randn(7, 1) + 0.1 * torch.randn(200, 1)
train = torch.tensor([i for i in range(200) if i not in held_out])
test = torch.tensor(sorted(held_out))
model = torch.nn.Linear(7, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(2000):
    batch = train[torch.randint(len(train), (20,))]
    loss = torch.nn.functional.mse_loss(model(X[batch]), Y[batch])
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"fold {a.fold}: {torch.nn.functional.mse_loss(model(X[test]), Y[test]).item():.4f}")
