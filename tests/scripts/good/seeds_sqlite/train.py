import argparse
import json
import logging
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

p = argparse.ArgumentParser()
p.add_argument("--seed", type=int)
p.add_argument("--work-dir")
p.add_argument("--max-iters", type=int)
args = p.parse_args()
os.makedirs(args.work_dir, exist_ok=True)
with open(os.path.join(args.work_dir, "args.txt"), "w") as f:
    f.write(" ".join(sys.argv))
with open(os.path.join(args.work_dir, "config.json"), "w") as f:
    f.write(json.dumps(vars(args), indent=4))
logging.basicConfig(filename=os.path.join(args.work_dir, "debug.log"), level=logging.DEBUG)
try:
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], stderr=subprocess.DEVNULL).decode().strip()
except Exception:
    commit = "unknown"
logging.info("commit %s", commit)
db = sqlite3.connect(os.path.join(args.work_dir, "metrics.db"))
db.execute("create table if not exists m (it int, loss real)")
db.commit()


class Sort(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, i):
        x = torch.randint(3, (6,))
        return x, x.sort()[0]


class Trainer:
    def __init__(self, model, ds):
        self.callbacks = defaultdict(list)
        self.model = model
        self.ds = ds

    def add_callback(self, e, cb):
        self.callbacks[e].append(cb)

    def run(self):
        opt = torch.optim.AdamW(self.model.parameters(), 5e-4)
        loader = DataLoader(
            self.ds,
            sampler=RandomSampler(self.ds, replacement=True, num_samples=int(1e10)),
            batch_size=8,
            num_workers=2,
        )
        it = iter(loader)
        self.iter_num = 0
        while True:
            try:
                x, y = next(it)
            except StopIteration:
                it = iter(loader)
                x, y = next(it)
            self.loss = nn.functional.cross_entropy(self.model(x).transpose(1, 2), y)
            self.model.zero_grad(set_to_none=True)
            self.loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            opt.step()
            for cb in self.callbacks["on_batch_end"]:
                cb(self)
            self.iter_num += 1
            if self.iter_num >= args.max_iters:
                break


model = nn.Sequential(nn.Embedding(3, 16), nn.Linear(16, 3))
t = Trainer(model, Sort())


def cb(t):
    db.execute("insert into m values (?,?)", (t.iter_num, t.loss.item()))
    db.commit()
    logging.info("loss %f", t.loss.item())
    torch.save(t.model.state_dict(), os.path.join(args.work_dir, "model.pt"))


t.add_callback("on_batch_end", cb)
t.run()
