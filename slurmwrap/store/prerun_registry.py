"""Registry of pre-runs in flight and of the jobs that wait for them: files in the user's state directory (adapter).

    inflight/<group>             one line: the trial directory of the pre-run that serves this group
    prerun/<id>/job              one line: the id of the pre-run's Slurm job; written when Slurm accepted it
    prerun/<id>/waiting/<job>    a job that attached: two lines, the StartTime that releases it, its own trial directory
    prerun/<id>/closed/          new name of `waiting` once the pre-run accepts no more jobs; one rename closes it

To attach, a job writes a temporary file in `waiting` and renames it there. If this rename happens before that of the
directory, the pre-run finds the job. If not, it fails with ENOENT, and the job knows that it needs another pre-run.
templates/prerun/wrapper.sh reads and renames the same files where slurmwrap's Python cannot start.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import suppress

from slurmwrap.fast_dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

POINTERS, TRIALS = "inflight", "prerun"
WAITING, CLOSED, JOB, VERDICT = "waiting", "closed", "job", "verdict.json"
# sbatch itself gives up after 120 s: a pre-run that is older and has no job id was never submitted.
_SUBMITTING_S = 150.0
# Seconds that `close` waits for jobs that are attaching at that moment; they still need one rename.
DOOR_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJob:
    """A job that waits for another job's pre-run."""

    job_id: int
    release_at: str
    trial_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InflightPrerun:
    """A pre-run in flight, as its files show it."""

    directory: Path
    # None: not submitted yet, or submission failed.
    job_id: int | None
    since: float  # Unix seconds

    def submitting(self, now: float) -> bool:
        """Return whether its sbatch may still be running."""
        return self.job_id is None and now - self.since < _SUBMITTING_S


@dataclass(frozen=True, slots=True)
class PrerunRegistry:
    """The pre-runs of one user. `state` is config.user_state_dir(environ). OSError when nothing can be written."""

    state: str | Path

    def claim(self, group: str, directory: str) -> bool:
        """Register `directory` as the pre-run of `group`; return False when the group has another one."""
        from pathlib import Path

        waiting = Path(directory) / WAITING
        waiting.mkdir(mode=0o700, exist_ok=True)
        pointers = Path(self.state) / POINTERS
        pointers.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = pointers / f".{group[:32]}.{os.getpid()}"
        temporary.write_text(f"{directory}\n", encoding="utf-8")
        try:
            # Unlike a rename, a link does not replace an existing file, and the file is complete from the start.
            os.link(temporary, pointers / group)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def of(self, group: str) -> InflightPrerun | None:
        """Return the pre-run that serves `group`; None when there is none."""
        from pathlib import Path

        try:
            directory = Path(Path(self.state, POINTERS, group).read_text(encoding="utf-8").strip())
        except (OSError, ValueError):
            return None
        return read_inflight_prerun(directory) or InflightPrerun(directory=directory, job_id=None, since=0.0)

    def drop(self, group: str, directory: str) -> None:
        """Remove the registration of `directory` for `group`. A registration of another directory stays."""
        if not group:
            return
        from pathlib import Path

        pointer = Path(self.state, POINTERS, group)
        with suppress(OSError, ValueError):
            if pointer.read_text(encoding="utf-8").strip() == str(directory):
                pointer.unlink(missing_ok=True)

    def trials(self) -> tuple[Path, ...]:
        """Return all trial directories, oldest first."""
        try:
            found = [entry for entry in os.scandir(f"{self.state}/{TRIALS}") if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return ()
        if not found:
            return ()
        # Imported here because most calls of gsub find no trial.
        from pathlib import Path

        return tuple(Path(entry.path) for entry in sorted(found, key=_get_age))

    def prune(self, older_than_s: float, *, now: float | None = None, keep: frozenset[str] = frozenset()) -> int:
        """Remove trials that were not touched for `older_than_s` seconds; `keep` names trials in flight.

        Return how many were removed. What cannot be removed is tried again next time.
        """
        before = (time.time() if now is None else now) - older_than_s
        from shutil import rmtree

        pointed = {str(path) for path in self._list_pointed_directories()}
        removed = 0
        for path in self.trials():
            with suppress(OSError):
                if str(path) not in keep | pointed and _get_touch_time(path) < before:
                    rmtree(path)
                    removed += 1
        return removed

    def _list_pointed_directories(self) -> Iterator[Path]:
        from pathlib import Path

        with suppress(OSError):
            for pointer in Path(self.state, POINTERS).iterdir():
                with suppress(OSError, ValueError):
                    yield Path(pointer.read_text(encoding="utf-8").strip())


def read_inflight_prerun(directory: Path) -> InflightPrerun | None:
    """Return the pre-run whose files are in this trial directory; None when the directory does not exist."""
    try:
        since = directory.stat().st_mtime
    except OSError:
        return None
    return InflightPrerun(directory=directory, job_id=read_number(directory / JOB), since=since)


def mark_submitted(directory: str, job_id: int) -> None:
    """Record that Slurm accepted the pre-run of this directory."""
    from pathlib import Path

    temporary = Path(directory) / f".{JOB}"
    temporary.write_text(f"{job_id}\n", encoding="ascii")
    temporary.replace(Path(directory) / JOB)


def attach(directory: Path, guest: WaitingJob) -> bool:
    """Let a job wait for this pre-run; return False when the pre-run is closed."""
    temporary = directory / WAITING / f".{guest.job_id}"
    try:
        temporary.write_text(f"{guest.release_at}\n{guest.trial_dir}\n", encoding="utf-8")
        temporary.rename(directory / WAITING / str(guest.job_id))
    except OSError as error:
        # ESTALE is the same error over NFS.
        if error.errno in (errno.ENOENT, errno.ESTALE):
            with suppress(OSError):
                # `close` waits until this file is gone.
                (directory / CLOSED / temporary.name).unlink()
            return False
        raise
    return True


def list_waiting_jobs(directory: Path) -> tuple[WaitingJob, ...]:
    """Return the waiting jobs, whether the pre-run is open or closed, in order of job ids."""
    found = {}
    for folder in (WAITING, CLOSED):
        with suppress(OSError):
            for path in (directory / folder).iterdir():
                if path.name.isdecimal() and (one := _read_waiting_job(path)):
                    found[one.job_id] = one
    return tuple(found[job_id] for job_id in sorted(found))


def close(directory: Path) -> tuple[WaitingJob, ...]:
    """Close the pre-run and return its waiting jobs; no job can attach afterwards. May be called twice."""
    with suppress(OSError):
        (directory / WAITING).rename(directory / CLOSED)
    _wait_for_attaching_jobs(directory / CLOSED)
    return list_waiting_jobs(directory)


def _wait_for_attaching_jobs(closed: Path) -> None:
    """Wait for jobs that are attaching: they opened the directory before it was renamed and may still add their file.

    Their temporary file exists until then. A job that was killed leaves it there, so the wait is short.
    """
    deadline = time.monotonic() + DOOR_S
    while time.monotonic() < deadline:
        try:
            if not any(name.startswith(".") for name in os.listdir(closed)):
                return
        except OSError:
            return
        time.sleep(0.002)


def take(directory: Path, guest: WaitingJob) -> None:
    """Remove a job from the waiting ones: its fate is decided, or it has a trial of its own."""
    for folder in (WAITING, CLOSED):
        with suppress(OSError):
            (directory / folder / str(guest.job_id)).unlink()


def _read_waiting_job(path: Path) -> WaitingJob | None:
    try:
        release_at, trial_dir, *_ = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError):
        return None
    return WaitingJob(job_id=int(path.name), release_at=release_at, trial_dir=trial_dir)


def read_number(path: Path) -> int | None:
    """Return the number in a file; None when there is none."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _get_age(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat().st_mtime
    except OSError:
        return 0.0


def _get_touch_time(path: Path) -> float:
    """Return when an entry of this directory was last created or written, one level deep: active trials write there."""
    newest = path.stat().st_mtime
    with suppress(OSError):
        for entry in os.scandir(path):
            newest = max(newest, _get_age(entry))
    return newest
