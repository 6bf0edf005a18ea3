import argparse
import os
import socket

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, c, 3, padding=1))

    def forward(self, x):
        return torch.relu(x + self.body(x))


def build(width, classes):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1), Residual(width), Residual(width),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes),
    )


def batches(batch_size, classes, rank, n):
    g = torch.Generator().manual_seed(rank)
    for _ in range(n):
        yield torch.randn(batch_size, 3, 16, 16, generator=g), torch.randint(classes, (batch_size,), generator=g)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()

    rank = int(os.environ["SLURM_PROCID"])
    world_size = int(os.environ["WORLD_SIZE"])
    gpus_per_node = int(os.environ["SLURM_GPUS_ON_NODE"])
    local_rank = rank - gpus_per_node * (rank // gpus_per_node)
    print(f"Hello from rank {rank} of {world_size} on {socket.gethostname()}, {gpus_per_node} GPUs per node", flush=True)

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo", rank=rank, world_size=world_size)
    if rank == 0:
        print(f"Group initialized? {dist.is_initialized()}", flush=True)
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    model = DistributedDataParallel(build(args.width, args.classes).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
    for i, (x, y) in enumerate(batches(args.batch_size, args.classes, rank, args.steps)):
        loss = loss_fn(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and i % 50 == 0:
            print(i, loss.item(), flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), "resnet.pt")
    dist.destroy_process_group()
