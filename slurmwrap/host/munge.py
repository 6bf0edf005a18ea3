"""Encode and decode MUNGE credentials with the commands, or decode with libmunge (adapter).

Expired, rewound and replayed credentials are decoded too (munge(7); the first and the last checked with 0.5.15): a
spool file may be read late or twice, and its nonce prevents that it counts twice.
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
# munge_err_t: with these codes payload and encoding user are returned.
_VALID = frozenset({0, 15, 16, 17})


class Raw:
    """Result of munge_decode: its error code, and for a genuine credential payload, user, address and time."""

    __slots__ = ("code", "encode_host", "encode_time", "gid", "payload", "said", "uid")

    def __init__(self, code: int, said: str) -> None:
        self.code, self.said = code, said
        self.payload, self.uid, self.gid, self.encode_host, self.encode_time = b"", -1, -1, "", 0


@cache
def load_libmunge() -> Any:
    """Return libmunge, or None if it cannot be loaded."""
    try:
        found = ctypes.CDLL("libmunge.so.2")
        found.munge_ctx_create.restype = ctypes.c_void_p
        found.munge_ctx_strerror.restype = ctypes.c_char_p
        found.munge_strerror.restype = ctypes.c_char_p
    except (OSError, AttributeError):
        return None
    return found


def decode_by_library(credential: bytes, socket: str) -> Raw:
    """Decode one credential. `socket` "" is munged's default socket. load_libmunge() must not be None."""
    library = load_libmunge()
    context = ctypes.c_void_p(library.munge_ctx_create())
    payload, length = ctypes.c_void_p(), ctypes.c_int()
    uid, gid = ctypes.c_uint32(0xFFFFFFFF), ctypes.c_uint32(0xFFFFFFFF)
    try:
        if socket:
            library.munge_ctx_set(context, ctypes.c_int(_SOCKET), ctypes.c_char_p(socket.encode()))
        code = library.munge_decode(
            ctypes.c_char_p(credential.strip()),
            context,
            ctypes.byref(payload),
            ctypes.byref(length),
            ctypes.byref(uid),
            ctypes.byref(gid),
        )
        raw = Raw(code, (library.munge_ctx_strerror(context) or library.munge_strerror(code) or b"").decode())
        if code in _VALID:
            raw.payload = ctypes.string_at(payload, length.value) if length.value > 0 else b""
            raw.uid, raw.gid = uid.value, gid.value
            raw.encode_host, raw.encode_time = _read_origin(library, context)
        return raw
    finally:
        _free(payload)
        library.munge_ctx_destroy(context)


def _read_origin(munge: Any, context: ctypes.c_void_p) -> tuple[str, int]:
    address, encode_time = (ctypes.c_ubyte * 4)(), ctypes.c_long()
    munge.munge_ctx_get(context, ctypes.c_int(_ADDR4), ctypes.byref(address))
    munge.munge_ctx_get(context, ctypes.c_int(_ENCODE_TIME), ctypes.byref(encode_time))
    return str(IPv4Address(bytes(address))), encode_time.value


def _free(payload: ctypes.c_void_p) -> None:
    if payload.value:
        _load_libc().free(payload)


@cache
def _load_libc() -> Any:
    return ctypes.CDLL(None)


__all__ = ["GENUINE", "BadCredential", "Decoded", "decode", "encode", "open_sealed", "start_encode"]

SUCCESS, EXPIRED, REWOUND, REPLAYED = 0, 15, 16, 17
GENUINE = (SUCCESS, EXPIRED, REWOUND, REPLAYED)
# EMUNGE_SOCKET, EMUNGE_TIMEOUT: these say nothing about the credential.
_UNREACHABLE = (6, 7)
_KEYS = "STATUS,ENCODE_HOST,ENCODE_TIME,UID,GID"
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A payload and munged's statement about the user that encoded it."""

    payload: bytes
    uid: int
    gid: int
    encode_host: str  # IPv4 address of the encoding munged (its --origin)
    encode_time: int  # Unix seconds
    status: int  # one of GENUINE


def encode(payload: bytes, *, socket: str, uid_restriction: int | None = None) -> bytes:
    """Return `payload` as a credential; only `uid_restriction`, if given, can decode it. StoreError without munged."""
    return start_encode(socket=socket, uid_restriction=uid_restriction)(payload)


def start_encode(*, socket: str, uid_restriction: int | None = None) -> Callable[[bytes], bytes]:
    """Start munge for `encode`. The returned function takes the payload, once; only then munge contacts munged."""
    restriction = () if uid_restriction is None else (f"--restrict-uid={uid_restriction}",)
    finish_munge = start_unfed_command(["munge", *_format_socket_option(socket), *restriction], timeout_s=_TIMEOUT_S)

    def encode_payload(payload: bytes) -> bytes:
        result = finish_munge(payload)
        if not result.ok:
            raise StoreError(
                f"munge: {_format_munge_error(result)}", hint="Is munged running? Check it with `munge -n`."
            )
        return result.stdout.strip()

    return encode_payload


def open_sealed(credential: bytes, *, socket: str) -> tuple[bytes, int] | None:
    """Return (payload, uid that encoded it); None if it is invalid or for another user. StoreError without munged."""
    try:
        decoded = decode(credential, socket=socket)
    except BadCredential:
        return None
    return decoded.payload, decoded.uid


def decode(credential: bytes, *, socket: str) -> Decoded:
    """Decode a credential. BadCredential if it is invalid; StoreError when munged cannot be reached."""
    # The library needs ctypes, which is too slow to load for gsub; gsub does not decode.
    if load_libmunge() is None:
        return decode_by_command(credential, socket=socket)
    raw = decode_by_library(credential, socket)
    if raw.code in _UNREACHABLE:
        raise StoreError(f"unmunge: Error: {raw.said}", hint="Is munged running? Check it with `munge -n | unmunge`.")
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
    """Decode with the command when the library cannot be loaded: one process per credential."""
    argv = ["unmunge", *_format_socket_option(socket), "--numeric", f"--keys={_KEYS}"]
    result = run(argv, timeout_s=_TIMEOUT_S, stdin=credential)
    if result.exit_code is None or result.exit_code in _UNREACHABLE:
        raise StoreError(
            f"unmunge: {_format_munge_error(result)}", hint="Is munged running? Check it with `munge -n | unmunge`."
        )
    if result.exit_code not in GENUINE:
        raise BadCredential(f"unmunge: {_format_munge_error(result)}")
    return _parse_unmunge_output(result.stdout)


def _format_socket_option(socket: str) -> tuple[str, ...]:
    return (f"--socket={socket}",) if socket else ()


def _format_munge_error(result: CommandResult) -> str:
    if result.timed_out:
        return f"no answer in {_TIMEOUT_S:g} s"
    lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[0].removeprefix("unmunge: ").removeprefix("munge: ") if lines else f"exit code {result.exit_code}"


def _parse_unmunge_output(output: bytes) -> Decoded:
    """Parse unmunge's output: metadata lines, an empty line, the payload unchanged."""
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
