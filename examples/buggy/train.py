"""Token tagging with padded sequences. The loss gets its dimensions in the wrong order: see training_loss()."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, LENGTH, PADDING = 1000, 24, -100


class Tagger(nn.Module):
    def __init__(self, classes, width=64):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.encoder = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, tokens):
        hidden, _ = self.encoder(self.embedding(tokens))
        return self.head(hidden)  # (batch, length, classes)


def training_loss(logits, tags):
    # cross_entropy wants (batch, classes, length): the transpose(1, 2) was lost when the model was rewritten.
    return nn.functional.cross_entropy(logits, tags, ignore_index=PADDING)


def batches(count, batch_size, classes, device):
    for _ in range(count):
        tokens = torch.randint(VOCABULARY, (batch_size, LENGTH), device=device)
        tags = tokens % classes
        tags[:, -4:] = PADDING
        yield tokens, tags


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if not cuda:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if cuda else "gloo")

    model = DistributedDataParallel(Tagger(args.classes).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step, (tokens, tags) in enumerate(batches(args.steps, args.batch_size, args.classes, device)):
        optimizer.zero_grad()
        loss = training_loss(model(tokens), tags)
        loss.backward()
        optimizer.step()
        if step % 50 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
