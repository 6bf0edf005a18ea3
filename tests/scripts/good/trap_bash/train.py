import argparse
import signal
import sys
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--max-hours", type=float, default=1)
args = parser.parse_args()
stop = False


def handler(signum, frame):
    global stop
    print("signal", signum, flush=True)
    stop = True


signal.signal(signal.SIGTERM, handler)
signal.signal(signal.SIGINT, signal.SIG_IGN)

model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
began, step = time.time(), 0
try:
    while time.time() - began < args.max_hours * 3600 and not stop:
        x = torch.randn(8, 6, 16)
        loss = (model(x) - x.flip(1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 50 == 0:
            print(step, loss.item(), flush=True)
finally:
    torch.save({"model": model.state_dict(), "step": step}, "last.pt")
    print("saved at step", step)
sys.exit(3 if stop else 0)
