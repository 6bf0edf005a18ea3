"""GPU samples: means over a window, and the sampler's child process with a fake NVML (tests/data/nvml)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from waiting import wait_until

from slurmwrap.prerun.trial.gpu_sampler import GpuSample, GpuSampler, MeanGpuUse, find_job_gpus, summarize_gpu_use

SOURCE = Path(__file__).parents[2] / "data/nvml/fake_nvml.c"
Sampling = Callable[..., GpuSampler]


def sample(at: float, sm: float | None, **fields: float) -> GpuSample:
    return GpuSample(at=at, sm=sm, **fields)  # type: ignore[arg-type]


def test_means_cover_the_window_and_the_memory_peak_covers_all_samples() -> None:
    samples = [
        sample(1.0, 0.0, mem_mib=900.0),
        sample(2.0, 0.5, mem=0.2, mem_mib=100.0, power_w=200.0, pcie_mib_per_s=10.0),
        sample(3.0, 0.7, mem=0.4, mem_mib=100.0, power_w=300.0, pcie_mib_per_s=30.0),
        sample(4.0, 1.0),
    ]
    found = summarize_gpu_use(samples, 2.0, 3.0)
    assert found == MeanGpuUse(util=0.6, mem_util=0.3, power_w=250.0, pcie_mib_per_s=20.0, mem_peak_mib=900)


def test_values_without_samples_are_unknown() -> None:
    assert summarize_gpu_use([sample(2.0, None)], 1.0, 3.0) == MeanGpuUse()
    assert summarize_gpu_use([sample(2.0, 0.5)], 5.0, 6.0) == MeanGpuUse()
    assert summarize_gpu_use([], 0.0, 9.0) == MeanGpuUse()


def test_slurm_job_gpus_takes_precedence_over_cuda_visible_devices() -> None:
    assert find_job_gpus({"SLURM_JOB_GPUS": "3", "CUDA_VISIBLE_DEVICES": "0"}) == "3"
    assert find_job_gpus({"CUDA_VISIBLE_DEVICES": "0"}) == "0"
    assert find_job_gpus({}) == ""


def test_without_a_driver_no_child_process_starts(tmp_path: Path) -> None:
    before = psutil.Process().children()  # other tests may have left child processes
    with GpuSampler({}, control=tmp_path / "nvidiactl") as gpus:
        gpus.look()
        assert (gpus.samples, gpus.percent(), psutil.Process().children()) == ([], None, before)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The directory of a fake libnvidia-ml.so.1 that returns the values of $FAKE_NVML."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (Debian: apt-get install gcc)")
    folder = tmp_path_factory.mktemp("nvml")
    flags = ["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([compiler, *flags, "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)], check=True)
    return str(folder)


@pytest.fixture
def start_sampler(library: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sampling]:
    """Starts samplers whose driver gives the chosen answers, and closes them at the end."""
    started: list[GpuSampler] = []

    def start(answers: str, **environ: str) -> GpuSampler:
        monkeypatch.setenv("LD_LIBRARY_PATH", library)
        monkeypatch.setenv("FAKE_NVML", answers)
        started.append(GpuSampler(environ, control=Path("/dev/null")))
        return started[-1]

    yield start
    for gpus in started:
        gpus.close()


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_for_first_samples(gpus: GpuSampler) -> list[GpuSample]:
    def looked() -> bool:
        gpus.look()
        return bool(gpus.samples)

    wait_until(looked, "a sample", pause=0.01)
    return [gpu_sample for gpu_sample in gpus.samples if gpu_sample.at == gpus.samples[0].at]


def test_the_gpu_of_the_job_is_found_by_its_device_minor(start_sampler: Sampling) -> None:
    before = time.monotonic()
    gpus = start_sampler(
        "minor@0=5 minor@1=1 minor@2=0 sm@2=80 mem@2=40 used_mib@2=3000 power@2=450000 pcie_tx@2=1024 pcie_rx@2=2048",
        SLURM_JOB_GPUS="0",
    )
    (found,) = wait_for_first_samples(gpus)
    assert found == GpuSample(at=found.at, sm=0.8, mem=0.4, mem_mib=3000.0, power_w=450.0, pcie_mib_per_s=3.0)
    assert before <= found.at <= time.monotonic()
    assert (gpus.buses, gpus.percent()) == (("0000:07:00.0",), 80.0)


def test_gpus_can_be_named_by_their_uuid(start_sampler: Sampling) -> None:
    gpus = start_sampler("sm@1=30", CUDA_VISIBLE_DEVICES="GPU-1-fake")
    assert [gpu_sample.sm for gpu_sample in wait_for_first_samples(gpus)] == [0.3]


def test_all_visible_gpus_belong_to_the_job_if_devices_are_confined(start_sampler: Sampling) -> None:
    gpus = start_sampler("gpus=1 sm@0=50", SLURM_JOB_GPUS="6")
    assert [gpu_sample.sm for gpu_sample in wait_for_first_samples(gpus)] == [0.5]


def test_values_that_a_gpu_does_not_support_are_left_out(start_sampler: Sampling) -> None:
    gpus = start_sampler("gpus=1 nvmlDeviceGetUtilizationRates=3 nvmlDeviceGetPcieThroughput=3 power=100000")
    (found,) = wait_for_first_samples(gpus)
    assert found == GpuSample(at=found.at, mem_mib=0.0, power_w=100.0)


def test_the_shares_of_a_gpu_are_means_over_a_second(start_sampler: Sampling) -> None:
    gpus = start_sampler("gpus=1 gpm=62.5 gpm10=31 gpm21=6009.674 gpm60=0 links=18 field164=26562")

    def has_shares() -> bool:
        gpus.look()
        return any(one.shares for one in gpus.samples)

    wait_until(has_shares, "shares", pause=0.01)
    assert [one.shares for one in gpus.samples][:2] == [
        {},
        {"sm_active": 0.625, "dram": 0.31, "pcie": 0.1, "nvlink": 0.0},
    ]
    found = summarize_gpu_use(gpus.samples, gpus.samples[0].at, gpus.samples[-1].at)
    assert found.shares == {"sm_active": 0.625, "dram": 0.31, "pcie": 0.1, "nvlink": 0.0}


def test_dcgm_gives_the_shares_of_a_gpu_without_gpm(
    library: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dcgmi = tmp_path / "dcgmi"
    dcgmi.write_text("""#!/bin/sh
case "$1" in
  discovery) printf '| 4 | Name: NVIDIA A100 |\\n|   | PCI Bus ID: 00000000:05:00.0 |\\n' ;;
  dmon) printf 'GPU 4 N/A N/A N/A N/A N/A N/A\\nGPU 4 0.5 0.25 0 6301600000 N/A N/A\\n' ;;
esac
""")
    dcgmi.chmod(0o755)
    monkeypatch.setenv("LD_LIBRARY_PATH", library)
    monkeypatch.setenv("FAKE_NVML", "gpus=1 generation=4")
    with GpuSampler({}, control=Path("/dev/null"), dcgmi=str(dcgmi)) as gpus:
        assert wait_for_first_samples(gpus)[0].shares == {"sm_active": 0.5, "dram": 0.25, "pcie": 0.2}


def test_a_driver_that_hangs_or_fails_gives_no_samples_and_leaves_no_process(start_sampler: Sampling) -> None:
    before = psutil.Process().children()
    for answers in ("hang=nvmlInitWithFlags", "init=9", "gpus=1 hang=nvmlDeviceGetPowerUsage"):
        gpus = start_sampler(answers)
        gpus.look()
        gpus.close()
        assert gpus.samples == []
    started = (child for child in psutil.Process().children() if child not in before)
    assert [child for child in started if child.status() != psutil.STATUS_ZOMBIE] == []


def test_the_child_process_ends_with_its_parent(library: str) -> None:
    code = (
        "from pathlib import Path; import os, psutil\n"
        "from slurmwrap.prerun.trial.gpu_sampler import GpuSampler\n"
        "gpus = GpuSampler({}, control=Path('/dev/null'))\n"
        "while not gpus.samples: gpus.look()\n"
        "print(psutil.Process().children()[0].pid, flush=True)\n"
        "os._exit(0)\n"
    )
    argv = [sys.executable, "-c", code]
    environ = {**os.environ, "LD_LIBRARY_PATH": library, "FAKE_NVML": ""}
    pid = int(subprocess.run(argv, env=environ, capture_output=True, check=True, text=True).stdout)
    wait_until(lambda: has_ended(pid), "the child's end")
