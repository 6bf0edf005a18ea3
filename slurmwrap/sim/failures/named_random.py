"""Random numbers by name: each is a hash of (seed, job, run, purpose). Pure.

In all compared arms the same job fails at the same moment of its first run, whatever happened to other jobs before
(common random numbers). So a difference between two arms is caused by the arms and not by chance. The hash is
SplitMix64's finalizer (Steele, Lea and Flood, OOPSLA 2014).
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_SEED, _JOB, _RUN, _WHAT = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93
_ONE, _TWO = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53


class Purpose(IntEnum):
    """What a number decides. Append new members: the existing ones must keep their values."""

    FATE = 1
    CAUSE = 2
    TIME = 3
    TRIALS = 4
    CURABLE = 5
    USER = 6
    SAME = 7
    NEED = 8
    SEEN = 9
    COMPANY = 10
    PASSED = 11
    FALSE_FAIL = 12
    MISREAD = 13
    MISTAKEN_FOR = 14
    OWN_READ = 15
    HAZARD = 16
    STRUCK = 17
    NODE_CAUSE = 18
    LEMONS = 19
    BY_LEMON = 20
    WAITS = 21
    REUSE = 22
    LIMIT = 23
    REHEARSED = 24
    CHECKED = 25
    HARMLESS = 26
    # This and higher values: the candidate nodes, one after the other.
    NODE = 100


def draw_uniform(seed: int, job: int, run: int, what: int) -> float:
    """Return the random number of this name: 0 <= x < 1."""
    x = (seed * _SEED + job * _JOB + run * _RUN + what * _WHAT) & _MASK
    x = ((x ^ (x >> 33)) * _ONE) & _MASK
    x = ((x ^ (x >> 33)) * _TWO) & _MASK
    return ((x ^ (x >> 33)) >> 11) * 2.0**-53


def draw_uniforms(seed: int, jobs: NDArray[np.uint64], what: int) -> NDArray[np.float64]:
    """Return `draw_uniform(seed, job, 0, what)` for each of `jobs`."""
    base = np.uint64((seed * _SEED + what * _WHAT) & _MASK)
    x = jobs * np.uint64(_JOB) + base  # overflow wraps around on purpose
    x = (x ^ (x >> np.uint64(33))) * np.uint64(_ONE)
    x = (x ^ (x >> np.uint64(33))) * np.uint64(_TWO)
    return ((x ^ (x >> np.uint64(33))) >> np.uint64(11)).astype(np.float64) * 2.0**-53
