"""The user's own state behind edges.Memory: light reads by store/user_state_files, one file per thing to remember."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from time import time

from slurmwrap.digest import sha256_hex
from slurmwrap.errors import StoreError
from slurmwrap.store.user_state_files import SPOOL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from slurmwrap.config.load_config import Config
    from slurmwrap.gsub.submission_records import Tell
    from slurmwrap.model.decision import BlockedInput
    from slurmwrap.model.job_run import JobRun, PrerunRecord
    from slurmwrap.model.past_failure import PastFailure
    from slurmwrap.model.resource_profile import ResourceProfile
    from slurmwrap.model.submission import Submission
    from slurmwrap.store.user_state_files import UserState

# Longer than a job waits, runs and is retried.
_STEPS_KEPT_S = 180 * 86400.0
_STEPS_LOOKED_S = 86400.0


class UserStateStore:
    """edges.Memory in the user's state directory; what concerns the site's reconciler also goes to the site's spool."""

    def __init__(self, state: UserState, uid: int, config: Config) -> None:
        self.state = state
        self.uid = uid
        self.config = config
        self._begun: Tell | None = None

    def profile(self, key: str) -> ResourceProfile | None:
        """What is known under `key`."""
        return self.state.profile(key)

    def blocked_inputs(self) -> tuple[BlockedInput, ...]:
        """Inputs blocked for this user."""
        return self.state.blocked_inputs(self.uid)

    def passed(self, fingerprint: str) -> bool:
        """The newest pre-run of this fingerprint passed."""
        return self.state.passed(fingerprint) is not None

    def undecided(self, fingerprint: str) -> str:
        """Why the newest pre-run of this fingerprint could not say, where another one would not either."""
        record = self.state.undecided(fingerprint)
        return "" if record is None else record.verdict.reason

    def completed(self, script_sha256: str, fingerprint: str) -> bool:
        """By the user's own reconcile, by the site's judgement, or by what Slurm said to an earlier call."""
        told = self._read_published_failures(script_sha256, fingerprint, least=1)
        return self.state.completed(script_sha256, fingerprint, told) is not None

    def unjudged(self, script_sha256: str, fingerprint: str, cluster: str) -> tuple[tuple[int, float], ...]:
        """(job id, when submitted), newest first, of those whose end the user's database does not know."""
        return self.state.unjudged(script_sha256, fingerprint, cluster)

    def remember_completed(self, fingerprint: str, at: float) -> None:
        """One line in a file of the state directory."""
        self.state.remember_completed(fingerprint, at)

    def failures(self, script_sha256: str, fingerprint: str) -> tuple[PastFailure, ...]:
        """Newest first: by the user's own reconcile and by the site's judgement."""
        told = self._read_published_failures(script_sha256, fingerprint)
        return self.state.failed_before(script_sha256, fingerprint=fingerprint, told=told)

    def _read_published_failures(
        self, script_sha256: str, fingerprint: str, least: int = 2
    ) -> tuple[tuple[JobRun, Submission], ...]:
        """What the site sealed for this user about their earlier submissions of the very same. () for less than `least`
        of these."""
        if not self.config.site.published:
            return ()
        from slurmwrap.store.published_files import has_published, list_trusted_uids

        ids, directory = self.state.submitted_ids(script_sha256, fingerprint), self.config.site.published
        if len(ids) < least or not has_published(directory, ids):
            # So it is for most calls, and the records below need not be loaded.
            return ()
        from pathlib import Path

        from slurmwrap.host import munge
        from slurmwrap.store.sealed_diagnoses import read_published_ends

        same = [one for one in self.state.submitted(script_sha256) if one.fingerprint == fingerprint]
        unseal = partial(munge.open_sealed, socket=self.config.site.munge_socket)
        # No munged: gsub goes on without.
        with suppress(StoreError):
            return read_published_ends(same, Path(directory), unseal, list_trusted_uids(self.config))
        return ()

    def site_listens(self) -> bool:
        """Its spool is there and takes files of slurmwrap's."""
        site = self.config.site.spool
        return bool(site) and os.access(site, os.W_OK | os.X_OK)

    def picked_at(self) -> float:
        """The age of a mark in the user's state directory."""
        with suppress(OSError):
            return os.stat(self._picked).st_mtime
        return 0.0

    @property
    def _picked(self) -> str:
        return f"{self.state.place}/picked"

    def expect_submission(self) -> None:
        """Loads and starts what the next thing to remember will need, for who has to wait for sbatch anyhow."""
        self._begun = self._begun or self._start_site_report()

    def remember_submission(self, submission: Submission) -> None:
        """One file in the user's spool, one in the site's."""
        from slurmwrap.gsub.submission_records import leave_submission

        self._remember_picked(submission.plan)
        leave_submission(submission, self.uid, self._spool, self._get_site_report())

    def remember_prerun(self, record: PrerunRecord) -> None:
        """One file in the user's spool, one in the site's where a job waits for it."""
        from slurmwrap.gsub.submission_records import leave_prerun

        self._remember_picked(record.plan)
        leave_prerun(record, self.uid, self._spool, self._get_site_report())
        with suppress(OSError):
            touch(self.mark)

    def _remember_picked(self, plan: Mapping[str, Any]) -> None:
        if any(line["option"] == "nodelist" and line["value"] for line in plan.get("lines", ())):
            with suppress(OSError):
                os.makedirs(self.state.place, 0o700, exist_ok=True)
                touch(self._picked)

    @property
    def _spool(self) -> str:
        return f"{self.state.place}/{SPOOL}"

    def _get_site_report(self) -> Tell | None:
        """What reports to the site, once; None where it does not listen."""
        begun, self._begun = self._begun, None
        return begun or self._start_site_report()

    def _start_site_report(self) -> Tell | None:
        from slurmwrap.gsub.submission_records import start_site_report

        return start_site_report(self.config.site) if self.site_listens() else None

    @property
    def mark(self) -> str:
        """There when a pre-run has left something that the database does not know yet."""
        return f"{self.state.place}/unread"

    @property
    def news(self) -> str:
        """There when a pre-run cancelled a job and no call has reported it (store/job_notices.py)."""
        return f"{self.state.place}/news"

    def trial_dir(self) -> str:
        """prerun/<random>, mode 0700."""
        return str(self._make_private_directory("prerun", _make_unique_name()))

    def step_dir(self) -> str:
        """steps/<random>, 0700; those of long ago go, once a day: a sweep leaves thousands on a slow file server."""
        from shutil import rmtree

        place = self._make_private_directory("steps")
        looked = place.parent / "steps_looked"
        with suppress(OSError):
            if not looked.exists() or abs(time() - looked.stat().st_mtime) > _STEPS_LOOKED_S:
                looked.touch(mode=0o600)
                for old in place.iterdir():
                    if time() - old.stat().st_mtime > _STEPS_KEPT_S:
                        rmtree(old, ignore_errors=True)
        return str(self._make_private_directory("steps", _make_unique_name()))

    def keep_counter(self) -> str:
        """counter/<digest>: a copy, since nodes and containers see the home but perhaps not our installation."""
        from pathlib import Path
        from shutil import rmtree

        from slurmwrap import inject

        sources = sorted(Path(inject.__path__[0]).glob("[!_]*.py"))
        contents = {source.name: source.read_bytes() for source in sources}
        mark = sha256_hex(b"".join(contents[name] for name in sorted(contents)))[:16]
        final = self.state.directory / "counter" / mark
        if not final.is_dir():
            aside = self._make_private_directory("counter", f".{_make_unique_name()}")
            for name, content in contents.items():
                (aside / name).write_bytes(content)
            try:
                aside.rename(final)
            except OSError:  # another call was faster
                rmtree(aside, ignore_errors=True)
                if not final.is_dir():
                    raise
        if ":" in str(final):
            raise OSError(f"{final} cannot be part of PYTHONPATH: its name has a colon")
        return str(final)

    def _make_private_directory(self, *parts: str) -> Path:
        path = self.state.directory.joinpath(*parts)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path


def touch(path: str) -> None:
    """Makes a file for no one else, or makes it young again. OSError."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    os.utime(path)


def _make_unique_name() -> str:
    return os.urandom(6).hex()
