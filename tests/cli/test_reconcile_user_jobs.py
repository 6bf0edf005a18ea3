"""The reconciler pass before a command shows a user's jobs: when it runs, its rules, its time limit. Without Slurm."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from slurmwrap.cli import reconcile_user_jobs
from slurmwrap.cli.reconcile_user_jobs import FRESH_S, reconcile_own_jobs_first
from slurmwrap.cli.record_access import RecordSource
from slurmwrap.config.load_config import RULES, Config
from slurmwrap.errors import SlurmUnreachable
from slurmwrap.host.lock import hold_exclusive_lock
from slurmwrap.store.database import Database

ACT, OBSERVE = "act", "observe"
CONFIG = Config(rules=dict.fromkeys(RULES, ACT))


class RecordedPasses:
    """Replaces the user's own reconciler and records the rules of each pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rules: list[str] = []
        monkeypatch.setattr(reconcile_user_jobs, "_run_pass", self.look)

    def look(self, source: RecordSource, config: Config) -> str:
        self.rules += sorted(set(config.rules.values()))
        return ""


def make_record_source(tmp_path: Path, *, site: bool = False, published_s_ago: float | None = None) -> RecordSource:
    published = None
    if published_s_ago is not None:
        published = tmp_path / "published"
        published.mkdir()
        (published / "published.json").touch()
        os.utime(published / "published.json", (time.time() - published_s_ago,) * 2)
    return RecordSource(database=tmp_path / "state" / "user.db", site=site, uid=os.geteuid(), published=published)


@pytest.mark.parametrize(
    ("site", "published_s_ago", "although_site", "rules"),
    [
        (False, None, False, [ACT]),
        (True, None, True, []),  # root reads the records of the site's reconciler
        (False, 10.0, False, []),
        (False, 10.0, True, [OBSERVE]),
        (False, FRESH_S + 60, False, [OBSERVE]),  # the site's reconciler acts when it runs again
    ],
)
def test_a_users_own_pass_runs_unless_the_site_reconciles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: bool, published_s_ago: float | None, although_site: bool,
    rules: list[str],
) -> None:  # fmt: skip
    passes = RecordedPasses(monkeypatch)
    source = make_record_source(tmp_path, site=site, published_s_ago=published_s_ago)
    assert reconcile_own_jobs_first(source, CONFIG, although_site=although_site) == ""
    assert passes.rules == rules


def test_a_pass_without_an_answer_of_slurm_ends_after_the_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*_: object) -> str:
        while True:
            time.sleep(0.01)

    monkeypatch.setattr(reconcile_user_jobs, "_run_pass", look)
    monkeypatch.setattr(reconcile_user_jobs, "BOUND_S", 0.05)
    monkeypatch.setattr(reconcile_user_jobs, "SHOWN_AFTER_S", 0.01)
    assert reconcile_own_jobs_first(make_record_source(tmp_path), CONFIG).startswith(
        "Slurm did not give all answers within "
    )


def test_a_reason_is_returned_when_the_pass_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_unreachable(*_: object) -> str:
        raise SlurmUnreachable("squeue: no answer within 4 s")

    source = make_record_source(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(reconcile_user_jobs, "_run_pass", raise_unreachable)
        assert reconcile_own_jobs_first(source, CONFIG).startswith(
            "Slurm could not be asked (squeue: no answer within 4 s)"
        )
    monkeypatch.setattr("slurmwrap.slurm.commands.SlurmCommands.cluster_name", lambda self: "lab")
    monkeypatch.setattr(reconcile_user_jobs, "_PAUSE_S", 0.0)
    Database.open(source.database).close()
    with hold_exclusive_lock(source.database.with_suffix(".lock"), "another reconciler"):
        assert reconcile_own_jobs_first(source, CONFIG).endswith(f"(pid {os.getpid()}); what was found so far is shown")
    source.database.write_bytes(b"scrambled eggs" * 500)
    assert reconcile_own_jobs_first(source, CONFIG) == ""  # the command that reads the database reports the damage
