"""Ask the libraries in the job's own Python about a data file: a child process reads one after the other (adapter)."""

from __future__ import annotations

import json
import os
import select
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from slurmwrap.prerun.inputs.opened_files import JobPython

# Time for a file: for the import of the library, and for its content at a slow rate.
_START_S = 120.0
_BYTES_PER_S = 5 << 20
# A library that crashed so often, on whichever file, is no longer asked.
_MAX_CRASHES = 3
_BY_SUFFIX = {
    **dict.fromkeys((".jpg", ".jpeg", ".png"), "image"),
    **dict.fromkeys((".h5", ".hdf5", ".hdf", ".he5"), "hdf5"),
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), "arrow"),
    ".parquet": "parquet",
    ".flac": "audio",
    ".safetensors": "safetensors",
}
_BY_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image"),
    (b"\xff\xd8\xff", "image"),
    (b"PAR1", "parquet"),
    (b"ARROW1", "arrow"),
    (b"\x89HDF\r\n\x1a\n", "hdf5"),
    (b"fLaC", "audio"),
)
# Readers that find faults of which the file's structure shows nothing: compressed or with checksums.
DEEP = frozenset(("parquet", "arrow", "hdf5", "tfrecord"))


def select_reader(head: bytes, suffix: str, *, tfrecord: bool) -> str:
    """Return the name of the reader in reader_child.py for a file that begins with `head`; "" if there is none."""
    if tfrecord:
        return "tfrecord"
    found = next((reader for magic, reader in _BY_MAGIC if head.startswith(magic)), "")
    return found or _BY_SUFFIX.get(suffix, "")


class LibraryReaders:
    """The readers in one of the job's Pythons. Thread-safe; one file at a time."""

    def __init__(self, pythons: Sequence[JobPython]) -> None:
        self._pythons = [one for one in pythons if os.path.isabs(one.program) and os.access(one.program, os.X_OK)]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._crashes = 0
        self._missing: set[str] = set()

    def has(self, reader: str) -> bool:
        """Return whether it is worth asking this reader."""
        return bool(reader and self._pythons) and reader not in self._missing and self._crashes < _MAX_CRASHES

    def read(self, path: str, reader: str, size: int) -> tuple[str, str]:
        """Return ("sound" | "broken" | "refused" | "unavailable", the library's message) for a file of `size` bytes."""
        with self._lock:
            if not self.has(reader):
                return "unavailable", ""
            answer = self._ask(json.dumps({"path": path, "reader": reader}).encode() + b"\n", size)
            if answer is None:
                self._crashes += 1
                self._end()
                return "unavailable", ""
            state, text = str(answer.get("state")), str(answer.get("text"))
            if state == "missing":
                self._missing.add(reader)
                return "unavailable", ""
            return state, text

    def _ask(self, request: bytes, size: int) -> dict[str, object] | None:
        """Return the answer; None if the child ended or took too long."""
        try:
            if self._process is None:
                self._process = self._start()
            stdin, stdout = self._process.stdin, self._process.stdout
            if stdin is None or stdout is None:
                return None
            stdin.write(request)
            stdin.flush()
            line, ends_at = b"", time.monotonic() + _START_S + size / _BYTES_PER_S
            while not line.endswith(b"\n"):
                ready, _, _ = select.select([stdout], [], [], max(0.0, ends_at - time.monotonic()))
                chunk = os.read(stdout.fileno(), 65536) if ready else b""
                if not chunk:
                    return None
                line += chunk
            found = json.loads(line)
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def _start(self) -> subprocess.Popen[bytes]:
        # The last Python that started is that of the training, not that of a launcher.
        python = self._pythons[-1]
        source = Path(__file__).with_name("reader_child.py").read_text(encoding="utf-8")
        environ = {"HOME": os.environ.get("HOME", "/"), "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [python.program, "-c", source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environ, **{name: value for name, value in python.environ.items() if value}},
            cwd="/",
        )

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
            process.wait()

    def close(self) -> None:
        """End the child."""
        with self._lock:
            self._end()
