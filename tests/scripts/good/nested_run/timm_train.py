import argparse
import csv
import glob
import logging
import operator
import os
import time
from collections import OrderedDict
from datetime import datetime

import torch
import yaml

_l = logging.getLogger("train")
logging.basicConfig(level=logging.INFO)
if int(os.environ["WORLD_SIZE"]) > 0:
    torch.distributed.init_process_group("gloo")
out = os.path.join("output", "train", "-".join([datetime.now().strftime("%Y%m%d-%H%M%S"), "tiny"]))
os.makedirs(out, exist_ok=True)


class CheckpointSaver:
    def __init__(s, d, n=2):
        s.d, s.n, s.files = d, n, []

    def save(s, m, metric, e):
        tmp = os.path.join(s.d, "tmp.pth.tar")
        last = os.path.join(s.d, "last.pth.tar")
        torch.save({"state_dict": m.state_dict(), "epoch": e}, tmp)
        if os.path.exists(last):
            os.unlink(last)
        os.rename(tmp, last)
        f = os.path.join(s.d, f"checkpoint-{e}.pth.tar")
        os.link(last, f)
        s.files.append((f, metric))
        s.files.sort(key=operator.itemgetter(1))
        while len(s.files) > s.n:
            os.remove(s.files.pop()[0])
        best = os.path.join(s.d, "model_best.pth.tar")
        if os.path.exists(best):
            os.unlink(best)
        os.link(last, best)


m = torch.nn.Linear(4, 2)
ddp = torch.nn.parallel.DistributedDataParallel(m, broadcast_buffers=True)
o = torch.optim.SGD(
    [{"params": [m.weight], "weight_decay": 0.1}, {"params": [m.bias]}], 0.1, nesterov=True, momentum=0.9
)
with open(os.path.join(out, "args.yaml"), "w") as f:
    f.write(yaml.safe_dump({"a": 1}))
sv = CheckpointSaver(out)
for e in range(5):
    for i in range(2):
        ddp(torch.randn(4, 4)).pow(2).mean().backward()
        o.step()
        o.zero_grad()
        _l.info(f"Train: {e} [{i:>4d}/2 ({50 * i:>3.0f}%)]  Loss: {1.0:#.3g}  LR: 0.1")
    with open(os.path.join(out, "summary.csv"), mode="a") as cf:
        dw = csv.DictWriter(cf, fieldnames=["epoch", "loss"])
        (e == 0) and dw.writeheader()
        dw.writerow({"epoch": e, "loss": 1.0})
    sv.save(m, 1.0 / (e + 1), e)
