import argparse
from collections import Counter

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

PAD, BOS, EOS, UNK = 0, 1, 2, 3


class Vocab:
    def __init__(self, lines):
        counts = Counter(w for line in lines for w in line.split())
        self.itos = ["<pad>", "<bos>", "<eos>", "<unk>"] + [w for w, _ in counts.most_common()]
        self.stoi = {w: i for i, w in enumerate(self.itos)}

    def encode(self, line):
        return [BOS] + [self.stoi.get(w, UNK) for w in line.split()] + [EOS]

    def __len__(self):
        return len(self.itos)


class Parallel(Dataset):
    def __init__(self, src, tgt):
        with open(src) as f:
            self.src = f.read().splitlines()
        with open(tgt) as f:
            self.tgt = f.read().splitlines()
        if len(self.src) != len(self.tgt):
            raise ValueError(f"{src} has {len(self.src)} lines, {tgt} has {len(self.tgt)}")
        self.src_vocab, self.tgt_vocab = Vocab(self.src), Vocab(self.tgt)

    def __len__(self):
        return len(self.src)

    def __getitem__(self, i):
        return torch.tensor(self.src_vocab.encode(self.src[i])), torch.tensor(self.tgt_vocab.encode(self.tgt[i]))


def collate(batch):
    src, tgt = zip(*batch)
    return pad_sequence(src, batch_first=True, padding_value=PAD), pad_sequence(tgt, batch_first=True, padding_value=PAD)


class Seq2Seq(nn.Module):
    def __init__(self, n_src, n_tgt, dim=24):
        super().__init__()
        self.src_emb = nn.Embedding(n_src, dim, padding_idx=PAD)
        self.tgt_emb = nn.Embedding(n_tgt, dim, padding_idx=PAD)
        self.encoder = nn.GRU(dim, dim, batch_first=True)
        self.decoder = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, n_tgt)

    def forward(self, src, tgt):
        _, h = self.encoder(self.src_emb(src))
        states, _ = self.decoder(self.tgt_emb(tgt), h)
        return self.out(states)


def main(args):
    data = Parallel(args.src, args.tgt)
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, collate_fn=collate)
    model = Seq2Seq(len(data.src_vocab), len(data.tgt_vocab))
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        for src, tgt in loader:
            logits = model(src, tgt[:, :-1])
            loss = criterion(logits.flatten(0, 1), tgt[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 1.0)
            optimizer.step()
        print("epoch", epoch, "loss", round(loss.item(), 4))


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--src", required=True)
    p.add_argument("--tgt", required=True)
    p.add_argument("--batch_size", type=int, default=8)
    p.add_argument("--epochs", type=int, default=30)
    p.add_argument("--lr", type=float, default=3e-3)
    main(p.parse_args())
