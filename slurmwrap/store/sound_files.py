"""Remember which files were read completely and found sound: one file of digests for all jobs of a user (adapter)."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

from slurmwrap.store.atomic_write import replace_file

NAME = "sound_inputs"
# Length of a digest; prerun/inputs/check_files.identify() makes them.
_BYTES = 16
# Records that are kept: 16 MiB. When there are more, the older half is dropped.
MAX_RECORDS = 1 << 20
_FLUSH = 256


class SoundFiles:
    """The digests of sound files. Thread-safe. Errors of the file system only cost another read of the data.

    Several jobs may append at the same time. A record that is written at once is not mixed with others on a local disk;
    on a file server it may be lost, which costs another read.
    """

    def __init__(self, state_dir: str) -> None:
        self._path = Path(state_dir, NAME)
        self._lock = threading.Lock()
        self._new: list[bytes] = []
        raw = b""
        with suppress(OSError):
            raw = self._path.read_bytes()
        if len(raw) > MAX_RECORDS * _BYTES:
            raw = raw[-(MAX_RECORDS // 2) * _BYTES :]
            with suppress(OSError):
                replace_file(self._path, raw, 0o600)
        self._known = {raw[at : at + _BYTES] for at in range(0, len(raw) - _BYTES + 1, _BYTES)}

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._known

    def add(self, digest: bytes) -> None:
        """Remember a file; written to disk after some hundred files, or by `flush`."""
        with self._lock:
            self._known.add(digest)
            self._new.append(digest)
            full = len(self._new) >= _FLUSH
        if full:
            self.flush()

    def flush(self) -> None:
        """Write what is new."""
        with self._lock:
            new, self._new = self._new, []
            if not new:
                return
            with suppress(OSError):
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                try:
                    # A record that another process left incomplete would shift all that follow.
                    gap = -os.fstat(descriptor).st_size % _BYTES
                    os.write(descriptor, bytes(gap) + b"".join(new))
                finally:
                    os.close(descriptor)
