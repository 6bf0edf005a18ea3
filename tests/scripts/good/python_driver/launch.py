"""Starts one worker per GPU by subprocess and waits."""
import argparse
import os
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor

parser = argparse.ArgumentParser()
parser.add_argument("--gpus", type=int, required=True)
parser.add_argument("--config", required=True)
args = parser.parse_args()
with open(args.config, "rb") as f:
    config = tomllib.load(f)


def worker(gpu):
    env = dict(os.environ, CUDA_VISIBLE_DEVICES=str(gpu), SEED=str(gpu))
    cmd = [sys.executable, "worker.py", str(config["model"]["width"]), str(config["train"]["lr"]), str(config["train"]["iters"])]
    return subprocess.run(cmd, env=env, check=False).returncode


with ThreadPoolExecutor(args.gpus) as pool:
    codes = list(pool.map(worker, range(args.gpus)))
print("exit codes", codes)
sys.exit(max(codes))
