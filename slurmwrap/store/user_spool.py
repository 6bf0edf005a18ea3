"""Parse records from files of a user's own spool that no reconcile has stored yet. Pure.

Separate from user_state_files.py, because most calls of gsub find no such file and then need not load these records.
"""

from __future__ import annotations

import json
from typing import TypeVar

from slurmwrap.model.job_run import PrerunRecord
from slurmwrap.model.submission import Submission
from slurmwrap.store.deserialize import record_from_json

T = TypeVar("T")


def parse_prerun(content: bytes) -> PrerunRecord | None:
    """Return the ended pre-run in a spool file; None for a file of another kind."""
    return _parse_record(content, PrerunRecord, "prerun", "prerun")


def parse_submission(content: bytes) -> Submission | None:
    """Return the gsub call in a spool file; None for a file of another kind."""
    return _parse_record(content, Submission, "submit", "submission")


def _parse_record(content: bytes, kind: type[T], context: str, key: str) -> T | None:
    try:
        plain = json.loads(content)
        return record_from_json(kind, plain["facts"][key]) if plain["context"] == context else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
