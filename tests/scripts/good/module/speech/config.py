"""key=value overrides on a nested dict, the poor man's hydra."""
import copy

DEFAULTS = {
    "model": "conv",
    "train": {"batch_size": 16, "lr": 1e-3, "epochs": 10, "seed": 0},
    "data": {"manifest": None, "sample_rate": 200},
}


def parse_overrides(argv):
    cfg = copy.deepcopy(DEFAULTS)
    for item in argv:
        key, value = item.split("=", 1)
        node = cfg
        *parents, leaf = key.split(".")
        for p in parents:
            node = node[p]
        if leaf not in node:
            raise KeyError(f"unknown option {key!r}, known: {sorted(node)}")
        old = node[leaf]
        node[leaf] = type(old)(value) if old is not None else value
    return cfg
