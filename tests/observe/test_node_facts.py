"""Small readers of what a node says about a job: Slurm's environment, the driver's files, cgroups, NVML."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurmwrap.observe import cgroup, gpus, job, nvml
from slurmwrap.observe.settings import node_name


@pytest.mark.parametrize(
    ("node_list", "first"),
    [
        ("n0", "n0"),
        ("n[3-5,9],x", "n3"),
        ("n[003,005-7]", "n003"),
        ("a,b[1-2]", "a"),
        ("rack[1-2]node[7-9]", "rack1node7"),
        ("n-1-[0-1]", "n-1-0"),
        ("", ""),
    ],
)
def test_the_first_node_of_a_host_list(node_list: str, first: str) -> None:
    assert job.first_node(node_list) == first


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        ("0,2", [0, 2]),
        ("0-3,6", [0, 1, 2, 3, 6]),
        ("", []),
        ("x,1", [1]),
        ("5-", [5]),
        ("0-999999999", list(range(1024))),
    ],
)
def test_gpu_indices(value: str, indices: list[int]) -> None:
    assert job.gpu_indices({b"SLURM_JOB_GPUS": value.encode()}) == indices


@pytest.mark.parametrize("value", [b"", b"0", b"-1", b"4294967296", b"41x"])
def test_what_is_no_job_id_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="not a job id"):
        job.job_id({b"SLURM_JOB_ID": value})


@pytest.mark.parametrize(
    ("value", "name"), [(b"n0", "n0"), (b"../../etc", "unknown"), (b"", "unknown"), (b"a\nb", "unknown")]
)
def test_a_node_name_that_cannot_be_part_of_a_path_is_not_used(value: bytes, name: str) -> None:
    assert node_name({b"SLURMD_NODENAME": value}) == name


def test_gpu_addresses_by_device_minor(tmp_path: Path) -> None:
    for address, minor in (("0000:05:00.0", 1), ("0000:06:00.0", 0)):
        directory = tmp_path / "gpus" / address
        directory.mkdir(parents=True)
        (directory / "information").write_text(
            f"Model: \t\t NVIDIA A100\nIRQ:   \t\t 201\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
        )
    assert gpus.addresses(str(tmp_path), time.monotonic() + 5) == {"1": "0000:05:00.0", "0": "0000:06:00.0"}
    assert gpus.addresses(str(tmp_path / "none"), time.monotonic() + 5) == {}


def write(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name.replace("__", ".")).write_text(content)


STAT = f"cache 999999999\nrss 1\nanon {290 << 20}\nshmem {10 << 20}\ntotal_rss {290 << 20}\ntotal_shmem {10 << 20}\n"


@pytest.mark.parametrize("scope", ["slurmstepd.scope", "n0_slurmstepd.scope"])
def test_a_job_in_a_version_2_cgroup(tmp_path: Path, scope: str) -> None:
    write(
        tmp_path / "system.slice" / scope / "job_41",
        memory__stat=STAT,
        memory__events="low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\n",
        cpu__stat="usage_usec 2500000\nuser_usec 1\n",
    )
    assert cgroup.sample("n0", 41, 1001, str(tmp_path)) == {"mem_peak_mib": 300, "oom_kills": 1, "cpu_s": 2.5}


@pytest.mark.parametrize("top", ["slurm", "slurm_n0"])
def test_a_job_in_version_1_cgroups(tmp_path: Path, top: str) -> None:
    below = Path(top) / "uid_1001" / "job_41"
    oom = "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"
    write(tmp_path / "memory" / below, memory__stat=STAT, memory__oom_control=oom)
    write(tmp_path / "cpuacct" / below, cpuacct__usage="1234567890\n")
    assert cgroup.sample("n0", 41, 1001, str(tmp_path)) == {"mem_peak_mib": 300, "oom_kills": 4, "cpu_s": 1.235}


def test_without_a_cpuacct_cgroup_the_processes_of_the_steps_are_asked(tmp_path: Path) -> None:
    job = tmp_path / "memory" / "slurm" / "uid_1001" / "job_41"
    write(job, memory__stat=STAT)
    write(job / "step_0", cgroup__procs=f"{os.getpid()}\n")
    spent = sum(os.times()[:4])
    found = cgroup.sample("n0", 41, 1001, str(tmp_path))["cpu_s"]
    assert spent - 0.5 <= found <= sum(os.times()[:4]) + 0.5


def test_a_cgroup_that_is_gone_says_nothing(tmp_path: Path) -> None:
    assert cgroup.sample("n0", 41, 1001, str(tmp_path)) == {}


class FakeNvml:
    """As much of nvidia-ml-py as is asked; GPU "B" is lost, and what is not defined here is not supported."""

    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByPciBusId(self, address: bytes) -> str:
        if address == b"B":
            raise self.NVMLError("GPU is lost")
        return address.decode()

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"by index {index}"

    def nvmlDeviceGetPciInfo(self, handle: str) -> Any:
        return SimpleNamespace(busId=handle.encode())

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[int]) -> Any:
        assert fields == [230]
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=2))]

    def nvmlDeviceGetRemappedRows(self, handle: str) -> tuple[int, int, int, int]:
        return 1, 0, 1, 0

    def nvmlDeviceGetTotalEccErrors(self, handle: str, kind: int, counter: int) -> int:
        raise self.NVMLError("not supported")


def ask(tmp_path: Path, binding: Any, seconds: float = 5.0, control: str = "/dev/null") -> dict[str, Any]:
    tmp_path.chmod(0o700)
    settings = SimpleNamespace(node_state_dir=str(tmp_path))
    wanted = [(0, "A"), (1, "B"), (2, None)]
    found: dict[str, Any] = nvml.states(settings, wanted, time.monotonic() + seconds, binding, control)
    return found


def test_the_state_of_each_gpu_as_far_as_it_is_supported(tmp_path: Path) -> None:
    rows = {"correctable": 1, "uncorrectable": 0, "pending": True, "failed": False}
    same = {"recovery_action": "node_reboot", "remapped_rows": rows}
    assert ask(tmp_path, FakeNvml()) == {
        "gpu": [
            {"index": 0, "bus_id": "A", **same},
            {"index": 1, "error": "GPU is lost"},
            {"index": 2, "bus_id": "by index 2", **same},
        ]
    }


def test_a_node_without_the_driver_is_not_asked(tmp_path: Path) -> None:
    assert ask(tmp_path, FakeNvml(), control=str(tmp_path / "nvidiactl")) == {}


def test_a_driver_that_does_not_start_is_said(tmp_path: Path) -> None:
    class Broken(FakeNvml):
        def nvmlInit(self) -> None:
            raise self.NVMLError("Driver/library version mismatch")

    assert ask(tmp_path, Broken()) == {"gpu": [], "gpu_error": "Driver/library version mismatch"}


def test_a_hang_keeps_the_gpus_before_it_and_a_second_question_is_not_asked_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hangs(FakeNvml):
        def nvmlDeviceGetHandleByPciBusId(self, address: bytes) -> str:
            if address == b"B":
                time.sleep(2)
            return address.decode()

    monkeypatch.setattr(nvml.child, "_kill", lambda pid: None)  # as if it were stuck in the kernel
    first = ask(tmp_path, Hangs(), seconds=0.3)
    assert ([gpu["index"] for gpu in first["gpu"]], first["gpu_error"]) == ([0], "the driver did not answer in time")
    assert ask(tmp_path, FakeNvml()) == {"gpu_error": "an earlier question to the driver is still stuck"}
