"""Synergy's models: the time of an iteration of each model, and the task it trains for. Data only.

From the authors' simulator (msr-fiddle/synergy, 1bb2bed6, simulator/models/*_1.py): V100, their batch sizes, 3 CPUs and
62.5 GB per GPU. A model's speed with more or less is in its profile (cli/profile/profile_files.py reads those).
"""

from __future__ import annotations

from collections.abc import Mapping

# Seconds per iteration on one GPU at the proportional share.
ITERATION_S: Mapping[str, float] = {
    "alexnet": 0.6,
    "res18": 0.64,
    "res50": 0.78,
    "mobilenet": 0.71,
    "shufflenet": 0.615,
    "gnmt": 0.12,
    "transformer": 0.67,
    "lstm": 0.011,
    "m5": 0.6,
    "deepspeech": 0.757,
}
# Models per task, in the order in which the generator draws them.
TASKS: Mapping[str, tuple[str, ...]] = {
    "image": ("alexnet", "res18", "res50", "mobilenet", "shufflenet"),
    "language": ("gnmt", "transformer", "lstm"),
    "speech": ("m5", "deepspeech"),
}
