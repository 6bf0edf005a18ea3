"""Asks NVML about the job's GPUs once a second and prints a JSON line each time; run by gpu_sampler.py, in a process
that is left behind when the driver hangs. Ends when its parent is gone.

Arguments: the job's GPUs as Slurm or CUDA name them ("0,3", UUIDs; "" for all that NVML shows), the seconds between
two looks, the parent's pid.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


def main(argv: list[str]) -> int:
    """1 without the driver."""
    wanted, pause, parent = argv[0], float(argv[1]), int(argv[2])
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = select_gpus(pynvml, wanted)
        _print_line({"buses": [_format_bus(pynvml, handle) for handle in handles]})
    except Exception:
        return 1
    while handles and os.getppid() == parent:
        _print_line({"at": time.monotonic(), "gpus": [look(pynvml, handle) for handle in handles]})
        time.sleep(pause)
    return 0


def select_gpus(nvml: Any, wanted: str) -> list[Any]:
    """Handles of the GPUs in `wanted`. Where devices are confined NVML shows only the job's own: then all it shows.

    Slurm's numbers are device minors (gres.conf's /dev/nvidia3), which need not be NVML's order.
    """
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    if not names or len(handles) <= len(names):
        return handles
    found = []
    for handle in handles:
        minor, uuid = _ask(nvml.nvmlDeviceGetMinorNumber, handle), _decode_text(_ask(nvml.nvmlDeviceGetUUID, handle))
        if str(minor) in names or any(name.startswith("GPU-") and uuid.startswith(name) for name in names):
            found.append(handle)
    return found or handles


def look(nvml: Any, handle: Any) -> dict[str, Any]:
    """One GPU now: shares of time in percent over NVML's last sample period, MiB, W, and KiB/s both ways on PCIe."""
    use = _ask(nvml.nvmlDeviceGetUtilizationRates, handle)
    memory = _ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    power = _ask(nvml.nvmlDeviceGetPowerUsage, handle)
    both = [_ask(nvml.nvmlDeviceGetPcieThroughput, handle, way) for way in (0, 1)]
    return {
        "sm": use and use.gpu,
        "mem": use and use.memory,
        "mib": memory and memory.used >> 20,
        "w": None if power is None else power / 1000,
        "pcie": None if None in both else sum(both),
        "pids": [one.pid for one in _ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()],
    }


def _ask(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception:
        # Not supported here (vGPU, MIG), or lost: the others still answer.
        return None


def _format_bus(nvml: Any, handle: Any) -> str:
    """As sysfs writes it: four digits of domain where NVML has eight."""
    info = _ask(nvml.nvmlDeviceGetPciInfo, handle)
    return _decode_text(getattr(info, "busId", ""))[-12:].lower()


def _decode_text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value or "")


def _print_line(plain: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(plain) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
