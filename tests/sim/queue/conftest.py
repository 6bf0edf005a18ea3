"""Fixture for the jobs that a queue policy gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from slurmwrap.sim.queue_policies import Active

Make = Callable[..., Active]


@pytest.fixture
def active() -> Make:
    """Makes the columns of jobs submitted one second apart; a single value applies to all jobs."""

    def make(
        count: int,
        *,
        gpus: int | Sequence[int] = 1,
        left_s: float | Sequence[float] = 100.0,
        held_s: float | Sequence[float] = 0.0,
        speed: float | Sequence[float] = 1.0,
        running: Sequence[int] = (),
        number: Sequence[int] | None = None,
    ) -> Active:
        numbers = np.arange(count) if number is None else np.array(number)
        runs = np.zeros(count, dtype=np.bool_)
        runs[list(running)] = True
        return Active(
            number=numbers,
            submit_s=numbers.astype(np.float64),
            gpus=np.full(count, gpus) if isinstance(gpus, int) else np.array(gpus),
            left_s=np.full(count, left_s, dtype=np.float64),
            speed=np.full(count, speed, dtype=np.float64),
            held_s=np.full(count, held_s, dtype=np.float64),
            running=runs,
        )

    return make
