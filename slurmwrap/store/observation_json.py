"""Turns the JSON of a spool file, and the shim's record of EpilogSlurmctld, into an observation. Pure."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Any

from slurmwrap.diagnosis.observation import Context, Observation
from slurmwrap.observe import epilog_slurmctld, job
from slurmwrap.store.leave import VERSION

_NONCE = re.compile(r"[0-9a-f]{32}\Z")
_UUID = re.compile(r"-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.env\Z")


class Unbelieved(Exception):
    """Why a file is set aside."""


def parse(payload: bytes) -> Observation:
    """An Observation from leave.serialize's JSON. Raises Unbelieved for anything else; `uid` is -1."""
    try:
        return _checked(json.loads(payload, parse_constant=_no_constant))
    except RecursionError:
        raise Unbelieved("it nests too deeply") from None
    except (ValueError, KeyError, TypeError) as error:
        raise Unbelieved(f"it is not an observation: {printable(str(error))}") from None


def _checked(plain: Any) -> Observation:
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
    json.dumps(plain, ensure_ascii=False).encode()  # half a surrogate pair fits into no database
    return Observation(
        nonce=plain["nonce"],
        cluster=plain["cluster"],
        job_id=plain["job_id"],
        context=Context(plain["context"]),
        at=float(plain["at"]),
        node=plain["node"],
        facts=plain["facts"],
    )


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def from_environment(environ: dict[bytes, bytes], name: str, data: bytes, written: float) -> Observation:
    """What file `name`, written at Unix time `written`, records; its nonce is in the name. Raises Unbelieved."""
    unique = _UUID.search(name)
    job_id = job.number(environ, "SLURM_JOB_ID")
    if job_id is None:
        raise Unbelieved("the record names no job")
    return Observation(
        nonce=unique[1].replace("-", "") if unique else sha256(name.encode() + data).hexdigest()[:32],
        cluster=job.text(environ, "SLURM_CLUSTER_NAME"),
        job_id=job_id,
        context=Context.EPILOG_SLURMCTLD,
        at=written,
        facts=epilog_slurmctld.facts(environ),
    )


def printable(text: str) -> str:
    """A user's text in printable ASCII of bounded length, for tables and terminals."""
    return ascii(text)[1:-1][:200]
