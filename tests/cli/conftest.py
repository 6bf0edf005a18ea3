"""Fixtures that run slurmwrap's commands in this process, with a temporary state directory and site."""

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
    """The records of one synthetic day, as JSON."""
    return json.loads(DAY.read_text(encoding="ascii"))  # type: ignore[no-any-return]


@pytest.fixture
def fill() -> Callable[[Path, dict[str, Any], float], None]:
    """`fill(path, day, shift)` writes the records of the day into a database, with times shifted by `shift` seconds."""
    return _fill_database


def _fill_database(path: Path, records: dict[str, Any], shift: float) -> None:
    from slurmwrap.model.decision import SlurmAction, Verb

    records = _shift_times(records, shift)
    with Database.open(path) as database, database.transaction():
        for record_json in records["attempts"]:
            database.save_attempt(record_from_json(JobRun, record_json))
        for record_json in records["preruns"]:
            database.save_prerun(record_from_json(PrerunRecord, record_json))
        for record_json in records["submissions"]:
            database.save_submission(record_from_json(Submission, record_json))
        for record_json in records["blocked"]:
            database.block_input(record_from_json(BlockedInput, record_json))
        for record_json in records["strikes"]:
            record = record_from_json(StrikeRecord, record_json)
            strike = Strike(node=record.node, cause=record.cause, conclusive=record.conclusive, text=record.text)
            database.add_strike(strike, record.at, record.job_id, record.uid)
        for record_json in records["actions"]:
            action = record_from_json(ActionRecord, record_json)
            slurm_action = SlurmAction(
                verb=Verb(action.verb), target=action.target, key=action.key, value=action.value, reason=action.reason
            )
            known = {tuple(a["attempt"].values()) for a in records["attempts"]}
            assert action.attempt is not None
            key = action.attempt.cluster, action.attempt.job_id, action.attempt.submit_time
            run_key = action.attempt if key in known else None
            number = database.intend(
                run_key, PlannedAction(rule=action.rule, action=slurm_action), action.mode, action.intended_at
            )
            if action.done_at is not None:
                database.done(number, action.done_at, action.error)


_TIMES = {"at", "since", "until", "submit_time", "start_time", "end_time", "intended_at", "done_at"}


def _shift_times(value: Any, shift: float) -> Any:
    if isinstance(value, list):
        return [_shift_times(item, shift) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: item + int(shift) if key in _TIMES and isinstance(item, int | float) else _shift_times(item, shift)
        for key, item in value.items()
    }


@pytest.fixture
def slurmwrap(tmp_path: Path) -> Callable[..., Result]:
    """`slurmwrap(*words, site=False)` runs a command: for root or SlurmUser with a site, or for a user without a site.

    `at`: the directory of the user's state and of the site, instead of tmp_path."""

    def run(*words: str, site: bool = False, at: Path = tmp_path) -> Result:
        environ = {"XDG_STATE_HOME": str(at), "SLURMWRAP_CONFIG": str(at / "none"), "HOME": str(at)}
        environ |= {"SLURMWRAP_SITE_STATE_DIR": str(at / "site") if site else "", "TZ": "UTC"}
        return Runner().invoke(app, [*words], env=environ, catch_exceptions=True)

    return run
