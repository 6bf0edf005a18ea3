"""A /sys/class with network ports, as files in a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

IB = {"symbol_error": 0, "link_error_recovery": 0, "link_downed": 0, "port_rcv_errors": 0}
IB |= {"local_link_integrity_errors": 0, "excessive_buffer_overrun_errors": 0, "port_xmit_discards": 7}
NET = {"rx_crc_errors": 0, "rx_errors": 0, "tx_errors": 0, "rx_dropped": 5}


def write_ib(
    sysfs: Path, name: str, *, state: str = "4: ACTIVE", rate: str = "200 Gb/sec (4X HDR)", **counters: Any
) -> None:
    """Writes port "mlx5_0/1". A counter may be a text ("N/A (no PMA)") or None, for a file that is missing."""
    adapter, _, number = name.partition("/")
    port = sysfs / "infiniband" / adapter / "ports" / number
    (port / "counters").mkdir(parents=True, exist_ok=True)
    for key, value in {"state": state, "rate": rate, "link_layer": "InfiniBand", "phys_state": "5: LinkUp"}.items():
        (port / key).write_text(f"{value}\n")
    _write_numbers(port / "counters", {**IB, **counters})


def write_net(
    sysfs: Path,
    name: str,
    *,
    operstate: str = "up",
    speed: int = 25000,
    carrier_down_count: int | None = 1,
    carrier_changes: int = 3,
    kind: int = 1,
    device: bool = True,
    **statistics: int,
) -> None:
    """Writes the network interface `name`; `device` False: a virtual one."""
    path = sysfs / "net" / name
    (path / "statistics").mkdir(parents=True, exist_ok=True)
    if device:
        (path / "device").mkdir(exist_ok=True)
    plain = {"operstate": operstate, "speed": speed, "type": kind, "carrier_changes": carrier_changes}
    _write_numbers(path, {**plain, "carrier_down_count": carrier_down_count})
    _write_numbers(path / "statistics", {**NET, **statistics})


def _write_numbers(directory: Path, values: dict[str, Any]) -> None:
    for key, value in values.items():
        path = directory / key
        if value is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(f"{value}\n")
