"""Connect the profiler to a real trial: its processes, its CPUs and the stressors (adapter).

If anything in this module fails, there is no profile, and the trial goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from slurmwrap.model.trial_result import StepReading
from slurmwrap.prerun.trial import cpu_affinity, process_sampler, step_detection
from slurmwrap.prerun.trial.cpu_profiler import MeasurementWindow, Profiled, Profiler, Stress
from slurmwrap.prerun.trial.stressors import StressorPool, compute_footprint
from slurmwrap.prerun.trial.trial_spec import TrialSpec

SIGNS = 50  # minimum backward passes or batches that count as training
_NO_RATE = ("text", "gpu")  # step sources that show that the program runs, but not how fast
_CONTENTION_S = 60.0  # minimum budget for measuring contention; a smaller one is spent on the CPU curve alone


def has_reached_steps(spec: TrialSpec, reading: StepReading) -> bool:
    """Return whether a trial with a profile has done the steps after which it would be parked without a profile.

    If the reading is not exact (backward passes or batches), at least SIGNS of them are needed.
    """
    return bool(spec.profile_s) and reading.count >= (spec.steps if reading.exact else max(SIGNS, spec.steps))


class TrialProfiler:
    """The profile of one trial, which begins with the first call of `done`. Times are those of time.monotonic()."""

    def __init__(
        self,
        spec: TrialSpec,
        processes: Callable[[], Sequence[psutil.Process]],
        environ: Mapping[str, str],
        gpu_buses: Callable[[], Sequence[str]] = tuple,
        pace: MeasurementWindow | None = None,
    ) -> None:
        self._pace = pace
        self._spec, self._processes, self._environ, self._gpu_buses = spec, processes, environ, gpu_buses
        self._stressors = StressorPool()
        self._profiler: Profiler | None = None
        self._is_over = spec.profile_s <= 0

    @property
    def stressing(self) -> bool:
        """Whether slurmwrap's stressors run; then the cgroup's memory is not the trial's alone."""
        return bool(self._stressors.pids)

    def done(self, now: float, reading: StepReading, *, ended: bool) -> bool:
        """Return whether nothing is left to measure. `ended`: the script has ended. `reading`: the current steps."""
        if not self._is_over and (ended or reading.source in _NO_RATE):
            self.close()
        try:
            if self._profiler is None and not self._is_over and not self._list_trainers():
                # The training processes are not below the supervisor but below slurmstepd, as with the real srun of a
                # container, so their CPUs cannot be limited.
                self.close()
            if self._is_over:
                return True
            self._profiler = self._profiler or self._start_profiler(now)
            self._is_over = self._profiler.look(now, reading)
        except Exception:
            # For example unexpected content in /proc or /sys. Give up the profile, not the trial.
            self.close()
        return self._is_over

    def close(self) -> None:
        """Stop measuring: end all stressors and give the trial its CPUs back."""
        self._is_over = True
        with suppress(Exception):
            if self._profiler is not None:
                self._profiler.close()
        self._stressors.stop()

    def result(self) -> Profiled:
        """Return what has been measured so far."""
        return self._profiler.result() if self._profiler is not None else Profiled()

    def _start_profiler(self, now: float) -> Profiler:
        full = frozenset(os.sched_getaffinity(0))
        cores, threads = cpu_affinity.list_own_cores(full, near=cpu_affinity.list_cpus_near_gpus(self._gpu_buses()))
        masks = cpu_affinity.make_masks_by_cpus(cores, threads, _parse_number(self._environ.get("SLURM_CPUS_ON_NODE")))
        limiter = cpu_affinity.AffinityLimiter(self._list_trial_processes, self._list_trainers)
        seconds = self._spec.profile_s
        stress = self._list_stress() if seconds >= _CONTENTION_S else {}
        return Profiler(limiter, masks, full=full, start=now, deadline=now + seconds, stress=stress, pace=self._pace)

    def _list_trial_processes(self) -> list[psutil.Process]:
        return [process for process in self._processes() if process.pid not in self._stressors.pids]

    def _list_trainers(self) -> list[int]:
        known = list_counting_pids(Path(self._spec.step_dir))
        return [process.pid for process in self._list_trial_processes() if _read_inner_pid(process.pid) in known]

    def _list_stress(self) -> dict[str, Stress]:
        found: dict[str, Stress] = {"cpu": self._stressors.cpu}
        # If the job is near its memory limit, the stressors' buffers could get it killed.
        if self._compute_memory_left() > 2 * compute_footprint():
            found["mem_bw"] = self._stressors.memory
        return found

    def _compute_memory_left(self) -> int:
        cgroup = process_sampler.find_job_cgroup(self._environ, process_sampler.read_own_cgroups())
        left, free = process_sampler.compute_cgroup_left(cgroup), int(psutil.virtual_memory().available)
        return free if left is None else min(left, free)


def list_counting_pids(step_dir: Path) -> set[int]:
    """Return the pids of processes that have counted a step, as seen in their own PID namespace."""
    found = set()
    for file in step_dir.iterdir():
        with suppress(OSError):
            record = step_detection.parse_record(file.read_text(errors="replace")) if file.name.isdigit() else None
            found |= {int(file.name)} if record is not None and record.count > 0 else set()
    return found


def _read_inner_pid(pid: int) -> int:
    """Return the pid of a process in its own namespace, the last of NSpid (proc_pid_status(5)); 0 if it has ended."""
    with suppress(OSError, IndexError, ValueError):
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
        return int(status.partition("\nNSpid:")[2].splitlines()[0].split()[-1])
    return 0


def _parse_number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None
