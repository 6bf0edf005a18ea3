import argparse
import configparser

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--config", required=True)
args = parser.parse_args()
cfg = configparser.ConfigParser()
with open(args.config) as f:
    cfg.read_file(f)
hidden = cfg.getint("model", "hidden")
act = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[cfg["model"]["activation"]]
net = torch.nn.Sequential(torch.nn.Linear(2, hidden), act(), torch.nn.Linear(hidden, 1))
optimizer = getattr(torch.optim, cfg["optim"]["name"])(net.parameters(), lr=cfg["optim"].getfloat("lr"))
loss_fn = torch.nn.BCEWithLogitsLoss()
for step in range(cfg["optim"].getint("steps")):
    x = torch.randint(0, 2, (16, 2)).float()
    y = (x[:, :1] != x[:, 1:]).float()
    loss = loss_fn(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("final loss", loss.item())
