"""What gsub keeps below the user's state directory."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

from slurmwrap.config.load_config import Config, SiteSection
from slurmwrap.gsub.user_state import UserStateStore
from slurmwrap.host import munge
from slurmwrap.model.submission import Submission
from slurmwrap.store.user_state_files import SPOOL, UserState

LONG_AGO = time.time() - 200 * 86400


def aged(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def test_step_directories_of_long_ago_go_once_a_day_and_never_a_link_s_target(tmp_path: Path) -> None:
    memory, steps = UserStateStore(UserState(tmp_path), os.getuid(), Config()), tmp_path / "steps"
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
    memory = UserStateStore(UserState(tmp_path), os.getuid(), Config())
    kept = {"option": "nodelist", "value": None}
    memory.remember_submission(submission(lines=[kept, {"option": "switches", "value": "1@1:00"}]))
    memory.remember_submission(submission())
    assert memory.picked_at() == 0.0
    memory.remember_submission(submission(lines=[{"option": "nodelist", "value": "n1"}]))
    assert abs(memory.picked_at() - time.time()) < 60


def test_the_site_listens_where_its_spool_takes_files(tmp_path: Path) -> None:
    def listens(spool: str) -> bool:
        return UserStateStore(UserState(tmp_path), os.getuid(), Config(site=SiteSection(spool=spool))).site_listens()

    assert [listens(""), listens(str(tmp_path / "none")), listens(str(tmp_path))] == [False, False, True]


def test_each_thing_that_is_remembered_reaches_the_site_once_whether_it_was_expected_or_not(
    tmp_path: Path, munge_socket: str
) -> None:
    site = SiteSection(spool=str(tmp_path / "spool"), munge_socket=munge_socket)
    (tmp_path / "spool").mkdir()
    memory = UserStateStore(UserState(tmp_path / "state"), os.getuid(), Config(site=site))
    memory.expect_submission()
    for job_id in (7, 8):
        memory.remember_submission(replace(submission(), job_id=job_id))
    notes = [munge.open_sealed(path.read_bytes(), socket=munge_socket) for path in (tmp_path / "spool").iterdir()]
    told = sorted((json.loads(note[0])["job_id"], note[1]) for note in notes if note)
    assert told == [(7, os.geteuid()), (8, os.geteuid())]


def test_a_site_without_munged_costs_no_record_of_the_user_s_own(tmp_path: Path) -> None:
    site = SiteSection(spool=str(tmp_path / "spool"), munge_socket=str(tmp_path / "none"))
    (tmp_path / "spool").mkdir()
    memory = UserStateStore(UserState(tmp_path / "state"), os.getuid(), Config(site=site))
    memory.expect_submission()
    memory.remember_submission(submission())
    left = [len(list(place.iterdir())) for place in (tmp_path / "spool", tmp_path / "state" / SPOOL)]
    assert left == [0, 1]
