"""Trains a small classifier on synthetic images with DistributedDataParallel; NCCL on GPUs, gloo without."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CLASSES = 10


class Images(Dataset):
    """Random 3 x 32 x 32 images whose brightness tells the class."""

    def __init__(self, count):
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(CLASSES, (count,), generator=generator)
        self.images = torch.randn(count, 3, 32, 32, generator=generator) + self.labels.view(-1, 1, 1, 1) / CLASSES

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class Classifier(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(2 * width, CLASSES)

    def forward(self, images):
        return self.head(self.features(images))


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="per process")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--checkpoint", default=None, help="written by rank 0 at the end")
    return parser.parse_args()


def main():
    args = parse_args()
    cuda = torch.cuda.is_available()
    rank, local_rank, world = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo")

    dataset = Images(args.steps * args.batch_size * 2)
    sampler = DistributedSampler(dataset, num_replicas=world, rank=rank, shuffle=True)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    model = DistributedDataParallel(Classifier(args.width).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    criterion = nn.CrossEntropyLoss()

    step, epoch, started = 0, 0, time.time()
    while step < args.steps:
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and step % 5 == 0:
                print(f"step {step}/{args.steps} loss {loss.item():.3f} world {world}", flush=True)
            if step == args.steps:
                break
        epoch += 1

    if rank == 0:
        print(f"{step / (time.time() - started):.1f} steps/s", flush=True)
        if args.checkpoint:
            torch.save(model.module.state_dict(), args.checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
