"""A /sys/class with AMD's GPUs, as files in a directory."""

from __future__ import annotations

from pathlib import Path

MIB = 1 << 20


def write_amd_gpu(
    sysfs: Path,
    card: int,
    address: str,
    *,
    use: int = 0,
    used_mib: int = 300,
    errors: dict[str, int] | None = None,
    pages: str = "",
    pids: dict[int, int] | None = None,
) -> None:
    """Writes card N with render node 128 + N. `errors`: uncorrectable ones by block; `pids`: pid → MiB of memory."""
    device = sysfs / "devices" / address
    (device / "ras").mkdir(parents=True, exist_ok=True)
    (device / "drm" / f"renderD{128 + card}").mkdir(parents=True, exist_ok=True)
    link = sysfs / "drm" / f"card{card}" / "device"
    if not link.exists():
        link.parent.mkdir(parents=True)
        link.symlink_to(device)
    values = {"vendor": "0x1002", "gpu_busy_percent": use}
    values |= {"mem_info_vram_used": used_mib * MIB, "mem_info_vram_total": 65536 * MIB}
    for name, value in values.items():
        (device / name).write_text(f"{value}\n")
    for block, count in {"umc": 0, "gfx": 0, **(errors or {})}.items():
        (device / "ras" / f"{block}_err_count").write_text(f"ue: {count}\nce: 7\n")
    (device / "ras" / "features").write_text("feature mask: 0x7\n")
    (device / "ras" / "gpu_vram_bad_pages").write_text(pages)
    node = sysfs / "kfd" / "kfd" / "topology" / "nodes" / str(card + 2)
    node.mkdir(parents=True, exist_ok=True)
    (node / "gpu_id").write_text(f"{7000 + card}\n")
    (node / "properties").write_text(f"cpu_cores_count 0\ndrm_render_minor {128 + card}\n")
    for pid, mib in (pids or {}).items():
        path = sysfs / "kfd" / "kfd" / "proc" / str(pid) / f"vram_{7000 + card}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{mib * MIB}\n")
