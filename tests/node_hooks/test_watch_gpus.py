"""The program that `gsub watch` runs on a node, started as on the node: by `python -c`, with a stand-in for NVML."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from amd_tree import write_amd_gpu
from waiting import wait_for

from slurmwrap.cli.watch.gpu_watcher import BOOTSTRAP, read_node_program

QUICK = {"PAUSE_S = 1.0": "PAUSE_S = 0.05", "PERIOD_S = 5.0": "PERIOD_S = 0.2"}
IMPATIENT = {"HANGS_S = 12.0": "HANGS_S = 0.4"}


class Node:
    """One task of the step. Its stdin stays open until the test closes it."""

    def __init__(self, argv: list[str], **environ: str) -> None:
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin", "SLURMD_NODENAME": "n3", **environ},
        )

    def read_answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found = json.loads(self.process.stdout.readline())
        assert isinstance(found, dict)
        return found

    def close_input_and_wait(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(30)


@pytest.fixture
def node(libnvml: Callable[..., str]) -> Iterator[Callable[..., Node]]:
    started: list[Node] = []

    def start(
        answers: str, *, library: bool = True, patience: str = "90.0", sysfs: str = "/nonexistent", **environ: str
    ) -> Node:
        text = read_node_program().replace("PATIENCE_S = 90.0", f"PATIENCE_S = {patience}")
        text = text.replace('SYSFS = "/sys/class"', f"SYSFS = {sysfs!r}")
        for old, new in {**QUICK, **(IMPATIENT if "hang" in answers else {})}.items():
            assert old in text
            text = text.replace(old, new)
        environment = {"FAKE_NVML": answers, **({"LD_LIBRARY_PATH": libnvml()} if library else {}), **environ}
        started.append(Node([sys.executable, "-I", "-S", "-c", text], **environment))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait(10)
        for pipe in (one.process.stdin, one.process.stdout):
            assert pipe is not None
            pipe.close()


def test_each_gpu_of_the_job_is_reported(node: Callable[..., Node]) -> None:
    running = node(
        "minor@0=5 minor@1=1 minor@2=0 sm@0=91 used_mib@0=62464 power@0=350400 process@0=7 sm@2=4",
        SLURM_STEP_GPUS="0,5",
    )
    answers = sorted((running.read_answer() for _ in range(2)), key=lambda one: one["index"])
    first = {"uuid": "GPU-2-fake", "percent": 4.0, "used_mib": 0, "total_mib": 81920, "power_w": 60, "programs": 0}
    other = {"uuid": "GPU-0-fake", "percent": 91.0, "used_mib": 62464, "total_mib": 81920, "power_w": 350}
    assert answers == [{"node": "n3", "index": 0, **first}, {"node": "n3", "index": 5, "programs": 1, **other}]
    assert running.close_input_and_wait() == 0


def test_values_that_a_driver_does_not_support_are_null(node: Callable[..., Node]) -> None:
    missing = "nvmlDeviceGetUtilizationRates nvmlDeviceGetMemoryInfo nvmlDeviceGetPowerUsage nvmlDeviceGetUUID"
    also = "nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetComputeRunningProcesses_v2 nvmlDeviceGetMinorNumber"
    answers = " ".join(f"{name}=3" for name in f"{missing} {also}".split())
    nulls = dict.fromkeys(("percent", "used_mib", "total_mib", "power_w", "programs"))
    assert node(f"gpus=1 {answers}").read_answer() == {"node": "n3", "index": 0, "uuid": "", **nulls}


@pytest.mark.parametrize(
    ("answers", "library", "error"),
    [
        ("init=9", True, "the NVIDIA driver is not loaded"),
        ("init=18", True, "NVML does not start (error 18)"),
        ("gpus=0", True, "the driver shows no GPU"),
        ("", False, "there is no NVIDIA driver"),
        ("hang=nvmlInitWithFlags", True, "the NVIDIA driver does not answer (its start)"),
        ("gpus=2 hang@1=nvmlDeviceGetUtilizationRates", True, "the NVIDIA driver does not answer (GPU 1)"),
    ],
)
def test_a_missing_or_hanging_driver_is_reported_and_the_program_still_ends(
    node: Callable[..., Node], answers: str, library: bool, error: str
) -> None:
    running = node(answers, library=library)
    while (error_now := running.read_answer()["error"]) != error:  # a slow start is first reported as a hanging driver
        assert error_now == "the NVIDIA driver does not answer (its start)"
    assert running.close_input_and_wait() == 0


def test_amds_gpus_are_read_from_the_drivers_files(node: Callable[..., Node], tmp_path: Path) -> None:
    write_amd_gpu(tmp_path, 1, "0000:c1:00.0")
    write_amd_gpu(tmp_path, 2, "0000:05:00.0", use=83, used_mib=900, pids={7: 600})
    sensor = tmp_path / "devices" / "0000:05:00.0" / "hwmon" / "hwmon3"
    sensor.mkdir(parents=True)
    (sensor / "power1_average").write_text("312000000\n")
    running = node("", library=False, sysfs=str(tmp_path), SLURM_STEP_GPUS="1")
    assert running.read_answer() == {
        "node": "n3", "index": 1, "uuid": "", "percent": 83.0, "used_mib": 900, "total_mib": 65536, "power_w": 312,
        "programs": 1,
    }  # fmt: skip
    assert running.close_input_and_wait() == 0


def test_signals_for_the_job_are_ignored_and_sigterm_ends_with_exit_code_0(node: Callable[..., Node]) -> None:
    running = node("gpus=1")
    running.read_answer()
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT):
        running.process.send_signal(number)
    for _ in range(3):
        running.read_answer()
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(30) == 0


def test_the_program_ends_when_it_hears_nothing_from_gsub(node: Callable[..., Node]) -> None:
    assert node("gpus=1", patience="0.5").process.wait(60) == 0


def test_the_program_ends_when_its_output_is_closed(node: Callable[..., Node]) -> None:
    running = node("gpus=1")
    assert running.process.stdout is not None
    running.read_answer()
    running.process.stdout.close()
    assert running.process.wait(30) == 0


# --- the shell code that starts the program ---------------------------------------------------------------------------


def start_bootstrap(tmp_path: Path, *, pythons: str = "", smi: str = "") -> Node:
    if smi:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{smi}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    environ = {"SLURMWRAP_PYTHONS": pythons, "SLURMWRAP_PROGRAM": 'print(\'{"by": "python"}\', flush=True); input()'}
    return Node(["/bin/sh", "-c", BOOTSTRAP], PATH=f"{tmp_path}:/usr/bin:/bin", CUDA_VISIBLE_DEVICES="0,1", **environ)


def assert_ends_with_its_input(running: Node) -> None:
    assert running.close_input_and_wait() == 0
    assert running.process.stdout is not None
    running.process.stdout.close()


def test_the_first_working_python_runs_the_program(tmp_path: Path) -> None:
    running = start_bootstrap(tmp_path, pythons=f"/nonexistent /bin/false {sys.executable}", smi="exit 9")
    assert running.read_answer() == {"by": "python"}
    assert running.process.stdin is not None and running.process.stdout is not None
    running.process.stdin.write(b"\n")
    assert_ends_with_its_input(running)


def test_without_a_python_nvidia_smi_runs_and_ends_with_the_input(tmp_path: Path) -> None:
    row = "0, GPU-a, 91, 61440, 81920, 350.12"
    smi = f"""echo "$*" >{tmp_path}/asked; echo $$ >{tmp_path}/pid\nwhile echo "{row}"; do sleep 0.1; done"""
    running = start_bootstrap(tmp_path, pythons="/nonexistent", smi=smi)
    assert running.process.stdout is not None
    assert running.process.stdout.readline() == f"smi n3, {row}\n".encode()
    columns = "index,uuid,utilization.gpu,memory.used,memory.total,power.draw"
    asked = f"--id=0,1 --loop=5 --query-gpu={columns} --format=csv,noheader,nounits\n"
    assert (tmp_path / "asked").read_text() == asked
    assert_ends_with_its_input(running)
    pid = int((tmp_path / "pid").read_text())
    assert not wait_for(lambda: psutil.pid_exists(pid), lambda there: not there, 30)


def test_a_node_without_python_and_nvidia_smi_reports_it(tmp_path: Path) -> None:
    running = start_bootstrap(tmp_path, pythons="/nonexistent")
    assert running.read_answer() == {"node": "n3", "error": "neither Python 3 nor nvidia-smi is there"}
    assert_ends_with_its_input(running)
