"""StepUsage: what Slurm's own accounting counted for the steps of one job."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepUsage:
    """Sums over the steps of one run, on all of its nodes, as `sacct` or `sstat` print them. None: not counted."""

    source: str  # "sacct" or "sstat"
    cpu_s: float | None = None  # user + system
    # Of the step with the most: the sum over its tasks of each task's highest resident memory. A page that several
    # processes of a task share counts once for each (jobacct_gather/linux).
    mem_mib: int | None = None
    # Of the step with the most, if slurmd reads the GPUs (AutoDetect=nvml or rsmi): sums over all GPUs, in percent and
    # in MiB. Slurm prints 0 also where it does not read them, so 0 is unknown.
    gpu_pct: float | None = None
    gpu_mem_mib: int | None = None
    energy_j: float | None = None  # of the nodes, where Slurm has a source (AcctGatherEnergyType)
