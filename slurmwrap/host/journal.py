"""Send structured records to systemd-journald by its native protocol (adapter). Never raises, never blocks.

https://systemd.io/JOURNAL_NATIVE_PROTOCOL/: one datagram of `FIELD=value` lines. A value with a line break is sent with
its length first, so that text of a user cannot start a field of its own. A record that is too large for a datagram is
sent as a sealed memfd. systemd-python and cysystemd do the same through libsystemd, but need a compiler and its headers
at installation, for what takes a few lines here.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import re
import socket
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress

from slurmwrap.escape import utf8

SOCKET = "/run/systemd/journal/socket"
# Maximum bytes of one value; journald itself cuts at its LineMax or accepts up to 768 MB.
MOST = 64 << 10
_FIELD = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL

# A field may come several times: one SLURM_NODE for each node.
Fields = Iterable[tuple[str, str]]


def is_our_stderr(environ: Mapping[str, str], descriptor: int = 2) -> bool:
    """Return whether stderr goes to the journal: systemd sets JOURNAL_STREAM; a later redirection is detected."""
    device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(descriptor)
        return (int(device), int(inode)) == (found.st_dev, found.st_ino)
    except (OSError, ValueError):
        return False


class Journal:
    """journald's socket, opened when first needed and again after journald was restarted."""

    def __init__(self, path: str = SOCKET) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        # Number of records that journald did not accept.
        self.lost = 0

    def is_there(self) -> bool:
        """Return whether journald listens on the socket."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
                probe.connect(self._path)
        except OSError:
            return False
        return True

    def send(self, fields: Fields) -> bool:
        """Send one record. Return False when journald is not running or its queue is full; the record is then lost."""
        data = encode_datagram(fields)
        # A second try, since journald may have been restarted after the previous record.
        for _ in range(1 if self._socket is None else 2):
            try:
                self._send(data)
                return True
            except BlockingIOError:
                break
            except OSError:
                self.close()
        self.lost += 1
        return False

    def _send(self, data: bytes) -> None:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
            self._socket.connect(self._path)
        try:
            self._socket.send(data)
        except OSError as error:
            if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                raise
            _send_by_file(self._socket, data)

    def close(self) -> None:
        """Close the socket; the next record opens a new one."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
        self._socket = None


def encode_datagram(fields: Fields) -> bytes:
    """Return the record in the native protocol's format, without field names that journald would drop."""
    return b"".join(_encode_field(name, value) for name, value in fields if _FIELD.fullmatch(name))


def _encode_field(name: str, value: str) -> bytes:
    data = utf8(value)[:MOST]
    if b"\n" not in data:
        return name.encode("ascii") + b"=" + data + b"\n"
    return name.encode("ascii") + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"


def _send_by_file(to: socket.socket, data: bytes) -> None:
    """Send a record that is too large for a datagram: journald accepts a memfd that is sealed against changes."""
    descriptor = os.memfd_create("slurmwrap-journal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        written = 0
        while written < len(data):
            written += os.write(descriptor, data[written:])
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        to.sendmsg([], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))])
    finally:
        os.close(descriptor)
