"""Runs slurmwrap's commands in this process, with a state directory and a site of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_process import Runner
from typer.testing import Result

from slurmwrap.cli.slurmwrap import app
from slurmwrap.model.decision import BlockedInput, PlannedAction, Strike
from slurmwrap.model.job_run import ActionRecord, JobRun, PrerunRecord, StrikeRecord
from slurmwrap.model.submission import Submission
from slurmwrap.store.database import Database
from slurmwrap.store.deserialize import record_from_json

DAY = Path(__file__).parent.parent / "data" / "report" / "day.json"


@pytest.fixture
def day() -> dict[str, Any]:
    return json.loads(DAY.read_text(encoding="ascii"))  # type: ignore[no-any-return]


@pytest.fixture
def fill() -> Callable[[Path, dict[str, Any], float], None]:
    """Writes the composed day into a database; times are shifted by so many seconds."""
    return _fill


def _fill(path: Path, plain: dict[str, Any], shift: float) -> None:
    from slurmwrap.model.decision import SlurmAction, Verb

    plain = _shifted(plain, shift)
    with Database.open(path) as database, database.transaction():
        for one in plain["attempts"]:
            database.save_attempt(record_from_json(JobRun, one))
        for one in plain["preruns"]:
            database.save_prerun(record_from_json(PrerunRecord, one))
        for one in plain["submissions"]:
            database.save_submission(record_from_json(Submission, one))
        for one in plain["blocked"]:
            database.block_input(record_from_json(BlockedInput, one))
        for one in plain["strikes"]:
            record = record_from_json(StrikeRecord, one)
            strike = Strike(node=record.node, cause=record.cause, conclusive=record.conclusive, text=record.text)
            database.add_strike(strike, record.at, record.job_id, record.uid)
        for one in plain["actions"]:
            action = record_from_json(ActionRecord, one)
            wanted = SlurmAction(
                verb=Verb(action.verb), target=action.target, key=action.key, value=action.value, reason=action.reason
            )
            known = {tuple(a["attempt"].values()) for a in plain["attempts"]}
            assert action.attempt is not None
            key = action.attempt.cluster, action.attempt.job_id, action.attempt.submit_time
            about = action.attempt if key in known else None
            number = database.intend(
                about, PlannedAction(rule=action.rule, action=wanted), action.mode, action.intended_at
            )
            if action.done_at is not None:
                database.done(number, action.done_at, action.error)


_TIMES = {"at", "since", "until", "submit_time", "start_time", "end_time", "intended_at", "done_at"}


def _shifted(value: Any, shift: float) -> Any:
    if isinstance(value, list):
        return [_shifted(item, shift) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: one + int(shift) if key in _TIMES and isinstance(one, int | float) else _shifted(one, shift)
        for key, one in value.items()
    }


@pytest.fixture
def slurmwrap(tmp_path: Path) -> Callable[..., Result]:
    """`slurmwrap(*words, site=False)`: root or SlurmUser with a site, or a user with a state directory of his own.

    `at`: where both lie, instead of the test's own directory."""

    def run(*words: str, site: bool = False, at: Path = tmp_path) -> Result:
        environ = {"XDG_STATE_HOME": str(at), "SLURMWRAP_CONFIG": str(at / "none"), "HOME": str(at)}
        environ |= {"SLURMWRAP_SITE_STATE_DIR": str(at / "site") if site else "", "TZ": "UTC"}
        return Runner().invoke(app, [*words], env=environ, catch_exceptions=True)

    return run
