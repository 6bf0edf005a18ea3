"""Read a user's files with the rights of that user, in a forked child (adapter).

No function opens a user's path with root's rights. The child never calls exec: the user cannot trace a process that
changed its uid and did not exec. It keeps one open descriptor, a pipe to its parent.
"""
import os
import resource
import stat
import zlib

# A file's mark is the checksum of this many bytes before a position; it shows whether the file is still the same.
MARK = 1024
# Lines that precede the bytes read are counted only if those bytes begin within this many bytes of the file's start.
COUNTED = 4 << 20
# CAP_SETGID and CAP_SETUID: <linux/capability.h>
_CHANGE_IDS = 1 << 6 | 1 << 7
# Directory entries that are read for one pattern.
ENTRIES = 20000


class Unreadable(Exception):
    """Raised when a file is not read; its text is the reason and becomes part of the observation."""


def become(user, uid, gid, keep):
    """Change permanently to the uid, gid and groups of the user, and close all descriptors but `keep`.

    Raise Unreadable when the process still has another uid or could change it again. `uid` must not be 0.
    """
    os.chdir("/")
    if os.geteuid() != 0 and _capabilities() & _CHANGE_IDS == _CHANGE_IDS:
        # The kernel drops all capabilities when a process changes from uid 0 to another uid, but not from other uids.
        os.setresuid(0, 0, 0)
    if os.geteuid() == 0:
        os.initgroups(user, gid)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid, uid, uid) or uid == 0 or _capabilities() & _CHANGE_IDS:
        raise Unreadable("cannot become uid %d" % uid)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for descriptor in _open_descriptors():
        if descriptor != keep:
            try:
                os.close(descriptor)
            except OSError:
                # This was the descriptor with which /proc/self/fd was listed.
                pass


def may_become(uid):
    """Return whether this process can read with exactly the rights of `uid`.

    It can if it runs as `uid` or root, or has CAP_SETUID and CAP_SETGID (capabilities(7)), which systemd gives
    SlurmUser's reconciler at sites that want this.
    """
    own_uid = os.geteuid()
    return uid > 0 and (own_uid in (0, uid) or _capabilities() & _CHANGE_IDS == _CHANGE_IDS)


def _capabilities():
    """Return the effective capabilities as a bit mask; 0 when the kernel does not report them."""
    try:
        with open("/proc/self/status", "rb") as stream:
            for line in stream:
                if line.startswith(b"CapEff:"):
                    return int(line.split()[1], 16)
    except (OSError, ValueError):
        pass
    return 0


def _open_descriptors():
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return list(range(1024))


def find(components, uid, since):
    """Return the only path that matches `components`. Raise FileNotFoundError for none and Unreadable for several.

    If a component is a regular expression, only regular files of `uid` that were modified after Unix time `since`
    count.
    """
    paths = [b"/"]
    guessed = False
    for component in components:
        if isinstance(component, bytes):
            paths = [os.path.join(path, component) for path in paths]
        else:
            guessed = True
            paths = [os.path.join(path, name) for path in paths for name in _matching_names(path, component)]
    if guessed:
        if since is None:
            raise Unreadable("the pattern leaves the name open and the job's start is unknown")
        paths = [path for path in paths if _written_by(path, uid, since)]
    if len(paths) > 1:
        raise Unreadable("%d files match the pattern" % len(paths))
    if not paths or not os.path.lexists(paths[0]):
        raise FileNotFoundError
    return paths[0]


def _matching_names(directory, expression):
    return [name for name in listed(directory) if expression.match(name)]


def listed(directory, limit=ENTRIES):
    """Return the names in a directory (bytes). Raise Unreadable when there are more than `limit`."""
    names = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if len(names) >= limit:
                raise Unreadable("too many files in its directory")
            names.append(entry.name)
    return names


def _written_by(path, uid, since):
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == uid and found.st_mtime >= since - 2.0


def tail(path, uid, size):
    """Return (the last `size` bytes, whether bytes precede them) of a regular file that `uid` owns."""
    found = span(path, uid, size, None, counted=0)
    return found["data"], found["start"] > 0


def span(path, uid, size, begin, counted=COUNTED):
    """Read the last `size` bytes of the data added since `begin` to a regular file that `uid` owns.

    `begin`: [offset, mark], which are `total` and `mark` of an earlier call, or None. If the file has another mark
    there it was written anew, and all of its data counts as added. Return a dict: data, start (its offset), line
    (number of its first line; 1 when unknown), first (offset of the added data), total (size of the file in bytes),
    mark, and modified (Unix seconds). Raise Unreadable for anything but a regular file of `uid`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable("not a regular file")
        if found.st_uid != uid:
            raise Unreadable("it belongs to uid %d" % found.st_uid)
        total = found.st_size
        first = begin[0] if begin and begin[0] <= total and _checksum_before(descriptor, begin[0]) == begin[1] else 0
        start = max(first, total - size)
        line = os.pread(descriptor, start, 0).count(b"\n") + 1 if start <= counted else 1
        data = os.pread(descriptor, total - start, start)
        mark = _checksum_before(descriptor, total)
        return {
            "data": data,
            "start": start,
            "first": first,
            "line": line,
            "total": total,
            "mark": mark,
            "modified": found.st_mtime,
        }
    finally:
        os.close(descriptor)


def _checksum_before(descriptor, end):
    start = max(0, end - MARK)
    return "%08x" % zlib.crc32(os.pread(descriptor, end - start, start))
