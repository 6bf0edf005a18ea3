"""docs/schemas: the files agree with the records, and the JSON output of the commands is valid."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import list_schemas
import pytest
from jsonschema import Draft202012Validator
from synthetic_year import fill
from typer.testing import Result

from slurmwrap.model.job_run import Incident
from slurmwrap.store.database import Database

Run = Callable[..., Result]
SCHEMAS = list_schemas.schemas()
UNTIL = 1_795_000_000.0  # fixed, because the random records depend on it


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_schema_file_is_up_to_date_and_a_valid_schema(name: str) -> None:
    file = list_schemas.FOLDER / f"{name}.schema.json"
    assert file.read_text(encoding="utf-8") == list_schemas.text(SCHEMAS[name]), "python .ci/list_schemas.py writes it"
    Draft202012Validator.check_schema(SCHEMAS[name])


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three synthetic days, in a site database and in a user database, with an incident and a blocked input."""
    state = tmp_path_factory.mktemp("json")
    for path in (state / "site" / "site.db", state / "slurmwrap" / "user.db"):
        path.parent.mkdir()
        fill(path, days=3, jobs_per_day=40, seed=5, until=UNTIL)
        with Database.open(path) as database:
            database.save_incident(
                Incident(incident_id="aa11", category="storage_io", scope="cluster", began=UNTIL, last=UNTIL)
            )
    return state


def run_json(slurmwrap: Run, year: Path, monkeypatch: pytest.MonkeyPatch, words: str, site: bool) -> Any:
    """Return the JSON of one command, with the databases in `year` instead of tmp_path."""
    monkeypatch.setenv("SLURM_CONF", str(year / "no.conf"))
    result = slurmwrap(*words.split(), "--json", site=site, at=year)
    assert result.exit_code == 0, (words, result.exception)
    return json.loads(result.stdout)


def assert_valid(name: str, document: Any) -> None:
    errors = [
        f"{'/'.join(map(str, e.path))}: {e.message}" for e in Draft202012Validator(SCHEMAS[name]).iter_errors(document)
    ]
    assert errors == []


COMMANDS = {
    "history": "history --all --since 2026-01-01",
    "jobs": "jobs list --all",
    "nodes": "nodes list --all",
    "inputs": "inputs list",
    "incidents": "incidents list",
    "incident": "incidents show last",
    "profiles": "profile list --site",
    "spool": "spool list",
    "db_rows": "db rows attempts --limit 3",
    "db_search": "db search error",
    "db_analysis": "db analyze strikes blocked_inputs attempts",
}


@pytest.mark.skipif(os.geteuid() != 0, reason="the site's database is root's here")
@pytest.mark.parametrize("name", COMMANDS)
def test_the_json_of_each_command_is_valid(
    slurmwrap: Run, year: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    document = run_json(slurmwrap, year, monkeypatch, COMMANDS[name], site=True)
    assert_valid(name, document)
    if name in ("history", "jobs", "incidents", "db_rows", "db_search", "db_analysis"):
        assert document.get("rows") or document["runs"]


@pytest.mark.skipif(os.geteuid() != 0, reason="the site's database is root's here")
def test_the_json_of_why_and_of_jobs_show_is_valid(slurmwrap: Run, year: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = run_json(slurmwrap, year, monkeypatch, COMMANDS["history"], site=True)
    last_of_category = {run["diagnosis"]["category"]: run["address"] for run in history["runs"] if run["diagnosis"]}
    assert len(last_of_category) > 5
    for address in list(last_of_category.values())[:8]:
        assert_valid("why", run_json(slurmwrap, year, monkeypatch, f"why {address}", site=True))
        used = run_json(slurmwrap, year, monkeypatch, f"job {address}", site=True)
        assert_valid("job_efficiency", used)
        assert used["runs"]
        assert_valid("job", run_json(slurmwrap, year, monkeypatch, f"jobs show {address}", site=True))


def test_a_wrong_field_type_is_invalid() -> None:
    wrong = {"kind": "slurmwrap.spool", "schema": 1, "rows": [{"files": "three"}], "more": 0}
    assert not Draft202012Validator(SCHEMAS["spool"]).is_valid(wrong)
