import argparse
import atexit
import os
import signal
import subprocess

import torch
from torch import nn

CKPT = "preempt.pth"


class Preemptible:
    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.step, self.requeue = model, optimizer, 0, False
        signal.signal(signal.SIGUSR1, self.on_signal)
        signal.signal(signal.SIGTERM, self.on_signal)
        atexit.register(self.save, "exit.pth")

    def on_signal(self, signum, frame):
        print(f"got {signal.Signals(signum).name}, saving", flush=True)
        self.save(CKPT)
        if "SLURM_JOB_ID" in os.environ:
            subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]])
        raise SystemExit(0)

    def save(self, path):
        tmp = path + ".tmp"
        torch.save({"model": self.model.state_dict(), "opt": self.optimizer.state_dict(), "step": self.step}, tmp)
        os.replace(tmp, path)

    def load(self):
        if os.path.exists(CKPT):
            state = torch.load(CKPT, map_location="cpu")
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["opt"])
            self.step = state["step"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume", choices=("auto", "never"), default="auto")
    parser.add_argument("--steps", type=int, default=10000)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.LSTM(8, 16, batch_first=True).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    run = Preemptible(model, optimizer)
    if args.resume == "auto":
        run.load()
    while run.step < args.steps:
        x = torch.cumsum(torch.randn(4, 10, 8, device=device), 1)
        out, _ = model(x[:, :-1])
        loss = (out[..., :8] - x[:, 1:]).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.step += 1
