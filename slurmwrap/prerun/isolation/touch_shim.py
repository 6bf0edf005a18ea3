"""The program behind the shims of rm, cp, mv, ...: `python -I -S touch_shim.py SHIMS_DIR NAME ARGUMENTS...`.

It runs in front of each of these commands in a trial, from the directory of the shims, where trial_layout.py copies it
next to file_effects.py and writable_paths.py. A command that stays in scratch is started in its place; one that would
reach the user's files is not, and the trial ends there. Standard library only and nothing of slurmwrap.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.prerun.isolation import file_effects, writable_paths
else:
    # The files next to this one, which Python keeps compiled there; -I leaves their directory out.
    sys.path.insert(0, os.path.dirname(__file__))
    import file_effects
    import writable_paths

_MKDIR_VALUED = frozenset({"-m", "--mode"})


def main(argv: Sequence[str]) -> int:
    """`argv`: directory of the shims, name, arguments. Becomes the command, or ends the trial."""
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
    # The guard made it in the shadow tree, or this fails as in the real job.
    if not os.path.lexists(folder):
        return os.path.lexists(os.environ.get("SLURMWRAP_TRIAL_DIR", "") + "/outputs" + folder)
    if not (os.access(folder, os.W_OK) or (os.path.lexists(place) and os.access(place, os.W_OK))):
        # It will fail there as in the real job, and change nothing.
        return False
    if name == "chmod" and os.access(place, os.R_OK | os.X_OK):  # `chmod +x run.sh`, again
        return False
    # What is not there cannot be removed; `rm -f old.log` is in many a script.
    return os.path.lexists(place) if name in file_effects.REMOVERS else True


def _make_directories(arguments: list[str], free: Sequence[str], held: Sequence[str]) -> None:
    """mkdir: makes what is missing itself, so that it is known for sure that the trial made it and no one else."""
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
                # The command itself says what is wrong.
                break
            with open(
                os.environ["SLURMWRAP_STEP_DIR"] + "/made", "a", encoding="utf-8", errors="surrogateescape"
            ) as made:
                made.write(f"{before} {after} {path}\n")
            if not {"-p", "--parents"} & set(options):
                arguments.remove(folder)


def _end_the_trial(name: str, path: str) -> None:
    """Tells the supervisor and waits to be ended by it: neither this command nor a later line runs."""
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
