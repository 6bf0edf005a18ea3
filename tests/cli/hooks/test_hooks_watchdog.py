"""`slurmwrap hooks watchdog` as its timer calls it: exit code, output, and mail to a real SMTP server."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from fakes import FakeClock, FakeSlurm, job
from in_process import Runner
from smtp_server import Server
from typer.testing import Result

from slurmwrap.cli import hooks_watchdog
from slurmwrap.cli.slurmwrap import app
from slurmwrap.errors import UsageError
from slurmwrap.install.service_watchdog import beat
from slurmwrap.model.decision import PlannedAction, SlurmAction, Verb
from slurmwrap.policy.run_from_slurm import record_of
from slurmwrap.store.database import Database


def run_watchdog(config: Path, *arguments: str) -> Result:
    environ = {"HOME": str(config.parent), "SLURMWRAP_CONFIG": str(config)}
    return Runner().invoke(app, ["hooks", "watchdog", *arguments], env=environ)


def write_config(directory: Path, server: Server) -> Path:
    config = directory / "config.toml"
    config.write_text(
        f'[site]\nstate_dir = "{directory}"\n[report]\nto = "ops@example.org, night@example.org"\n'
        f'[mail]\nserver = "{server.address}"\nsender = "slurmwrap@example.org"\n'
    )
    return config


def read_mails(server: Server) -> list[tuple[str, str]]:
    try:
        return [(str(message["To"]), str(message["Subject"])) for message in server.messages()]
    finally:
        server.close()


def test_a_late_service_exits_with_2_and_is_mailed_once_and_on_recovery(tmp_path: Path) -> None:
    server = Server()  # each server accepts one message; a second would get no answer
    fresh = run_watchdog(write_config(tmp_path, server), "--json")
    assert (fresh.exit_code, json.loads(fresh.stdout)["late"]) == (0, [])  # no alarm on the day of installation
    memory = json.loads((tmp_path / "watchdog.json").read_text())
    (tmp_path / "watchdog.json").write_text(json.dumps({**memory, "since": memory["since"] - 2 * 86400}))
    late = run_watchdog(write_config(tmp_path, server), "--json")
    assert (late.exit_code, [one["what"] for one in json.loads(late.stdout)["late"]]) == (2, ["reconciler", "report"])
    assert read_mails(server) == [("ops@example.org, night@example.org", "slurmwrap: late")]

    again = run_watchdog(tmp_path / "config.toml")  # no server listens any more, and no second mail is sent
    assert (again.exit_code, again.stderr) == (2, "")

    server = Server()
    beat(tmp_path, time.time())
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "last").write_text(f"{time.time()}\n")
    well = run_watchdog(write_config(tmp_path, server))
    assert (well.exit_code, well.stdout) == (0, "the reconciler and the night report are on time\n")
    assert read_mails(server) == [("ops@example.org, night@example.org", "slurmwrap: well again")]


def test_without_a_site_the_missing_setting_is_named(tmp_path: Path) -> None:
    error = run_watchdog(tmp_path / "none.toml").exception
    assert isinstance(error, UsageError)
    assert "it needs site.state_dir" in error.hint


def test_limits_that_only_the_database_knows_are_restored_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text(f'[site]\nstate_dir = "{tmp_path}"\n')
    (tmp_path / "limits.json").write_text('[{"job_id": 8')
    slurm = FakeSlurm(clock=FakeClock(time.time()))
    lowered = job(81, state="RUNNING", submit_time=1_790_000_000, time_limit_s=300 * 60)
    slurm.add(lowered)
    with Database.open(tmp_path / "site.db") as store:
        run = record_of(lowered, "lab")
        store.save_attempt(run)
        action = SlurmAction(verb=Verb.UPDATE_JOB, target="81", key="TimeLimit", value="300", own="10080")
        store.intend(run.attempt, PlannedAction(rule="limit", action=action), "act", 1_790_000_000)
    monkeypatch.setattr(hooks_watchdog, "SlurmCommands", lambda *given, **named: slurm)
    done = run_watchdog(tmp_path / "config.toml")
    assert "job 81 has its time limit of 10080 minutes again" in done.stdout, done
    assert "limits.json cannot be read" in done.stderr
    assert slurm.records[81].time_limit_s == 7 * 86400
