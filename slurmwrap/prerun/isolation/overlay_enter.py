"""Program that runs a command with private overlays over the user's directories (adapter: namespaces and mounts).

`python -I -S overlay_enter.py probe|run|try JSON [COMMAND ...]`; standard library only, imports nothing of slurmwrap.
The process needs no privileges. It enters a user namespace that maps its own uid and gid to themselves, and a mount
namespace. It mounts there with the capabilities that the creator of a namespace has, and loses them all at exec,
because its uid is not 0 (user_namespaces(7)). All mounts vanish with the last process of the namespace. There is no PID
namespace, because the supervisor must see the process tree. Supplementary groups remain in force for access but are
shown as the group nobody.
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
_SYSTEM_FOLDERS = ("/proc", "/sys", "/dev", "/run", "/boot", "/etc", "/usr")
_NEVER_COVERED = ("/", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/var", "/mnt", "/srv", "/tmp", "/var/tmp", "/home")
# Exit code if the overlay could not be created and the command did not run.
NOT_ENTERED = 213


def main(argv: list[str]) -> int:
    """Run one of three modes.

    `probe` prints {"roots": {directory: reason or ""}, ...}. `run` mounts the overlays and becomes the command. `try`
    becomes the command with only the bind mounts, or without them if the kernel permits no namespace.
    """
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
        # The same message as that of the supervisor without an overlay.
        print(f"slurmstepd: error: execve(): bad interpreter({command[0]}): {error.strerror}", file=sys.stderr)
        return error.errno or 1


def probe(plan: dict[str, Any]) -> dict[str, Any]:
    """Find the directories to cover and test them, in this temporary process.

    `plan`: `candidates` and `scratch` (lists of directories), `user` (name), `keep`.
    """
    named = plan["candidates"] + _list_user_places(plan["user"])
    roots, foreign = select_roots(
        named, _stat_owner, _is_writable, climbs=os.getuid() != 0
    )  # not for root, who owns all parent directories
    failures = {}
    for scratch in _list_outside(plan["scratch"], roots):
        failures = _try_scratch(scratch, roots, plan["keep"])
        if roots and not all(failures.values()):
            return {"roots": failures, "foreign": foreign, "scratch": scratch}
    return {"roots": failures, "foreign": foreign, "scratch": ""}


def _list_outside(scratch: list[str], roots: list[str]) -> list[str]:
    """Sort the scratch directories so that those below a root come last.

    Not every kernel supports an upper layer inside its own lower layer.
    """
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
    """Run `work` in a child process, because each attempt needs new namespaces."""
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
    """Do typical file operations below `root` and return the error, or "". They only reach the upper layer."""
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
    """Enter the namespaces and mount the overlays. Return {directory: why it could not be covered, or ""}.

    `layers`: [directory, upper, work]. `keep`: directories that stay uncovered although they are below a covered one.
    `through`: [directory, place]: the directory is mounted uncovered at the place below a covered directory; a missing
    place is created in the overlay, and a mount that fails is skipped. Raise OSError if the kernel permits no
    namespace.
    """
    # The order matters: the descriptors of uncovered directories are opened before the overlays hide them, and bind
    # mounts of them follow after the overlays.
    uid, gid = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    _check_returned(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "unshare")
    # Without this, gid_map must not be written (user_namespaces(7)).
    _write_text("/proc/self/setgroups", "deny")
    _write_text("/proc/self/uid_map", f"{uid} {uid} 1")
    _write_text("/proc/self/gid_map", f"{gid} {gid} 1")
    # Open them in the new mount namespace: directories of another one cannot be bind-mounted (EINVAL, measured).
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
            _mount_uncovered(libc, descriptor, place)
        os.close(descriptor)
    # The current directory is still that of the lower layer, so enter it again by its path.
    os.chdir(os.getcwd())
    return results


def _open_places(through: list[list[str]]) -> list[tuple[str, int]]:
    """Return (place, descriptor of the directory that is mounted there)."""
    found = []
    for folder, place in through:
        try:
            found.append((place, os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)))
        except OSError:
            continue
    return found


def _mount_uncovered(libc: ctypes.CDLL, descriptor: int, place: str) -> None:
    try:
        os.makedirs(place, exist_ok=True)
        _mount(libc, f"/proc/self/fd/{descriptor}", place, None, _MS_BIND | _MS_REC, None)
    except OSError:
        # The directory is not mounted, so what the trial writes there vanishes with the overlay.
        pass


def put_over(binds: list[list[str]]) -> None:
    """Bind-mount each `source` file over `target`, in order: the shims over Slurm's commands, however they are called.

    A mount that fails is skipped, because other measures protect against these commands as well.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for source, target in binds:
        try:
            _mount(libc, source, target, None, _MS_BIND, None)
        except OSError:
            continue


def _mount_overlay(libc: ctypes.CDLL, root: str, upper: str, work: str) -> str:
    if set(":,\\\n") & set(root + upper + work):
        return "its name has a character that mount(2) does not accept"
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


def _write_text(path: str, text: str) -> None:
    with open(path, "w") as stream:
        stream.write(text)


def is_below(path: str, folder: str) -> bool:
    """Return whether `path` is `folder` or is below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def select_roots(
    candidates: list[str], is_own: Callable[[str], bool], is_writable: Callable[[str], bool], *, climbs: bool
) -> tuple[list[str], list[str]]:
    """Return (directories to cover, candidates among or below them that are writable but have another owner or group).

    If `climbs`, the highest ancestor that belongs to the user is covered instead of a candidate, or the highest one
    that the user may write to if the candidate is another's. overlay_copies.py prepares the other's directories.
    """
    roots: list[str] = []
    foreign: list[str] = []
    for candidate in candidates:
        folder = _find_existing(os.path.normpath(candidate)) if candidate.startswith("/") else ""
        if not folder or folder in _NEVER_COVERED or any(is_below(folder, system) for system in _SYSTEM_FOLDERS):
            continue
        if is_own(folder):
            roots.append(_find_highest(folder, is_own) if climbs else folder)
        elif is_writable(folder):
            foreign.append(folder)
            roots.append(_find_highest(folder, lambda at: is_writable(at) and not _is_public(at)) if climbs else folder)
    outer = {root for root in roots if not any(root != other and is_below(root, other) for other in roots)}
    return sorted(outer), list(dict.fromkeys(foreign))


def _is_public(folder: str) -> bool:
    """Return whether everyone may write to the directory, as to the top of a scratch file system."""
    try:
        return bool(os.stat(folder).st_mode & 0o002)
    except OSError:
        return True


def _find_existing(path: str) -> str:
    while path != "/" and not os.path.isdir(path):
        path = os.path.dirname(path)
    return os.path.realpath(path)


def _find_highest(folder: str, is_own: Callable[[str], bool]) -> str:
    while True:
        parent = os.path.dirname(folder)
        if parent in _NEVER_COVERED or os.path.ismount(folder) or not is_own(parent):
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
    """Return the user's directories on mounted file systems, such as /scratch/NAME, to which scripts may write."""
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
    """Make all directories removable: overlayfs leaves work/work without any permission."""
    for at, _, _ in os.walk(folder):
        for name in os.listdir(at):
            path = os.path.join(at, name)
            if os.path.isdir(path) and not os.path.islink(path):
                os.chmod(path, 0o700)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
