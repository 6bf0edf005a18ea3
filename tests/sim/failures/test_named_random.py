"""Random numbers by name."""

from __future__ import annotations

import numpy as np
import pytest

from slurmwrap.sim.failures.named_random import Purpose, draw_uniform, draw_uniforms


def test_the_same_name_gives_the_same_number_and_other_names_others() -> None:
    names = [(seed, job, run, what) for seed in (0, 1) for job in (0, 1, 77) for run in (0, 1) for what in (1, 2)]
    found = [draw_uniform(*name) for name in names]
    assert found == [draw_uniform(*name) for name in names]
    assert len(set(found)) == len(names)


def test_draw_uniforms_equals_single_draws() -> None:
    numbers = np.arange(1000, dtype=np.uint64)
    one_by_one = [draw_uniform(5, int(number), 0, Purpose.FATE) for number in numbers]
    assert draw_uniforms(5, numbers, Purpose.FATE).tolist() == one_by_one


def test_numbers_are_uniform_and_not_correlated() -> None:
    found = draw_uniforms(3, np.arange(20_000, dtype=np.uint64), Purpose.CAUSE)
    counts, _ = np.histogram(found, bins=20, range=(0, 1))
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 43.8  # chi-square, 19 degrees of freedom, 0.1 %
    assert abs(float(np.corrcoef(found[:-1], found[1:])[0, 1])) < 0.03


@pytest.mark.parametrize("what", list(Purpose))
def test_no_number_equals_one(what: Purpose) -> None:
    assert all(0 <= draw_uniform(2, job, 0, what) < 1 for job in range(200))
