import torch.nn as nn


def build_mlp(inputs, hidden, depth, outputs):
    layers = [nn.Linear(inputs, hidden), nn.SiLU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(hidden, hidden), nn.SiLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, outputs))
