"""A private overlay over the user's directories for one trial: what it writes is gone with it. Edge: a child process.

`plan` tries on this machine, in a throwaway process, what overlay_enter.py will do; any failure is an overlay that
covers nothing and says why. Upper layers lie on the node where they can (an NFS directory cannot be one).
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.prerun.isolation import overlay_enter
from slurmwrap.prerun.isolation.overlay_enter import NOT_ENTERED, is_below
from slurmwrap.prerun.trial.trial_spec import TrialSpec

__all__ = ["NOT_ENTERED", "Overlay", "find_overlay_breakage", "list_candidates", "plan"]

_PREFIX = "slurmwrap-overlay-"
_STALE_S = 7 * 86400.0
_LOCK = "lock"
# Of the free space, for the layers of one trial.
_SHARE = 0.8
# A file system that hangs costs the overlay, not the trial.
PROBE_S = 5.0
_ENTER = Path(overlay_enter.__file__)
# Programs that need a set-uid helper, which has no power in a user namespace that does not map root.
_SETUID = ("sudo", "apptainer", "singularity", "shifter", "sarus", "docker", "podman", "podman-hpc", "fusermount")
_OFF, _NO_NAMESPACE = "switched off", "cannot work in a user namespace"
# What a program of the user's meets in an overlay and nowhere else (measured): a file of another group, renaming a
# directory of the layer below, an upper layer that is full.
_SYMPTOMS = (
    *("Value too large for defined data type", "Invalid cross-device link", "No space left on device"),
    *("Disk quota exceeded", "Stale file handle"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """What is covered. `roots`: directories in which nothing can be changed; with none, `reason` says why."""

    roots: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # the job's directories that are not covered: another owner or group
    folder: str = ""  # upper and work layers, ours
    keep: tuple[str, ...] = ()  # directories below a root that stay as they are
    through: tuple[tuple[str, str], ...] = ()  # (directory, place below a root in which it is shown as it is)
    reason: str = ""
    # Held while the layers are ours.
    lock: int = -1
    # bytes that were free for the layers when they were made
    room: int = 0

    def command(self, argv: Sequence[str], binds: Sequence[tuple[str, str]] = ()) -> tuple[str, ...]:
        """`argv` as it is started: inside the overlay where there is one, with `binds` (source, target) put over."""
        if not self.roots and (self.reason == _OFF or self.reason.endswith(_NO_NAMESPACE) or not binds):
            return tuple(argv)
        keep = self.keep if self.roots else ()
        layers = [
            [root, f"{self._get_layer_path(i)}/upper", f"{self._get_layer_path(i)}/work"]
            for i, root in enumerate(self.roots)
        ]
        through = self.through if self.roots else ()
        told = json.dumps({"layers": layers, "keep": keep, "through": through, "binds": list(binds)})
        return (sys.executable, "-I", "-S", str(_ENTER), "run" if self.roots else "try", told, *argv)

    def covers(self, path: str) -> bool:
        """True when a change of `path` (absolute, known) stays in the overlay."""
        as_it_is = (*self.keep, *(place for _, place in self.through))
        return any(is_below(path, root) for root in self.roots) and not any(is_below(path, kept) for kept in as_it_is)

    def upper(self, path: str) -> str | None:
        """Where what the trial wrote to `path` lies; None when it is not covered."""
        for index, root in enumerate(self.roots):
            if self.covers(path) and is_below(path, root):
                return os.path.normpath(f"{self._get_layer_path(index)}/upper/{path[len(root) :]}")
        return None

    def crowds(self) -> bool:
        """True when what is written would fill the node's disk for others: four fifths of what was free are gone."""
        return bool(self.room) and _get_free_bytes(self.folder) < (1 - _SHARE) * self.room

    def remove(self) -> None:
        """Removes the layers once no process of the trial is left."""
        if self.lock >= 0:
            os.close(self.lock)
        if self.folder:
            with suppress(OSError):
                overlay_enter._open_up(self.folder)
            shutil.rmtree(self.folder, ignore_errors=True)

    def _get_layer_path(self, index: int) -> str:
        return f"{self.folder}/{index}"


def plan(spec: TrialSpec, environ: Mapping[str, str], *, programs: Iterable[str] = ()) -> Overlay:
    """An overlay for this trial, tried out; made of directories that the caller has to `remove()`.

    `programs`: names of what the script starts. Never raises.
    """
    if spec.overlay == "off":
        return Overlay(reason=_OFF)
    needy = sorted(set(programs) & set(_SETUID))
    if needy:
        return Overlay(reason=f"{needy[0]} {_NO_NAMESPACE}")
    try:
        return _plan_overlay(spec, environ)
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        return Overlay(reason=f"it could not be tried: {error}")


def _plan_overlay(spec: TrialSpec, environ: Mapping[str, str]) -> Overlay:
    keep = (os.path.realpath(spec.trial_dir),)
    scratch = _list_scratch_folders(spec, environ)
    user = environ.get("USER") or _get_user_name()
    told = {"candidates": list_candidates(spec, environ), "scratch": scratch, "user": user, "keep": keep}
    argv = (sys.executable, "-I", "-S", str(_ENTER), "probe", json.dumps(told))
    done = subprocess.run(argv, capture_output=True, timeout=PROBE_S, stdin=subprocess.DEVNULL)
    if done.returncode:
        return Overlay(reason=f"it could not be tried: {done.stderr.decode(errors='replace')[-200:]}")
    answer = json.loads(done.stdout)
    roots = tuple(root for root, why in answer["roots"].items() if not why)
    if not roots:
        reasons = sorted(set(answer["roots"].values())) or ["no directory of the job is the user's own"]
        return Overlay(reason="; ".join(reasons), left_out=tuple(answer["left_out"]))
    _remove_leftovers(answer["scratch"])
    folder = tempfile.mkdtemp(prefix=_PREFIX, dir=answer["scratch"])
    lock = _lock_folder(folder)
    for index in range(len(roots)):
        for name in ("upper", "work"):
            Path(folder, str(index), name).mkdir(parents=True, mode=0o700)
    refused = tuple(root for root, why in answer["roots"].items() if why)
    return Overlay(
        roots=roots,
        left_out=(*answer["left_out"], *refused),
        folder=folder,
        keep=keep,
        lock=lock,
        room=_get_free_bytes(folder),
    )


def _get_free_bytes(folder: str) -> int:
    """Bytes that an ordinary user may still write there; 0 where it is not known."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def _lock_folder(folder: str) -> int:
    """A lock that the kernel gives back when this process ends, however it ends; -1 where it cannot be had."""
    try:
        descriptor = os.open(f"{folder}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return -1
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _is_abandoned(directory: Path) -> bool:
    """True when no one holds its lock: a folder without one is just being made, or older than locks."""
    try:
        descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _remove_leftovers(scratch: str) -> None:
    """Removes what a supervisor of slurmwrap's left that was killed."""
    for folder in Path(scratch).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            found = folder.lstat()
            if found.st_uid == os.getuid() and (_is_abandoned(folder) or time.time() - found.st_mtime > _STALE_S):
                Overlay(folder=str(folder)).remove()


def list_candidates(spec: TrialSpec, environ: Mapping[str, str]) -> list[str]:
    """Directories that the job may write to, absolute: where it runs, home, those that its environment and its
    arguments name. Whether they are the user's own is found out on the node."""
    named = [spec.chdir, environ.get("SLURM_SUBMIT_DIR", ""), environ.get("HOME", ""), *spec.inputs]
    valued = (value for name, value in {**environ, **spec.environment}.items() if not name.startswith("SLURMWRAP_"))
    named += [value for value in valued if value.startswith("/") and ":" not in value and len(value) < 512]
    named += [part for word in spec.args for part in (word.partition("=")[2] or word,) if part.startswith("/")]
    scratch = ("/tmp", "/var/tmp", "/dev/shm", environ.get("TMPDIR", ""))
    home = [spec.chdir, environ.get("SLURM_SUBMIT_DIR", ""), environ.get("HOME", "")]
    return list(dict.fromkeys(p for p in named if p and (p in home or not any(s and is_below(p, s) for s in scratch))))


def find_overlay_breakage(text: str) -> str:
    """The first sign in the trial's output that the overlay, not the job, made it fail; "" when there is none."""
    return next((symptom for symptom in _SYMPTOMS if symptom in text), "")


def _list_scratch_folders(spec: TrialSpec, environ: Mapping[str, str]) -> list[str]:
    """Places for the upper layers, best first; what lies in memory counts against the job's own and comes last."""
    named = [environ.get("SLURM_TMPDIR", ""), environ.get("TMPDIR", ""), "/tmp", "/var/tmp"]
    usable = [p for p in dict.fromkeys(named) if p and Path(p).is_dir() and os.access(p, os.W_OK | os.X_OK)]
    return [*(os.path.realpath(p) for p in usable), os.path.realpath(spec.trial_dir), "/dev/shm"]


def _get_user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""
