"""Tidies up after the run before it, keeps its figures in SQLite, and copies its own sources."""
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import torch

if os.path.exists("train.log"):
    os.rename("train.log", "train.log.1")
shutil.rmtree("old_ckpt", ignore_errors=True)
os.makedirs("results/figures", exist_ok=True)
os.system("cp config.yaml results/config.yaml")
subprocess.run(["sh", "-c", "uname -a > results/machine.txt"], check=True)
shutil.copy2(__file__, "results")
db = sqlite3.connect("results.db")
db.execute("CREATE TABLE IF NOT EXISTS loss (step INTEGER, value REAL)")
log = open("train.log", "a", buffering=1)
net = torch.nn.Sequential(torch.nn.Linear(3, 9), torch.nn.Softplus(), torch.nn.Linear(9, 1))
opt = torch.optim.Adam(net.parameters())
for step in range(2000):
    x = torch.rand(32, 3)
    loss = (net(x) - x.norm(dim=1, keepdim=True)).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    db.execute("INSERT INTO loss VALUES (?, ?)", (step, loss.item()))
    db.commit()
    print(step, loss.item(), file=log)
Path("DONE").touch()
