"""CPUs per GPU that a job requested, for each unit that sbatch accepts."""

from __future__ import annotations

import pytest

from slurmwrap.sbatch.job_request import CpuUnit, ResourceShape
from slurmwrap.store.report_reader import compute_requested_cpus_per_gpu


@pytest.mark.parametrize(
    ("shape", "gpus", "expected"),
    [
        (ResourceShape(cpus=4, cpu_unit=CpuUnit.PER_GPU), 8, 4.0),
        (ResourceShape(cpus=4, cpu_unit=CpuUnit.PER_TASK, tasks=16), 8, 8.0),
        (ResourceShape(cpus=3, cpu_unit=CpuUnit.PER_TASK, tasks_per_node=4, nodes=2), 8, 3.0),
        (ResourceShape(cpus=3, cpu_unit=CpuUnit.PER_TASK), 1, 3.0),
        (ResourceShape(), 8, None),
        (ResourceShape(cpus=4, cpu_unit=CpuUnit.PER_GPU), 0, None),
    ],
)
def test_requested_cpus_per_gpu(shape: ResourceShape, gpus: int, expected: float | None) -> None:
    assert compute_requested_cpus_per_gpu(shape, gpus) == expected
