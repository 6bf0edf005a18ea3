"""The user's state directory as implementation of protocols.Memory (adapter).

It reads through store/user_state_files and writes one file per record.
"""

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
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import Any

    from slurmwrap.config.load_config import Config
    from slurmwrap.gsub.submission_records import Tell
    from slurmwrap.model.decision import BlockedInput
    from slurmwrap.model.job_run import JobRun, PrerunRecord
    from slurmwrap.model.past_failure import PastFailure
    from slurmwrap.model.resource_profile import Measurement, ResourceProfile
    from slurmwrap.model.submission import Submission
    from slurmwrap.prerun.expected_saving import ScriptOutcome
    from slurmwrap.profiling.run_time import GroupRuns, RunTimeGroup
    from slurmwrap.store.user_state_files import UserState

# Step directories and names of logs are removed after this time, which is longer than a job waits, runs and is retried.
_STEPS_KEPT_S = 180 * 86400.0
# Minimum seconds between two searches for old ones.
_STEPS_CLEANUP_S = 86400.0


class UserStateStore:
    """protocols.Memory in the user's state directory. Records for the site's reconciler also go to the site's spool."""

    def __init__(self, state: UserState, uid: int, config: Config) -> None:
        self.state = state
        self.uid = uid
        self.config = config
        self._begun: Tell | None = None

    def profile(self, key: str) -> ResourceProfile | None:
        """Return the resource profile under `key`; None if there is none."""
        return self.state.profile(key)

    def blocked_inputs(self) -> tuple[BlockedInput, ...]:
        """Return the inputs that the user's own state blocks for them."""
        return self.state.blocked_inputs(self.uid)

    def passed(self, fingerprint: str) -> bool:
        """Return whether the newest pre-run of this fingerprint passed."""
        return self.state.passed(fingerprint) is not None

    def measured(self, fingerprint: str) -> Measurement | None:
        """Return what the newest pre-run of this fingerprint measured if it passed; else None."""
        record = self.state.passed(fingerprint)
        return None if record is None else record.verdict.measurement

    def undecided(self, fingerprint: str) -> str:
        """Return why the newest pre-run of this fingerprint was inconclusive, if another would be too; else ""."""
        record = self.state.undecided(fingerprint)
        return "" if record is None else record.verdict.reason

    def completed(self, script_sha256: str, fingerprint: str) -> bool:
        """Return whether such a job completed.

        The sources are the user's own reconcile, the site's diagnoses, and Slurm's answer to an earlier call.
        """
        published = self._read_published_failures(script_sha256, fingerprint, least=1)
        return self.state.completed(script_sha256, fingerprint, published) is not None

    def unjudged(self, script_sha256: str, fingerprint: str, cluster: str) -> tuple[tuple[int, float], ...]:
        """Return (job id, submission time), newest first, of the jobs whose end is not in the user's database."""
        return self.state.unjudged(script_sha256, fingerprint, cluster)

    def remember_completed(self, fingerprint: str, at: float) -> None:
        """Record in the state directory that a job of this fingerprint completed."""
        self.state.remember_completed(fingerprint, at)

    def outcomes(self) -> tuple[ScriptOutcome, ...]:
        """Return what became of the user's newest submissions, oldest first, by their own reconcile and pre-runs."""
        return self.state.outcomes()

    def has_runs(self) -> bool:
        """Return whether the user's own database exists."""
        return self.state.has_database()

    def open_run_times(self, cluster: str) -> AbstractContextManager[Callable[[RunTimeGroup], GroupRuns]]:
        """Return a function that returns the newest runs of a group that the user's own reconcile knows."""
        return self.state.open_run_times(cluster)

    def failures(self, script_sha256: str, fingerprint: str) -> tuple[PastFailure, ...]:
        """Return the failures of the user's own reconcile and of the site's diagnoses, newest first."""
        published = self._read_published_failures(script_sha256, fingerprint)
        return self.state.failed_before(script_sha256, fingerprint=fingerprint, diagnosed=published)

    def _read_published_failures(
        self, script_sha256: str, fingerprint: str, least: int = 2
    ) -> tuple[tuple[JobRun, Submission], ...]:
        """Return the site's diagnoses, sealed for this user, of their earlier submissions of the same job.

        Return () if there are fewer than `least` earlier submissions.
        """
        if not self.config.site.published:
            return ()
        from slurmwrap.store.published_files import has_published, list_trusted_uids

        ids, directory = self.state.submitted_ids(script_sha256, fingerprint), self.config.site.published
        if len(ids) < least or not has_published(directory, ids):
            # Most calls end here, so the modules below are not imported for them.
            return ()
        from pathlib import Path

        from slurmwrap.host import munge
        from slurmwrap.store.sealed_diagnoses import read_published_ends

        same = [one for one in self.state.submitted(script_sha256) if one.fingerprint == fingerprint]
        unseal = partial(munge.open_sealed, socket=self.config.site.munge_socket)
        # If munged does not run, gsub continues without these diagnoses.
        with suppress(StoreError):
            return read_published_ends(same, Path(directory), unseal, list_trusted_uids(self.config))
        return ()

    def site_listens(self) -> bool:
        """Return whether the site's spool exists and is writable."""
        site = self.config.site.spool
        return bool(site) and os.access(site, os.W_OK | os.X_OK)

    def picked_at(self) -> float:
        """Return when a job last got a list of nodes, in Unix seconds: the mtime of a mark; 0.0 if there is none."""
        with suppress(OSError):
            return os.stat(self._picked).st_mtime
        return 0.0

    @property
    def _picked(self) -> str:
        return f"{self.state.place}/picked"

    def expect_submission(self) -> None:
        """Start the process that seals the next record for the site. gsub calls this while it waits for sbatch."""
        self._begun = self._begun or self._start_site_report()

    def remember_submission(self, submission: Submission) -> None:
        """Write the submission to the user's spool and to the site's."""
        from slurmwrap.gsub.submission_records import leave_submission

        self._remember_picked(submission.plan)
        report = self._get_site_report()
        if report is not None and submission.logs:
            # First, because the job may end soon. Where no site has an Epilog, the submission names them.
            with suppress(OSError, UnicodeError):
                self._name_logs(submission)
        leave_submission(submission, self.uid, self._spool, report)

    def _name_logs(self, submission: Submission) -> None:
        """Write the names of the job's logs for the Epilog, which reads them as the user (node_hooks/log_tails.py)."""
        import json

        folder = self._make_private_directory("job_logs")
        self._remove_old(folder, os.unlink)
        named = {"cluster": submission.cluster, "logs": submission.logs}
        with open(folder / str(submission.job_id), "w", encoding="utf-8", opener=_open_private) as stream:
            json.dump(named, stream)

    def remember_prerun(self, record: PrerunRecord) -> None:
        """Write the pre-run to the user's spool and to the site's, and set the mark that there are unread records."""
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
        """Return the function that writes one record to the site's spool; None if that is not writable."""
        begun, self._begun = self._begun, None
        return begun or self._start_site_report()

    def _start_site_report(self) -> Tell | None:
        from slurmwrap.gsub.submission_records import start_site_report

        return start_site_report(self.config.site) if self.site_listens() else None

    @property
    def mark(self) -> str:
        """Return the path of a file that exists while the spool has records that are not in the user's database."""
        return f"{self.state.place}/unread"

    @property
    def news(self) -> str:
        """Return the path of the file that exists while cancelled jobs are not yet reported (store/job_notices.py)."""
        return f"{self.state.place}/news"

    def trial_dir(self) -> str:
        """Create and return the directory prerun/<random>, mode 0700."""
        return str(self._make_private_directory("prerun", _make_unique_name()))

    def pack_dir(self) -> str:
        """Create and return the directory pack/<random>, mode 0700. Remove old ones once a day. OSError if it fails."""
        from shutil import rmtree

        self._remove_old(self._make_private_directory("pack"), lambda old: rmtree(old, ignore_errors=True))
        return str(self._make_private_directory("pack", _make_unique_name()))

    def share_dir(self) -> str:
        """Create and return the directory share/<random>, mode 0700; remove old ones once a day. OSError on failure."""
        from shutil import rmtree

        self._remove_old(self._make_private_directory("share"), lambda old: rmtree(old, ignore_errors=True))
        for marks in ("waiting", "running"):
            self._make_private_directory("share", marks)
        return str(self._make_private_directory("share", _make_unique_name()))

    def retry_job_output(self) -> str:
        """Create the directory retry, mode 0700, and return the --output of retry jobs in it. OSError if it fails."""
        return f"{self._make_private_directory('retry')}/%j.out"

    def step_dir(self) -> str:
        """Create and return the directory steps/<random>, mode 0700. Remove old ones once a day.

        A sweep leaves thousands of them on a slow file server, so they are not searched on every call.
        """
        from shutil import rmtree

        self._remove_old(self._make_private_directory("steps"), lambda old: rmtree(old, ignore_errors=True))
        return str(self._make_private_directory("steps", _make_unique_name()))

    def _remove_old(self, folder: Path, remove: Callable[[Path], object]) -> None:
        looked = folder.with_name(f"{folder.name}_looked")
        with suppress(OSError):
            if not looked.exists() or abs(time() - looked.stat().st_mtime) > _STEPS_CLEANUP_S:
                looked.touch(mode=0o600)
                for old in folder.iterdir():
                    if time() - old.lstat().st_mtime > _STEPS_KEPT_S:
                        remove(old)

    def keep_counter(self) -> str:
        """Copy the step counter to counter/<digest> in the state directory, and return that path.

        Nodes and containers can read the home directory, but perhaps not slurmwrap's installation. Raise OSError if the
        copy cannot be written or its path contains a colon.
        """
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
            except OSError:  # another call has created it
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
    """Create a file with mode 0600, or set its times to now. Raise OSError if that fails."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    os.utime(path)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _make_unique_name() -> str:
    return os.urandom(6).hex()
