"""Program that prints a sample of the job's GPUs by NVML as one JSON line per interval. gpu_sampler.py runs it.

It is a process of its own so that it can be left behind if the driver hangs. It ends when its parent has ended.
Arguments: the job's GPUs as Slurm or CUDA name them ("0,3", UUIDs; "" for all that NVML shows), the seconds between two
samples, the parent's pid, and the path of DCGM's client, "" for none.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

DCGM_PERIOD_S = 10.0


def main(argv: list[str]) -> int:
    """Print samples until the parent has ended. Return 1 if NVML cannot be used."""
    wanted, pause, parent, dcgmi = argv[0], float(argv[1]), int(argv[2]), argv[3]
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = select_gpus(pynvml, wanted)
        buses = [_format_bus(pynvml, handle) for handle in handles]
        _print_line({"buses": buses})
        read_shares = _make_share_reader(pynvml, handles, buses, dcgmi)
    except Exception:
        return 1
    while handles and os.getppid() == parent:
        now, shares = time.monotonic(), read_shares()
        found = [look(pynvml, handle) | {"shares": one} for handle, one in zip(handles, shares, strict=True)]
        _print_line({"at": now, "gpus": found})
        time.sleep(pause)
    return 0


def _make_share_reader(
    nvml: Any, handles: list[Any], buses: list[str], dcgmi: str
) -> Callable[[], list[dict[str, float]]]:
    """Return a function that returns the shares of each GPU since its last call, {} where they are not known.

    DCGM takes two seconds to answer, so it is asked every DCGM_PERIOD_S.
    """
    shares: Any = importlib.import_module("slurmwrap.node_hooks.gpu_shares")
    reader = shares.ShareReader(lambda name, *arguments: _ask(_call_library, nvml, name, *arguments) == 0)
    asked_at = -DCGM_PERIOD_S

    def read() -> list[dict[str, float]]:
        nonlocal asked_at
        found = [reader.read(key, handle) for key, handle in enumerate(handles)]
        if dcgmi and len(reader.refused) == len(handles) and time.monotonic() - asked_at >= DCGM_PERIOD_S:
            rows = shares.read_dcgm(dcgmi)
            asked_at = time.monotonic()
            for key, bus in enumerate(buses):
                if bus in rows:
                    found[key] = shares.dcgm_shares(reader.bandwidths(key, handles[key]), rows[bus])
        return found

    return read


def select_gpus(nvml: Any, wanted: str) -> list[Any]:
    """Return the NVML handles of the GPUs in `wanted`.

    If Slurm confines devices, NVML shows only the job's own GPUs; then all of them are returned. Slurm's numbers are
    device minor numbers (gres.conf's /dev/nvidia3), which need not be in NVML's order.
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
    """Return a sample of one GPU.

    `sm` and `mem` are shares of time in percent over NVML's last sample period, `mib` the used memory, `w` the power,
    and `pcie` the KiB/s in both directions.
    """
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
        # The query is not supported (vGPU, MIG), or this GPU is lost. Other GPUs can still be queried.
        return None


def _call_library(nvml: Any, name: str, *arguments: Any) -> int:
    """Call a function of NVML without the binding, which knows the structures of its own release alone."""
    code: int = getattr(nvml.nvmlLib, name)(*arguments)
    return code


def _format_bus(nvml: Any, handle: Any) -> str:
    """Return the PCI address as in sysfs, with four digits of the domain; NVML has eight."""
    info = _ask(nvml.nvmlDeviceGetPciInfo, handle)
    return _decode_text(getattr(info, "busId", ""))[-12:].lower()


def _decode_text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value or "")


def _print_line(plain: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(plain) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
