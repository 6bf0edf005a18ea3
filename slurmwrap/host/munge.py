"""Edge: MUNGE by its commands, for decoding by its library too. Bytes in, a credential out, and back with its maker.

Expired, rewound and replayed credentials decode all the same (munge(7); the first and the last checked with 0.5.15):
a spool file may be read late or twice, and its nonce keeps it from counting twice.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from ipaddress import IPv4Address
from typing import Any

from slurmwrap.errors import BadCredential, StoreError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.host.run_command import CommandResult, run, start_unfed_command

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


__all__ = ["GENUINE", "BadCredential", "Decoded", "decode", "encode", "open_sealed", "start_encode"]

SUCCESS, EXPIRED, REWOUND, REPLAYED = 0, 15, 16, 17
GENUINE = (SUCCESS, EXPIRED, REWOUND, REPLAYED)
# EMUNGE_SOCKET, EMUNGE_TIMEOUT: nothing is said about the credential.
_UNREACHABLE = (6, 7)
_KEYS = "STATUS,ENCODE_HOST,ENCODE_TIME,UID,GID"
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A payload and munged's statement on who sealed it."""

    payload: bytes
    uid: int
    gid: int
    encode_host: str  # IPv4 address of the encoding munged (its --origin)
    encode_time: int  # Unix seconds
    status: int  # one of GENUINE


def encode(payload: bytes, *, socket: str, uid_restriction: int | None = None) -> bytes:
    """`payload` as a credential, which only `uid_restriction` can decode if given. StoreError without munged."""
    return start_encode(socket=socket, uid_restriction=uid_restriction)(payload)


def start_encode(*, socket: str, uid_restriction: int | None = None) -> Callable[[bytes], bytes]:
    """`encode` in two: what takes the payload, once. Meanwhile munge starts; it asks munged when it has the payload."""
    restriction = () if uid_restriction is None else (f"--restrict-uid={uid_restriction}",)
    fed = start_unfed_command(["munge", *_format_socket_option(socket), *restriction], timeout_s=_TIMEOUT_S)

    def credential(payload: bytes) -> bytes:
        result = fed(payload)
        if not result.ok:
            raise StoreError(f"munge: {_format_munge_error(result)}", hint="Is munged running? `munge -n` tells.")
        return result.stdout.strip()

    return credential


def open_sealed(credential: bytes, *, socket: str) -> tuple[bytes, int] | None:
    """(payload, uid that sealed it); None: sealed for someone else, or no credential. StoreError without munged."""
    try:
        decoded = decode(credential, socket=socket)
    except BadCredential:
        return None
    return decoded.payload, decoded.uid


def decode(credential: bytes, *, socket: str) -> Decoded:
    """What a credential holds. BadCredential when it is none; StoreError when munged cannot be asked."""
    # Ctypes: not on gsub's fast path.

    if load_libmunge() is None:
        return decode_by_command(credential, socket=socket)
    raw = decode_by_library(credential, socket)
    if raw.code in _UNREACHABLE:
        raise StoreError(f"unmunge: Error: {raw.said}", hint="Is munged running? `munge -n | unmunge` tells.")
    if raw.code not in GENUINE:
        raise BadCredential(f"unmunge: Error: {raw.said}")
    return Decoded(
        payload=raw.payload,
        uid=raw.uid,
        gid=raw.gid,
        encode_host=raw.encode_host,
        encode_time=raw.encode_time,
        status=raw.code,
    )


def decode_by_command(credential: bytes, *, socket: str) -> Decoded:
    """The same where the library is not to be had: one process for each credential."""
    argv = ["unmunge", *_format_socket_option(socket), "--numeric", f"--keys={_KEYS}"]
    result = run(argv, timeout_s=_TIMEOUT_S, stdin=credential)
    if result.exit_code is None or result.exit_code in _UNREACHABLE:
        raise StoreError(
            f"unmunge: {_format_munge_error(result)}", hint="Is munged running? `munge -n | unmunge` tells."
        )
    if result.exit_code not in GENUINE:
        raise BadCredential(f"unmunge: {_format_munge_error(result)}")
    return _parse(result.stdout)


def _format_socket_option(socket: str) -> tuple[str, ...]:
    return (f"--socket={socket}",) if socket else ()


def _format_munge_error(result: CommandResult) -> str:
    if result.timed_out:
        return f"no answer in {_TIMEOUT_S:g} s"
    lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[0].removeprefix("unmunge: ").removeprefix("munge: ") if lines else f"exit code {result.exit_code}"


def _parse(output: bytes) -> Decoded:
    """Metadata lines, an empty line, the payload as it was."""
    head, _, payload = output.partition(b"\n\n")
    fields = {key: value.strip() for key, _, value in (line.partition(":") for line in head.decode().splitlines())}
    return Decoded(
        payload=payload,
        uid=int(fields["UID"]),
        gid=int(fields["GID"]),
        encode_host=fields["ENCODE_HOST"],
        encode_time=int(fields["ENCODE_TIME"]),
        status=int(fields["STATUS"]),
    )
