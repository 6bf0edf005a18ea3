"""Edge: a user's files, read as that user in a forked child. Nothing here opens a user's path with root's rights.

The child never execs: a process that changed its uid cannot be traced by that user. It keeps one descriptor, a pipe.
"""
import os
import resource
import stat
import zlib

MARK = 1024  # bytes before a place in a file that report whether it is the same file still
COUNTED = 4 << 20  # lines are counted in so much of what is left out
_BECOMING = 1 << 6 | 1 << 7  # CAP_SETGID, CAP_SETUID: <linux/capability.h>
ENTRIES = 20000  # directory entries looked at for one pattern


class Unreadable(Exception):
    """Why a file is not read; the text goes into the observation."""


def become(user, uid, gid, keep):
    """Drops to the user for good; all descriptors but `keep` are closed. Raises when anything of root is left."""
    os.chdir("/")
    if os.geteuid() != 0 and _capabilities() & _BECOMING == _BECOMING:
        # From another uid the capabilities would stay; from root's the kernel takes them all.
        os.setresuid(0, 0, 0)
    if os.geteuid() == 0:
        os.initgroups(user, gid)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid, uid, uid) or uid == 0 or _capabilities() & _BECOMING:
        raise Unreadable("cannot become uid %d" % uid)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for descriptor in _open_descriptors():
        if descriptor != keep:
            try:
                os.close(descriptor)
            except OSError:
                # The one that listed the directory.
                pass


def may_become(uid):
    """Whether this process can read with the rights of `uid` and with no others: it is root, or has been given
    CAP_SETUID and CAP_SETGID (capabilities(7)), as systemd gives SlurmUser's reconciler where the site wants that."""
    ours = os.geteuid()
    return uid > 0 and (ours in (0, uid) or _capabilities() & _BECOMING == _BECOMING)


def _capabilities():
    """Those in force, as a bit mask; 0 where the kernel does not say."""
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
    """The one path that matches. Unreadable when none or several do.

    Where a component is an expression, only regular files of `uid` modified after Unix time `since` count.
    """
    paths = [b"/"]
    guessed = False
    for component in components:
        if isinstance(component, bytes):
            paths = [os.path.join(path, component) for path in paths]
        else:
            guessed = True
            paths = [os.path.join(path, name) for path in paths for name in _matching(path, component)]
    if guessed:
        if since is None:
            raise Unreadable("the pattern leaves the name open and the job's start is unknown")
        paths = [path for path in paths if _written_by(path, uid, since)]
    if len(paths) > 1:
        raise Unreadable("%d files match the pattern" % len(paths))
    if not paths or not os.path.lexists(paths[0]):
        raise FileNotFoundError
    return paths[0]


def _matching(directory, expression):
    return [name for name in listed(directory) if expression.match(name)]


def listed(directory, limit=ENTRIES):
    """The names in a directory (bytes). Unreadable when there are more than `limit`."""
    names = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if len(names) >= limit:
                raise Unreadable("too many files beside it")
            names.append(entry.name)
    return names


def _written_by(path, uid, since):
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == uid and found.st_mtime >= since - 2.0


def tail(path, uid, size):
    """(the last `size` bytes, whether there is more before them) of a regular file that `uid` owns."""
    found = span(path, uid, size, None, counted=0)
    return found["data"], found["start"] > 0


def span(path, uid, size, begin, counted=COUNTED):
    """The last `size` bytes of what was added since `begin` to a regular file that `uid` owns.

    `begin`: [bytes, mark] as an earlier call gave them, or None. Where the mark is not found there the file was begun
    anew, and all of it is read. Returns data, start (its offset), line (of its first byte, 1 when unknown), first
    (where what was added begins), total (bytes of the file), mark, and modified (Unix seconds).
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable("not a regular file")
        if found.st_uid != uid:
            raise Unreadable("it belongs to uid %d" % found.st_uid)
        total = found.st_size
        first = begin[0] if begin and begin[0] <= total and _mark(descriptor, begin[0]) == begin[1] else 0
        start = max(first, total - size)
        line = os.pread(descriptor, start, 0).count(b"\n") + 1 if start <= counted else 1
        data = os.pread(descriptor, total - start, start)
        mark = _mark(descriptor, total)
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


def _mark(descriptor, end):
    start = max(0, end - MARK)
    return "%08x" % zlib.crc32(os.pread(descriptor, end - start, start))
