"""DistributedDataParallel after the PyTorch examples repository's style."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


def setup():
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend)
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    return torch.device("cpu")


def is_main():
    return dist.get_rank() == 0


class Sine(Dataset):
    def __init__(self, n=4096):
        g = torch.Generator().manual_seed(0)
        self.x = torch.rand(n, 8, generator=g)
        self.y = torch.sin(self.x.sum(1, keepdim=True))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Trainer:
    def __init__(self, model, loader, optimizer, device, output_dir):
        self.model = model
        self.loader = loader
        self.optimizer = optimizer
        self.device = device
        self.output_dir = output_dir
        self.loss_fn = nn.MSELoss()

    def run_batch(self, x, y):
        self.optimizer.zero_grad()
        loss = self.loss_fn(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run_epoch(self, epoch):
        self.loader.sampler.set_epoch(epoch)
        total = torch.zeros((), device=self.device)
        for x, y in self.loader:
            total += self.run_batch(x.to(self.device), y.to(self.device))
        dist.all_reduce(total)
        return total.item() / len(self.loader) / dist.get_world_size()

    def save(self, epoch):
        path = os.path.join(self.output_dir, f"checkpoint-{epoch}.pt")
        torch.save({"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": epoch}, path)

    def fit(self, epochs):
        for epoch in range(epochs):
            loss = self.run_epoch(epoch)
            if is_main():
                print(f"epoch {epoch} loss {loss:.5f}", flush=True)
                if epoch % 5 == 0:
                    self.save(epoch)
            dist.barrier()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--output-dir", default="runs")
    args = p.parse_args()

    device = setup()
    dataset = Sine()
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, num_workers=0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    model = DDP(model, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr * dist.get_world_size())
    if is_main():
        os.makedirs(args.output_dir, exist_ok=True)
        print(f"world size {dist.get_world_size()}, {len(loader)} batches per rank")
    dist.barrier()
    Trainer(model, loader, optimizer, device, args.output_dir).fit(args.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
