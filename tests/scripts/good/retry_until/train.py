import argparse
import io
import json
import os
import queue
import sys
import threading
import time

import torch

p = argparse.ArgumentParser()
p.add_argument("--dir")
a = p.parse_args()


class Tee(io.TextIOBase):
    def __init__(s, f):
        s.o, s.f = sys.__stdout__, open(f, "a")

    def write(s, x):
        s.o.write(x)
        return s.f.write(x)

    def flush(s):
        s.o.flush()
        s.f.flush()


sys.stdout = Tee(os.path.join(a.dir, "stdout.txt"))
q = queue.Queue()


def saver():
    while True:
        f, sd = q.get()
        torch.save(sd, f + ".tmp")
        os.replace(f + ".tmp", f)
        q.task_done()


threading.Thread(target=saver, daemon=True).start()
start = len([f for f in os.listdir(a.dir) if f.endswith(".pt")])
print("start", start)
m = torch.nn.Linear(2, 1)
o = (
    torch.optim.LBFGS(m.parameters(), max_iter=4)
    if start > 2
    else torch.optim.Adam(m.parameters(), foreach=True, capturable=False)
)
for i in range(start, 12):
    if i == 1 and start == 0:
        q.join()
        raise SystemExit("simulated node problem")

    def c():
        o.zero_grad()
        l = m(torch.ones(4, 2)).pow(2).mean()
        l.backward()
        return l

    l = o.step(c)
    print("iter", i, "loss", l.item())
    q.put((f"{a.dir}/{i}.pt", m.state_dict()))
    q.join()
