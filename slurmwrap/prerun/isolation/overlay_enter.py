"""Starts a command with private overlays over the user's directories. Edge: namespaces and mounts, as a plain user.

`python -I -S overlay_enter.py probe|run JSON [COMMAND ...]`, standard library only, imports nothing of slurmwrap.
The process enters a user namespace that maps its own uid and gid to themselves, and a mount namespace; mounts there
with the capabilities that the namespace's maker holds, and loses them all at exec, since its uid is not 0
(user_namespaces(7)). Everything goes with the last process of the namespace. No PID namespace: the supervisor has to
see the tree. Supplementary groups stay in force for access but are shown as no one's.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from typing import Any

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000  # linux/sched.h
_MS_BIND, _MS_REC = 0x1000, 0x4000  # linux/mount.h
_PSEUDO = (
    *("proc", "sysfs", "devtmpfs", "devpts", "tmpfs", "ramfs", "cgroup", "cgroup2", "mqueue", "debugfs", "tracefs"),
    *("securityfs", "pstore", "bpf", "configfs", "hugetlbfs", "fusectl", "binfmt_misc", "efivarfs", "autofs"),
    *("rpc_pipefs", "nsfs", "overlay", "squashfs", "iso9660"),
)
_SYSTEM = ("/proc", "/sys", "/dev", "/run", "/boot", "/etc", "/usr")
_NEVER = ("/", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/var", "/mnt", "/srv", "/tmp", "/var/tmp", "/home")
# Exit code: the overlay did not come about, the command did not run.
NOT_ENTERED = 213


def main(argv: list[str]) -> int:
    """`probe` prints {"roots": {directory: reason or ""}, ...}; `run` becomes the command; `try` too, with
    nothing but the binds, and without them where the kernel gives no namespace."""
    mode, plan, command = argv[0], json.loads(argv[1]), argv[2:]
    if mode == "probe":
        print(json.dumps(probe(plan)))
        return 0
    try:
        alone = mode == "try" and _run_in_child(lambda: enter([], []), ["namespace"])
        tried = {} if alone else enter(plan["layers"], plan["keep"], plan.get("through"))
        failed = {root: why for root, why in tried.items() if why}
    except OSError as error:
        failed = {"namespace": str(error)}
    if failed:
        print(f"slurmwrap: no private overlay: {failed}", file=sys.stderr)
        return NOT_ENTERED
    put_over([] if alone else plan.get("binds", []))
    try:
        os.execvpe(command[0], command, os.environ)
    except OSError as error:
        # As the supervisor says it where there is no overlay.
        print(f"slurmstepd: error: execve(): bad interpreter({command[0]}): {error.strerror}", file=sys.stderr)
        return error.errno or 1


def probe(plan: dict[str, Any]) -> dict[str, Any]:
    """Finds the directories to cover and tries them, in this throwaway process.

    `plan`: candidates and scratch (lists of directories), user (name), keep.
    """
    named = plan["candidates"] + _list_user_places(plan["user"])
    roots, left_out = select_roots(
        named, _stat_owner, _is_writable, climbs=os.getuid() != 0
    )  # root's own is everything
    failures = {}
    for scratch in _list_outside(plan["scratch"], roots):
        failures = _try_scratch(scratch, roots, plan["keep"])
        if roots and not all(failures.values()):
            return {"roots": failures, "left_out": left_out, "scratch": scratch}
    return {"roots": failures, "left_out": left_out, "scratch": ""}


def _list_outside(scratch: list[str], roots: list[str]) -> list[str]:
    """An upper layer inside its own lower one is not for every kernel: such places come last."""
    return sorted(scratch, key=lambda folder: any(is_below(folder, root) for root in roots))


def _try_scratch(scratch: str, roots: list[str], keep: list[str]) -> dict[str, str]:
    import shutil
    import tempfile

    try:
        folder = tempfile.mkdtemp(prefix="slurmwrap-probe-", dir=scratch)
    except OSError as error:
        return dict.fromkeys(roots, str(error))
    try:
        return _run_in_child(lambda: _try_all(folder, roots, keep), roots)
    finally:
        _open_up(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _run_in_child(work: Callable[[], dict[str, str]], roots: list[str]) -> dict[str, str]:
    """In a process of its own: the next place for the upper layers needs fresh namespaces."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        raw = stream.read()
    os.waitpid(child, 0)
    found: dict[str, str] = json.loads(raw) if raw else dict.fromkeys(roots, "the kernel ended the probe")
    return found


def _try_all(folder: str, roots: list[str], keep: list[str]) -> dict[str, str]:
    layers = [[root, f"{folder}/{i}/upper", f"{folder}/{i}/work"] for i, root in enumerate(roots)]
    for _, upper, work in layers:
        os.makedirs(upper)
        os.makedirs(work)
    try:
        failures = enter(layers, keep)
    except OSError as error:
        return dict.fromkeys(roots, str(error))
    return {root: why or _try_file_operations(root) for root, why in failures.items()}


def _try_file_operations(root: str) -> str:
    """What a trial does in there: make, write, rename, remove, make again. Lands in the upper layer only."""
    place = os.path.join(root, ".slurmwrap-probe")
    try:
        os.mkdir(place)
        with open(os.path.join(place, "a"), "w") as stream:
            stream.write("a")
        os.rename(os.path.join(place, "a"), os.path.join(place, "b"))
        os.unlink(os.path.join(place, "b"))
        os.rmdir(place)
        os.mkdir(place)
        os.rmdir(place)
    except OSError as error:
        return str(error)
    return ""


def enter(layers: list[list[str]], keep: list[str], through: list[list[str]] | None = None) -> dict[str, str]:
    """Puts this process into the namespaces and mounts; {directory: why it could not be covered, "" when it was}.

    `layers`: [directory, upper, work]. `keep`: directories that stay as they are although they lie below one of them.
    `through`: [directory, place]: directories that are shown as they are in a place below one of them, which is made in
    the overlay where it is not there; one that cannot be is left.
    Raises OSError where the kernel gives no namespace.
    """
    uid, gid = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    _check_returned(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "unshare")
    # Or gid_map may not be written (user_namespaces(7)).
    _put("/proc/self/setgroups", "deny")
    _put("/proc/self/uid_map", f"{uid} {uid} 1")
    _put("/proc/self/gid_map", f"{gid} {gid} 1")
    # Opened in the new mount namespace: from another one nothing can be bound (EINVAL, measured).
    kept = [(folder, os.open(folder, os.O_PATH | os.O_DIRECTORY)) for folder in keep]
    shown = _open_places(through or [])
    results = {root: _mount_overlay(libc, root, upper, work) for root, upper, work in layers}
    for folder, descriptor in kept:
        covered = any(is_below(folder, root) for root, why in results.items() if not why)
        if covered:
            _mount(libc, f"/proc/self/fd/{descriptor}", folder, None, _MS_BIND | _MS_REC, None)
        os.close(descriptor)
    for place, descriptor in shown:
        if any(is_below(place, root) for root, why in results.items() if not why):
            _show(libc, descriptor, place)
        os.close(descriptor)
    # The directory below us is still the one underneath.
    os.chdir(os.getcwd())
    return results


def _open_places(through: list[list[str]]) -> list[tuple[str, int]]:
    """(place, descriptor of what is shown there)."""
    found = []
    for folder, place in through:
        try:
            found.append((place, os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)))
        except OSError:
            continue
    return found


def _show(libc: ctypes.CDLL, descriptor: int, place: str) -> None:
    try:
        os.makedirs(place, exist_ok=True)
        _mount(libc, f"/proc/self/fd/{descriptor}", place, None, _MS_BIND | _MS_REC, None)
    except OSError:
        # What is written there goes with the overlay.
        pass


def put_over(binds: list[list[str]]) -> None:
    """Shows each `source` file in the place of `target`, in order: our shims in the place of Slurm's commands, however
    they are called. One that does not come about is left: the other nets hold."""
    libc = ctypes.CDLL(None, use_errno=True)
    for source, target in binds:
        try:
            _mount(libc, source, target, None, _MS_BIND, None)
        except OSError:
            continue


def _mount_overlay(libc: ctypes.CDLL, root: str, upper: str, work: str) -> str:
    if set(":,\\\n") & set(root + upper + work):
        return "its name cannot be said to mount(2)"
    try:
        options = f"lowerdir={root},upperdir={upper},workdir={work},userxattr"
        _mount(libc, "overlay", root, "overlay", 0, options)
    except OSError as error:
        return str(error)
    return ""


def _mount(libc: ctypes.CDLL, source: str, target: str, kind: str | None, flags: int, options: str | None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    _check_returned(libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]), target)


def _check_returned(returned: int, what: str) -> None:
    if returned < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def _put(path: str, text: str) -> None:
    with open(path, "w") as stream:
        stream.write(text)


def is_below(path: str, folder: str) -> bool:
    """True when `path` is `folder` or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def select_roots(
    candidates: list[str], is_own: Callable[[str], bool], is_writable: Callable[[str], bool], *, climbs: bool
) -> tuple[list[str], list[str]]:
    """(directories to cover, candidates that are writable and cannot be): of each the highest ancestor of their own,
    where it `climbs`.

    What belongs to another uid or gid cannot be copied up (EOVERFLOW, measured): such a directory is left out, and with
    it the one that it lies in.
    """
    roots: list[str] = []
    left_out = []
    for candidate in candidates:
        folder = _find_existing(os.path.normpath(candidate)) if candidate.startswith("/") else ""
        if not folder or folder in _NEVER or any(is_below(folder, system) for system in _SYSTEM):
            continue
        if is_own(folder):
            roots.append(_find_highest(folder, is_own) if climbs else folder)
        elif is_writable(folder):
            left_out.append(folder)
    roots, foreign = _sort_roots(set(roots), set(left_out))
    return roots, sorted({*left_out, *foreign})


def _sort_roots(roots: set[str], left_out: set[str]) -> tuple[list[str], list[str]]:
    """(the outermost of `roots`, those of them that hold a directory which would be read-only in the overlay)."""
    outer = {root for root in roots if not any(root != other and is_below(root, other) for other in roots)}
    foreign = {root for root in outer if any(is_below(folder, root) for folder in left_out)}
    return sorted(outer - foreign), sorted(foreign)


def _find_existing(path: str) -> str:
    while path != "/" and not os.path.isdir(path):
        path = os.path.dirname(path)
    return os.path.realpath(path)


def _find_highest(folder: str, is_own: Callable[[str], bool]) -> str:
    while True:
        parent = os.path.dirname(folder)
        if parent in _NEVER or os.path.ismount(folder) or not is_own(parent):
            return folder
        folder = parent


def _stat_owner(folder: str) -> bool:
    try:
        found = os.stat(folder)
    except OSError:
        return False
    return (found.st_uid, found.st_gid) == (os.getuid(), os.getgid()) and _is_writable(folder)


def _is_writable(folder: str) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def _list_user_places(user: str) -> list[str]:
    """Directories of the user's name on the file systems mounted here: scripts write to /scratch/NAME unasked."""
    if not user or "/" in user:
        return []
    found = []
    for mount in _list_mounts():
        places = (f"{mount}/{user}", f"{mount}/users/{user}", f"{mount}/home/{user}", f"{mount}/{user[0]}/{user}")
        found += [place for place in places if _stat_owner(place)]
    return found


def _list_mounts() -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as stream:
        rows = [line.split() for line in stream]
    kinds = [(row[4], row[row.index("-") + 1]) for row in rows]
    return [mount.rstrip("/") for mount, kind in kinds if kind not in _PSEUDO and "\\" not in mount][:64]


def _open_up(folder: str) -> None:
    """overlayfs leaves work/work without any permission."""
    for at, _, _ in os.walk(folder):
        for name in os.listdir(at):
            path = os.path.join(at, name)
            if os.path.isdir(path) and not os.path.islink(path):
                os.chmod(path, 0o700)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
