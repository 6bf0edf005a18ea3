"""Plan a private overlay (overlayfs) over the user's directories for one trial, so that its writes vanish with it.

Adapter: a child process and files. `plan` tests on this machine, in a temporary process, what overlay_enter.py will do.
If that fails, it returns an overlay that covers nothing, with the reason. The upper layers are on local disks of the
node if possible (an NFS directory cannot be one).
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.prerun.isolation import overlay_enter
from slurmwrap.prerun.isolation.overlay_copies import fill_upper_layer
from slurmwrap.prerun.isolation.overlay_enter import NOT_ENTERED, is_below
from slurmwrap.prerun.trial.trial_spec import TrialSpec

__all__ = ["NOT_ENTERED", "Overlay", "find_overlay_error", "list_candidates", "plan"]

_PREFIX = "slurmwrap-overlay-"
_STALE_S = 7 * 86400.0
_LOCK = "lock"
# Share of the free disk space that the layers of one trial may use.
_MAX_SHARE = 0.8
# Time limit of the test in seconds: if a file system hangs, the trial runs without an overlay.
PROBE_S = 5.0
_ENTER_PROGRAM = Path(overlay_enter.__file__)
# Programs that need a set-uid helper, which gets no privileges in a user namespace that does not map root.
_SETUID = ("sudo", "shifter", "sarus", "docker", "nerdctl", "podman", "podman-hpc", "fusermount")
# These work without privileges unless they are installed with a set-uid starter (Apptainer's INSTALL.md).
_PERHAPS_SETUID = ("apptainer", "singularity")
_SWITCHED_OFF, _NO_NAMESPACE = "switched off", "cannot work in a user namespace"
# Errors that an overlay may cause in the user's program (measured): for a file of another group, for renaming a
# directory of the lower layer, or when the upper layer is full.
_SYMPTOMS = (
    *("Value too large for defined data type", "Invalid cross-device link", "No space left on device"),
    *("Disk quota exceeded", "Stale file handle"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """A planned overlay. `roots`: directories that are covered; if there are none, `reason` is the reason."""

    roots: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # directories of the job that cannot be covered
    folder: str = ""  # directory with the upper and work layers
    keep: tuple[str, ...] = ()  # directories below a root that are not covered
    through: tuple[tuple[str, str], ...] = ()  # (directory, path below a root at which it is mounted uncovered)
    reason: str = ""
    # Descriptor of the lock file that is held while the layers are in use.
    lock: int = -1
    # Bytes that were free for the layers when they were created.
    room: int = 0

    def command(self, argv: Sequence[str], binds: Sequence[tuple[str, str]] = ()) -> tuple[str, ...]:
        """Return the command line that runs `argv` inside the overlay, if there is one, with the bind mounts `binds`.

        `binds`: pairs (source, target).
        """
        if not self.roots and (self.reason == _SWITCHED_OFF or self.reason.endswith(_NO_NAMESPACE) or not binds):
            return tuple(argv)
        keep = self.keep if self.roots else ()
        layers = [
            [root, f"{self._get_layer_path(i)}/upper", f"{self._get_layer_path(i)}/work"]
            for i, root in enumerate(self.roots)
        ]
        through = self.through if self.roots else ()
        mounts = json.dumps({"layers": layers, "keep": keep, "through": through, "binds": list(binds)})
        return (sys.executable, "-I", "-S", str(_ENTER_PROGRAM), "run" if self.roots else "try", mounts, *argv)

    def covers(self, path: str) -> bool:
        """Return whether a change of `path` (absolute and known) stays in the overlay."""
        uncovered = (*self.keep, *(place for _, place in self.through))
        return any(is_below(path, root) for root in self.roots) and not any(is_below(path, kept) for kept in uncovered)

    def upper(self, path: str) -> str | None:
        """Return the path in the upper layer of what the trial wrote to `path`; None if `path` is not covered."""
        for index, root in enumerate(self.roots):
            if self.covers(path) and is_below(path, root):
                return os.path.normpath(f"{self._get_layer_path(index)}/upper/{path[len(root) :]}")
        return None

    def is_filling_disk(self) -> bool:
        """Return whether the layers may fill the node's disk: four fifths of the space that was free are used."""
        return bool(self.room) and _get_free_bytes(self.folder) < (1 - _MAX_SHARE) * self.room

    def remove(self) -> None:
        """Remove the layers. Call this after all processes of the trial have ended."""
        if self.lock >= 0:
            os.close(self.lock)
        if self.folder:
            with suppress(OSError):
                overlay_enter._open_up(self.folder)
            shutil.rmtree(self.folder, ignore_errors=True)

    def _get_layer_path(self, index: int) -> str:
        return f"{self.folder}/{index}"


def plan(spec: TrialSpec, environ: Mapping[str, str], *, programs: Iterable[str] = ()) -> Overlay:
    """Return a tested overlay for this trial. It creates directories; the caller must call `remove()`.

    `programs`: names of the programs that the script starts. Never raises.
    """
    if spec.overlay == "off":
        return Overlay(reason=_SWITCHED_OFF)
    path = environ.get("PATH", "")
    needy = sorted(name for name in set(programs) if needs_setuid(name, shutil.which(name, path=path) or ""))
    if needy:
        return Overlay(reason=f"{needy[0]} {_NO_NAMESPACE}")
    try:
        return _plan_overlay(spec, environ)
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        return Overlay(reason=f"it could not be tested: {error}")


def needs_setuid(name: str, program: str) -> bool:
    """Return whether a program needs a set-uid helper. `program`: its path; "" if it is not known.

    Apptainer and Singularity do if their starter-suid has the bit. Without it, or if it is not found, they use a user
    namespace, which the trial's own does not prevent.
    """
    if name in _SETUID:
        return True
    if name not in _PERHAPS_SETUID or not program:
        return False
    prefix = Path(os.path.realpath(program)).parents[1]
    places = (prefix / "libexec", Path("/usr/libexec"), Path("/usr/local/libexec"), prefix / "lib")
    return any(_has_setuid(place / name / "bin" / "starter-suid") for place in places)


def _has_setuid(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & stat.S_ISUID)
    except OSError:
        return False


def _plan_overlay(spec: TrialSpec, environ: Mapping[str, str]) -> Overlay:
    keep = (os.path.realpath(spec.trial_dir),)
    scratch = _list_scratch_folders(spec, environ)
    user = environ.get("USER") or _get_user_name()
    request = {"candidates": list_candidates(spec, environ), "scratch": scratch, "user": user, "keep": keep}
    argv = (sys.executable, "-I", "-S", str(_ENTER_PROGRAM), "probe", json.dumps(request))
    done = subprocess.run(argv, capture_output=True, timeout=PROBE_S, stdin=subprocess.DEVNULL)
    if done.returncode:
        return Overlay(reason=f"it could not be tested: {done.stderr.decode(errors='replace')[-200:]}")
    answer = json.loads(done.stdout)
    roots = tuple(root for root, why in answer["roots"].items() if not why)
    if not roots:
        reasons = sorted(set(answer["roots"].values())) or ["the user may write to no directory of the job"]
        return Overlay(reason="; ".join(reasons), left_out=tuple(answer["roots"]))
    _remove_leftovers(answer["scratch"])
    folder = tempfile.mkdtemp(prefix=_PREFIX, dir=answer["scratch"])
    lock = _lock_folder(folder)
    for index, root in enumerate(roots):
        for name in ("upper", "work"):
            Path(folder, str(index), name).mkdir(parents=True, mode=0o700)
        places = [place for place in answer["foreign"] if is_below(place, root)]
        fill_upper_layer(root, f"{folder}/{index}/upper", places)
    return Overlay(
        roots=roots,
        left_out=tuple(root for root, why in answer["roots"].items() if why),
        folder=folder,
        keep=keep,
        lock=lock,
        room=_get_free_bytes(folder),
    )


def _get_free_bytes(folder: str) -> int:
    """Return the bytes that an unprivileged user may still write there; 0 if unknown."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def _lock_folder(folder: str) -> int:
    """Lock the folder and return the descriptor; -1 if that fails. The kernel releases it when this process ends."""
    try:
        descriptor = os.open(f"{folder}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return -1
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _is_abandoned(directory: Path) -> bool:
    """Return whether no process holds the folder's lock.

    A folder without a lock file does not count: it is just being created, or is from a version without locks.
    """
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
    """Remove the layers of trials whose supervisor was killed."""
    for folder in Path(scratch).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            found = folder.lstat()
            if found.st_uid == os.getuid() and (_is_abandoned(folder) or time.time() - found.st_mtime > _STALE_S):
                Overlay(folder=str(folder)).remove()


def list_candidates(spec: TrialSpec, environ: Mapping[str, str]) -> list[str]:
    """Return the directories that the job may write to, as absolute paths.

    These are the working directory, the home directory, and the paths in its environment and arguments. The probe on
    the node checks whether they belong to the user.
    """
    named = [spec.chdir, environ.get("SLURM_SUBMIT_DIR", ""), environ.get("HOME", ""), *spec.inputs]
    valued = (value for name, value in {**environ, **spec.environment}.items() if not name.startswith("SLURMWRAP_"))
    named += [value for value in valued if value.startswith("/") and ":" not in value and len(value) < 512]
    named += [part for word in spec.args for part in (word.partition("=")[2] or word,) if part.startswith("/")]
    scratch = ("/tmp", "/var/tmp", "/dev/shm", environ.get("TMPDIR", ""))
    home = [spec.chdir, environ.get("SLURM_SUBMIT_DIR", ""), environ.get("HOME", "")]
    return list(dict.fromkeys(p for p in named if p and (p in home or not any(s and is_below(p, s) for s in scratch))))


def find_overlay_error(text: str) -> str:
    """Return the first error in the trial's output that the overlay may have caused; "" if there is none."""
    return next((symptom for symptom in _SYMPTOMS if symptom in text), "")


def _list_scratch_folders(spec: TrialSpec, environ: Mapping[str, str]) -> list[str]:
    """Return directories for the upper layers, best first. Memory file systems use the job's memory and come last."""
    named = [environ.get("SLURM_TMPDIR", ""), environ.get("TMPDIR", ""), "/tmp", "/var/tmp"]
    usable = [p for p in dict.fromkeys(named) if p and Path(p).is_dir() and os.access(p, os.W_OK | os.X_OK)]
    return [*(os.path.realpath(p) for p in usable), os.path.realpath(spec.trial_dir), "/dev/shm"]


def _get_user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""
