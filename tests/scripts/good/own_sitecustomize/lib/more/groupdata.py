import torch


def two_moons(n, generator):
    t = torch.rand(n, generator=generator) * 3.1416
    side = torch.randint(2, (n,), generator=generator)
    x = torch.stack([torch.cos(t) + side, torch.sin(t) * (1 - 2 * side)], 1)
    return x + 0.1 * torch.randn(n, 2, generator=generator), side
