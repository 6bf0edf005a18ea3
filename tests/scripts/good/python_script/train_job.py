#!/usr/bin/env python3
#SBATCH --job-name=pyscript
#SBATCH --gres=gpu:2
#SBATCH --mem=8G
#SBATCH --time=600
"""A batch script in Python: sbatch train_job.py [width]"""
import os
import sys

sys.path.insert(0, os.environ.get("SLURM_SUBMIT_DIR", "."))

import torch
from layers import Gate

width = int(sys.argv[1]) if len(sys.argv) > 1 else 8
net = torch.nn.Sequential(Gate(6, width), Gate(width, width), torch.nn.Linear(width, 1))
opt = torch.optim.Rprop(net.parameters())
x = torch.randn(128, 6)
y = x.max(1, keepdim=True).values
for step in range(5000):
    opt.zero_grad()
    loss = (net(x) - y).square().mean()
    loss.backward()
    opt.step()
print("job", os.environ["SLURM_JOB_ID"], "loss", loss.item())
