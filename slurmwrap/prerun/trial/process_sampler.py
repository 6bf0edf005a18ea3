"""Measure CPU time, memory and I/O of a running process tree (adapter: /proc and the job's cgroup).

The sum of RSS counts shared pages once per loader worker, up to 7 times too much (measured with 8 workers). So memory
is the anonymous and shared memory of the job's cgroup if readable, checked by the PSS of the processes, else the sum of
PSS. PSS is read only when RSS has grown and at the end, because reading it holds the map lock of the process.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.trial_result import StepReading
from slurmwrap.node_hooks import job_cgroup as cgroup
from slurmwrap.prerun.trial.cpu_profiler import Profiled
from slurmwrap.prerun.trial.gpu_sampler import GpuSample, summarize_gpu_use

# Growth of the sum of RSS after which PSS is read again.
_RSS_GROWTH = 1.05
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_MIB = 1 << 20


class Sampler:
    """Collects samples of the trial's processes. Call `sample` about once a second, and `measurement` at the end."""

    def __init__(self, job_cgroup: Path | None) -> None:
        self._cgroup = job_cgroup
        # (pid, start time) -> user + system seconds. Entries are kept after the end of the process.
        self._cpu_s: dict[tuple[int, float], float] = {}
        self._samples: list[tuple[float, float]] = []  # (time, CPU seconds of the tree so far)
        self._io: dict[tuple[int, float], tuple[int, int, int]] = {}  # (read_bytes, rchar, wchar), keys as in _cpu_s
        self._reads: list[tuple[float, float]] = []  # (time, MiB that the tree has read so far)
        self._rss_at_pss = 0
        self._mem_mib: dict[str, int] = {}  # source -> peak

    def sample(self, now: float, processes: Sequence[psutil.Process], *, last: bool = False) -> None:
        """Take a sample of `processes`. `last`: they are about to be killed, so measure the memory exactly."""
        rss = 0
        for process in processes:
            try:
                times, memory = process.cpu_times(), process.memory_info().rss
            except psutil.Error:
                continue
            self._cpu_s[process.pid, process.create_time()] = times.user + times.system
            rss += memory
            with suppress(psutil.Error, NotImplementedError):
                io = process.io_counters()
                self._io[process.pid, process.create_time()] = (io.read_bytes, io.read_chars, io.write_chars)
        self._samples.append((now, sum(self._cpu_s.values())))
        self._reads.append((now, compute_read_mib(self._io.values())))
        self._measure_memory(processes, rss, last)

    def _measure_memory(self, processes: Sequence[psutil.Process], rss: int, last: bool) -> None:
        grown = last or rss > self._rss_at_pss * _RSS_GROWTH
        self._rss_at_pss = max(self._rss_at_pss, rss) if grown else self._rss_at_pss
        if (
            self._cgroup is not None
            and (held := parse_cgroup_memory(_read_text(self._cgroup / "memory.stat"))) is not None
        ):
            # The kernel's cgroup counters can lag: in 1 of 6 trials of three seconds they missed half (Linux 6.18, v1).
            self._update_peak("cgroup", max(held, sum(map(_compute_own_memory, processes)) if grown else 0))
            return
        self._update_peak("rss", rss)
        if grown:
            pss = [_read_pss(process.pid) for process in processes]
            if any(value is not None for value in pss):
                self._update_peak("pss", sum(value or 0 for value in pss))

    def _update_peak(self, source: str, held: int) -> None:
        self._mem_mib[source] = max(self._mem_mib.get(source, 0), -(-held // _MIB))

    def measurement(
        self,
        steps: StepReading,
        *,
        seconds: float,
        cpus: int | None,
        profiled: Profiled | None = None,
        gpus: Sequence[GpuSample] = (),
    ) -> Measurement:
        """Summarize the samples.

        CPU use is the mean over the steps, or that of the busiest second if the steps took less than a second. With
        `profiled`, speed, CPU use, GPU use and read rate are those on all CPUs, not means over the CPU curve.
        """
        profiled = profiled or Profiled()
        first, last = profiled.full or (steps.first, steps.last)
        gpu = summarize_gpu_use(gpus, first, last)
        source = next((s for s in ("cgroup", "pss", "rss") if s in self._mem_mib), "")
        return Measurement(
            seconds=round(seconds, 3),
            steps=steps.steps or None,
            steps_per_s=profiled.full_speed or (steps.per_s if steps.exact else None),
            total_steps=steps.total * (steps.world if steps.total_is_shared else 1) if steps.total else None,
            total_is_shared=steps.total_is_shared,
            cpu_curve=profiled.curve,
            cpu_curve_end=profiled.end,
            loader_workers=profiled.workers,
            read_mib_per_s=_compute_read_rate(self._reads, first, last) if profiled.full else None,
            sensitivity=profiled.sensitivity,
            cpu_s=self._samples[-1][1] if self._samples else None,
            cpus_used=compute_cpus_used(self._samples, first, last),
            cpus_allocated=cpus,
            mem_peak_mib=self._mem_mib.get(source),
            mem_source=source,
            gpu_mem_peak_mib=steps.gpu_mem_mib or gpu.mem_peak_mib,
            model_mib=steps.model_mib,
            largest_tensor_mib=steps.largest_tensor_mib,
            layers=steps.layers,
            gpu_util=gpu.util,
            gpu_mem_util=gpu.mem_util,
            gpu_power_w=gpu.power_w,
            pcie_mib_per_s=gpu.pcie_mib_per_s,
            gpu_sm_active=gpu.shares.get("sm_active"),
            gpu_dram=gpu.shares.get("dram"),
            gpu_pcie=gpu.shares.get("pcie"),
            gpu_nvlink=gpu.shares.get("nvlink"),
        )


def compute_cpus_used(samples: Sequence[tuple[float, float]], first: float, last: float) -> float | None:
    """Return the mean number of busy cores between `first` and `last`, or that of the busiest second.

    `samples`: (time, CPU seconds so far). The busiest second is used for a trial of three quick steps: it is never less
    than what the steps used.
    """
    if first and (mean := compute_slope(samples, first, last)) is not None:
        return mean
    rates = [
        (end[1] - start[1]) / (end[0] - start[0])
        for at, start in enumerate(samples)
        if (end := next((s for s in samples[at + 1 :] if s[0] - start[0] >= 0.9), None)) is not None
    ]
    return max(rates, default=None)


def compute_slope(samples: Sequence[tuple[float, float]], first: float, last: float) -> float | None:
    """Return the growth per second between `first` and `last`; None if the samples there span less than a second."""
    inside = [s for s in samples if first <= s[0] <= last]
    if len(inside) < 2 or inside[-1][0] - inside[0][0] < 1.0:
        return None
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


def _compute_read_rate(samples: Sequence[tuple[float, float]], first: float, last: float) -> float | None:
    """Return the MiB read per second, at least 0.

    The difference may be negative, because bytes written to a pipe can be counted before they are read from it.
    """
    found = compute_slope(samples, first, last)
    return None if found is None else max(0.0, round(found, 3))


def compute_read_mib(counters: Collection[tuple[int, int, int]]) -> float:
    """Return the MiB that a tree has read from storage or caches.

    `counters`: read_bytes, rchar, wchar (proc_pid_io(5)). Unlike read_bytes, rchar includes cached reads and network
    file systems. It also includes pipes, to which other processes of the tree wrote, so wchar is subtracted. Only
    read_bytes includes mapped files.
    """
    stored, read, written = (sum(column) for column in zip(*counters, strict=True)) if counters else (0, 0, 0)
    return max(stored, read - written) / _MIB


def compute_cgroup_left(cgroup: Path | None) -> int | None:
    """Return the bytes left until the cgroup's limit, not counting page cache; None if there is no readable limit."""
    if cgroup is None:
        return None
    limit = _read_text(cgroup / "memory.max") or _read_text(cgroup / "memory.limit_in_bytes")
    held = parse_cgroup_memory(_read_text(cgroup / "memory.stat"))
    return int(limit) - held if limit.strip().isdigit() and held is not None else None


def parse_cgroup_memory(stat: str) -> int | None:
    """Return the bytes that cannot be reclaimed, by memory.stat of cgroup v2 or v1 (total_ lines); None if unknown."""
    values = {name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", stat, re.M)}
    if "total_rss" in values:
        return values["total_rss"] + values.get("total_shmem", 0)
    if "anon" in values:
        return sum(values.get(n, 0) for n in ("anon", "shmem", "unevictable", "kernel_stack", "pagetables", "sock"))
    return None


def read_oom_kills(job_cgroup: Path | None) -> int | None:
    """Return the number of OOM kills of the job so far; None if it is not known.

    Read from memory.events (v2), or from all memory.oom_control files of the job's steps and tasks (v1).
    """
    if job_cgroup is None:
        return None
    found = re.search(r"^oom_kill (\d+)$", _read_text(job_cgroup / "memory.events"), re.M)
    if found is not None:
        return int(found[1])
    kills: int | None = cgroup.oom_kills_below(str(job_cgroup))
    return kills


def find_job_cgroup(environ: Mapping[str, str], own: str, root: Path = _CGROUP_ROOT) -> Path | None:
    """Return the memory cgroup of the whole Slurm job, by /proc/self/cgroup (`own`); None if Slurm made none.

    A cgroup outside Slurm's own tree is not used, because it would contain processes of other users.
    """
    job, sluid = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_JOB_SLUID", "")
    for line in own.splitlines() if job.isdecimal() else ():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        second = number == "0" and not controllers
        if not second and "memory" not in controllers.split(","):
            continue
        found: str | None = cgroup.job_directory(path, int(job), sluid)
        for base in (root, root / "unified") if second else (root / "memory",):
            if found and (base / found.lstrip("/") / "memory.stat").is_file():
                return base / found.lstrip("/")
    return None


def read_own_cgroups() -> str:
    """Return the content of /proc/self/cgroup; "" if there is none."""
    return _read_text(Path("/proc/self/cgroup"))


def _read_pss(pid: int) -> int | None:
    found = re.search(r"^Pss:\s+(\d+) kB$", _read_text(Path(f"/proc/{pid}/smaps_rollup")), re.M)
    return int(found[1]) << 10 if found else None


def _compute_own_memory(process: psutil.Process) -> int:
    """Return the proportional anonymous and shared memory of a process in bytes; 0 if the kernel does not report it."""
    found = re.findall(r"^Pss_(?:Anon|Shmem):\s+(\d+) kB$", _read_text(Path(f"/proc/{process.pid}/smaps_rollup")), re.M)
    return sum(map(int, found)) << 10


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
