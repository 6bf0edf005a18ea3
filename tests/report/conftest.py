"""The synthetic day of tests/data/report/day.json, as records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurmwrap.model.decision import BlockedInput
from slurmwrap.model.job_run import ActionRecord, JobRun, PrerunRecord, StrikeRecord
from slurmwrap.model.submission import Submission
from slurmwrap.store.deserialize import record_from_json

DATA = Path(__file__).parent.parent / "data" / "report"
KINDS: dict[str, type[Any]] = {
    "attempts": JobRun,
    "preruns": PrerunRecord,
    "submissions": Submission,
    "actions": ActionRecord,
    "strikes": StrikeRecord,
    "blocked": BlockedInput,
}


@pytest.fixture
def data() -> Path:
    return DATA


@pytest.fixture
def day() -> dict[str, Any]:
    """The synthetic day, as keyword arguments of night_of()."""
    plain = json.loads((DATA / "day.json").read_text(encoding="ascii"))
    records = {name: tuple(record_from_json(kind, one) for one in plain[name]) for name, kind in KINDS.items()}
    return {**records, "since": plain["since"], "until": plain["until"]}
