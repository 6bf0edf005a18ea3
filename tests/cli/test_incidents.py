"""slurmwrap incidents: list, show and close, for root and for users, on real databases."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import Result

from slurmwrap.errors import RefusedError, UsageError
from slurmwrap.model.evidence import Citation, Diagnosis, RunKey
from slurmwrap.model.job_run import Incident, JobRun
from slurmwrap.protocols import OpenIncident, Published
from slurmwrap.store.database import Database
from slurmwrap.store.published_files import FilePublisher

Run = Callable[..., Result]
NOW = time.time()
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="the site's database is root's here")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """One open incident of four jobs, and one that is over."""
    (tmp_path / "site").mkdir()
    path = tmp_path / "site" / "site.db"
    evidence = (Citation(source="slurm-4.out", line=9, text="OSError: [Errno 116] Stale file handle\x1b[31m"),)
    diagnosis = Diagnosis(
        category="storage_io", domain="IF", decision="retry", confidence=0.9, signature="s", evidence=evidence
    )
    with Database.open(path) as database, database.transaction():
        key = RunKey(cluster="lab", job_id=4, submit_time=int(NOW) - 900)
        database.save_attempt(
            JobRun(attempt=key, address="4", user="ada", uid=1001, end_time=int(NOW) - 600, diagnosis=diagnosis)
        )
        open_incident = Incident(
            incident_id="aa11bb22cc", category="storage_io", scope="path /scratch", began=NOW - 700, last=NOW - 100,
            jobs=(1, 2, 3, 4), uids=(0, 12345), nodes=("n1", "n2", "n3"), proof=("n1", "n2"),
        )  # fmt: skip
        database.save_incident(open_incident, [key])
        database.save_incident(
            Incident(
                incident_id="dd44",
                category="nccl_error",
                scope="switch leaf0",
                began=NOW - 86400,
                last=NOW - 86000,
                over_at=NOW - 85000,
                jobs=(9, 10, 11),
                uids=(0,),
                nodes=("n8",),
            )
        )
    return path


@root_only
def test_open_incidents_are_listed_first_and_filters_select_incidents(slurmwrap: Run, site: Path) -> None:
    def ids(*words: str) -> list[str]:
        return [
            incident["id"]
            for incident in json.loads(slurmwrap("incidents", "list", "--json", *words, site=True).stdout)["rows"]
        ]

    assert ids() == ["aa11bb22cc", "dd44"]
    assert ids("--open") == ids("--category", "storage_io") == ids("--node", "n[1-2]") == ["aa11bb22cc"]
    assert ids("--until", "12h") == ["dd44"]
    assert ids("--user", "12345") == ["aa11bb22cc"]
    lines = slurmwrap("incidents", "list", site=True).stdout.splitlines()
    assert lines[1].split()[:4] == ["aa11bb", "storage_io", "path", "/scratch"]
    assert lines[1].split()[-4:] == ["open", "4", "2", "3"]
    with Database.open(site) as database:
        database.save_incident(replace(database.incidents(open_only=True)[0], proof=()))
    assert slurmwrap("incidents", "list", site=True).stdout.splitlines()[1].split()[-4] == "unconfirmed"


@root_only
def test_show_prints_jobs_users_nodes_and_evidence(slurmwrap: Run, site: Path) -> None:
    shown = slurmwrap("incidents", "show", "aa1", site=True).stdout
    assert shown == slurmwrap("incidents", "show", "last", site=True).stdout
    assert "  jobs     1, 2, 3, 4\n  users    root, 12345\n  nodes    n[1-3]\n" in shown
    assert "  evidence kernel, NVML, Slurm or hooks report it of n[1-2]\n" in shown
    doubtful = slurmwrap("incidents", "show", "dd44", site=True).stdout
    assert "  evidence unconfirmed, by log text of 1 user alone\n" in doubtful
    assert "slurm-4.out:9: OSError: [Errno 116] Stale file handle\\x1b[31m" in " ".join(shown.split())
    assert shown.splitlines()[-1] == "  close    slurmwrap incidents close aa11bb --note WHY"
    plain = json.loads(slurmwrap("incidents", "show", "aa11", "--json", site=True).stdout)
    assert [run["address"] for run in plain["runs"]] == ["4"]


@root_only
def test_close_records_the_user_and_the_note(slurmwrap: Run, site: Path) -> None:
    result = slurmwrap("incidents", "close", "aa11", "--note", "filer is back", site=True)
    assert (result.exit_code, result.stdout) == (0, "aa11bb: closed\n")
    with Database.open(site, readonly=True) as database:
        (incident,) = [incident for incident in database.incidents() if incident.incident_id == "aa11bb22cc"]
    assert (incident.over_at is not None, incident.note, incident.closed_by.partition(" ")[0]) == (
        True,
        "filer is back",
        "root",
    )
    again = slurmwrap("incidents", "close", "aa11", site=True).exception
    assert isinstance(again, UsageError) and "is over since" in str(again)
    assert (
        f"closed   by {incident.closed_by}: filer is back" in slurmwrap("incidents", "show", "aa11", site=True).stdout
    )


@root_only
@pytest.mark.parametrize("which", ["zz", ""])
def test_an_unknown_incident_id_is_refused(slurmwrap: Run, site: Path, which: str) -> None:
    wrong = slurmwrap("incidents", "show", which, site=True).exception
    assert isinstance(wrong, UsageError) and wrong.exit_code == 1
    assert str(wrong) == f"'{which}' is not a known incident"


def test_a_user_sees_published_incidents_and_may_not_close_them(
    slurmwrap: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMWRAP_SITE_PUBLISHED", str(tmp_path / "published"))
    assert slurmwrap("incidents", "list").stdout == "No open incident is published.\n"
    published = OpenIncident(category="storage_io", scope="path /scratch", since=NOW, jobs=7, users=3)
    (tmp_path / "published").mkdir(mode=0o755)
    FilePublisher(tmp_path / "published", "", seal=lambda payload, **_: payload).publish(
        Published(incidents=(published,))
    )
    if os.geteuid() == 0:
        (row,) = json.loads(slurmwrap("incidents", "list", "--json").stdout)["rows"]
        assert (row["scope"], row["jobs"], row["users"], row["id"]) == ("path /scratch", 7, 3, "")
    assert isinstance(slurmwrap("incidents", "close", "aa").exception, RefusedError)
