"""Edge: MUNGE by its commands, for decoding by its library too. Bytes in, a credential out, and back with its maker.

Expired, rewound and replayed credentials decode all the same (munge(7); the first and the last checked with 0.5.15):
a spool file may be read late or twice, and its nonce keeps it from counting twice.
"""

from __future__ import annotations

from collections.abc import Callable

from slurmwrap.errors import BadCredential, StoreError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.host.run_command import CommandResult, run, start_unfed_command

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
    from slurmwrap.host import libmunge

    if libmunge.load_libmunge() is None:
        return decode_by_command(credential, socket=socket)
    raw = libmunge.decode_by_library(credential, socket)
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
