"""Small readers of facts about a job on a node: Slurm's environment, the driver's files, cgroups."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import allow

from slurmwrap.node_hooks import gpu_addresses, hook_environment, job_cgroup
from slurmwrap.node_hooks.hook_settings import node_name


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
def test_the_first_node_of_a_host_list_is_found(node_list: str, first: str) -> None:
    assert hook_environment.first_node(node_list) == first


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
def test_gpu_indices_are_parsed(value: str, indices: list[int]) -> None:
    assert hook_environment.gpu_indices({b"SLURM_JOB_GPUS": value.encode()}) == indices


@pytest.mark.parametrize("value", [b"", b"0", b"-1", b"4294967296", b"41x"])
def test_an_invalid_job_id_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="not a job id"):
        hook_environment.job_id({b"SLURM_JOB_ID": value})


@pytest.mark.parametrize(
    ("value", "name"), [(b"n0", "n0"), (b"../../etc", "unknown"), (b"", "unknown"), (b"a\nb", "unknown")]
)
def test_a_node_name_that_is_unsafe_in_a_path_becomes_unknown(value: bytes, name: str) -> None:
    assert node_name({b"SLURMD_NODENAME": value}) == name


def read_addresses(proc: Path) -> Any:
    private = proc.parent / "private"
    private.mkdir(mode=0o700, exist_ok=True)
    settings = SimpleNamespace(nvidia_proc=str(proc), node_state_dir=str(private), sysfs="/nonexistent")
    return gpu_addresses.addresses(settings, time.monotonic() + allow(5))


def test_gpu_addresses_are_keyed_by_device_minor(tmp_path: Path) -> None:
    for address, minor in (("0000:05:00.0", 1), ("0000:06:00.0", 0)):
        directory = tmp_path / "gpus" / address
        directory.mkdir(parents=True)
        (directory / "information").write_text(
            f"Model: \t\t NVIDIA A100\nIRQ:   \t\t 201\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
        )
    (tmp_path / "gpus" / "0000:07:00.0").mkdir()  # a GPU without its file does not hide the addresses of the others
    assert read_addresses(tmp_path) == {"1": "0000:05:00.0", "0": "0000:06:00.0"}
    assert read_addresses(tmp_path / "none") == {}


def write_files(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name.replace("__", ".")).write_text(content)


STAT = f"cache 999999999\nrss 1\nanon {290 << 20}\nshmem {10 << 20}\ntotal_rss {290 << 20}\ntotal_shmem {10 << 20}\n"


SLUID = "s5K1KKYAYG5D00"  # Slurm 26.05 names a job's cgroup directory by its SLUID


@pytest.mark.parametrize("scope", ["slurmstepd.scope", "n0_slurmstepd.scope"])
@pytest.mark.parametrize(("name", "sluid"), [("job_41", ""), (SLUID, SLUID), ("job_41", SLUID)])
@pytest.mark.parametrize("mounted", ["", "unified"])
def test_usage_is_read_from_a_cgroup_v2(tmp_path: Path, scope: str, name: str, sluid: str, mounted: str) -> None:
    write_files(
        tmp_path / mounted / "system.slice" / scope / name,
        memory__stat=STAT,
        memory__peak=f"{900 << 20}\n",
        memory__events="low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\n",
        cpu__stat="usage_usec 2500000\nuser_usec 1\n",
    )
    found = {"mem_peak_mib": 300, "mem_high_mib": 900, "oom_kills": 1, "oom_events": 2, "cpu_s": 2.5}
    assert job_cgroup.sample_cgroup("n0", 41, 1001, str(tmp_path), sluid) == found


def test_the_cgroup_of_another_jobs_sluid_is_ignored(tmp_path: Path) -> None:
    write_files(tmp_path / "system.slice" / "slurmstepd.scope" / SLUID, memory__stat=STAT)
    assert job_cgroup.sample_cgroup("n0", 41, 1001, str(tmp_path), "s5K1KKYAYG5D01") == {}


@pytest.mark.parametrize(
    ("value", "sluid"), [(SLUID, SLUID), ("", ""), ("../../../x/y/z.", ""), ("s5K1KKYAYG5D00\n", ""), ("s", "")]
)
def test_an_invalid_sluid_becomes_empty(value: str, sluid: str) -> None:
    assert hook_environment.sluid({b"SLURM_JOB_SLUID": value.encode()}) == sluid


@pytest.mark.parametrize("top", ["slurm", "slurm_n0"])
def test_usage_is_read_from_cgroups_v1(tmp_path: Path, top: str) -> None:
    below = Path(top) / "uid_1001" / "job_41"
    oom = "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"
    write_files(
        tmp_path / "memory" / below,
        memory__stat=STAT,
        memory__oom_control=oom,
        memory__max_usage_in_bytes=f"{900 << 20}\n",
    )
    write_files(tmp_path / "cpuacct" / below, cpuacct__usage="1234567890\n")
    assert job_cgroup.sample_cgroup("n0", 41, 1001, str(tmp_path)) == {
        "mem_peak_mib": 300,
        "mem_high_mib": 900,
        "oom_kills": 4,
        "cpu_s": 1.235,
    }


def test_without_a_cpuacct_cgroup_cpu_time_comes_from_the_steps_processes(tmp_path: Path) -> None:
    job = tmp_path / "memory" / "slurm" / "uid_1001" / "job_41"
    write_files(job, memory__stat=STAT)
    write_files(job / "step_0", cgroup__procs=f"{os.getpid()}\n")
    spent = sum(os.times()[:4])
    found = job_cgroup.sample_cgroup("n0", 41, 1001, str(tmp_path))["cpu_s"]
    assert spent - 0.5 <= found <= sum(os.times()[:4]) + 0.5


def test_a_missing_cgroup_gives_no_usage(tmp_path: Path) -> None:
    assert job_cgroup.sample_cgroup("n0", 41, 1001, str(tmp_path)) == {}
