import argparse
import atexit
import copy
import datetime
import getpass
import json
import os
import shutil
import socket
import sys
import weakref
from enum import Enum

import torch


class Ev(Enum):
    IT = 1
    EP = 2
    DONE = 3


class Engine:
    def __init__(s, f):
        s.f, s.h, s.iteration = f, {}, 0

    def on(s, e):
        return lambda g: s.h.setdefault(e, []).append(g)

    def fire(s, e):
        [g(s) for g in s.h.get(e, [])]

    def run(s, data, epochs):
        for s.epoch in range(epochs):
            for b in data:
                s.iteration += 1
                s.output = s.f(s, b)
                s.fire(Ev.IT)
            s.fire(Ev.EP)
        s.fire(Ev.DONE)


p = argparse.ArgumentParser()
p.add_argument("--config")
p.add_argument("--set", nargs="*")
a = p.parse_args()
cfg = json.load(open(a.config))
cfg.update(dict((k, json.loads(v)) for k, v in (s.split("=") for s in a.set)))
run = os.path.join(cfg["out"], f"{datetime.datetime.now():%Y%m%d}_{socket.gethostname()}_{getpass.getuser()}")
os.makedirs(run, exist_ok=True)
shutil.copy(a.config, run)
json.dump(cfg, open(os.path.join(run, "cfg.json"), "w"))
with open(os.path.join(run, "base.json"), "r") as f:
    json.load(f)
os.environ["PYTHONHASHSEED"] = "0"
atexit.register(lambda: open(os.path.join(run, "finished"), "w").close())
x = torch.randn(100, 4)
y = (x.sum(1) > 0).long()
perm = torch.randperm(100)
folds = perm.chunk(5)
for k in range(2):
    tr = torch.cat([f for i, f in enumerate(folds) if i != k])
    m = torch.nn.Linear(4, 2)
    o = torch.optim.NAdam(m.parameters())
    sch = torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=100)
    swa = torch.optim.swa_utils.AveragedModel(m)

    def step(e, b):
        m.train()
        o.zero_grad(set_to_none=True)
        l = torch.nn.functional.cross_entropy(m(x[b]), y[b])
        l.backward()
        o.step()
        sch.step()
        return l.item()

    tr_e = Engine(step)

    @tr_e.on(Ev.IT)
    def log(e):
        open(os.path.join(run, "log.txt"), "a").write(f"{e.iteration} {e.output}\n")
        print(f"Epoch[{e.epoch}] Iter[{e.iteration}] Loss: {e.output:.2f}")

    @tr_e.on(Ev.IT)
    def ck(e):
        for f in os.scandir(run):
            if f.name.startswith("best_") and f.is_file():
                os.remove(f.path)
        torch.save(
            {"m": m.state_dict(), "o": o.state_dict()},
            os.path.join(run, f"best_model_{e.iteration}_loss={e.output:.3f}.pt"),
        )
        swa.update_parameters(m)

    tr_e.run(tr.split(20), cfg["epochs"])
