"""Evolution strategy in NumPy. Tells slurmwrap its progress where that is there."""
import argparse

import numpy as np

try:
    from slurmwrap_step import step as report_step
except ImportError:

    def report_step():
        pass


parser = argparse.ArgumentParser()
parser.add_argument("--generations", type=int, default=100)
args = parser.parse_args()
rng = np.random.default_rng(0)
mean, sigma = np.zeros(8), 0.5
target = np.linspace(-1, 1, 8)
for generation in range(args.generations):
    noise = rng.normal(size=(32, 8))
    fitness = -((mean + sigma * noise - target) ** 2).sum(1)
    mean = mean + 0.1 / (32 * sigma) * noise.T @ ((fitness - fitness.mean()) / (fitness.std() + 1e-8))
    sigma *= 0.999
    report_step()
print("distance", np.abs(mean - target).max())
