"""Measure how fast input files are checked, next to a plain read of the same files in the same run.

    python bench/input_check.py [--python PYTHON] [--rounds 3] FILE-OR-DIRECTORY...
    python bench/input_check.py --make DIRECTORY    # 1 GiB of sound files of eight formats to try it on

Each round reads all files once with `cat` and checks them once; the order alternates. The ratio is cat's time divided
by that of the check: 1.0 is the speed of cat. Files that fit into the memory are read from the page cache, so the ratio
is the worst case: with a disk it is nearer to 1, and 1 where the disk is slower than the check.
`--python` names the Python whose libraries read parquet, arrow, HDF5 and TFRecord; without it, structure only.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from slurmwrap.prerun.inputs.check_files import FileChecker, RateLimiter
from slurmwrap.prerun.inputs.expand_inputs import get_kind
from slurmwrap.prerun.inputs.library_readers import LibraryReaders
from slurmwrap.prerun.inputs.opened_files import JobPython

_PIECE = 32 << 20


class _NothingKnown:
    """No file was checked before."""

    def __contains__(self, digest: bytes) -> bool:
        return False

    def add(self, digest: bytes) -> None:
        """Forget it."""


def list_files(places: Sequence[Path]) -> list[str]:
    """Return the regular files at and below the places."""
    found = []
    for place in places:
        paths = [place] if place.is_file() else sorted(place.rglob("*"))
        found += [str(path) for path in paths if path.is_file() and not path.is_symlink()]
    return found


def time_cat(paths: Sequence[str]) -> float:
    """Return the seconds of one `cat` of all files."""
    began = time.perf_counter()
    for start in range(0, len(paths), 2000):
        subprocess.run(["cat", "--", *paths[start : start + 2000]], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def time_check(paths: Sequence[str], python: str) -> tuple[float, int]:
    """Return (seconds, broken files) of one check without a limit of the rate."""
    readers = LibraryReaders([JobPython(python, dict(os.environ))] if python else [])
    checker = FileChecker(
        known=_NothingKnown(), limiter=RateLimiter(0.0, threading.Event()), readers=readers, now=lambda: 4e9
    )
    began = time.perf_counter()
    summary = checker.check_all(dict.fromkeys(paths, ""))
    seconds = time.perf_counter() - began
    readers.close()
    return seconds, len(summary.faults)


def measure(kind: str, paths: Sequence[str], rounds: int, python: str) -> None:
    """Print one line for files of one kind."""
    size = sum(Path(path).stat().st_size for path in paths)
    time_cat(paths)
    reads, checks, broken = [], [], 0
    for number in range(rounds):
        for turn in (0, 1):
            if (turn + number) % 2:
                reads.append(time_cat(paths))
            else:
                seconds, broken = time_check(paths, python)
                checks.append(seconds)
    rate = size / (1 << 20)
    ratio = min(reads) / min(checks)
    print(
        f"{kind:12} {len(paths):7} files {rate:9.1f} MiB  cat {rate / min(reads):7.0f} MiB/s  "
        f"check {rate / min(checks):7.0f} MiB/s (median {rate / statistics.median(checks):.0f})  "
        f"ratio {ratio:5.2f}  broken {broken}"
    )


def make_files(folder: Path) -> None:
    """Write about 1 GiB of sound files of the formats that need no library."""
    folder.mkdir(parents=True, exist_ok=True)
    noise = random.Random(1).randbytes(_PIECE)
    for number in range(5):
        with zipfile.ZipFile(folder / f"{number}.zip", "w") as archive:
            archive.writestr("a.bin", noise)
        with tarfile.open(folder / f"{number}.tar", "w") as tar:
            for at in range(0, _PIECE, 1 << 17):
                member = tarfile.TarInfo(f"{at:08d}.bin")
                member.size = 1 << 17
                tar.addfile(member, io.BytesIO(noise[at : at + member.size]))
        header = str({"descr": "|u1", "fortran_order": False, "shape": (_PIECE,)}).ljust(117).encode() + b"\n"
        prefix = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
        (folder / f"{number}.npy").write_bytes(prefix + noise)
        (folder / f"{number}.dat").write_bytes(noise)
        (folder / f"{number}.gz").write_bytes(gzip.compress(noise[: _PIECE // 4], 1))
        lines = (json.dumps({"n": n, "text": noise[n * 99 : n * 99 + 99].hex()}) for n in range(60_000))
        (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    pictures = folder / "pictures"
    pictures.mkdir(exist_ok=True)
    try:
        from PIL import Image
    except ImportError:
        return
    for number in range(1000):
        image = Image.frombytes("RGB", (256, 256), noise[number * 9000 : number * 9000 + 256 * 256 * 3])
        image.save(pictures / f"{number}.jpg", quality=90)
        image.save(pictures / f"{number}.png", compress_level=1)


def main() -> int:
    """Measure, or make files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", type=Path)
    parser.add_argument("--make", type=Path)
    parser.add_argument("--python", default="")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.make:
        make_files(options.make)
    groups: dict[str, list[str]] = defaultdict(list)
    for path in list_files(options.places):
        groups[get_kind(path)].append(path)
    for kind, paths in sorted(groups.items()):
        measure(kind or "(none)", paths, options.rounds, options.python)
    if len(groups) > 1:
        measure("all", [path for paths in groups.values() for path in paths], options.rounds, options.python)
    return 0


if __name__ == "__main__":
    sys.exit(main())
