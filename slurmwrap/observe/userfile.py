"""Edge: a user's files, read as that user in a forked child. Nothing here opens a user's path with root's rights.

The child never execs: a process that changed its uid cannot be traced by that user. It keeps one descriptor, a pipe.
"""
import os
import resource
import stat

ENTRIES = 20000  # directory entries looked at for one pattern


class Unreadable(Exception):
    """Why a file is not read; the text goes into the observation."""


def become(user, uid, gid, keep):
    """Drops to the user for good; all descriptors but `keep` are closed. Raises when anything of root is left."""
    os.chdir("/")
    if os.geteuid() == 0:
        os.initgroups(user, gid)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid, uid, uid) or uid == 0:
        raise Unreadable("cannot become uid %d" % uid)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for descriptor in _open_descriptors():
        if descriptor != keep:
            try:
                os.close(descriptor)
            except OSError:
                pass  # the one that listed the directory


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
    names = []
    with os.scandir(directory) as entries:
        for count, entry in enumerate(entries):
            if count >= ENTRIES:
                raise Unreadable("too many files beside it")
            if expression.match(entry.name):
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
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable("not a regular file")
        if found.st_uid != uid:
            raise Unreadable("it belongs to uid %d" % found.st_uid)
        start = max(0, found.st_size - size)
        return os.pread(descriptor, size, start), start > 0
    finally:
        os.close(descriptor)
