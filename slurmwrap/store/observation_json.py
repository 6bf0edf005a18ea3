"""Turns the JSON of a spool file, and the shim's record of EpilogSlurmctld, into an observation. Pure."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Any

from slurmwrap.escape import visible
from slurmwrap.model.observation import Context, Observation
from slurmwrap.node_hooks import epilog_slurmctld, hook_environment
from slurmwrap.store.spool_writer import VERSION

_LEVELS, _TOO_DEEP = 64, "it nests too deeply"
_NONCE = re.compile(r"[0-9a-f]{32}\Z")
_UUID = re.compile(r"-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.env\Z")


class UntrustedRecord(Exception):
    """Why a file is set aside."""


def parse(payload: bytes) -> Observation:
    """An Observation from leave.serialize's JSON. Raises Unbelieved for anything else; `uid` is -1."""
    try:
        plain = json.loads(payload, parse_constant=_reject_constant)
        if b"\\u" in payload or not payload.isascii():
            json.dumps(plain, ensure_ascii=False).encode()  # half a surrogate pair fits into no database
        return _check_observation(plain)
    except RecursionError:
        raise UntrustedRecord(_TOO_DEEP) from None
    except (ValueError, KeyError, TypeError) as error:
        raise UntrustedRecord(f"it is not an observation: {make_printable(str(error))}") from None


def _check_observation(plain: Any) -> Observation:
    if type(plain) is not dict or plain["version"] != VERSION:
        raise ValueError("unknown version")
    if not _NONCE.match(plain["nonce"]):
        raise ValueError("no nonce")
    if type(plain["job_id"]) is not int or not 0 < plain["job_id"] < 1 << 32:
        raise ValueError("no job id")
    if type(plain["at"]) not in (int, float) or not 0 <= plain["at"] < 1 << 40:
        raise ValueError("no time")
    if type(plain["facts"]) is not dict or type(plain["cluster"]) is not str or type(plain["node"]) is not str:
        raise ValueError("facts, cluster or node is of another kind")
    if _is_deeper(plain["facts"], _LEVELS):
        raise UntrustedRecord(_TOO_DEEP)
    return Observation(
        nonce=plain["nonce"],
        cluster=plain["cluster"],
        job_id=plain["job_id"],
        context=Context(plain["context"]),
        at=float(plain["at"]),
        node=plain["node"],
        facts=plain["facts"],
    )


def _is_deeper(plain: Any, levels: int) -> bool:
    """Whether lists and objects nest deeper than this. What json can read, later steps could not all walk through:
    one user's file would end every pass."""
    inside = plain.values() if type(plain) is dict else plain
    return not levels or any(_is_deeper(one, levels - 1) for one in inside if type(one) in (dict, list))


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def parse_environment(environ: dict[bytes, bytes], name: str, data: bytes, written: float) -> Observation:
    """What file `name`, written at Unix time `written`, records; its nonce is in the name. Raises Unbelieved."""
    unique = _UUID.search(name)
    job_id = hook_environment.number(environ, "SLURM_JOB_ID")
    if job_id is None:
        raise UntrustedRecord("the record names no job")
    return Observation(
        nonce=unique[1].replace("-", "") if unique else sha256(name.encode() + data).hexdigest()[:32],
        cluster=hook_environment.text(environ, "SLURM_CLUSTER_NAME"),
        job_id=job_id,
        context=Context.EPILOG_SLURMCTLD,
        at=written,
        facts=epilog_slurmctld.facts(environ),
    )


def make_printable(text: str) -> str:
    """A user's text on one line of bounded length, for tables and terminals."""
    return visible(text[:200])[:200]
