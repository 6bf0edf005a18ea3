import json
import math

import torch
from torch.utils.data import Dataset


class Keywords(Dataset):
    def __init__(self, manifest, sample_rate):
        with open(manifest) as f:
            self.items = [json.loads(line) for line in f if line.strip()]
        self.labels = sorted({item["label"] for item in self.items})
        self.sample_rate = sample_rate

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        item = self.items[i]
        t = torch.arange(self.sample_rate) / self.sample_rate
        wave = torch.sin(2 * math.pi * item["freq"] * t) + 0.05 * torch.randn(self.sample_rate)
        return {"audio": wave.unsqueeze(0), "label": self.labels.index(item["label"]), "id": item["id"]}


def collate(batch):
    return {
        "audio": torch.stack([b["audio"] for b in batch]),
        "label": torch.tensor([b["label"] for b in batch]),
        "id": [b["id"] for b in batch],
    }
