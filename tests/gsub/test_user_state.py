"""What gsub stores in the user's state directory."""

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
from slurmwrap.node_hooks import log_tails
from slurmwrap.store.user_state_files import SPOOL, UserState

OLD_TIME = time.time() - 200 * 86400


def make_old_directory(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    os.utime(path, (OLD_TIME, OLD_TIME))
    return path


def test_old_step_directories_are_removed_once_a_day_without_following_links(tmp_path: Path) -> None:
    memory, steps = UserStateStore(UserState(tmp_path), os.getuid(), Config()), tmp_path / "steps"
    elsewhere = make_old_directory(tmp_path / "elsewhere")
    old = make_old_directory(steps / "old")
    (steps / "link").symlink_to(elsewhere)
    first = Path(memory.step_dir())
    later = make_old_directory(steps / "later")
    second = Path(memory.step_dir())
    there = [path.is_dir() for path in (old, elsewhere, later, first, second)]
    assert (there, first.stat().st_mode & 0o777) == ([False, True, True, True, True], 0o700)
    os.utime(tmp_path / "steps_looked", (OLD_TIME, OLD_TIME))
    memory.step_dir()
    assert not later.exists()


def test_the_logs_of_a_job_are_named_for_the_epilog_of_a_site_and_old_names_are_removed(tmp_path: Path) -> None:
    memory, named = UserStateStore(UserState(tmp_path), os.getuid(), Config()), tmp_path / "job_logs"
    sent = replace(submission(), logs={"/a.log": [7, "0a"], "/o/": []})
    memory.remember_submission(sent)
    assert not named.exists()  # nothing of a site is there
    memory._get_site_report = lambda: lambda note: ""  # type: ignore[method-assign]
    make_old_directory(named)
    (named / "6").touch()
    os.utime(named / "6", (OLD_TIME, OLD_TIME))
    memory.remember_submission(sent)
    assert [path.name for path in named.iterdir()] == ["7"]
    state = os.fsencode(tmp_path)
    assert log_tails.named_logs(state, "lab", 7, os.getuid()) == {b"/a.log": [7, "0a"], b"/o/": None}
    assert log_tails.named_logs(state, "other", 7, os.getuid()) == {}


def submission(**plan: object) -> Submission:
    return Submission(cluster="lab", job_id=7, uid=os.getuid(), user="alice", at=1.0, plan=plan)


def test_only_a_requested_node_list_is_remembered(tmp_path: Path) -> None:
    memory = UserStateStore(UserState(tmp_path), os.getuid(), Config())
    kept = {"option": "nodelist", "value": None}
    memory.remember_submission(submission(lines=[kept, {"option": "switches", "value": "1@1:00"}]))
    memory.remember_submission(submission())
    assert memory.picked_at() == 0.0
    memory.remember_submission(submission(lines=[{"option": "nodelist", "value": "n1"}]))
    assert abs(memory.picked_at() - time.time()) < 60


def test_the_site_listens_if_its_spool_exists(tmp_path: Path) -> None:
    def listens(spool: str) -> bool:
        return UserStateStore(UserState(tmp_path), os.getuid(), Config(site=SiteSection(spool=spool))).site_listens()

    assert [listens(""), listens(str(tmp_path / "none")), listens(str(tmp_path))] == [False, False, True]


def test_each_submission_reaches_the_site_once_whether_or_not_expected(tmp_path: Path, munge_socket: str) -> None:
    site = SiteSection(spool=str(tmp_path / "spool"), munge_socket=munge_socket)
    (tmp_path / "spool").mkdir()
    memory = UserStateStore(UserState(tmp_path / "state"), os.getuid(), Config(site=site))
    memory.expect_submission()
    for job_id in (7, 8):
        memory.remember_submission(replace(submission(), job_id=job_id))
    notes = [munge.open_sealed(path.read_bytes(), socket=munge_socket) for path in (tmp_path / "spool").iterdir()]
    sealed_notes = sorted((json.loads(note[0])["job_id"], note[1]) for note in notes if note)
    assert sealed_notes == [(7, os.geteuid()), (8, os.geteuid())]


def test_without_munged_the_user_still_keeps_the_record(tmp_path: Path) -> None:
    site = SiteSection(spool=str(tmp_path / "spool"), munge_socket=str(tmp_path / "none"))
    (tmp_path / "spool").mkdir()
    memory = UserStateStore(UserState(tmp_path / "state"), os.getuid(), Config(site=site))
    memory.expect_submission()
    memory.remember_submission(submission())
    left = [len(list(place.iterdir())) for place in (tmp_path / "spool", tmp_path / "state" / SPOOL)]
    assert left == [0, 1]
