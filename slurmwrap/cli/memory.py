"""The user's own state behind edges.Memory: light reads by store/userstate, one file per thing to remember."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import localtime, strftime, time
from typing import Any

from slurmwrap import inject
from slurmwrap.config import Config
from slurmwrap.diagnosis.evidence import Context, Observation
from slurmwrap.errors import StoreError
from slurmwrap.profiling.profile import ResourceProfile
from slurmwrap.retry.attempt import AttemptRecord, PrerunRecord, Submission
from slurmwrap.retry.decision import BlockedInput
from slurmwrap.store.observation_json import new_nonce
from slurmwrap.store.plain import to_plain
from slurmwrap.store.spool import write_plain, write_sealed
from slurmwrap.store.userstate import PastFailure, UserState

_STEPS_KEPT_S = 180 * 86400.0  # longer than a job waits, runs and is retried
_STEPS_LOOKED_S = 86400.0


@dataclass(frozen=True, slots=True)
class HomeMemory:
    """edges.Memory in the user's state directory; what concerns the site's reconciler also goes to the site's spool."""

    state: UserState
    uid: int
    config: Config

    def profile(self, key: str) -> ResourceProfile | None:
        """What is known under `key`."""
        return self.state.profile(key)

    def blocked_inputs(self) -> tuple[BlockedInput, ...]:
        """Inputs blocked for this user."""
        return self.state.blocked_inputs(self.uid)

    def passed(self, fingerprint: str) -> bool:
        """The newest pre-run of this fingerprint passed."""
        return self.state.passed(fingerprint) is not None

    def failures(self, script_sha256: str, fingerprint: str) -> tuple[str, ...]:
        """Reasons, newest first, each with its job and time: by the user's own reconcile and by the site's word."""
        past = self.state.failed_before(
            script_sha256, fingerprint=fingerprint, told=self._told(script_sha256, fingerprint)
        )
        return tuple(_told(failure) for failure in past)

    def _told(self, script_sha256: str, fingerprint: str) -> tuple[tuple[AttemptRecord, Submission], ...]:
        """What the site sealed for this user about his earlier submissions of the very same."""
        if not self.config.site.published:
            return ()
        same = [one for one in self.state.submitted(script_sha256) if one.fingerprint == fingerprint]
        if len(same) < 2:
            return ()
        from slurmwrap.host import munge
        from slurmwrap.store.past import told_ends
        from slurmwrap.store.published import trusted_uids

        unseal = partial(munge.open_sealed, socket=self.config.site.munge_socket)
        with suppress(StoreError):  # no munged: gsub goes on without
            return told_ends(same, Path(self.config.site.published), unseal, trusted_uids(self.config))
        return ()

    def site_listens(self) -> bool:
        """Its spool is there and takes files of ours."""
        site = self.config.site.spool
        return bool(site) and os.access(site, os.W_OK | os.X_OK)

    def picked_at(self) -> float:
        """The age of a mark in the user's state directory."""
        with suppress(OSError):
            return self._picked.stat().st_mtime
        return 0.0

    @property
    def _picked(self) -> Path:
        return self.state.directory / "picked"

    def remember_submission(self, submission: Submission) -> None:
        """One file in the user's spool, one in the site's."""
        self._remember_picked(submission.plan)
        facts = {"submission": to_plain(submission)}
        self._remember(Context.SUBMIT, submission.cluster, submission.job_id, submission.at, facts)

    def remember_prerun(self, record: PrerunRecord) -> None:
        """One file in the user's spool, one in the site's where a job waits for it."""
        self._remember_picked(record.plan)
        facts = {"prerun": to_plain(record)}
        self._remember(Context.PRERUN, record.cluster, record.job_id or record.prerun_job_id, record.at, facts)
        with suppress(OSError):
            self.mark.touch(mode=0o600)

    def _remember_picked(self, plan: Mapping[str, Any]) -> None:
        if any(line["option"] == "nodelist" and line["value"] for line in plan.get("lines", ())):
            with suppress(OSError):
                self._private()
                self._picked.touch(mode=0o600)

    @property
    def mark(self) -> Path:
        """There when a pre-run has left something that the database does not know yet."""
        return self.state.directory / "unread"

    def keep_script(self, name: str, content: bytes) -> str:
        """scripts/<sha256>/<name>: Slurm names the job after the file, and shows its path."""
        directory = self._private("scripts", sha256(content).hexdigest()[:16])
        path, aside = directory / Path(name).name, directory / f".{uuid.uuid4().hex}"
        aside.write_bytes(content)
        aside.chmod(0o700)
        aside.replace(path)
        return str(path)

    def trial_dir(self) -> str:
        """prerun/<uuid>, mode 0700."""
        return str(self._private("prerun", uuid.uuid4().hex[:12]))

    def step_dir(self) -> str:
        """steps/<uuid>, mode 0700; those of long ago go, once a day: a sweep leaves thousands on a slow file server."""
        from shutil import rmtree

        place = self._private("steps")
        looked = place.parent / "steps_looked"
        with suppress(OSError):
            if not looked.exists() or abs(time() - looked.stat().st_mtime) > _STEPS_LOOKED_S:
                looked.touch(mode=0o600)
                for old in place.iterdir():
                    if time() - old.stat().st_mtime > _STEPS_KEPT_S:
                        rmtree(old, ignore_errors=True)
        return str(self._private("steps", uuid.uuid4().hex[:12]))

    def keep_counter(self) -> str:
        """counter/<digest>: a copy, since nodes and containers see the home but perhaps not our installation."""
        from shutil import rmtree

        sources = sorted(Path(inject.__path__[0]).glob("[!_]*.py"))
        contents = {source.name: source.read_bytes() for source in sources}
        mark = sha256(b"".join(contents[name] for name in sorted(contents))).hexdigest()[:16]
        final = self.state.directory / "counter" / mark
        if not final.is_dir():
            aside = self._private("counter", f".{uuid.uuid4().hex}")
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

    def _private(self, *parts: str) -> Path:
        path = self.state.directory.joinpath(*parts)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def _remember(self, context: Context, cluster: str, job_id: int, at: float, facts: Mapping[str, Any]) -> None:
        note = Observation(
            nonce=new_nonce(), cluster=cluster, job_id=job_id, context=context, at=at, uid=self.uid, facts=facts
        )
        self._private("spool")
        write_plain(self.state.spool, note)
        if self.site_listens():
            with suppress(OSError, StoreError):  # the site's copy is a courtesy: the user's own is kept already
                write_sealed(Path(self.config.site.spool), note, socket=self.config.site.munge_socket)


def _told(failure: PastFailure) -> str:
    kind = "its pre-run, job" if failure.prerun else "job"
    when = strftime("%Y-%m-%d %H:%M", localtime(failure.at))
    return f"{failure.reason or failure.category} ({kind} {failure.job_id}, {when})"
