import logging
import sys

import torch
from torch.utils.data import DataLoader

from . import data, models
from .config import parse_overrides

log = logging.getLogger("speech")


def train(cfg):
    torch.manual_seed(cfg["train"]["seed"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dataset = data.Keywords(cfg["data"]["manifest"], cfg["data"]["sample_rate"])
    loader = DataLoader(dataset, batch_size=cfg["train"]["batch_size"], shuffle=True, collate_fn=data.collate)
    model = models.REGISTRY[cfg["model"]](len(dataset.labels)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg["train"]["lr"])
    step = 0
    for epoch in range(cfg["train"]["epochs"]):
        for batch in loader:
            logits = model(batch["audio"].to(device))
            loss = torch.nn.functional.cross_entropy(logits, batch["label"].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 5 == 0:
                log.info("epoch %d step %d loss %.4f", epoch, step, loss.item())
        evaluate(model, loader, device)


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    right = sum((model(b["audio"].to(device)).argmax(-1).cpu() == b["label"]).sum().item() for b in loader)
    log.info("accuracy %.3f", right / len(loader.dataset))
    model.train()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    train(parse_overrides(sys.argv[1:]))
