"""Program that the shims of rm, cp, mv, ... call in a trial: run the command if it changes no file of the user.

`python -I -S touch_shim.py SHIMS_DIR NAME ARGUMENTS...`. trial_layout.py copies it to the directory of the shims, next
to file_effects.py and writable_paths.py. If the command only changes scratch, this process becomes the command. If it
would change the user's files, it is not run and the trial ends. Standard library only, nothing of slurmwrap.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.prerun.isolation import file_effects, writable_paths
else:
    # Import the copies in the directory of this file, which is not on sys.path because of -I. Python caches their
    # bytecode there.
    sys.path.insert(0, os.path.dirname(__file__))
    import file_effects
    import writable_paths

_MKDIR_VALUED = frozenset({"-m", "--mode"})


def main(argv: Sequence[str]) -> int:
    """Become the command, or end the trial. `argv`: directory of the shims, name of the command, arguments."""
    shims, name, *arguments = argv
    free = [f for f in os.environ.get("SLURMWRAP_FREE", "").split(":") if f]
    held = [f for f in os.environ.get("SLURMWRAP_HELD", "").split(":") if f]
    if name == "mkdir":
        _make_directories(arguments, free, held)
        if not file_effects.split(arguments, _MKDIR_VALUED)[1]:
            return 0
    for path in file_effects.find_changed_paths([name, *arguments], os.getcwd()):
        if _is_protected(name, path, free, held):
            _end_the_trial(name, path)
    _exec_program(name, shims, arguments)
    print(f"{name}: command not found", file=sys.stderr)
    return 127


def _is_protected(name: str, path: str, free: Sequence[str], held: Sequence[str]) -> bool:
    if path == file_effects.ENVIRONMENT:
        path = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX") or os.environ.get("HOME", "/")
    place = writable_paths.resolve_directories(path)
    if writable_paths.is_free(place, free, held):
        return False
    folder = os.path.dirname(place)
    # If the directory is missing, either the guard created it in the shadow tree, or the command fails as in the job.
    if not os.path.lexists(folder):
        return os.path.lexists(os.environ.get("SLURMWRAP_TRIAL_DIR", "") + "/outputs" + folder)
    if not (os.access(folder, os.W_OK) or (os.path.lexists(place) and os.access(place, os.W_OK))):
        # Without permission the command fails as in the real job and changes nothing.
        return False
    if name == "chmod" and os.access(place, os.R_OK | os.X_OK):  # `chmod +x run.sh` changes nothing the second time
        return False
    # Removing a missing file is harmless; many scripts contain `rm -f old.log`.
    return os.path.lexists(place) if name in file_effects.REMOVERS else True


def _make_directories(arguments: list[str], free: Sequence[str], held: Sequence[str]) -> None:
    """Create the missing directories of a mkdir here, so that it is certain that the trial created them."""
    options, folders = file_effects.split(arguments, _MKDIR_VALUED)
    for folder in folders:
        path = writable_paths.resolve_directories(file_effects.make_absolute(folder, os.getcwd()))
        missing = []
        while not writable_paths.is_free(path, free, held) and not os.path.lexists(path):
            missing.append(path)
            path = os.path.dirname(path)
        for path in reversed(missing if {"-p", "--parents"} & set(options) else missing[:1]):
            parent = os.path.dirname(path)
            try:
                before = os.stat(parent).st_mtime_ns
                os.mkdir(path)
                after = os.stat(parent).st_mtime_ns
            except OSError:
                # mkdir itself runs afterwards and reports the error.
                break
            with open(
                os.environ["SLURMWRAP_STEP_DIR"] + "/made", "a", encoding="utf-8", errors="surrogateescape"
            ) as made:
                made.write(f"{before} {after} {path}\n")
            if not {"-p", "--parents"} & set(options):
                arguments.remove(folder)


def _end_the_trial(name: str, path: str) -> None:
    """Report the write to the supervisor and wait to be killed, so that neither this command nor a later line runs."""
    import time

    folder = os.environ.get("SLURMWRAP_STEP_DIR", "/nonexistent")
    try:
        with open(f"{folder}/touched", "a", encoding="utf-8", errors="surrogateescape") as stream:
            stream.write(f"{name}\t{path}\n".replace(file_effects.UNKNOWN, "?"))
    except OSError:
        sys.exit(1)
    print(f"slurmwrap: this is a pre-run: '{name}' would touch {path}", file=sys.stderr, flush=True)
    while True:
        time.sleep(3600)


def _exec_program(name: str, shims: str, arguments: Sequence[str]) -> None:
    for folder in os.environ.get("PATH", os.defpath).split(":"):
        found = os.path.join(folder, name)
        if folder and folder != shims and os.access(found, os.X_OK) and not os.path.isdir(found):
            os.execv(found, [name, *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
