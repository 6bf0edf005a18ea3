"""Classification in epochs, with a validation after each. The validation has a bug: see validate()."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

FEATURES, CLASSES = 32, 10


def make_loader(count, batch_size):
    features = torch.randn(count, FEATURES)
    labels = features[:, :CLASSES].argmax(dim=1)
    return DataLoader(TensorDataset(features, labels), batch_size=batch_size)


def validate(model, loader, device):
    totals = {"correct": 0, "count": 0}
    model.eval()
    with torch.no_grad():
        for features, labels in loader:
            found = model(features.to(device)).argmax(dim=1)
            totals["correct"] += int((found == labels.to(device)).sum())
            totals["count"] += len(labels)
    model.train()
    # The key was renamed in the loop above, but not here.
    return totals["correct"] / totals["total"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if not cuda:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo")

    model = DistributedDataParallel(nn.Linear(FEATURES, CLASSES).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    training, validation = make_loader(args.samples, args.batch_size), make_loader(2_000, args.batch_size)
    for epoch in range(args.epochs):
        for features, labels in training:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(features.to(device)), labels.to(device)).backward()
            optimizer.step()
        accuracy = validate(model, validation, device)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} accuracy {accuracy:.3f}", flush=True)
            torch.save(model.module.state_dict(), "late_bug.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
