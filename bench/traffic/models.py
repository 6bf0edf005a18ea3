"""Ten public architectures in plain torch.nn, with the parameter counts that their authors publish, and tiny inputs.

The structure is that of the papers and of torchvision 0.2x, Hugging Face transformers, facebookresearch/dlrm and
pytorch/examples. LSTM: word_language_model with 650 units, two layers, tied weights and WikiText-2's 33,278 words.
DLRM: the Kaggle configuration with at most 40,000 rows per table (its own --max-ind-range).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


def conv_bn(inner: int, outer: int, size: int, stride: int = 1, groups: int = 1, act: type = nn.ReLU) -> nn.Sequential:
    conv = nn.Conv2d(inner, outer, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outer), act())


class Bottleneck(nn.Module):
    def __init__(self, inner: int, width: int, outer: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_bn(inner, width, 1), conv_bn(width, width, 3, stride), conv_bn(width, outer, 1, act=nn.Identity)
        )
        same = inner == outer and stride == 1
        self.shortcut = nn.Identity() if same else conv_bn(inner, outer, 1, stride, act=nn.Identity)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


def resnet(width: int) -> nn.Module:
    blocks: list[nn.Module] = [conv_bn(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    inner = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        outer = 256 << stage
        for number in range(count):
            stride = 2 if stage and not number else 1
            blocks.append(Bottleneck(inner, width << stage, outer, stride))
            inner = outer
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def vgg16() -> nn.Module:
    layers: list[nn.Module] = []
    inner = 3
    for outers in ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3):
        for outer in outers:
            layers += [nn.Conv2d(inner, outer, 3, padding=1), nn.ReLU()]
            inner = outer
        layers.append(nn.MaxPool2d(2))
    head = [nn.Linear(25088, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
    return nn.Sequential(nn.Sequential(*layers), nn.AdaptiveAvgPool2d(7), nn.Flatten(), *head)


class Inverted(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inner * expand
        first = [] if expand == 1 else [conv_bn(inner, hidden, 1, act=nn.ReLU6)]
        self.body = nn.Sequential(
            *first, conv_bn(hidden, hidden, 3, stride, hidden, nn.ReLU6), conv_bn(hidden, outer, 1, act=nn.Identity)
        )
        self.same = inner == outer and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.same else self.body(x)


def mobilenet_v2() -> nn.Module:
    blocks: list[nn.Module] = [conv_bn(3, 32, 3, 2, act=nn.ReLU6)]
    inner = 32
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expand, outer, count, stride in stages:
        for number in range(count):
            blocks.append(Inverted(inner, outer, stride if not number else 1, expand))
            inner = outer
    blocks.append(conv_bn(320, 1280, 1, act=nn.ReLU6))
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


class Gpt2(nn.Module):
    def __init__(self, vocabulary: int = 50257, width: int = 768, depth: int = 12) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        layer = nn.TransformerEncoderLayer(width, 12, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.h = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.wte(words) + self.wpe.weight[: words.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        return self.head(self.h(x, mask=mask, is_causal=True))


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.kinds = nn.Embedding(30522, 768), nn.Embedding(512, 768), nn.Embedding(2, 768)
        self.norm = nn.LayerNorm(768)
        layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.pooler = nn.Linear(768, 768)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places.weight[: words.shape[1]] + self.kinds(torch.zeros_like(words))
        return torch.tanh(self.pooler(self.encoder(self.norm(x))[:, 0]))


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 768, 16, 16)
        self.token, self.place = nn.Parameter(torch.zeros(1, 1, 768)), nn.Parameter(torch.zeros(1, 197, 768))
        layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 12, nn.LayerNorm(768), enable_nested_tensor=False)
        self.head = nn.Linear(768, 1000)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), -1, -1), x), 1) + self.place
        return self.head(self.encoder(x)[:, 0])


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class T5Attention(nn.Module):
    def __init__(self, biased: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(512, 512, bias=False) for _ in range(4))
        self.bias = nn.Embedding(32, 8) if biased else None
        self.norm = RmsNorm(512)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        y = self.norm(x)
        memory = y if memory is None else memory
        q, k, v = (part.unflatten(-1, (8, 64)).transpose(1, 2) for part in (self.q(y), self.k(memory), self.v(memory)))
        scores = q @ k.transpose(-1, -2)
        if self.bias is not None:
            far = (torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])[None]).abs().clamp(max=31)
            scores = scores + self.bias(far).permute(2, 0, 1)
        return x + self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class T5Block(nn.Module):
    def __init__(self, biased: bool, crosses: bool) -> None:
        super().__init__()
        self.own = T5Attention(biased)
        self.cross = T5Attention(False) if crosses else None
        self.norm, self.wi, self.wo = RmsNorm(512), nn.Linear(512, 2048, bias=False), nn.Linear(2048, 512, bias=False)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        x = self.own(x)
        x = x if self.cross is None else self.cross(x, memory)
        return x + self.wo(functional.relu(self.wi(self.norm(x))))


class T5Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(32128, 512)
        self.encoder = nn.ModuleList(T5Block(number == 0, False) for number in range(6))
        self.decoder = nn.ModuleList(T5Block(number == 0, True) for number in range(6))
        self.ends = nn.ModuleList((RmsNorm(512), RmsNorm(512)))
        self.head = nn.Linear(512, 32128, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        memory = x = self.words(words)
        for block in self.encoder:
            memory = block(memory)
        memory = self.ends[0](memory)
        for block in self.decoder:
            x = block(x, memory)
        return self.head(self.ends[1](x))


class LstmLanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.rnn = nn.Embedding(33278, 650), nn.LSTM(650, 650, 2, batch_first=True)
        self.decoder = nn.Linear(650, 33278)
        self.decoder.weight = self.encoder.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.decoder(self.rnn(self.encoder(words))[0])


# Rows of Criteo Kaggle's 26 tables.
KAGGLE = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652),
    *(2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)


def mlp(sizes: Sequence[int]) -> nn.Sequential:
    layers = [part for i, o in pairwise(sizes) for part in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Dlrm(nn.Module):
    def __init__(self, most: int = 40_000) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(min(most, rows), 16, mode="sum") for rows in KAGGLE)
        self.bottom, self.top = mlp((13, 512, 256, 64, 16)), mlp((16 + 27 * 26 // 2, 512, 256, 1))

    def forward(self, dense: Tensor) -> Tensor:
        x = self.bottom(dense)
        rows = torch.zeros(len(dense), 1, dtype=torch.int64)
        found = torch.stack([x, *(table(rows) for table in self.tables)], 1)
        pairs = (found @ found.transpose(1, 2))[:, *torch.tril_indices(27, 27, -1)]
        return self.top(torch.cat((x, pairs), 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model, its published number of parameters (0: none is published), and an input of one small batch."""

    make: Callable[[], nn.Module]
    published: int
    batch: Callable[[], Tensor]


def images(side: int = 64) -> Callable[[], Tensor]:
    return lambda: torch.randn(2, 3, side, side)


def words(length: int = 8) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, 1000, (2, length))


MODELS = {
    "ResNet-50": Architecture(make=lambda: resnet(64), published=25_557_032, batch=images()),
    "Wide-ResNet-50-2": Architecture(make=lambda: resnet(128), published=68_883_240, batch=images()),
    "VGG-16": Architecture(make=vgg16, published=138_357_544, batch=images(32)),
    "MobileNetV2": Architecture(make=mobilenet_v2, published=3_504_872, batch=images()),
    "ViT-B/16": Architecture(make=Vit, published=86_567_656, batch=images(224)),
    "BERT-base": Architecture(make=Bert, published=109_482_240, batch=words()),
    "GPT-2": Architecture(make=Gpt2, published=124_439_808, batch=words()),
    "T5-small": Architecture(make=T5Small, published=60_506_624, batch=words()),
    "LSTM language model": Architecture(make=LstmLanguageModel, published=0, batch=words()),
    "DLRM": Architecture(make=Dlrm, published=0, batch=lambda: torch.randn(2, 13)),
}
