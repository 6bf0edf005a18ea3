"""Edge: pre-runs in flight, and the jobs that wait for someone else's. Files in the user's own state directory.

    inflight/<group>             one line: the trial directory of the pre-run that speaks for this group
    prerun/<id>/job              one line: the id of the pre-run's Slurm job; written when Slurm took it
    prerun/<id>/waiting/<job>    a job that attached: two lines, the StartTime that releases it, its own trial directory
    prerun/<id>/closed/          what `waiting` is called once the pre-run takes no more: one rename shuts the door

Who attaches writes a file aside within `waiting` and renames it there. Either this rename comes before that of the
directory, then the pre-run finds the job; or it fails with ENOENT, then the job knows that it must look elsewhere.
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
# sbatch itself gives up after 120 s: a pre-run without a job id that is older never came to be
_SUBMITTING_S = 150.0
# Who is at the door when it shuts needs a rename more.
DOOR_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJob:
    """A job that waits for the pre-run of another."""

    job_id: int
    release_at: str
    trial_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InflightPrerun:
    """A pre-run as its files show it."""

    directory: Path
    # None: not submitted yet, or never.
    job_id: int | None
    since: float  # Unix seconds

    def submitting(self, now: float) -> bool:
        """Its sbatch may still be at work."""
        return self.job_id is None and now - self.since < _SUBMITTING_S


@dataclass(frozen=True, slots=True)
class PrerunRegistry:
    """The pre-runs of one user. `state` is config.user_state_dir(environ). OSError where nothing can be written."""

    state: str | Path

    def claim(self, group: str, directory: str) -> bool:
        """Makes `directory` the pre-run of `group`; False when another one is."""
        from pathlib import Path

        opened = Path(directory) / WAITING
        opened.mkdir(mode=0o700, exist_ok=True)
        pointers = Path(self.state) / POINTERS
        pointers.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = pointers / f".{group[:32]}.{os.getpid()}"
        aside.write_text(f"{directory}\n", encoding="utf-8")
        try:
            # Unlike a rename it does not replace; whole from the first moment.
            os.link(aside, pointers / group)
        except FileExistsError:
            return False
        finally:
            aside.unlink(missing_ok=True)
        return True

    def of(self, group: str) -> InflightPrerun | None:
        """The pre-run that speaks for `group`."""
        from pathlib import Path

        try:
            directory = Path(Path(self.state, POINTERS, group).read_text(encoding="utf-8").strip())
        except (OSError, ValueError):
            return None
        return read_flight(directory) or InflightPrerun(directory=directory, job_id=None, since=0.0)

    def drop(self, group: str, directory: str) -> None:
        """Forgets that `directory` speaks for `group`. A pointer that names another one stays."""
        if not group:
            return
        from pathlib import Path

        pointer = Path(self.state, POINTERS, group)
        with suppress(OSError, ValueError):
            if pointer.read_text(encoding="utf-8").strip() == str(directory):
                pointer.unlink(missing_ok=True)

    def trials(self) -> tuple[Path, ...]:
        """All trial directories, oldest first."""
        try:
            found = [entry for entry in os.scandir(f"{self.state}/{TRIALS}") if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return ()
        if not found:
            return ()
        # Most calls of gsub do without.
        from pathlib import Path

        return tuple(Path(entry.path) for entry in sorted(found, key=_get_age))

    def prune(self, older_than_s: float, *, now: float | None = None, keep: frozenset[str] = frozenset()) -> int:
        """Removes trials that nothing touched for so long; `keep` names trials in flight.

        Returns how many. What cannot be removed stays for the next time.
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


def read_flight(directory: Path) -> InflightPrerun | None:
    """What the files of one trial directory say; None when it is not there."""
    try:
        since = directory.stat().st_mtime
    except OSError:
        return None
    return InflightPrerun(directory=directory, job_id=read_number(directory / JOB), since=since)


def mark_submitted(directory: str, job_id: int) -> None:
    """Slurm took the pre-run of this directory."""
    from pathlib import Path

    aside = Path(directory) / f".{JOB}"
    aside.write_text(f"{job_id}\n", encoding="ascii")
    aside.replace(Path(directory) / JOB)


def attach(directory: Path, guest: WaitingJob) -> bool:
    """Lets a job wait for this pre-run; False when its door is shut."""
    aside = directory / WAITING / f".{guest.job_id}"
    try:
        aside.write_text(f"{guest.release_at}\n{guest.trial_dir}\n", encoding="utf-8")
        aside.rename(directory / WAITING / str(guest.job_id))
    except OSError as error:
        # ESTALE: the same over NFS.
        if error.errno in (errno.ENOENT, errno.ESTALE):
            with suppress(OSError):
                # Who shuts the door waits for it.
                (directory / CLOSED / aside.name).unlink()
            return False
        raise
    return True


def list_waiting_jobs(directory: Path) -> tuple[WaitingJob, ...]:
    """Who waits now, whether the door is open or shut; in order of job ids."""
    found = {}
    for folder in (WAITING, CLOSED):
        with suppress(OSError):
            for path in (directory / folder).iterdir():
                if path.name.isdecimal() and (one := _read_waiting_job(path)):
                    found[one.job_id] = one
    return tuple(found[job_id] for job_id in sorted(found))


def close(directory: Path) -> tuple[WaitingJob, ...]:
    """Shuts the door and returns who waits; no one can attach from then on. Twice does no harm."""
    with suppress(OSError):
        (directory / WAITING).rename(directory / CLOSED)
    _wait_for_the_door(directory / CLOSED)
    return list_waiting_jobs(directory)


def _wait_for_the_door(closed: Path) -> None:
    """Who had found the directory before it was renamed still enters by its old name, after we would have looked.

    Their file lies aside until then. One that was killed leaves it there: so not for long.
    """
    late = time.monotonic() + DOOR_S
    while time.monotonic() < late:
        try:
            if not any(name.startswith(".") for name in os.listdir(closed)):
                return
        except OSError:
            return
        time.sleep(0.002)


def take(directory: Path, guest: WaitingJob) -> None:
    """This guest's fate is settled (or it has a trial of its own)."""
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
    """The one number that a file holds; None when there is none."""
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
    """When something in this directory was last made or written, one level deep: a trial in flight writes there."""
    newest = path.stat().st_mtime
    with suppress(OSError):
        for entry in os.scandir(path):
            newest = max(newest, _get_age(entry))
    return newest
