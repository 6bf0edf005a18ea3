import glob
import importlib.resources
import logging
import os
import pathlib
import platform
import shutil
import sys
import time

import yaml


def load():
    c = yaml.safe_load(importlib.resources.files("fairlike").joinpath("conf/config.yaml").read_text())
    for o in sys.argv[1:]:
        k, v = o.split("=", 1)
        d = c
        *path, last = k.split(".")
        for q in path:
            d = d[q]
        d[last] = yaml.safe_load(v)
    return c


def main():
    c = load()
    run = os.path.abspath(c["hydra"]["run"]["dir"])
    os.makedirs(run, exist_ok=True)
    os.makedirs(run + "/.hydra")
    orig = os.getcwd()
    os.chdir(run)
    yaml.dump(c, open(".hydra/config.yaml", "w"))
    assert yaml.safe_load(open(".hydra/config.yaml"))["task"] == "lm"
    logging.basicConfig(
        format="%(asctime)s | %(levelname)s | %(name)s | %(message)s",
        level="INFO",
        handlers=[logging.FileHandler("cli.log"), logging.StreamHandler(sys.stdout)],
    )
    log = logging.getLogger("fairseq_cli.train")
    words = open("../../../data/vocab.txt").read().split()
    assert os.path.relpath(os.getcwd(), orig).startswith("outputs") and len(words) == 4
    import torch

    m = torch.nn.Sequential(torch.nn.Embedding(10, 8), torch.nn.Linear(8, 10)).half().float()
    o = torch.optim.Adam(m.parameters(), lr=float(c["optimization"]["lr"][0]))
    sd = c["checkpoint"]["save_dir"]
    os.makedirs(sd, exist_ok=True)
    last = os.path.join(sd, "checkpoint_last.pt")
    if os.path.exists(last):
        m.load_state_dict(torch.load(last))
        log.info("loaded")
    for u in range(c["optimization"]["max_update"]):
        for _ in range(2):
            x = torch.randint(10, (4, 8))
            torch.nn.functional.cross_entropy(m(x).flatten(0, 1), x.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        o.step()
        o.zero_grad()
        log.info('{"epoch": 1, "num_updates": %d, "loss": "1.0", "wps": "100"}', u + 1)
        f = os.path.join(sd, f"checkpoint_1_{u}.pt")
        torch.save(m.state_dict(), f)
        shutil.copyfile(f, last)
        for old in sorted(glob.glob(os.path.join(sd, "checkpoint_1_*.pt")), key=os.path.getmtime)[:-2]:
            os.remove(old)
        assert len(glob.glob(os.path.join(sd, "checkpoint_*.pt"))) <= 3


if __name__ == "__main__":
    main()
