import argparse
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, random_split

from model import SmallCNN


class Digits(Dataset):
    """Blobs at ten places of a 28x28 image."""

    def __init__(self, n, num_classes=10):
        self.n = n
        self.num_classes = num_classes

    def __len__(self):
        return self.n

    def __getitem__(self, idx):
        g = torch.Generator().manual_seed(idx)
        label = idx % self.num_classes
        img = torch.randn(1, 28, 28, generator=g) * 0.1
        r, c = divmod(label, 5)
        img[0, 4 + r * 12 : 10 + r * 12, 2 + c * 5 : 6 + c * 5] += 1.0
        return img, label


def train_one_epoch(model, loader, criterion, optimizer, device, epoch):
    model.train()
    running, seen, t0 = 0.0, 0, time.time()
    for i, (images, labels) in enumerate(loader):
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        outputs = model(images)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        running += loss.item() * images.size(0)
        seen += images.size(0)
        if i % 10 == 0:
            print(f"Epoch {epoch} [{i}/{len(loader)}] loss {loss.item():.4f} {seen / (time.time() - t0):.0f} img/s")
    return running / seen


@torch.no_grad()
def validate(model, loader, criterion, device):
    model.eval()
    loss, correct, total = 0.0, 0, 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        outputs = model(images)
        loss += criterion(outputs, labels).item() * labels.size(0)
        correct += (outputs.argmax(dim=1) == labels).sum().item()
        total += labels.size(0)
    return loss / total, correct / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--save", default="best.pt")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    full = Digits(640)
    train_set, val_set = random_split(full, [512, 128])
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, num_workers=args.workers, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=args.batch_size, num_workers=args.workers)

    model = SmallCNN().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5)

    best = 0.0
    for epoch in range(args.epochs):
        train_loss = train_one_epoch(model, train_loader, criterion, optimizer, device, epoch)
        val_loss, acc = validate(model, val_loader, criterion, device)
        scheduler.step()
        print(f"epoch {epoch}: train {train_loss:.4f} val {val_loss:.4f} acc {acc:.3f}")
        if acc > best:
            best = acc
            torch.save({"model": model.state_dict(), "epoch": epoch, "acc": acc}, args.save)


if __name__ == "__main__":
    main()
