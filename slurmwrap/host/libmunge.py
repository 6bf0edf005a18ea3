"""Edge: MUNGE's library, which `unmunge` is a shell around: ten times as fast as a process for each credential.

Constants from munge.h, the same since 0.5.1; libmunge.so.2 is on every machine that has munge or Slurm.
"""

from __future__ import annotations

import ctypes
from functools import cache
from ipaddress import IPv4Address
from typing import Any

_ADDR4, _ENCODE_TIME, _SOCKET = 5, 6, 8  # munge_opt_t
# munge_err_t: with these the payload and its maker are returned
_VALID = frozenset({0, 15, 16, 17})


class Raw:
    """What munge_decode gave: its error code, and for a genuine credential payload, maker, address and time."""

    __slots__ = ("code", "encode_host", "encode_time", "gid", "payload", "said", "uid")

    def __init__(self, code: int, said: str) -> None:
        self.code, self.said = code, said
        self.payload, self.uid, self.gid, self.encode_host, self.encode_time = b"", -1, -1, "", 0


@cache
def load_libmunge() -> Any:
    """libmunge, or None where it cannot be loaded."""
    try:
        found = ctypes.CDLL("libmunge.so.2")
        found.munge_ctx_create.restype = ctypes.c_void_p
        found.munge_ctx_strerror.restype = ctypes.c_char_p
        found.munge_strerror.restype = ctypes.c_char_p
    except (OSError, AttributeError):
        return None
    return found


def decode_by_library(credential: bytes, socket: str) -> Raw:
    """One credential; "": munged's default socket. `library()` must not be None."""
    munge = load_libmunge()
    context = ctypes.c_void_p(munge.munge_ctx_create())
    payload, length = ctypes.c_void_p(), ctypes.c_int()
    uid, gid = ctypes.c_uint32(0xFFFFFFFF), ctypes.c_uint32(0xFFFFFFFF)
    try:
        if socket:
            munge.munge_ctx_set(context, ctypes.c_int(_SOCKET), ctypes.c_char_p(socket.encode()))
        code = munge.munge_decode(
            ctypes.c_char_p(credential.strip()),
            context,
            ctypes.byref(payload),
            ctypes.byref(length),
            ctypes.byref(uid),
            ctypes.byref(gid),
        )
        raw = Raw(code, (munge.munge_ctx_strerror(context) or munge.munge_strerror(code) or b"").decode())
        if code in _VALID:
            raw.payload = ctypes.string_at(payload, length.value) if length.value > 0 else b""
            raw.uid, raw.gid = uid.value, gid.value
            raw.encode_host, raw.encode_time = _read_origin(munge, context)
        return raw
    finally:
        _free(payload)
        munge.munge_ctx_destroy(context)


def _read_origin(munge: Any, context: ctypes.c_void_p) -> tuple[str, int]:
    address, made = (ctypes.c_ubyte * 4)(), ctypes.c_long()
    munge.munge_ctx_get(context, ctypes.c_int(_ADDR4), ctypes.byref(address))
    munge.munge_ctx_get(context, ctypes.c_int(_ENCODE_TIME), ctypes.byref(made))
    return str(IPv4Address(bytes(address))), made.value


def _free(payload: ctypes.c_void_p) -> None:
    if payload.value:
        _load_libc().free(payload)


@cache
def _load_libc() -> Any:
    return ctypes.CDLL(None)
