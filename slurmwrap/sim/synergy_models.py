"""Synergy's models: the time of an iteration and the task that each trains for. Data only.

From the authors' simulator (msr-fiddle/synergy, 1bb2bed6, simulator/models/*_1.py): V100, their batch sizes, 3 CPUs and
62.5 GB per GPU. How fast a model runs with more or less is in its profile (cli/profile/profile_files.py reads those).
"""

from __future__ import annotations

from collections.abc import Mapping

# Of one GPU at the share.
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
# In the order in which the generator takes turns.
TASKS: Mapping[str, tuple[str, ...]] = {
    "image": ("alexnet", "res18", "res50", "mobilenet", "shufflenet"),
    "language": ("gnmt", "transformer", "lstm"),
    "speech": ("m5", "deepspeech"),
}
