import json

import torch

with open("points.json") as f:
    points = torch.tensor(json.load(f))
centers = torch.nn.Parameter(points[torch.randperm(len(points))[:3]].clone())
opt = torch.optim.Adam([centers], lr=0.05)
for it in range(500):
    distance = torch.cdist(points, centers)
    loss = distance.min(dim=1).values.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(centers.tolist())
