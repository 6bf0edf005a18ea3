"""MUNGE's commands and its library, which must give the same results, with a real munged."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from slurmwrap.errors import StoreError
from slurmwrap.host import munge
from slurmwrap.host.munge import REPLAYED, SUCCESS, BadCredential, Decoded, decode, decode_by_command, encode

Decode = Callable[..., Decoded]
both_decoders = pytest.mark.parametrize("decode", [decode, decode_by_command])
PAYLOAD = b"\n\nSTATUS: 99\n\0\xff end\n"


def test_libmunge_can_be_loaded() -> None:
    assert munge.load_libmunge() is not None


@both_decoders
def test_a_decoded_credential_holds_the_payload_and_its_sender(decode: Decode, munge_socket: str) -> None:
    sealed = encode(PAYLOAD, socket=munge_socket)
    first, second = decode(sealed, socket=munge_socket), decode(sealed, socket=munge_socket)
    assert first == Decoded(
        payload=PAYLOAD,
        uid=os.geteuid(),
        gid=os.getegid(),
        encode_host="127.0.0.1",
        encode_time=first.encode_time,
        status=SUCCESS,
    )
    assert abs(first.encode_time - time.time()) < 10
    assert second == replace(first, status=REPLAYED)


@both_decoders
def test_an_empty_payload_is_decoded(decode: Decode, munge_socket: str) -> None:
    assert decode(encode(b"", socket=munge_socket), socket=munge_socket).payload == b""


@both_decoders
@pytest.mark.parametrize("credential", [b"", b"MUNGE:::", b"MUNGE:AwQFAAA=:", b"x" * 100, b"MUNGE:" + b"A" * 1_000_000])
def test_invalid_credentials_are_refused(decode: Decode, munge_socket: str, credential: bytes) -> None:
    with pytest.raises(BadCredential, match=r"^unmunge: Error: "):
        decode(credential, socket=munge_socket)


@both_decoders
def test_a_changed_credential_is_refused(decode: Decode, munge_socket: str) -> None:
    sealed = bytearray(encode(b"payload", socket=munge_socket))
    sealed[60] = ord("A") if sealed[60] != ord("A") else ord("B")
    with pytest.raises(BadCredential):
        decode(bytes(sealed), socket=munge_socket)


@both_decoders
def test_a_credential_for_another_user_cannot_be_opened(decode: Decode, munge_socket: str) -> None:
    sealed = encode(b"secret", socket=munge_socket, uid_restriction=os.geteuid() + 1)
    with pytest.raises(BadCredential, match="Unauthorized"):
        decode(sealed, socket=munge_socket)


@both_decoders
def test_without_munged_the_error_is_not_a_bad_credential(decode: Decode, munge_socket: str) -> None:
    sealed = encode(b"payload", socket=munge_socket)
    with pytest.raises(StoreError, match="Failed to access") as caught:
        decode(sealed, socket="/nonexistent/socket")
    assert not isinstance(caught.value, BadCredential)
    with pytest.raises(StoreError, match=r"^munge: Error: Failed to access"):
        encode(b"payload", socket="/nonexistent/socket")
