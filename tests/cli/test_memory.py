"""What gsub keeps below the user's state directory."""

from __future__ import annotations

import os
import time
from pathlib import Path

from slurmwrap.cli.memory import HomeMemory
from slurmwrap.config import Config, Site
from slurmwrap.retry.attempt import Submission
from slurmwrap.store.userstate import UserState

LONG_AGO = time.time() - 200 * 86400


def aged(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def test_step_directories_of_long_ago_go_once_a_day_and_never_a_link_s_target(tmp_path: Path) -> None:
    memory, steps = HomeMemory(UserState(tmp_path), os.getuid(), Config()), tmp_path / "steps"
    elsewhere = aged(tmp_path / "elsewhere")
    old = aged(steps / "old")
    (steps / "link").symlink_to(elsewhere)
    first = Path(memory.step_dir())
    later = aged(steps / "later")
    second = Path(memory.step_dir())
    there = [path.is_dir() for path in (old, elsewhere, later, first, second)]
    assert (there, first.stat().st_mode & 0o777) == ([False, True, True, True, True], 0o700)
    os.utime(tmp_path / "steps_looked", (LONG_AGO, LONG_AGO))
    memory.step_dir()
    assert not later.exists()


def submission(**plan: object) -> Submission:
    return Submission(cluster="lab", job_id=7, uid=os.getuid(), user="alice", at=1.0, plan=plan)


def test_a_list_of_nodes_that_was_asked_for_is_remembered_and_nothing_else(tmp_path: Path) -> None:
    memory = HomeMemory(UserState(tmp_path), os.getuid(), Config())
    kept = {"option": "nodelist", "value": None}
    memory.remember_submission(submission(lines=[kept, {"option": "switches", "value": "1@1:00"}]))
    memory.remember_submission(submission())
    assert memory.picked_at() == 0.0
    memory.remember_submission(submission(lines=[{"option": "nodelist", "value": "n1"}]))
    assert abs(memory.picked_at() - time.time()) < 60


def test_the_site_listens_where_its_spool_takes_files(tmp_path: Path) -> None:
    def listens(spool: str) -> bool:
        return HomeMemory(UserState(tmp_path), os.getuid(), Config(site=Site(spool=spool))).site_listens()

    assert [listens(""), listens(str(tmp_path / "none")), listens(str(tmp_path))] == [False, False, True]
