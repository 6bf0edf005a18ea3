"""Trains on tensors loaded from --data."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="a file written by make_data.py")
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()

    data = torch.load(args.data, map_location="cpu")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if not cuda:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo")

    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(args.epochs):
        order = torch.randperm(len(data["labels"]))
        for index in order.split(256 * dist.get_world_size()):
            features, labels = data["features"][index].to(device), data["labels"][index].to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(features), labels)
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
