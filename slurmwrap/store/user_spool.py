"""Records out of the spool files of a user's own spool, which no reconcile has taken in yet. Pure.

Apart from user_state_files.py: most calls of gsub find no such file, and load none of these records.
"""

from __future__ import annotations

import json
from typing import TypeVar

from slurmwrap.model.job_run import PrerunRecord
from slurmwrap.model.submission import Submission
from slurmwrap.store.deserialize import record_from_json

T = TypeVar("T")


def parse_prerun(content: bytes) -> PrerunRecord | None:
    """The ended pre-run that a spool file holds; None for a file of another kind."""
    return _record_in(content, PrerunRecord, "prerun", "prerun")


def parse_submission(content: bytes) -> Submission | None:
    """The gsub call that a spool file holds; None for a file of another kind."""
    return _record_in(content, Submission, "submit", "submission")


def _record_in(content: bytes, kind: type[T], context: str, key: str) -> T | None:
    try:
        plain = json.loads(content)
        return record_from_json(kind, plain["facts"][key]) if plain["context"] == context else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
