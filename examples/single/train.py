"""Fits a small network to a noisy sine on one GPU (or CPU), with loader workers and a checkpoint per epoch."""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--save-to", type=Path, default=None, help="directory for checkpoints")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.linspace(-3, 3, 4096).unsqueeze(1)
    data = TensorDataset(x, torch.sin(2 * x) + 0.1 * torch.randn_like(x))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)

    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(args.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
        if args.save_to:
            args.save_to.mkdir(parents=True, exist_ok=True)
            torch.save({"epoch": epoch, "model": model.state_dict()}, args.save_to / f"epoch{epoch}.pt")


if __name__ == "__main__":
    main()
